"""Finding runs, waiting for them and ending them, against a Slurm that answers as told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_llm.errors import NotReady, RunFailed, RunNotFound, SlurmError
from slurm_llm.record import remember_run
from slurm_llm.runs import find_run, list_runs
from slurm_llm.slurm.states import RunState
from slurm_llm.waiting import cancel, wait_ready
from tests.observe.run_dirs import FakeAround, FakeSlurm, RunDir, around, make_plan, squeue_row

OTHER_ID = "20261130-114000-ef01"
RUNNING = squeue_row(7, "RUNNING")
COMPLETED = squeue_row(7, "COMPLETED")


def two_runs(folder: Path) -> tuple[RunDir, RunDir]:
    """Write an older run that ended and a newer one that goes on, both called demo."""
    old = RunDir(folder / "logs" / "demo-20261130-104000-abcd", job_id=7).serving().result("COMPLETED")
    new = RunDir(folder / "logs" / f"demo-{OTHER_ID}", job_id=8, run_id=OTHER_ID).serving()
    return old, new


@pytest.mark.parametrize(
    ("wanted", "job"),
    [
        (None, 8),
        ("7", 7),
        ("8", 8),
        ("20261130-104000-abcd", 7),
        ("20261130-1040", 7),
        ("demo-20261130-104000-abcd", 7),
        ("demo", 8),
        ("logs/demo-20261130-104000-abcd", 7),
        ("logs/demo-20261130-104000-abcd/job-7/attempt-0", 7),
        ("./logs/demo-20261130-104000-abcd/job.sub", 7),
    ],
)
def test_a_run_by_every_name(tmp_path: Path, wanted: str | None, job: int) -> None:
    """Run id or its beginning, job id, name (the one that goes on), path, or nothing for the newest."""
    two_runs(tmp_path)
    assert find_run(wanted, around(tmp_path)).paths.job(job).root.is_dir()


def test_a_path_from_inside_the_run_directory(tmp_path: Path) -> None:
    """`.` is the run one stands in."""
    old, _ = two_runs(tmp_path)
    assert find_run(".", around(old.root)).paths.root == old.root


@pytest.mark.parametrize("wanted", ["9", "nope", "2026", "20261130", "logs/nope", "-x", "", "7;other;x", "²"])
def test_no_such_run(tmp_path: Path, wanted: str) -> None:
    """The message names what was looked for, and where."""
    two_runs(tmp_path)
    with pytest.raises(RunNotFound, match="looked at"):
        find_run(wanted, around(tmp_path))


def test_a_beginning_that_fits_two(tmp_path: Path) -> None:
    """Both are listed with id, job and folder."""
    two_runs(tmp_path)
    with pytest.raises(RunNotFound, match="fits 2 runs") as caught:
        find_run("20261130-1", around(tmp_path))
    assert "20261130-104000-abcd  job 7" in str(caught.value)
    assert f"{OTHER_ID}  job 8" in str(caught.value)


def test_two_runs_of_one_name_that_both_go_on(tmp_path: Path) -> None:
    """A name is not enough then: `cancel demo` must not guess."""
    two_runs(tmp_path)
    third = "20261130-124000-0123"
    RunDir(tmp_path / "logs" / f"demo-{third}", job_id=9, run_id=third).serving()
    with pytest.raises(RunNotFound, match="fits 2 runs"):
        find_run("demo", around(tmp_path))


def test_runs_are_remembered_from_any_directory(tmp_path: Path) -> None:
    """The user's list finds a run whose log root is elsewhere; one that was removed is not found."""
    run = RunDir(tmp_path / "far" / "out").submitted()
    here = around(tmp_path)
    remember_run(run.root, here.environ)
    remember_run(tmp_path / "removed", here.environ)
    assert find_run("out", here).paths.root == run.root
    assert find_run(run.run_id, here).paths.root == run.root


def test_a_rendered_folder_is_as_old_as_its_record(tmp_path: Path) -> None:
    """A folder called `out` is not newer than every run id, only because letters sort after digits."""
    RunDir(tmp_path / "out", run_id="out")
    here = around(tmp_path)
    remember_run(tmp_path / "out", here.environ)
    newer = "20991231-000000-abcd"
    RunDir(tmp_path / "logs" / f"demo-{newer}", run_id=newer).submitted()
    assert find_run(None, here).paths.run_id == newer


