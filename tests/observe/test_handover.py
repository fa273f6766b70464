"""A run with two jobs: which of them counts, what is said of the other, and that a cancel ends both."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.record import Submission, record_to_json
from slurm_llm.rundir import RunPaths
from slurm_llm.runs import FoundRun, current, evidence_of, find_run, list_runs, status_of
from slurm_llm.waiting import cancel, wait_ready
from tests.observe.run_dirs import T0, FakeSlurm, RunDir, around, squeue_row

RUNS_7, RUNS_8, WAITS_8 = squeue_row(7, "RUNNING"), squeue_row(8, "RUNNING"), squeue_row(8, "PENDING")


class Successor(RunDir):
    """The second job of a run directory that is there."""

    def __post_init__(self) -> None:
        self.paths = RunPaths(self.root)

    def submitted(self) -> RunDir:
        """Write what the old job writes."""
        job = self.paths.job(self.job_id)
        job.root.mkdir(exist_ok=True)
        text = record_to_json(Submission(str(self.job_id), "", T0, "handover", "7"))
        job.submission.write_text(text, encoding="utf-8")
        return self


def two_jobs(folder: Path) -> tuple[RunDir, RunDir, FoundRun]:
    """Return a job that serves, one that is to take over from it, and the run that they are of."""
    old = RunDir(folder / "run").serving()
    new = Successor(folder / "run", job_id=8)
    new.submitted()
    return old, new, FoundRun(old.paths, None)


def test_the_newest_job_that_serves_counts(tmp_path: Path) -> None:
    """From the first look to the last: the old one until the new one serves, then that one; the other is told of."""
    old, new, run = two_jobs(tmp_path)
    slurm = FakeSlurm([RUNS_7, squeue_row(8, "PENDING", reason="Priority")])
    here = around(tmp_path, slurm)

    def looks() -> tuple[int | None, str, tuple[str, ...]]:
        status = status_of(run, here)
        return status.job_id, status.state.value, status.notes

    job, state, notes = looks()
    assert (job, state) == (7, "READY")
    assert [note.partition(": ")[0] for note in notes] == ["job 8, which is to take over, is PENDING"]
    slurm.rows = [RUNS_7, RUNS_8]
    new.loading()
    assert looks() == (7, "READY", ("job 8, which is to take over, is LOADING",))
    new.serving()
    old.state(70, "DRAINING", "job 8 serves now")
    assert looks() == (8, "READY", ("job 7, which this one takes over from, is DRAINING: job 8 serves now",))
    assert status_of(run, here).endpoints
    old.result("COMPLETED", "handed over to job 8")
    slurm.rows = [RUNS_8]
    assert looks() == (8, "READY", ())
    assert evidence_of(run).job == new.job_paths


def test_a_successor_that_failed_is_told_and_hides_nothing(tmp_path: Path) -> None:
    """The old job is still the one that serves."""
    _, new, run = two_jobs(tmp_path)
    new.loading().result("FAILED", "no such model")
    status = status_of(run, around(tmp_path, FakeSlurm([RUNS_7])))
    assert (status.job_id, status.state.value) == (7, "READY")
    assert status.notes == ("job 8, which is to take over, is FAILED: no such model",)


def test_an_old_job_that_is_gone_hides_no_successor(tmp_path: Path) -> None:
    """Its files still say READY, Slurm does not: who waits in the queue counts."""
    _, _, run = two_jobs(tmp_path)
    status = status_of(run, around(tmp_path, FakeSlurm([WAITS_8])))
    assert (status.job_id, status.state.value) == (8, "PENDING")


def test_a_successor_that_never_began_leaves_the_last_word_to_its_predecessor(tmp_path: Path) -> None:
    """A run that was cancelled as a whole has ended as its last server did."""
    old, _, run = two_jobs(tmp_path)
    old.result("COMPLETED", "stopped on request")
    status = status_of(run, around(tmp_path, FakeSlurm([squeue_row(8, "CANCELLED")])))
    assert (status.job_id, status.state.value) == (7, "COMPLETED")


@pytest.mark.parametrize("wanted", ["8", "run/job-8"])
def test_a_job_that_is_asked_for_stays_the_one(tmp_path: Path, wanted: str) -> None:
    """By id or path one job is meant, whichever serves."""
    old, _, _ = two_jobs(tmp_path)
    here = around(tmp_path, FakeSlurm([RUNS_7, WAITS_8]))
    (tmp_path / "logs").mkdir()
    target = tmp_path / "logs" / "demo-20261130-104000-abcd"
    if wanted == "8":
        old.paths.root.rename(target)
    assert status_of(find_run(wanted, here), here).state.value == "PENDING"


def test_lists_and_waits_follow_the_run(tmp_path: Path) -> None:
    """One row a run, and a wait that sees the new job become ready."""
    old = RunDir(tmp_path / "logs" / "demo-20261130-104000-abcd").serving().result("TIMED_OUT")
    new = Successor(old.root, job_id=8)
    new.submitted()
    slurm = FakeSlurm([WAITS_8])
    here = around(tmp_path, slurm)
    assert [(row.job_id, row.state.value) for row in list_runs(here, 5)] == [(8, "PENDING")]
    assert len([call for call in slurm.calls if call[0] == "squeue"]) == 1
    new.serving()
    slurm.rows = [RUNS_8]
    assert wait_ready(FoundRun(old.paths, None), here).job_id == 8
    assert current(FoundRun(old.paths, None)).job == new.job_paths


def test_cancel_ends_what_waits_first(tmp_path: Path) -> None:
    """A successor in the queue would start in place of the job that ends."""
    _, _, run = two_jobs(tmp_path)
    slurm = FakeSlurm([RUNS_7, WAITS_8], after_cancel=[squeue_row(7, "COMPLETED"), squeue_row(8, "CANCELLED")])
    cancel(run, around(tmp_path, slurm))
    ended = [call[-1] for call in slurm.calls if call[0] == "scancel"]
    assert ended[0] == "8"
