"""The only Jinja: from a plan to the texts of a run directory. It writes nothing and reads only packaged files."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import jinja2

from slurm_llm import __version__
from slurm_llm.assets import agent_files, rehearsal_files, templates_dir
from slurm_llm.errors import InputError, Problem
from slurm_llm.plan.steps import helper_step, sbatch_options, world_step
from slurm_llm.plan.types import Plan, plan_to_json
from slurm_llm.rundir import AGENT, JOB_SCRIPT, PLAN, RANK_SCRIPT, REPOSITORY, TRITON
from slurm_llm.topology import ParallelSizes

OPT_TRITON = "/opt/tritonserver"
STOP_SPARE_S = 5
"""Seconds that an orderly stop may take beyond Triton's own exit timeout."""


@dataclass(frozen=True)
class Target:
    """Where a plan is rendered to: the run directory as compute nodes see it, and the Python that runs the agent."""

    run_dir: Path
    python: str


def render(plan: Plan, target: Target) -> dict[str, str]:
    """Return path (relative to the run directory) → text of every file that depends on the plan.

    Raises:
        InputError: the run directory's path cannot be written into a script.
    """
    templates = _environment()
    common = {"plan": plan, "python": target.python, "version": __version__}
    files = {
        JOB_SCRIPT: templates.get_template("job.sub.j2").render(**common, **_job_variables(plan, target)),
        RANK_SCRIPT: templates.get_template("rank.sh.j2").render(**common, **_rank_variables(plan, target)),
        PLAN: plan_to_json(plan),
    }
    files.update({f"{AGENT}/{name}": text for name, text in agent_files().items()})
    files.update({f"{REPOSITORY}/{path}": text for path, text in _repository(plan, templates).items()})
    return files


def _repository(plan: Plan, templates: jinja2.Environment) -> dict[str, str]:
    assets = rehearsal_files()
    server = plan.server
    made = {}
    for file in server.repository:
        if file.template is not None:
            template = templates.get_template(file.template)
            made[file.path] = template.render(model_name=server.model_name, parameters=server.parameters)
        elif file.asset is not None:
            made[file.path] = assets[file.asset]
    return made


def _job_variables(plan: Plan, target: Target) -> dict[str, object]:
    output = slurm_pattern(str(target.run_dir)) + "/slurm-%j.out"
    return {
        "run_dir": str(target.run_dir),
        "sbatch": sbatch_options(plan, output),
        "layout": _layout(plan.sizes),
        "helper_step": shlex.join(helper_step(plan)),
        "preflight_step": shlex.join(world_step(plan)),
        "server_steps": [(one, shlex.join(world_step(plan, one))) for one in plan.instances],
        "stop_s": plan.server.exit_timeout_s + STOP_SPARE_S,
    }


def _layout(sizes: ParallelSizes) -> str:
    moe = sizes.moe_expert_parallel_size > 1
    named = (
        ("tp", sizes.tensor_parallel_size),
        ("cp", sizes.context_parallel_size),
        ("pp", sizes.pipeline_parallel_size),
        ("moe_tp", sizes.moe_tensor_parallel_size if moe else 1),
        ("moe_ep", sizes.moe_expert_parallel_size),
    )
    return " · ".join(f"{name}{size}" for name, size in named if size > 1) or "one rank"


def _rank_variables(plan: Plan, target: Target) -> dict[str, object]:
    homes = [home for home in (plan.server.home, OPT_TRITON) if home]
    folder = target.python.rpartition("/")[0]
    # LLMRUN_TAG is <job id>.<attempt>.
    prefix = plan.shm_prefix.format(job_id="${LLMRUN_TAG%.*}", attempt="${LLMRUN_TAG#*.}", rank="${rank}")
    common = {"repository": REPOSITORY, "triton": TRITON, "python_first": folder}
    return {"homes": homes, "shm_prefix": prefix, **common}


def slurm_pattern(path: str) -> str:
    """Return `path` as part of a Slurm file name pattern: `%` doubled.

    Raises:
        InputError: a backslash, which turns off Slurm's patterns, or a control character.
    """
    if "\\" in path or any(ord(character) < 32 for character in path):
        what = f"{path!r} cannot be a run directory"
        todo = "set log_root to another folder"
        raise InputError(Problem("log_root", what, "no backslash or control character", todo))
    return path.replace("%", "%%")


def _sh(value: object) -> str:
    return shlex.quote(str(value))


def _sbatch(value: object) -> str:
    """Return one option as sbatch's own parser reads it: quotes around, backslash before quote and backslash."""
    text = str(value)
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise InputError(Problem("#SBATCH", f"{text!r} holds a control character"))
    if re.fullmatch(r"[A-Za-z0-9=_./:,%@+-]*", text):
        return text
    name, equals, given = text.partition("=") if text.startswith("--") else ("", "", text)
    escaped = (given if equals else text).replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"' if equals else f'"{escaped}"'


def _comment(value: object) -> str:
    text = "".join(character if character.isprintable() else "?" for character in str(value))
    return text if len(text) <= 80 else text[:79] + "…"


def _refuse_none(value: object) -> object:
    if value is None:
        raise jinja2.UndefinedError("a template printed None")
    return value


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        finalize=_refuse_none,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Bash writes ${#array[@]}: Jinja's own comment mark would start there.
        comment_start_string="<#",
        comment_end_string="#>",
        autoescape=False,
    )
    environment.filters.update(sh=_sh, sbatch=_sbatch, comment=_comment)
    return environment
