"""The only Jinja: from a plan to the texts of a run directory. It writes nothing and reads only packaged files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import jinja2

from slurm_llm import __version__, containers
from slurm_llm.assets import agent_files, rehearsal_files, templates_dir
from slurm_llm.errors import InputError, Problem
from slurm_llm.expansion import expand
from slurm_llm.knownerrors import load_known_errors
from slurm_llm.plan.access import FIRST_RELEASE, KEY_HEADER, access_groups
from slurm_llm.plan.asjson import plan_to_json
from slurm_llm.plan.steps import JOB_OPTIONS, client_step, sbatch_options, shell_line, step_lines, world_step
from slurm_llm.plan.types import ModulePlan, Plan
from slurm_llm.rundir import (
    AGENT,
    CLIENT_SCRIPT,
    ENTER_SCRIPT,
    IMAGE_FOUND,
    IMAGE_LOOK_SCRIPT,
    IMAGE_SCRIPT,
    JOB_SCRIPT,
    KNOWN_ERRORS,
    PLAN,
    PROBE_RANK_SCRIPT,
    PROBE_SCRIPT,
    RANK_SCRIPT,
    REPOSITORY,
    REPOSITORY_RECIPE,
    TRITON,
)
from slurm_llm.topology import ParallelSizes

OPT_TRITON = "/opt/tritonserver"
STOP_SPARE_S = 5
"""Seconds that an orderly stop may take beyond Triton's own exit timeout."""


@dataclass(frozen=True)
class Target:
    """Where a plan is rendered to: the run directory as compute nodes see it, and the Python that runs the agent.

    `environ` is what `$NAME` in paths of the site and the spec stands for.
    """

    run_dir: Path
    python: str
    environ: Mapping[str, str] = field(default_factory=dict)


def _begun(plan: Plan, target: Target) -> tuple[Plan, jinja2.Environment, dict[str, object]]:
    """Return what every rendering begins with: the plan with its paths expanded, templates, and their variables.

    Raises:
        InputError: a variable in a path that is not set.
    """
    plan = _expanded(plan, target.environ)
    shared = _shared_variables(plan, target.python)
    common = {"plan": plan, "python": target.python, "version": __version__, **shared}
    return plan, _environment(plan.templates), common


def _agent_files() -> dict[str, str]:
    return {f"{AGENT}/{name}": text for name, text in agent_files().items()}


def render(plan: Plan, target: Target) -> dict[str, str]:
    """Return path (relative to the run directory) → text of every file that depends on the plan.

    Raises:
        InputError: the run directory's path cannot be written into a script.
    """
    plan, templates, common = _begun(plan, target)
    files = {
        JOB_SCRIPT: _filled(templates, "job.sub.j2", **common, **_job_variables(plan, target)),
        RANK_SCRIPT: _filled(templates, "rank.sh.j2", **common, **_rank_variables(plan, target)),
        PLAN: plan_to_json(plan),
    }
    if plan.client is not None:
        step = shell_line(client_step(plan, str(target.run_dir)))
        files[CLIENT_SCRIPT] = _filled(templates, "client.sh.j2", **common, client=plan.client, step=step)
    files.update(_container_files(plan, target, templates, common))
    files.update(_agent_files())
    files[f"{AGENT}/{KNOWN_ERRORS}"] = json.dumps(load_known_errors(), indent=0) + "\n"
    files.update({f"{REPOSITORY}/{path}": text for path, text in _repository(plan, templates).items()})
    if plan.server.image_files:
        files[REPOSITORY_RECIPE] = _recipe(plan, target)
    return files


def render_probe(plan: Plan, target: Target) -> dict[str, str]:
    """Return path → text of a probe's files that depend on the plan; its ranks start as those of a job do.

    Raises:
        InputError: as `render`.
    """
    plan, templates, common = _begun(plan, target)
    files = {
        PROBE_SCRIPT: _filled(templates, "probe.sub.j2", **common, **_job_variables(plan, target)),
        PROBE_RANK_SCRIPT: _filled(templates, "probe-rank.sh.j2", **common),
    }
    files.update(_container_files(plan, target, templates, common))
    files.update(_agent_files())
    return files