def test_two_jobs_of_one_run(tmp_path: Path) -> None:
    """A script that was submitted twice: the newest job, or the one that is asked for."""
    run = RunDir(tmp_path / "logs" / "demo-20261130-104000-abcd").submitted()
    run.job_id = 11
    run.submitted()
    jobs = [find_run(wanted, around(tmp_path)).job for wanted in ("demo", "7", "11")]
    assert [job.job_id for job in jobs if job] == [11, 7, 11]


def test_the_list_asks_once_and_only_about_open_runs(tmp_path: Path) -> None:
    """Newest first; an ended run costs no question, and a broken plan hides no other run."""
    old, _ = two_runs(tmp_path)
    broken = RunDir(tmp_path / "logs" / "demo-20261130-094000-aaaa", run_id="20261130-094000-aaaa")
    broken.paths.plan.write_text("{")
    slurm = FakeSlurm([squeue_row(8, "RUNNING")])
    rows = list_runs(around(tmp_path, slurm), 20)
    assert [(row.job_id, row.state) for row in rows] == [(8, RunState.READY), (7, RunState.COMPLETED)]
    assert len(slurm.calls) == 1
    assert "--jobs=8" in slurm.calls[0]
    assert old.root.is_dir()


@dataclass(frozen=True)
class Scripted(FakeAround):
    """Surroundings in which something happens at each pause."""

    steps: list[Callable[[], object]] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        """Let the time pass, and do the next step."""
        super().pause(seconds)
        if self.steps:
            self.steps.pop(0)()


def scripted(folder: Path, slurm: FakeSlurm, *steps: Callable[[], object]) -> Scripted:
    """Return surroundings with steps."""
    return Scripted({"HOME": str(folder)}, folder, slurm, steps=list(steps))


def test_waiting_passes_every_stage(tmp_path: Path) -> None:
    """Queued, starting, loading, ready; one squeue a look, and pauses that grow while nothing changes."""
    run = RunDir(tmp_path / "run").submitted()
    slurm = FakeSlurm([squeue_row(7, "PENDING", reason="Priority")])
    nothing = [lambda: None] * 9
    steps = (*nothing, lambda: slurm.rows.__setitem__(0, RUNNING), run.loading, run.serving)
    told: list[str] = []
    here = scripted(tmp_path, slurm, *steps)
    status = wait_ready(run.job, here, told=lambda look, _: told.append(look.state.value))
    assert status.ready
    assert list(dict.fromkeys(told)) == ["PENDING", "STARTING", "LOADING", "READY"]
    assert len(slurm.calls) == len(told)
    assert here.ticks[0] == 1.0
    assert max(here.ticks) == 5.0


def test_waiting_ends_with_the_reason(tmp_path: Path) -> None:
    """A job that dies ends the wait at once, with cause, first rank and the end of its log."""
    first: dict[str, object] = {
        "rank": 5,
        "node": "node3",
        "name": "stub",
        "how": "exit 1",
        "phase": "loading",
        "at": 1.0,
    }
    run = RunDir(tmp_path / "run").loading().result("FAILED", "it broke", first, ["Trace\x1b[31mback"])
    with pytest.raises(RunFailed) as caught:
        wait_ready(run.job, around(tmp_path, FakeSlurm([squeue_row(7, "FAILED")])))
    text = str(caught.value)
    assert "it broke" in text
    assert "rank 5 on node node3 went first" in text
    assert "Traceback" in text


def test_waiting_believes_no_single_missing_answer(tmp_path: Path) -> None:
    """A job that Slurm does not list for a moment is not given up; a silent Slurm is counted."""
    run = RunDir(tmp_path / "run").loading()
    slurm = FakeSlurm([], failures=2)
    unanswered: list[int] = []
    steps = (lambda: None, lambda: None, lambda: None, lambda: slurm.rows.append(RUNNING), run.serving)
    here = scripted(tmp_path, slurm, *steps)
    assert wait_ready(run.job, here, told=lambda _, count: unanswered.append(count)).ready
    assert unanswered[:3] == [1, 2, 0]


def test_waiting_gives_up_a_job_that_stays_gone(tmp_path: Path) -> None:
    """After three looks LOST is believed."""
    run = RunDir(tmp_path / "run").loading()
    here = around(tmp_path, FakeSlurm())
    with pytest.raises(RunFailed, match="LOST"):
        wait_ready(run.job, here)
    assert len(here.ticks) == 2


def test_a_deadline_leaves_the_job(tmp_path: Path) -> None:
    """NotReady says why and how to go on; nothing is cancelled."""
    run = RunDir(tmp_path / "run").submitted()
    slurm = FakeSlurm([squeue_row(7, "PENDING", reason="Resources")])
    with pytest.raises(NotReady, match="the job goes on"):
        wait_ready(run.job, around(tmp_path, slurm), timeout_s=10)
    assert {call[0] for call in slurm.calls} == {"squeue"}


