"""Which rank holds up the others, from what a node's agent sees of their processes."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_llm.agent.progress import ALONE, ASLEEP, SPINS, STOPPED, UNSEEN, Activity, Culprit, Progress, worked

Rate = tuple[float, float, float, str]


def _watch(*rates: Rate, log: tuple[int, ...] = (), seconds: int = 10) -> Progress:
    """Return ten seconds of ranks with (user, system, naps) a second and a state each; `log` are bytes a second."""
    seen = Progress()
    for second in range(0, seconds + 1, 2):
        for rank, (user, system, naps, state) in enumerate(rates):
            size = (log[rank] if rank < len(log) else 0) * second
            at = 1000.0 + second
            seen.note(rank, Activity(at, user * second, system * second, int(naps * second), state, size), at)
    return seen


def _culprit(*rates: Rate, seconds: int = 10) -> Culprit | None:
    return _watch(*rates, seconds=seconds).culprit(range(len(rates)))


WAITS = (0.1, 0.15, 3.0, "R")
"""An Open MPI rank in an all-reduce that yields: it polls, in user and system mode."""
JOINS = (0.012, 0.027, 5400.0, "S")
"""An Open MPI rank in MPI_Init that waits for another one: it naps for 100 µs at a time."""
NAPS = (0.001, 0.002, 52.0, "S")
"""An idle rehearsal worker: it looks for a message and naps."""
SLEEPS = (0.0, 0.0, 4.2, "S")
"""A stub that does nothing at all: its own timers wake it."""
SPINNING = (0.33, 0.017, 3.2, "R")
"""One of eight on two cores: taking turns costs some time in the kernel."""


def test_a_stopped_rank_stands_out() -> None:
    """SIGSTOP shows as state T, whatever the others do."""
    assert _culprit(WAITS, WAITS, (0.0, 0.0, 0.0, "ST"), NAPS) == Culprit(2, STOPPED)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("others", [WAITS, JOINS, NAPS])
def test_a_rank_that_sleeps_stands_out(others: Rate, rank: int) -> None:
    """Others poll or nap while they wait; the one that they wait for does neither, be it the leader or a worker."""
    rates = [others] * 4
    rates[rank] = SLEEPS
    assert _culprit(*rates) == Culprit(rank, ASLEEP)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("others", [WAITS, JOINS, NAPS])
def test_a_rank_that_spins_stands_out(others: Rate, rank: int) -> None:
    """It burns CPU in user mode alone; those that poll call the kernel, those that nap do so often."""
    rates = [others] * 4
    rates[rank] = SPINNING
    assert _culprit(*rates) == Culprit(rank, SPINS)


def test_a_rank_that_never_came_stands_out() -> None:
    """The step began, and of one rank no process was ever seen."""
    seen = _watch(JOINS, JOINS, JOINS)
    assert seen.culprit([0, 1, 2, 7]) == Culprit(7, UNSEEN)
    assert seen.culprit([0, 1, 2, 6, 7]) is None
    assert Progress().culprit([0, 1]) is None


def test_ranks_are_compared_within_their_instance() -> None:
    """An idle instance's leader sleeps while its workers nap: it is no culprit of another instance's hang."""
    seen = _watch(SLEEPS, NAPS, NAPS, WAITS, WAITS, WAITS)
    assert seen.culprit([3, 4, 5]) is None
    assert seen.culprit([0, 1, 2]) == Culprit(0, ASLEEP)


def test_an_only_rank_holds_up_itself() -> None:
    """There is nobody to compare it with."""
    assert _culprit(SLEEPS) == Culprit(0, ALONE)


def test_when_several_or_none_behave_so_nobody_is_blamed() -> None:
    """A wrong name costs more than none."""
    assert _culprit(WAITS, WAITS, WAITS) is None
    assert _culprit(SLEEPS, SLEEPS, SLEEPS, WAITS) is None
    assert _culprit(WAITS, SLEEPS, SLEEPS, NAPS) is None
    assert _culprit(SPINNING, SPINNING, SPINNING) is None
    assert _culprit(WAITS, SLEEPS, seconds=2) is None
    assert _culprit() is None


@pytest.mark.parametrize(
    ("change", "work"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"log": 1}, True, id="a line in the log"),
        pytest.param({"user_s": 0.5, "system_s": 0.02}, True, id="it computes"),
        pytest.param({"user_s": 0.02, "system_s": 0.02}, False, id="next to nothing"),
        pytest.param({"user_s": 0.03, "system_s": 0.06, "naps": 10800}, False, id="a poll with naps, as in MPI_Init"),
        pytest.param({"user_s": 0.2, "system_s": 0.3}, False, id="a poll that yields"),
        pytest.param({"user_s": 0.2, "system_s": 0.3, "read_mib": 50.0}, True, id="it reads"),
        pytest.param({"system_s": 0.3, "rss_mib": 5.0}, True, id="its memory grows"),
        pytest.param({"rss_mib": -5.0}, True, id="it gives memory back"),
        pytest.param({"states": "SR"}, True, id="a process more"),
    ],
)
def test_what_counts_as_work(change: dict[str, Any], work: bool) -> None:
    """Polling uses CPU, and nothing comes of it: a rank that waits for another for ever does no work."""
    before = Activity(1000.0, 1.0, 1.0, 1000, "S", 10, 100.0, 20.0)
    fields: dict[str, Any] = {
        name: value if isinstance(value, str) else getattr(before, name) + value for name, value in change.items()
    }
    assert worked(before, before._replace(at=1002.0, **fields)) is work


def test_quiet_is_counted_from_the_last_line_or_work_of_any_rank() -> None:
    """A rank that loads weights without a word works; those that only wait for another do not."""
    assert _watch(SLEEPS, JOINS).quiet_s(1030.0, [0, 1]) == 30.0
    assert _watch(WAITS, SLEEPS).quiet_s(1030.0, [0, 1]) == 30.0
    assert _watch(SLEEPS, (0.5, 0.02, 0.0, "R")).quiet_s(1012.0, [0, 1]) == 2.0
    assert _watch(SLEEPS, (0.5, 0.02, 0.0, "R")).quiet_s(1012.0, [0]) == 12.0
    assert _watch(SLEEPS, SLEEPS, log=(0, 100)).quiet_s(1012.0, [0, 1]) == 2.0
    assert Progress().quiet_s(5.0, [0]) == 0.0
