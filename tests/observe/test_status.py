"""A run's state from every mix of evidence: result, journals, Slurm's words, or none of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_llm.observe.status import RunStatus, SlurmWord, build_status, status_to_json
from slurm_llm.runs import evidence_of, status_of
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import RunState, SlurmState, run_state
from slurm_llm.yamlio import Tree
from tests.observe.run_dirs import T0, FakeSlurm, RunDir, around, make_plan, squeue_row

FIRST: dict[str, object] = {
    "rank": 5,
    "node": "node3",
    "name": "triton_python_b",
    "how": "signal SIGKILL",
    "phase": "serving",
    "at": T0 + 9,
}


def judged(run: RunDir, state: SlurmState | None = None, **fields: object) -> RunStatus:
    """Return the status when Slurm says `state`; None is a job that Slurm does not know."""
    facts = None if state is None else JobFacts(JobId(7), state, "squeue", **fields)  # type: ignore[arg-type]
    return build_status(evidence_of(run.job), SlurmWord(facts), T0 + 60, T0)


def test_a_rendered_run_is_planned(tmp_path: Path) -> None:
    """Without a job nothing is asked and nothing is claimed."""
    assert judged(RunDir(tmp_path / "run")).state is RunState.PLANNED


@pytest.mark.parametrize("state", list(SlurmState))
def test_slurms_every_state_without_a_word_of_the_job(tmp_path: Path, state: SlurmState) -> None:
    """Slurm's table holds as it stands while the job has written nothing."""
    assert judged(RunDir(tmp_path / "run").submitted(), state).state is run_state(state)


@pytest.mark.parametrize("state", [state for state in SlurmState if run_state(state).is_terminal])
def test_a_ready_run_that_slurm_has_ended_is_not_ready(tmp_path: Path, state: SlurmState) -> None:
    """The journal's last READY does not outlive the job, whatever way it ended; the cause is Slurm's word."""
    status = judged(RunDir(tmp_path / "run").serving(), state)
    assert status.state is run_state(state)
    assert state.value in (status.cause + " ".join(status.notes))
    assert status.endpoints == ()
    assert status.ranks_ready == 0


@pytest.mark.parametrize("name", ["COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"])
@pytest.mark.parametrize("slurm", [SlurmState.RUNNING, SlurmState.COMPLETING, SlurmState.NODE_FAIL, None])
def test_the_jobs_own_result_comes_first(tmp_path: Path, name: str, slurm: SlurmState | None) -> None:
    """A result file decides, whether Slurm still lists the job, differs, or has forgotten it."""
    status = judged(RunDir(tmp_path / "run").serving().result(name, "because"), slurm)
    assert (status.state.value, status.cause) == (name, "because")


def test_slurms_other_word_is_told_beside_the_result(tmp_path: Path) -> None:
    """A lost node is worth knowing although the job managed to write a result."""
    status = judged(RunDir(tmp_path / "run").serving().result("FAILED", "x"), SlurmState.NODE_FAIL)
    assert status.notes == ("Slurm says NODE_FAIL",)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("STARTING", "STARTING"),
        ("LOADING", "LOADING"),
        ("READY", "READY"),
        ("DEGRADED", "DEGRADED"),
        ("FAILED", "DRAINING"),
    ],
)
def test_journals_say_how_far_a_running_job_is(tmp_path: Path, state: str, expected: str) -> None:
    """While Slurm says RUNNING the head's last state counts; one that has failed is on its way down."""
    status = judged(RunDir(tmp_path / "run").loading().state(6, state), SlurmState.RUNNING)
    assert status.state.value == expected


def test_a_serving_run_shows_ranks_endpoint_and_time_left(tmp_path: Path) -> None:
    """READY names where to go."""
    status = judged(RunDir(tmp_path / "run").serving(), SlurmState.RUNNING, time_left_s=540)
    assert (status.ranks_ready, status.ranks_total, status.time_left_s) == (8, 8, 540)
    assert status.endpoints[0].url == "http://node1:20000"
    assert status.phases.ready == T0 + 5
    assert status.node_list == "node[1-4]"


def test_a_running_job_without_a_word_is_starting(tmp_path: Path) -> None:
    """The script may not have written anything yet, or on another host's view of the file system."""
    status = judged(RunDir(tmp_path / "run").submitted(), SlurmState.RUNNING)
    assert status.state is RunState.STARTING
    assert "nothing yet" in status.notes[0]


