"""What the status of a run says of the stages around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.observe.stagewords import RunStages, StageNews, load_stages, with_stages
from slurm_llm.observe.status import RunStatus, SlurmWord
from slurm_llm.rundir import BENCH, STAGE_LOG, STAGES, stage_output
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.reasons import explain_reason
from slurm_llm.slurm.states import RunState, SlurmState
from slurm_llm.stagerecord import (
    CANCELLED,
    DONE,
    FAILED,
    StageRef,
    StageResult,
    load_refs,
    load_result,
    refs_to_json,
    result_to_json,
    stage_log,
)
from slurm_llm.stages.runner import write_result

STATUS = RunStatus(
    *("r", "demo", "rehearsal", "devcluster", "/r", 9, "", RunState.PENDING, SlurmState.PENDING, None, 1, "", 0, 2),
    rank_states={},
    model="m",
)
WEIGHTS, BUILD = StageRef("weights", "7", "/s/weights"), StageRef("build", "8", "/s/build")
GOOD = StageNews(WEIGHTS, StageResult("weights", DONE))
OPEN = StageNews(BUILD, None, ("no result",))
BAD = StageNews(
    BUILD,
    StageResult(
        "build", FAILED, "`trtllm-build` ended with exit status 3", why="too large", remedy="less", log=("oom",)
    ),
)


def _status(state: RunState, slurm: SlurmState) -> RunStatus:
    pending = explain_reason("Dependency") if state is RunState.PENDING else None
    return replace(STATUS, state=state, slurm_state=slurm, pending=pending, cause="Slurm says something")


def _word(state: SlurmState, reason: str) -> SlurmWord:
    return SlurmWord(JobFacts(JobId(9), state, "squeue", reason=reason))


def test_a_waiting_run_names_the_stage_that_it_waits_for() -> None:
    """The first that has not ended, not the first of all."""
    status = _status(RunState.PENDING, SlurmState.PENDING)
    found = with_stages(status, RunStages((GOOD, OPEN)), _word(SlurmState.PENDING, "Dependency"))
    assert found.state is RunState.PENDING and found.pending is not None
    assert found.pending.text == "The job is waiting for stage build (job 8)."
    assert with_stages(status, RunStages((GOOD,)), _word(SlurmState.PENDING, "Priority")) == status


NEVER = "DependencyNeverSatisfied"
ENDS = (
    (BAD, SlurmState.CANCELLED, NEVER, RunState.FAILED, "stage build (job 8) failed: `trtllm-build` ended with"),
    (OPEN, SlurmState.CANCELLED, NEVER, RunState.FAILED, "stage build (job 8) has ended without a result"),
    (
        replace(BAD, result=StageResult("build", CANCELLED, "it was told to end")),
        *(SlurmState.CANCELLED, NEVER, RunState.CANCELLED, "stage build (job 8) cancelled: it was told to end"),
    ),
    # The user has cancelled the run itself while the stage goes on: nothing is to blame.
    (OPEN, SlurmState.CANCELLED, "None", RunState.CANCELLED, "Slurm says something"),
)


@pytest.mark.parametrize(("stage", "slurm", "reason", "state", "cause"), ENDS)
def test_a_run_that_never_starts_blames_its_stage(
    stage: StageNews, slurm: SlurmState, reason: str, state: RunState, cause: str
) -> None:
    """FAILED or CANCELLED with the stage, its command, what is known of it and the end of its log."""
    found = with_stages(_status(RunState.CANCELLED, slurm), RunStages((GOOD, stage)), _word(slurm, reason))
    assert found.state is state
    assert found.cause.startswith(cause)
    if stage is BAD:
        assert (found.why, found.remedies, found.log_tail, found.log_of) == (
            "too large",
            ("less",),
            ("oom",),
            "stage build",
        )
    if stage is OPEN and reason == NEVER:
        assert found.log_tail == ("no result",)


def test_what_has_begun_is_explained_by_itself() -> None:
    """A server that failed later owes that to no stage."""
    status = replace(_status(RunState.FAILED, SlurmState.FAILED), attempt=0)
    assert with_stages(status, RunStages((BAD,)), _word(SlurmState.FAILED, "")) == status


def test_a_cluster_that_keeps_the_job_pending_is_seen_through() -> None:
    """Where the site does not end jobs whose dependency failed, the status still says why it never starts."""
    status = replace(_status(RunState.PENDING, SlurmState.PENDING), pending=explain_reason(NEVER))
    found = with_stages(status, RunStages((BAD,)), _word(SlurmState.PENDING, NEVER))
    assert found.state is RunState.PENDING and "stage build (job 8) failed" in found.cause


def test_stages_are_read_from_the_run_directory(tmp_path: Path) -> None:
    """References, results and logs, each missing one by one; a bench becomes a note."""
    assert load_stages(tmp_path) == RunStages()
    ref = StageRef("build", "8", str(tmp_path / "build"))
    (tmp_path / STAGES).write_text(refs_to_json([ref]))
    (tmp_path / BENCH).write_text(refs_to_json([replace(ref, name="bench")]))
    assert load_refs(tmp_path / STAGES) == (ref,)
    output = stage_output(tmp_path / "build", "8")
    output.parent.mkdir(parents=True)
    output.write_text("slurm_llm: node n1: no Python\n")
    (news,) = load_stages(tmp_path).before
    assert news.result is None and news.output == ("slurm_llm: node n1: no Python",)
    (tmp_path / "build" / STAGE_LOG).write_text("of a command\n")
    assert stage_log(ref).name == STAGE_LOG
    result = StageResult("build", FAILED, "x", log=("a",), code=3, began=1.0, ended=2.5)
    write_result(tmp_path / "build", result)
    assert load_result(tmp_path / "build") == result
    stages = load_stages(tmp_path)
    found = with_stages(_status(RunState.PENDING, SlurmState.PENDING), stages, SlurmWord())
    assert "stage bench (job 8): FAILED, x" in found.notes
    for text in ("", "[]", '{"stage": 1}', result_to_json(result)[:40]):
        (tmp_path / "build" / "result.json").write_text(text)
        assert load_result(tmp_path / "build") is None, text