def render_image(plan: Plan, target: Target) -> dict[str, str]:
    """Return path → text of the files of a look into the image, whose plan has one instance with one task.

    Raises:
        InputError: as `render`.
    """
    plan, templates, common = _begun(plan, target)
    homes = [home for home in (plan.server.home, OPT_TRITON) if home]
    files = {
        IMAGE_SCRIPT: _filled(templates, "image.sub.j2", **common, **_job_variables(plan, target)),
        IMAGE_LOOK_SCRIPT: _filled(templates, "image-look.sh.j2", **common, found=IMAGE_FOUND, homes=homes),
    }
    files.update(_container_files(plan, target, templates, common))
    files.update(_agent_files())
    return files


def render_load(plan: Plan, **variables: object) -> str:
    """Return the script that runs a load generator; `variables` are those of load.sh.j2 beside the plan.

    Raises:
        InputError: a template of the site's own folder is wrong.
    """
    return _filled(_environment(plan.templates), "load.sh.j2", plan=plan, **variables)


@dataclass(frozen=True)
class RenderedStage:
    """The job of a stage beside serving: options of sbatch, shell text that makes its environment, the words that get a
    command into its container (none without one), and files of its folder."""

    options: tuple[str, ...]
    environment: str
    enter: tuple[str, ...]
    files: dict[str, str]


def render_stage(plan: Plan, target: Target) -> RenderedStage:
    """Return the job of a stage, whose plan has one instance with one task.

    Raises:
        InputError: as `render`.
    """
    plan, templates, common = _begun(plan, target)
    run_dir = str(target.run_dir)
    own = {"module_commands": _module_commands(plan.modules), "job_options": JOB_OPTIONS}
    enter: tuple[str, ...] = ()
    if plan.container is not None:
        by_srun = plan.step.by_srun
        enter = world_step(plan, run_dir, plan.instances[0]) if by_srun else containers.wrap(plan.container, run_dir)
    return RenderedStage(
        options=sbatch_options(plan, ""),
        environment=_filled(templates, "environment.sh.j2", **common, **own),
        enter=enter,
        files=_container_files(plan, target, templates, common),
    )


def _recipe(plan: Plan, target: Target) -> str:
    """Return what agent/repository.py reads: the run's own repository, and what is taken from the image."""
    files = [
        {
            "path": one.path,
            "sources": one.sources,
            "replace": one.replace,
            "fill": dict(one.fill),
            "append": one.append,
        }
        for one in plan.server.image_files
    ]
    return json.dumps({"own": f"{target.run_dir}/{REPOSITORY}", "files": files}, indent=1) + "\n"


def _repository(plan: Plan, templates: jinja2.Environment) -> dict[str, str]:
    assets = rehearsal_files()
    server = plan.server
    made = {}
    for file in server.repository:
        if file.template is not None:
            variables = {"model_name": server.model_name, "parameters": server.parameters}
            made[file.path] = _filled(templates, file.template, **variables)
        elif file.asset is not None:
            made[file.path] = assets[file.asset]
        elif file.text is not None:
            made[file.path] = file.text
    return made


def _job_variables(plan: Plan, target: Target) -> dict[str, object]:
    output = slurm_pattern(str(target.run_dir)) + "/slurm-%j.out"
    run_dir = str(target.run_dir)
    return {
        "run_dir": run_dir,
        "sbatch": sbatch_options(plan, output),
        "layout": _layout(plan.sizes),
        "hands_over": plan.service is not None and plan.service.hands_over,
        "module_commands": _module_commands(plan.modules),
        "job_options": JOB_OPTIONS,
        **step_lines(plan, run_dir),
        "agent_options": f" --clocks {shlex.quote(plan.gpu_clocks)}" if plan.gpu_clocks else "",
        # With --gpu-bind=none Slurm tells a task nothing of its GPUs.
        "preflight_gpus": 0 if plan.step.gpu_bind == "none" else plan.allocation.gpus.per_node,
        "preflight_options": _preflight_options(plan),
        "need_nodes": plan.allocation.nodes if plan.allocation.spare_nodes else 0,
        "excluded_nodes": f" --excluded {shlex.quote(plan.allocation.exclude)}" if plan.allocation.exclude else "",
        "stop_s": plan.server.exit_timeout_s + STOP_SPARE_S,
        "key_header": KEY_HEADER,
    }


