"""CSCS's container engine: srun --environment with an environment definition file (EDF) that is made for the run.

Grammar from eth-cscs/cscs-docs, docs/software/container-engine/{edf,run}.md: TOML; mounts are SOURCE:TARGET[:FLAGS];
`${NAME}` is expanded everywhere and `$${NAME}` stands for itself; --environment as a directive of the job is
discouraged. It runs on CSCS's own build of pyxis, whose rules for images and mounts hold here too.
"""

from __future__ import annotations

import json
import re

from slurm_llm.containers.pyxis import HASHED_FORM, IMPORT_HINT, check_hashed
from slurm_llm.containers.references import is_path
from slurm_llm.containers.runtime import Call, Fault, Runtime, Words, bind_words
from slurm_llm.sites.containers import ContainerRules

DEFINITION = "container.toml"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


def _text(value: str) -> str:
    # A JSON string is a TOML one, as long as no character is written as two halves.
    return json.dumps(value, ensure_ascii=False)


def _literal(value: str) -> str:
    return _text(value.replace("${", "$${"))


def _key(name: str) -> str:
    return ".".join(part if _BARE_KEY.match(part) else _text(part) for part in name.split("."))


class CscsContainerEngine(Runtime):
    """srun --environment=RUN/container.toml; the tasks of a node share one container."""

    name = "cscs_ce"
    section = "cscs_ce"
    refused = ',:"$`\\'
    import_hint = IMPORT_HINT

    def check_image(self, image: str) -> Fault | None:
        if image.endswith(".toml"):
            what = f"'{image}' is an environment definition file, and no image"
            return Fault(what, HASHED_FORM, "name the image in it; the profile may build on it: container.cscs_ce.base")
        return check_hashed("the container engine", image) if image else None

    def pulls(self, image: str) -> bool:
        return bool(image) and not is_path(image)

    def check_rules(self, rules: ContainerRules) -> Fault | None:
        names = rules.cscs_ce.annotations
        for name in names:
            if "" in name.split(".") or any(other.startswith(f"{name}.") for other in names):
                return Fault(f"annotation '{name}' is a table or has an empty part", "names like com.hooks.cxi.enabled")
        return None

    def definition(self, rules: ContainerRules) -> str:
        own = rules.cscs_ce
        lines = [] if own.base is None else [f"base_environment = {_text(own.base)}"]
        lines += [] if own.writable is None else [f"writable = {'true' if own.writable else 'false'}"]
        if own.annotations:
            # What the site writes here may use the engine's own ${NAME}.
            lines += ["", "[annotations]", *(f"{_key(name)} = {_text(text)}" for name, text in own.annotations.items())]
        return "\n".join(lines)

    def step_options(self, call: Call) -> Words:
        return (f"--environment={call.run_dir}/{DEFINITION}", *call.plan.options)

    def files(self, call: Call) -> dict[str, str]:
        plan = call.plan
        mounts = "".join(f"    {_literal(word)},\n" for word in bind_words("", call.mounts))
        lines = [f"image = {_literal(plan.image)}"] if plan.image else []
        lines += [f"workdir = {_literal(call.workdir)}", f"mounts = [\n{mounts}]"]
        return {DEFINITION: "\n".join([*lines, *([plan.edf] if plan.edf else [])]) + "\n"}


RUNTIME = CscsContainerEngine()
