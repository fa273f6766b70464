"""Submitting stages: each missing product in turn, in a job that waits for the one before it, or here and now."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.app import Job
from slurm_llm.errors import Problem, RunFailed, SetupError, SlurmError
from slurm_llm.ownfiles import make_folder, write_texts
from slurm_llm.plan import Plan
from slurm_llm.render import RenderedStage, Target, render_stage
from slurm_llm.rundir import STAGE_RECIPE, STAGE_SUBMISSION
from slurm_llm.slurm.formats import JobId
from slurm_llm.stagerecord import StageRef, load_result
from slurm_llm.stages.asking import stage_options
from slurm_llm.stages.executor import Submission, submit
from slurm_llm.stages.planning import LOGIN, PlannedStage
from slurm_llm.stages.recipe import Recipe, recipe_to_json
from slurm_llm.stages.runner import run_stage
from slurm_llm.surroundings import Surroundings

KILL_INVALID = "--kill-on-invalid-dep=yes"
"""Without it a job whose dependency has failed waits for ever (Slurm's DependencyNeverSatisfied)."""
_CAN_IMPORT = "import submitit, slurm_llm.stages.runner"
_CAN_FIND = 'import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, ("submitit", "slurm_llm.stages"))))'
"""The same in a tenth of the time, for a job that imports them right afterwards."""

Told = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """One stage's job: its plan, the recipe in its folder, further files there, and what its Python calls with it."""

    recipe: Recipe
    plan: Plan
    folder: Path
    function: Callable[[str], str]
    texts: tuple[tuple[str, str], ...] = ()


def submit_stages(
    job: Job, planned: Sequence[PlannedStage], folder: Path, around: Surroundings, told: Told
) -> list[StageRef]:
    """Make what is missing: run the stages of this machine, submit the others one after the other; return those.

    Raises:
        RunFailed: a stage of this machine failed; SetupError, SubmitError: a job cannot be submitted. Jobs that were
        submitted are cancelled then.
    """
    needed = [one for one in planned if one.needed]
    if not needed:
        return []
    python = stage_python(job, around) if any(one.where != LOGIN for one in needed) else ""
    refs: list[StageRef] = []
    try:
        for one in needed:
            place = folder / one.name
            if one.where == LOGIN:
                _run_here(one, place, told)
                continue
            work = Work(one.recipe, one.plan, place, run_stage)
            refs.append(submit_work(work, python, depend_on(refs[-1].job_id) if refs else (), around))
    except BaseException:
        cancel_stages(refs, around)
        raise
    return refs


def depend_on(job_id: str, kind: str = "afterok") -> tuple[str, ...]:
    """Return the options of sbatch for a job that starts after another one."""
    return (f"--dependency={kind}:{job_id}", KILL_INVALID)


def cancel_stages(refs: Sequence[StageRef], around: Surroundings) -> None:
    """Cancel submitted stages, as when what they are for could not be submitted."""
    for ref in reversed(refs):
        with suppress(SlurmError, SetupError):
            around.slurm().cancel(JobId(int(ref.job_id)))


def stage_python(job: Job, around: Surroundings) -> str:
    """Return the Python that stages run with on compute nodes: one that has this package and submitit.

    Raises:
        SetupError: there is none, as far as this machine can tell.
    """
    own, site = job.plan.python, job.plan.site
    if own is None or own == sys.executable:
        place = Path(sys.executable)
        if Path(job.plan.local_dir) in place.parents:
            what = f"{place} lies in {job.plan.local_dir}, which is each node's own: stages cannot run with it"
            raise SetupError(Problem("python", what, "a Python that all nodes share", "install slurm_llm there"))
        return str(place)
    done = around.runner((own, "-c", _CAN_IMPORT), env=around.environ)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it does not start"])[-1]
        what = f"stages are functions of this package, and {own}, the Python of site {site}, cannot import it: {said}"
        todo = f"`{own} -m pip install 'slurm-llm[stages]'`, or leave `python` out where nodes see this environment"
        raise SetupError(Problem("python", what, todo=todo))
    return own


def render_work(work: Work, python: str, around: Surroundings) -> RenderedStage:
    """Return the stage's job as it will be submitted.

    Raises:
        InputError: a path that no script or container can name.
    """
    made = render_stage(work.plan, Target(work.folder, python, around.environ))
    recipe = wrapped(work.recipe, made.enter)
    files = {**made.files, **dict(work.texts), STAGE_RECIPE: recipe_to_json(recipe)}
    return replace(made, options=stage_options(made.options), files=files)


def submit_work(work: Work, python: str, after: Sequence[str], around: Surroundings) -> StageRef:
    """Write a stage's folder and submit its job, with the further options `after`.

    Raises:
        InputError, SetupError, SubmitError: see `render_work` and `executor.submit`.
    """
    made = render_work(work, python, around)
    write_folder(work.folder, made.files)
    submission = Submission(
        function=work.function,
        argument=str(work.folder),
        folder=work.folder / STAGE_SUBMISSION,
        python=python,
        options=(*made.options, *after),
        setup=tuple(_setup(python, made.environment)),
    )
    return StageRef(work.recipe.name, submit(submission, around.environ), str(work.folder))


def write_folder(folder: Path, texts: dict[str, str]) -> None:
    """Write a stage's files; its folder is the user's alone.

    Raises:
        SetupError: the file system refuses.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        write_texts(folder, texts)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise SetupError(Problem(str(folder), what, todo="set log_root to a folder of yours")) from None


def _setup(python: str, environment: str) -> list[str]:
    """Return shell lines before the stage: the environment of a serving job, and a check that Python finds us."""
    words, need = shlex.quote(python), shlex.quote(f"{python} needs slurm_llm and submitit to run a stage")
    message = f'echo "slurm_llm: node ${{SLURMD_NODENAME:-$HOSTNAME}}: "{need}'
    check = f"{words} -c {shlex.quote(_CAN_FIND)} || {{ {message}; exit 127; }}"
    return [f"python={words}", *environment.splitlines(), check]


def wrapped(recipe: Recipe, enter: Sequence[str]) -> Recipe:
    """Return the recipe with the words that get its commands into the container."""
    commands = tuple(
        replace(one, argv=(*enter, *one.argv), shown=one.text) if one.inside and enter else one
        for one in recipe.commands
    )
    return replace(recipe, commands=commands)


def _run_here(one: PlannedStage, folder: Path, told: Told) -> None:
    """Run a stage on this machine.

    Raises:
        RunFailed: it failed, with the end of its log.
    """
    told(f"stage {one.name} runs on this machine, its log is in {folder}")
    write_folder(folder, {STAGE_RECIPE: recipe_to_json(one.recipe)})
    try:
        run_stage(str(folder))
    except RunFailed as failure:
        result = load_result(folder)
        if result is None:
            raise
        problems = [*failure.problems, *(Problem("", f"  | {row}") for row in result.log)]
        problems += [Problem("", result.why, todo=result.remedy)] if result.why else []
        raise RunFailed(problems) from None