def test_a_dead_rank_is_named_while_the_job_still_runs(tmp_path: Path) -> None:
    """Who went first is known before the result is."""
    reason = "rank 5 on node node3 went first: triton_python_backend_stub ended: signal SIGKILL, while serving"
    run = RunDir(tmp_path / "run").serving().killed(5).state(9.5, "FAILED", reason)
    status = judged(run, SlurmState.RUNNING)
    assert status.first is not None
    assert (status.first.rank, status.first.node, status.first.how) == (5, "node3", "signal SIGKILL")
    assert status.cause == reason
    assert status.rank_states == {"stopping": 8}


def test_a_failed_run_without_a_result_still_names_the_first_rank(tmp_path: Path) -> None:
    """The head died with the job: the node agents' journals are enough."""
    status = judged(RunDir(tmp_path / "run").serving().killed(5), SlurmState.NODE_FAIL, reason="NodeFail")
    assert status.state is RunState.FAILED
    assert status.cause.startswith("rank 5 on node node3 went first")
    assert status.notes == ("Slurm says NODE_FAIL (NodeFail)",)


def test_a_result_brings_first_rank_and_log(tmp_path: Path) -> None:
    """The end of the log is the one that the job kept."""
    status = judged(RunDir(tmp_path / "run").serving().result("FAILED", "x", FIRST, ["last words"]), SlurmState.FAILED)
    assert status.first is not None
    assert status.first.rank == 5
    assert status.log_tail == ("last words",)
    assert status.phases.ended == T0 + 60


def test_missing_from_slurm_is_never_completed(tmp_path: Path) -> None:
    """A job that began and is gone is LOST; one that wrote nothing is UNKNOWN."""
    began = judged(RunDir(tmp_path / "a").serving(), None)
    assert began.state is RunState.LOST
    assert "READY" in began.cause
    assert judged(RunDir(tmp_path / "b").submitted(), None).state is RunState.UNKNOWN


def test_forgotten_by_the_controller_and_no_accounting(tmp_path: Path) -> None:
    """The controller's 'no such job' holds, and the accounting's own trouble is told."""
    facts = JobFacts(JobId(7), SlurmState.UNKNOWN, "sacct", reason="slurmdbd is down")
    status = build_status(evidence_of(RunDir(tmp_path / "run").serving().job), SlurmWord(facts), T0 + 60)
    assert status.state is RunState.LOST
    assert "slurmdbd is down" in status.notes[0]


def test_without_slurm_the_journals_speak_and_say_so(tmp_path: Path) -> None:
    """READY is shown, with the age of the job's last word, when Slurm does not answer."""
    word = SlurmWord(None, problem="squeue got no answer")
    status = build_status(evidence_of(RunDir(tmp_path / "a").serving().job), word, T0 + 65)
    assert status.state is RunState.READY
    assert not status.slurm_answered
    assert status.notes[0] == "Slurm did not answer: squeue got no answer"
    assert "00:01:00 ago" in status.notes[1]
    silent = build_status(evidence_of(RunDir(tmp_path / "b").submitted().job), word, T0 + 65)
    assert silent.state is RunState.UNKNOWN


def test_pending_says_why(tmp_path: Path) -> None:
    """The reason code becomes a sentence."""
    status = judged(RunDir(tmp_path / "run").submitted(), SlurmState.PENDING, reason="PartitionNodeLimit")
    assert status.pending is not None
    assert status.pending.code == "PartitionNodeLimit"
    assert "never start" in status.pending.text


def test_a_requeued_run_is_pending_again(tmp_path: Path) -> None:
    """The first attempt's result does not describe the second."""
    run = RunDir(tmp_path / "run").serving().result("FAILED", "x")
    status = judged(run, SlurmState.PENDING, reason="BeginTime")
    assert status.state is RunState.PENDING
    assert status.notes == ("requeued: it waits to start once more", "attempt 0: FAILED, x")
    assert not status.has_result


RECOVERING: dict[str, Tree] = {"recovery": {"restarts": 1, "requeue": 1}}


