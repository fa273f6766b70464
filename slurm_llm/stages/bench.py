"""The bench stage: a command beside the server, once that is ready, in a job of its own."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_llm.errors import NotReady, Problem, RunFailed, SetupError, SlurmError
from slurm_llm.observe.endpoint import variables
from slurm_llm.plan import Plan
from slurm_llm.preparation import Bench
from slurm_llm.rundir import STAGE_LOG, RunPaths
from slurm_llm.runs import FoundRun
from slurm_llm.stagerecord import CANCELLED, DONE, FAILED, StageResult
from slurm_llm.stages.chain import Work
from slurm_llm.stages.recipe import BENCH, Command, Recipe, load_recipe
from slurm_llm.stages.runner import StageStopped, ended, note, run_command, told_to_end, write_result
from slurm_llm.surroundings import Surroundings
from slurm_llm.waiting import cancel, wait_ready

ABOUT = "bench.json"


@dataclass(frozen=True)
class About:
    """Whom a bench measures, and how: the run, its job, variables for the command, what happens to the server then."""

    run_dir: str
    job_id: int
    env: dict[str, str]
    stop_server: bool
    wait_s: int | None


def bench_work(plan: Plan, own: Bench, found: FoundRun, folder: Path) -> Work:
    """Return the bench's job, planned by `plan_stage`, for a run that has been submitted."""
    recipe = Recipe(BENCH, str(found.paths.root), "", (Command(own.command, own.in_image),), None, "")
    number = found.job.job_id if found.job else 0
    env = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in own.env.items()}
    about = About(str(found.paths.root), number, env, own.stop_server, own.wait_s)
    return Work(recipe, plan, folder, run_bench, ((ABOUT, json.dumps(asdict(about), indent=1) + "\n"),))


def run_bench(folder: str) -> str:
    """Wait until the server is ready, run the command, and end the server where that is asked for; return the state.

    Raises:
        RunFailed: the server did not get ready, or the command failed; the result file says why.
    """
    place = Path(folder)
    about = About(**json.loads((place / ABOUT).read_text(encoding="utf-8")))
    paths, around, began = RunPaths(Path(about.run_dir)), Surroundings.of_this_process(), time.time()
    found = FoundRun(paths, paths.job(about.job_id))
    with told_to_end():
        try:
            result = _measure(about, found, place, around, began)
        except StageStopped as stopped:
            result = ended(BENCH, CANCELLED, began, cause=str(stopped))
        write_result(place, result)
        if about.stop_server:
            _stop(found, place, around)
    if result.state != DONE:
        raise RunFailed(Problem(f"stage {BENCH}", result.state, result.cause))
    return result.state


def _measure(about: About, found: FoundRun, place: Path, around: Surroundings, began: float) -> StageResult:
    log = place / STAGE_LOG
    note(log, f"waiting until job {about.job_id} is ready")
    try:
        status = wait_ready(found, around, about.wait_s)
    except (RunFailed, NotReady, SetupError) as error:
        rows = tuple(str(problem) for problem in error.problems)
        return ended(BENCH, FAILED, began, cause=f"the server did not get ready: {rows[0]}", log=rows[1:])
    env = {**os.environ, **about.env, **variables(status)}
    for command in load_recipe(place).commands:
        failed = run_command(BENCH, command, log, began, env)
        if failed is not None:
            return failed
    return ended(BENCH, DONE, began)


def _stop(found: FoundRun, place: Path, around: Surroundings) -> None:
    try:
        status = cancel(found, around)
    except (SlurmError, SetupError, NotReady) as error:
        note(place / STAGE_LOG, f"the server could not be ended: {error}")
        return
    note(place / STAGE_LOG, f"the server is ended: {status.state.value}")
