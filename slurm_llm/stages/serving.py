"""prepare → serve → bench as one submission: a chain of jobs, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.app import Job, Rendered, submit_job
from slurm_llm.errors import NotReady, PlanError, Problem, RunFailed, SetupError, SlurmError
from slurm_llm.plan import Plan
from slurm_llm.preparation import Bench
from slurm_llm.rundir import BENCH as BENCH_REF
from slurm_llm.rundir import STAGES, stages_folder
from slurm_llm.runs import FoundRun
from slurm_llm.slurm.commands import Submitted
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import run_state
from slurm_llm.stagerecord import FAILED, GOOD, StageRef, StageResult, load_result, refs_to_json, stage_log
from slurm_llm.stages.asking import plan_stage
from slurm_llm.stages.bench import bench_work
from slurm_llm.stages.chain import Told, cancel_stages, depend_on, stage_python, submit_stages, submit_work
from slurm_llm.stages.planning import PlannedStage, plan_stages
from slurm_llm.stages.recipe import BENCH
from slurm_llm.surroundings import Surroundings

PAUSE_S = 1.0
BELIEVED_AFTER = 3
"""How many times in a row a job must be gone before its result is there: files may be seconds late."""


@dataclass(frozen=True)
class Stages:
    """What comes before and after a serving job: the stages of its `prepare` section, and its bench with its plan."""

    before: tuple[PlannedStage, ...] = ()
    bench: Bench | None = None
    bench_plan: Plan | None = None

    @property
    def needed(self) -> bool:
        """Whether anything must be made before the server starts."""
        return any(one.needed for one in self.before)


def find_stages(job: Job, run_dir: Path, around: Surroundings, *, prepare: bool, bench: bool) -> Stages:
    """Plan the stages that are asked for, for the run that will be in `run_dir`.

    Raises:
        PlanError: they contradict spec or site, or the spec has none; SetupError: nothing here can run them.
    """
    spec = job.spec
    if prepare and spec.prepare is None:
        raise PlanError(Problem("prepare", "the spec has no such section", todo="write one, or leave --prepare out"))
    if bench and spec.bench is None:
        raise PlanError(Problem("bench", "the spec has no such section", todo="write one, or leave --bench out"))
    if bench and spec.client is not None:
        what = "the server ends with its client, whatever else still asks it"
        raise PlanError(Problem("bench", what, todo="leave --bench out, or the client (`client`, --then)"))
    before = tuple(plan_stages(job, around, run_dir.name)) if prepare else ()
    if not bench or spec.bench is None:
        return Stages(before)
    stage_python(job, around)
    return Stages(before, spec.bench, plan_stage(job, BENCH, spec.bench, (), spec.bench.in_image))


def submit_chain(
    job: Job, rendered: Rendered, stages: Stages, around: Surroundings, told: Told
) -> tuple[Submitted, list[StageRef]]:
    """Submit what is missing, the server that waits for it, and the bench that waits for the server.

    Returns the server's job and the stages around it. On a failure none of the jobs stays.

    Raises:
        as `submit_stages`, `submit_job` and `submit_work`.
    """
    folder = stages_folder(rendered.paths.root)
    refs = submit_stages(job, stages.before, folder, around, told)
    if refs:
        rendered.texts[STAGES] = refs_to_json(refs)
    try:
        submitted = submit_job(job, rendered, around, depend_on(refs[-1].job_id) if refs else ())
    except BaseException:
        cancel_stages(refs, around)
        raise
    if stages.bench is None or stages.bench_plan is None:
        return submitted, refs
    number = submitted.job_id.number
    found = FoundRun(rendered.paths, rendered.paths.job(number))
    work = bench_work(stages.bench_plan, stages.bench, found, folder / BENCH)
    try:
        ref = submit_work(work, stage_python(job, around), depend_on(str(number), "after"), around)
        (rendered.paths.root / BENCH_REF).write_text(refs_to_json([ref]), encoding="utf-8")
    except BaseException:
        with suppress(SlurmError, SetupError):
            around.slurm().cancel(submitted.job_id)
        cancel_stages(refs, around)
        raise
    return submitted, [*refs, ref]


def wait_stages(refs: Sequence[StageRef], around: Surroundings, told: Callable[[StageRef, StageResult], None]) -> None:
    """Return once every stage has ended well; tell of each one's end.

    Raises:
        RunFailed: one did not; its problems name the stage, the command and the end of its log.
    """
    for ref in refs:
        result = _wait(ref, around)
        if result.state not in GOOD:
            raise RunFailed(failure_problems(ref, result))
        told(ref, result)


def _wait(ref: StageRef, around: Surroundings) -> StageResult:
    gone = 0
    while True:
        result = load_result(Path(ref.folder))
        if result is not None:
            return result
        if gone >= BELIEVED_AFTER:
            return StageResult(ref.name, FAILED, "its job has ended without a result")
        gone = gone + 1 if _is_gone(ref, around) else 0
        around.pause(PAUSE_S)


def _is_gone(ref: StageRef, around: Surroundings) -> bool:
    job_id = JobId(int(ref.job_id))
    try:
        facts = around.slurm().query([job_id]).get(job_id)
    except (SlurmError, SetupError, NotReady):
        return False
    return facts is None or run_state(facts.state).is_terminal


def failure_problems(ref: StageRef, result: StageResult) -> list[Problem]:
    """Return why a stage failed: its command, what a known error means, the end of its log."""
    problems = [Problem(f"stage {ref.name} (job {ref.job_id})", result.state, result.cause)]
    problems += [Problem("", result.why, todo=result.remedy)] if result.why else []
    problems += [Problem("", f"  | {row}") for row in result.log]
    return [*problems, Problem("see", str(stage_log(ref)))]