@pytest.mark.parametrize(
    ("noted", "slurm", "state", "note"),
    [
        (None, SlurmState.RUNNING, RunState.DRAINING, "attempt 0 failed; whether another one follows is seen soon"),
        ("restart", SlurmState.RUNNING, RunState.STARTING, "attempt 0 failed and is started again: x"),
        ("requeue", SlurmState.RUNNING, RunState.PENDING, "attempt 0 failed and the job is requeued: x"),
        ("requeue", SlurmState.COMPLETING, RunState.PENDING, "attempt 0 failed and the job is requeued: x"),
        (None, SlurmState.FAILED, RunState.FAILED, ""),
        ("requeue", SlurmState.CANCELLED, RunState.FAILED, "Slurm says CANCELLED"),
    ],
)
def test_a_failure_that_something_follows_is_not_the_end(
    tmp_path: Path, noted: str | None, slurm: SlurmState, state: RunState, note: str
) -> None:
    """Whoever waits for the run must not be told that it failed while the job still decides, or has gone on."""
    run = RunDir(tmp_path / "run", plan=make_plan(**RECOVERING)).serving().result("FAILED", "x")
    if noted is not None:
        run.note("job", 61, noted, in_s=10)
    status = judged(run, slurm)
    assert status.state is state
    assert status.notes == ((note,) if note else ())


def test_a_start_after_a_requeue_is_no_failure(tmp_path: Path) -> None:
    """The result is that of the start before; the new one has written nothing so far."""
    run = RunDir(tmp_path / "run", plan=make_plan(**RECOVERING)).serving().result("FAILED", "x")
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(T0 + 200))
    assert judged(run, SlurmState.RUNNING, start_time=started).state is RunState.STARTING


def test_attempts_before_the_newest_are_told(tmp_path: Path) -> None:
    """Each with its state and cause, also one that left no result."""
    run = RunDir(tmp_path / "run").serving().result("FAILED", "x")
    run.attempt = 1
    run.state(70, "LOADING")
    run.attempt = 2
    status = judged(run.state(80, "LOADING"), SlurmState.RUNNING)
    told = [(one.attempt, one.state, one.cause) for one in status.earlier]
    assert told == [(0, "FAILED", "x"), (1, "UNKNOWN", "it has left no result")]


def test_the_newest_attempt_counts(tmp_path: Path) -> None:
    """A second attempt that loads is not FAILED as the first was."""
    run = RunDir(tmp_path / "run").serving().result("FAILED", "x")
    run.attempt = 1
    status = judged(run.state(70, "LOADING"), SlurmState.RUNNING)
    assert (status.state, status.attempt) == (RunState.LOADING, 1)


@pytest.mark.parametrize("text", ["", "{", '{"state": "COMPLETED"', "[]", '{"state": "COMPLETED"}', "null"])
def test_an_unfinished_result_is_none(tmp_path: Path, text: str) -> None:
    """A file that is half there, or not ours, decides nothing."""
    run = RunDir(tmp_path / "run").serving()
    run.job_paths.result(0).write_text(text)
    assert judged(run, SlurmState.RUNNING).state is RunState.READY


def test_another_jobs_id_is_no_word_on_ours(tmp_path: Path) -> None:
    """A cluster that was set up anew gave the id to somebody else."""
    run = RunDir(tmp_path / "run").serving()
    status = judged(run, SlurmState.RUNNING, name="other", submit_time="2031-01-01T00:00:00")
    assert status.state is RunState.LOST


def test_suspended_is_degraded_and_completing_is_draining(tmp_path: Path) -> None:
    """Slurm's own word bounds what the journals may claim."""
    run = RunDir(tmp_path / "run").serving()
    assert judged(run, SlurmState.SUSPENDED).state is RunState.DEGRADED
    assert judged(run, SlurmState.COMPLETING).state is RunState.DRAINING


def test_json_holds_every_field(tmp_path: Path) -> None:
    """Scripts read what people see."""
    value = json.loads(status_to_json(judged(RunDir(tmp_path / "run").serving(), SlurmState.RUNNING)))
    assert value["state"] == "READY"
    assert value["schema"] == 1
    assert value["endpoints"][0]["url"] == "http://node1:20000"


def test_real_slurm_texts_are_understood(tmp_path: Path) -> None:
    """From squeue's line to the status, through the client."""
    run = RunDir(tmp_path / "run").serving()
    status = status_of(run.job, around(tmp_path, FakeSlurm([squeue_row(7, "RUNNING")])))
    assert (status.state, status.time_left_s, status.slurm_state) == (RunState.READY, 540, SlurmState.RUNNING)
    silent = status_of(run.job, around(tmp_path, FakeSlurm(failures=1)))
    assert "Unable to contact" in silent.notes[0]


