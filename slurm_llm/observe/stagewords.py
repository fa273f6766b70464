"""What a run that waits for stages says of them: which one it waits for, which one failed and why. Judges values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.observe.status import RunStatus, SlurmWord
from slurm_llm.observe.text import last_lines
from slurm_llm.rundir import BENCH, STAGES
from slurm_llm.slurm.states import RunState
from slurm_llm.stagerecord import CANCELLED, GOOD, StageRef, StageResult, load_refs, load_result, stage_log

NEVER = "DependencyNeverSatisfied"
TOLD_LINES = 5


@dataclass(frozen=True)
class StageNews:
    """A stage that a run waits for, how it ended (None: it has not, or nobody wrote it down), its last lines."""

    ref: StageRef
    result: StageResult | None
    output: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The stage and its job, in words."""
        return f"stage {self.ref.name} (job {self.ref.job_id})"


@dataclass(frozen=True)
class RunStages:
    """The stages around a run: those that it waits for, in order, and the bench that waits for it."""

    before: tuple[StageNews, ...] = ()
    bench: StageNews | None = None


def load_stages(run_dir: Path) -> RunStages:
    """Read what became of the stages around a run."""
    bench = load_refs(run_dir / BENCH)
    return RunStages(tuple(_news(ref) for ref in load_refs(run_dir / STAGES)), _news(bench[0]) if bench else None)


def _news(ref: StageRef) -> StageNews:
    result = load_result(Path(ref.folder))
    return StageNews(ref, result, () if result else tuple(last_lines(stage_log(ref), TOLD_LINES)[0]))


def with_stages(status: RunStatus, stages: RunStages, word: SlurmWord) -> RunStatus:
    """Return the status with what its stages explain of a run that has not begun, and with how its bench is."""
    if stages.bench is not None:
        status = replace(status, notes=(*status.notes, _bench_words(stages.bench)))
    return _explained(status, stages.before, word)


def _bench_words(bench: StageNews) -> str:
    result = bench.result
    if result is None:
        return f"{bench.name} waits or runs"
    return f"{bench.name}: {result.state}" + (f", {result.cause}" if result.cause else "")


def _explained(status: RunStatus, stages: Sequence[StageNews], word: SlurmWord) -> RunStatus:
    open_one = next((one for one in stages if one.result is None or one.result.state not in GOOD), None)
    if open_one is None or status.attempt is not None:
        return status
    reason = word.facts.reason if word.facts is not None else ""
    failed = open_one.result is not None or reason.strip("()").startswith(NEVER)
    if status.state is RunState.PENDING and status.pending is not None and not failed:
        text = f"The job is waiting for {open_one.name}."
        return replace(status, pending=replace(status.pending, text=text))
    if failed and (status.ended or status.state in (RunState.PENDING, RunState.UNKNOWN)):
        return _blamed(status, open_one)
    return status


def _blamed(status: RunStatus, stage: StageNews) -> RunStatus:
    """Return the status of a run that never starts, since a stage has failed."""
    result = stage.result
    if result is None:
        cause, state = f"{stage.name} has ended without a result", RunState.FAILED
    else:
        cause = f"{stage.name} {result.state.lower()}: {result.cause}"
        state = RunState.CANCELLED if result.state == CANCELLED else RunState.FAILED
    before = f"Slurm says {status.slurm_state.value}" if status.slurm_state else ""
    return replace(
        status,
        state=status.state if status.state is RunState.PENDING else state,
        cause=cause,
        why=result.why if result else "",
        remedies=(result.remedy,) if result and result.remedy else (),
        log_tail=result.log if result else stage.output,
        log_of=f"stage {stage.ref.name}",
        notes=(*filter(None, (before, f"its log: {stage_log(stage.ref)}")), *status.notes),
    )
