"""What an end means and what to do: the keys of the phase, and commands with what is known in them."""

from __future__ import annotations

import pytest

from slurm_llm.agent import causes


@pytest.mark.parametrize(
    ("kind", "phase", "named", "not_named"),
    [
        ("hang", "loading", "timeouts.stall_s", "answer_s"),
        ("hang", "serving", "timeouts.answer_s", "stall_s"),
        ("hang", "serving", "timeouts.unready_s", "ready_s` "),
        ("not-ready", "loading", "timeouts.ready_s", "stall_s"),
        ("time", "", "slow", "service"),
        ("time", "serving", "`service`", "slow"),
    ],
)
def test_the_limits_of_the_phase(kind: str, phase: str, named: str, not_named: str) -> None:
    """What bounds a start does not bound a model that serves."""
    hint = causes.advice(kind, None, phase)
    assert hint is not None
    assert named in hint.remedy
    assert not_named not in hint.remedy


@pytest.mark.parametrize(
    ("state", "cause", "named"),
    [
        ("TIMED_OUT", "the time limit was near", "resources.time"),
        ("TIMED_OUT", "the time limit was near; job 8 is to take over", None),
        ("COMPLETED", "idle for 30 s", "service.idle_stop_s"),
        ("COMPLETED", "stopped on request", None),
    ],
)
def test_advice_on_stops(state: str, cause: str, named: str | None) -> None:
    """What the spec has made it do is said with its key; a person's own stop needs no advice."""
    hint = causes.stop_advice(state, cause)
    assert (hint is None) == (named is None)
    assert hint is None or (named is not None and named in hint.remedy)


@pytest.mark.parametrize(("rank", "shown"), [(3, "`slurm-llm logs x --rank 3`"), (None, "`slurm-llm logs x`")])
def test_a_command_has_no_gap(rank: int | None, shown: str) -> None:
    """It can be run as it stands, also where no rank stands out."""
    assert causes.filled("`slurm-llm logs RUN --rank N`", "x", rank) == shown