def scancels(slurm: FakeSlurm) -> list[str]:
    """Return the scancel commands that were run."""
    return [" ".join(call) for call in slurm.calls if call[0] == "scancel"]


def test_cancel_takes_a_waiting_job_out_of_the_queue(tmp_path: Path) -> None:
    """Nothing runs, so a plain scancel is enough, and nothing is waited for."""
    run = RunDir(tmp_path / "run").submitted()
    slurm = FakeSlurm([squeue_row(7, "PENDING")], after_cancel=[squeue_row(7, "CANCELLED")])
    here = around(tmp_path, slurm)
    assert cancel(run.job, here).state is RunState.CANCELLED
    assert scancels(slurm) == ["scancel 7"]
    assert here.ticks == []


def test_cancel_stops_a_running_job_in_order(tmp_path: Path) -> None:
    """TERM goes to the job's script, and its own end is awaited until Slurm has let the job go."""
    run = RunDir(tmp_path / "run").serving()
    slurm = FakeSlurm([RUNNING])
    steps = (
        lambda: run.state(10, "DRAINING", "asked to stop"),
        lambda: run.result("COMPLETED", "stopped on request"),
        lambda: slurm.rows.__setitem__(0, squeue_row(7, "COMPLETING")),
        lambda: slurm.rows.__setitem__(0, COMPLETED),
    )
    here = scripted(tmp_path, slurm, *steps)
    status = cancel(run.job, here)
    assert (status.state, status.cause) == (RunState.COMPLETED, "stopped on request")
    assert scancels(slurm) == ["scancel --batch --signal=TERM 7"]
    assert here.steps == []


def test_cancel_ends_what_does_not_stop(tmp_path: Path) -> None:
    """After the plan's stop time a plain scancel follows by itself."""
    run = RunDir(tmp_path / "run").serving()
    slurm = FakeSlurm([RUNNING], after_cancel=[squeue_row(7, "CANCELLED")], after_signal=[RUNNING])
    here = around(tmp_path, slurm)
    assert cancel(run.job, here).state is RunState.CANCELLED
    assert scancels(slurm) == ["scancel --batch --signal=TERM 7", "scancel 7"]
    assert sum(here.ticks) > 20


def test_cancel_waits_for_the_script_to_hear(tmp_path: Path) -> None:
    """TERM before the script's trap would end the script alone: it is sent once the head has written."""
    run = RunDir(tmp_path / "run").submitted()
    slurm = FakeSlurm([RUNNING], after_signal=[COMPLETED])
    cancel(run.job, scripted(tmp_path, slurm, lambda: run.state(1, "STARTING"), lambda: run.result("CANCELLED")))
    assert scancels(slurm) == ["scancel --batch --signal=TERM 7"]


def test_cancel_of_a_script_that_never_hears(tmp_path: Path) -> None:
    """A prologue that hangs is ended by scancel."""
    run = RunDir(tmp_path / "run").submitted()
    slurm = FakeSlurm([RUNNING], after_cancel=[squeue_row(7, "CANCELLED")])
    cancel(run.job, around(tmp_path, slurm))
    assert scancels(slurm) == ["scancel 7"]


@pytest.mark.parametrize("rows", [[COMPLETED], []])
def test_cancel_of_an_ended_run_does_nothing(tmp_path: Path, rows: list[str]) -> None:
    """It may be asked for twice."""
    run = RunDir(tmp_path / "run").serving().result("COMPLETED")
    slurm = FakeSlurm(rows)
    assert cancel(run.job, around(tmp_path, slurm)).state is RunState.COMPLETED
    assert scancels(slurm) == []


def test_cancel_without_an_answer_of_slurm_is_an_error(tmp_path: Path) -> None:
    """Nobody is told that a job ended which may be running."""
    run = RunDir(tmp_path / "run").serving()
    with pytest.raises(SlurmError, match="Unable to contact"):
        cancel(run.job, around(tmp_path, FakeSlurm([RUNNING], failures=1)))


def test_cancel_of_a_job_that_outlives_scancel(tmp_path: Path) -> None:
    """A node that does not answer keeps a job COMPLETING: that is said."""
    run = RunDir(tmp_path / "run", plan=make_plan()).serving()
    slurm = FakeSlurm([RUNNING], after_cancel=[squeue_row(7, "COMPLETING")])
    with pytest.raises(NotReady, match="after scancel"):
        cancel(run.job, around(tmp_path, slurm))