def _shared_variables(plan: Plan, python: str) -> dict[str, object]:
    inside = plan.container is not None
    home = () if plan.hf_home is None else (("HF_HOME", plan.hf_home),)
    return {
        "environment": (*home, *plan.env.set),
        "restate": inside,
        "inner_python": shlex.quote(python if plan.container is None else plan.container.python),
    }


def _preflight_options(plan: Plan) -> str:
    words = ["--mpi"] if plan.preflight_mpi else []
    words += [] if plan.step.by_srun else ["--no-srun"]
    words += [] if plan.interface is None else ["--interface", plan.interface]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _module_commands(modules: ModulePlan) -> list[str]:
    commands = ["module purge"] if modules.purge else []
    commands += [f"module use {shlex.quote(path)}" for path in modules.use]
    commands += [f"module unload {shlex.quote(name)}" for name in modules.unload]
    return commands + [f"module load {shlex.quote(name)}" for name in modules.load]


def _expanded(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return `plan` with `$NAME` and `~` replaced in its paths.

    Raises:
        InputError: every variable that is not set.
    """
    problems: list[Problem] = []

    def expanded(text: str, where: str) -> str:
        try:
            return expand(text, environ, where)
        except InputError as error:
            problems.extend(error.problems)
            return text

    home = None if plan.hf_home is None else expanded(plan.hf_home, "storage.hf_home")
    container = plan.container
    if container is not None:
        container = containers.expand(container, lambda text: expanded(text, "container"))
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return replace(plan, hf_home=home, container=container)


def _container_files(
    plan: Plan, target: Target, templates: jinja2.Environment, common: Mapping[str, object]
) -> dict[str, str]:
    own, run_dir = plan.container, str(target.run_dir)
    if own is None:
        return {}
    made = dict(containers.files(own, run_dir))
    if containers.wrap(own, run_dir):
        variables = containers.enter_variables(own, run_dir)
        made[ENTER_SCRIPT] = _filled(templates, "enter.sh.j2", **common, **variables)
    return made


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
    # In a container the image's own Python is the one that Triton's stub is to take.
    folder = "" if plan.container is not None else target.python.rpartition("/")[0]
    # LLMRUN_TAG is <job id>.<attempt>.
    prefix = plan.shm_prefix.format(job_id="${LLMRUN_TAG%.*}", attempt="${LLMRUN_TAG#*.}", rank="${rank}")
    return {
        "homes": homes,
        "shm_prefix": prefix,
        "repository": REPOSITORY,
        "recipe": REPOSITORY_RECIPE,
        "triton": TRITON,
        "python_first": folder,
        "slots": plan.allocation.gpu_slots,
        "access_groups": access_groups(plan.access),
        "first_keyed": FIRST_RELEASE,
        "raise_files": "n" not in dict(plan.ulimits),
    }


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


def _filled(templates: jinja2.Environment, name: str, **variables: object) -> str:
    """Return the template `name` with its variables.

    Raises:
        InputError: a template of the site's own folder is wrong.
    """
    try:
        return templates.get_template(name).render(**variables)
    except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, UnicodeError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        what, todo = f"cannot be filled: {error}", "correct it, or remove `templates` from the profile"
        raise InputError(Problem(f"template {name}{line}", what, todo=todo)) from None


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


def _environment(override: str | None) -> jinja2.Environment:
    folders = [templates_dir()] if override is None else [Path(override), templates_dir()]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
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
