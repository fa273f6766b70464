"""Which rank holds up the others, from what a node's agent sees of their processes."""

from __future__ import annotations

from slurm_llm.agent.progress import Activity, Culprit, Progress

WORKS = "it neither works nor looks for messages, while others wait"
SPINS = "it computes and never looks for messages, while others wait"


def _watch(*rates: tuple[float, float, float, str], log: tuple[int, ...] = (), seconds: int = 10) -> Progress:
    """Return ten seconds of ranks with (user, system, naps) a second and a state each; `log` are bytes a second."""
    seen = Progress()
    for second in range(0, seconds + 1, 2):
        for rank, (user, system, naps, state) in enumerate(rates):
            size = (log[rank] if rank < len(log) else 0) * second
            at = 1000.0 + second
            seen.note(rank, Activity(at, user * second, system * second, int(naps * second), state, size))
    return seen


WAITS = (0.1, 0.15, 0.0, "R")
"""An Open MPI rank in an all-reduce that yields: it polls, in user and system mode."""
NAPS = (0.001, 0.002, 20.0, "S")
"""An idle rehearsal worker: it looks for a message and naps."""
SLEEPS = (0.0, 0.0, 0.0, "S")
SPINNING = (0.9, 0.0, 0.0, "R")


def test_a_stopped_rank_stands_out() -> None:
    """SIGSTOP shows as state T, whatever the others do."""
    assert _watch(WAITS, WAITS, (0.0, 0.0, 0.0, "ST"), NAPS).culprit() == Culprit(2, "a process of it is stopped")


def test_a_rank_that_sleeps_stands_out() -> None:
    """Others poll or nap while they wait; the one that they wait for does neither."""
    assert _watch(WAITS, NAPS, SLEEPS, WAITS).culprit() == Culprit(2, WORKS)


def test_a_rank_that_spins_stands_out() -> None:
    """It burns CPU in user mode alone; those that poll call the kernel, those that nap do so often."""
    assert _watch(WAITS, SPINNING, WAITS, NAPS).culprit() == Culprit(1, SPINS)
    assert _watch(NAPS, SPINNING, NAPS).culprit() == Culprit(1, SPINS)


def test_when_several_or_none_behave_so_nobody_is_blamed() -> None:
    """A wrong name costs more than none."""
    assert _watch(WAITS, WAITS, WAITS).culprit() is None
    assert _watch(SLEEPS, SLEEPS, SLEEPS, WAITS).culprit() is None
    assert _watch(WAITS, SLEEPS, SLEEPS, NAPS).culprit() is None
    assert _watch(SPINNING, SPINNING, SPINNING).culprit() is None
    assert _watch(SLEEPS).culprit() is None
    assert _watch(WAITS, SLEEPS, seconds=2).culprit() is None
    assert Progress().culprit() is None


def test_quiet_is_counted_from_the_last_line_or_work_of_any_rank() -> None:
    """A rank that loads weights without a word works; one that waits in a poll does too, as far as one can see."""
    assert _watch(SLEEPS, SLEEPS).quiet_s(1030.0) == 30.0
    assert _watch(SLEEPS, (0.5, 0.1, 0.0, "R")).quiet_s(1012.0) == 2.0
    assert _watch(SLEEPS, SLEEPS, log=(0, 100)).quiet_s(1012.0) == 2.0
    assert Progress().quiet_s(5.0) == 0.0