def test_4096_ranks(tmp_path: Path) -> None:
    """A large run folds to the same facts."""
    plan = make_plan(tensor_parallel_size=8, pipeline_parallel_size=1, replicas=512, resources={"nodes": 1024})
    run = RunDir(tmp_path / "run", plan=plan).serving().killed(4000)
    run.state(9.5, "FAILED", "rank 4000 went first")
    status = judged(run, SlurmState.RUNNING)
    assert status.ranks_total == 4096
    assert status.first is not None
    assert status.first.rank == 4000


def test_a_job_that_never_began_shows_its_own_output(tmp_path: Path) -> None:
    """A script that ended before its first record has said why in the job's output, if anywhere."""
    run = RunDir(tmp_path / "run").submitted()
    run.paths.output(run.job_id).write_text("slurm_llm: no Python at /nope/python3 on node n1\n")
    status = judged(run, SlurmState.FAILED, exit_code=127)
    assert status.log_tail == ("slurm_llm: no Python at /nope/python3 on node n1",)
    assert judged(run, SlurmState.RUNNING).log_tail == ()


def test_a_result_says_why_and_what_to_do(tmp_path: Path) -> None:
    """The job's own diagnosis, with this run in the commands that it shows; older results have none."""
    run = RunDir(tmp_path / "run").serving().result("FAILED", "x", FIRST)
    path = run.job_paths.result(0)
    value = json.loads(path.read_text())
    assert judged(run, SlurmState.FAILED).why == ""
    value["diagnosis"] = {"means": "Somebody sent it.", "remedies": ["Look at `slurm-llm health RUN`."]}
    path.write_text(json.dumps(value))
    status = judged(run, SlurmState.FAILED)
    assert status.why == "Somebody sent it."
    assert status.remedies == (f"Look at `slurm-llm health {status.run_id}`.",)


def test_a_hangs_remedy_names_its_rank(tmp_path: Path) -> None:
    """Nobody has ended first in a hang: the rank is that of the diagnosis."""
    run = RunDir(tmp_path / "run").serving().result("FAILED", "x")
    path = run.job_paths.result(0)
    found = {"means": "m", "remedies": ["See `slurm-llm logs RUN --rank N`."], "rank": 6}
    path.write_text(json.dumps({**json.loads(path.read_text()), "diagnosis": found}))
    assert judged(run, SlurmState.FAILED).remedies == ("See `slurm-llm logs 20261130-104000-abcd --rank 6`.",)


@pytest.mark.parametrize(
    ("failed", "result", "slurm", "until"),
    [
        (None, False, SlurmState.RUNNING, None),
        (30.0, False, SlurmState.RUNNING, 30.0),
        (None, False, SlurmState.NODE_FAIL, 5.0),
        (30.0, True, SlurmState.PENDING, 30.0),
        (30.0, True, SlurmState.FAILED, 30.0),
        (None, True, SlurmState.COMPLETED, 60.0),
    ],
)
def test_how_long_it_served(
    tmp_path: Path, failed: float | None, result: bool, slurm: SlurmState, until: float | None
) -> None:
    """Until the attempt ended, or the head saw it fail; of a job that is gone until its last word."""
    run = RunDir(tmp_path / "run").serving()
    if failed is not None:
        run.state(failed, "FAILED", "x")
    if result:
        run.result("FAILED", "x")
    assert judged(run, slurm).phases.served_until == (None if until is None else T0 + until)


def test_a_job_that_was_cancelled_in_the_queue(tmp_path: Path) -> None:
    """It has had no node and no script; one that had is another matter."""
    run = RunDir(tmp_path / "run").submitted()
    assert judged(run, SlurmState.CANCELLED).cause == "cancelled while it waited in the queue"
    assert "has written nothing" in judged(run, SlurmState.CANCELLED, node_list="node1").cause


def test_no_restart_is_left(tmp_path: Path) -> None:
    """The end is not in doubt any more once the job's script has said so, while Slurm still runs the job."""
    plan = make_plan(recovery={"restarts": 1})
    run = RunDir(tmp_path / "run", plan=plan).serving().result("FAILED", "x")
    assert judged(run, SlurmState.RUNNING).state is RunState.DRAINING
    run.note("job", 61, "no-restart", why="no restart is left")
    status = judged(run, SlurmState.RUNNING)
    assert (status.state, status.notes) == (
        RunState.FAILED,
        ("the server is not started again: no restart is left",),
    )
