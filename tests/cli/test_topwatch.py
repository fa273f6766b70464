"""Looking again and again: Slurm is asked seldom, files tell at once, an end is believed when it is one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from slurm_llm.cli.toppages import Pages
from slurm_llm.cli.topwatch import ASK_S, LONGEST_ASK_S, Looker, Watcher
from slurm_llm.observe.live import Snapshot
from slurm_llm.slurm.states import RunState
from tests.observe.run_dirs import FakeAround, FakeSlurm, RunDir, around, squeue_row


def watch(run: RunDir, slurm: FakeSlurm) -> tuple[Watcher, FakeAround]:
    """Return what looks at a run, and the clock that it goes by."""
    world = around(run.root.parent, slurm)
    return Watcher(run.job, world, Pages()), world


def asked(slurm: FakeSlurm) -> int:
    """Return how often squeue was called."""
    return sum(argv[0] == "squeue" for argv in slurm.calls)


def test_slurm_is_asked_seldom(tmp_path: Path) -> None:
    """Over ten minutes of looks every 2 s: no two questions within 15 s, in the end one a minute."""
    run, slurm = RunDir(tmp_path / "run").serving(), FakeSlurm([squeue_row(7, "RUNNING")])
    watcher, world = watch(run, slurm)
    moments = []
    for _ in range(300):
        before = asked(slurm)
        watcher.look()
        if asked(slurm) > before:
            moments.append(world.now())
        world.pause(2.0)
    gaps = [after - before for before, after in pairwise(moments)]
    assert min(gaps) >= ASK_S
    assert max(gaps) <= LONGEST_ASK_S + 2
    assert len(moments) <= 600 / LONGEST_ASK_S + 4


def test_a_start_is_seen_before_slurm_is_asked_again(tmp_path: Path) -> None:
    """The job's first record contradicts the PENDING of a moment ago: no look says that it waits, or was requeued."""
    run, slurm = RunDir(tmp_path / "run").submitted(), FakeSlurm([squeue_row(7, "PENDING", reason="Priority")])
    watcher, world = watch(run, slurm)
    assert watcher.look().status.state is RunState.PENDING
    world.pause(0.5)
    run.loading()
    made = watcher.look()
    assert (made.status.state, made.status.pending, made.status.notes) == (RunState.LOADING, None, ())
    assert asked(slurm) == 1
    slurm.rows = [squeue_row(7, "RUNNING")]
    world.pause(3.0)
    assert watcher.look().status.state is RunState.LOADING
    assert asked(slurm) == 2


def test_an_end_that_the_job_wrote_down_is_one(tmp_path: Path) -> None:
    """Its result file counts at once."""
    run, slurm = RunDir(tmp_path / "run").serving(), FakeSlurm([squeue_row(7, "RUNNING")])
    watcher, _ = watch(run, slurm)
    watcher.look()
    assert not watcher.over
    run.result("COMPLETED")
    assert watcher.look().status.state is RunState.COMPLETED
    assert watcher.over


def test_an_end_that_slurm_alone_tells_must_be_told_again(tmp_path: Path) -> None:
    """A job that Slurm does not know for a moment goes on; one that it does not know three times is lost."""
    run, slurm = RunDir(tmp_path / "run").serving(), FakeSlurm([squeue_row(7, "RUNNING")])
    watcher, world = watch(run, slurm)
    watcher.look()
    slurm.rows = []
    for _ in range(40):
        world.pause(2.0)
        if watcher.look().status.ended:
            break
    assert not watcher.over
    slurm.rows = [squeue_row(7, "RUNNING")]
    for _ in range(10):
        world.pause(2.0)
        made = watcher.look()
    assert made.status.state is RunState.READY and not watcher.over
    slurm.rows = []
    for _ in range(60):
        world.pause(2.0)
        made = watcher.look()
        if watcher.over:
            break
    assert watcher.over and made.status.state is RunState.LOST


def test_a_slurm_that_does_not_answer(tmp_path: Path) -> None:
    """The files still tell, and the picture says that Slurm is silent."""
    run, slurm = RunDir(tmp_path / "run").serving(), FakeSlurm([squeue_row(7, "RUNNING")], failures=1)
    watcher, _ = watch(run, slurm)
    made = watcher.look()
    assert (made.status.state, made.status.slurm_answered) == (RunState.READY, False)
    assert not watcher.over


def test_a_run_that_hands_over_is_followed(tmp_path: Path) -> None:
    """Once another job of the run serves, it is the one that is shown."""
    run, slurm = RunDir(tmp_path / "run").serving(), FakeSlurm([squeue_row(7, "RUNNING")])
    watcher, _ = watch(run, slurm)
    assert watcher.look().status.job_id == 7
    run.job_id = 8
    run.serving()
    slurm.rows = [squeue_row(7, "RUNNING"), squeue_row(8, "RUNNING")]
    assert watcher.look().status.job_id == 8


def looks(watcher: Watcher, first: Snapshot) -> Looker:
    """Return a looker that is at work every 10 ms."""
    looker = Looker(watcher, first, 0.01)
    looker.start(lambda: None)
    return looker


@pytest.mark.parametrize("ends", [True, False])
def test_the_thread_ends(tmp_path: Path, ends: bool) -> None:
    """With the run, or when it is told to."""
    run, slurm = RunDir(tmp_path / "run").serving(), FakeSlurm([squeue_row(7, "RUNNING")])
    watcher, _ = watch(run, slurm)
    looker = looks(watcher, watcher.look())
    if ends:
        run.result("COMPLETED")
    else:
        looker.stop()
    looker.join(20.0)
    assert not looker.going
    assert looker.failure is None
    assert looker.snapshot.status.ended is ends
