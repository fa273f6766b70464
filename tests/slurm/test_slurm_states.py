"""Every state of Slurm is read in every spelling and has exactly one state of ours."""

from __future__ import annotations

import pytest

from slurm_llm.slurm.states import RUN_STATE_OF, SHORT_FORMS, RunState, SlurmState, parse_state, run_state


def test_the_table_is_complete() -> None:
    """No state of Slurm is without one of ours."""
    assert set(RUN_STATE_OF) == set(SlurmState)


def test_only_completed_becomes_completed() -> None:
    """Nothing but Slurm's own COMPLETED is a success."""
    successes = [state for state in SlurmState if run_state(state) is RunState.COMPLETED]
    assert successes == [SlurmState.COMPLETED]


@pytest.mark.parametrize("state", SlurmState)
def test_long_forms_are_read(state: SlurmState) -> None:
    """Each long form gives its state, in any case and with sacct's truncation mark."""
    assert parse_state(state.value) is state
    assert parse_state(state.value.lower()) is state
    assert parse_state(state.value + "+") is state


@pytest.mark.parametrize("short", SHORT_FORMS)
def test_short_forms_are_read(short: str) -> None:
    """Each compact form gives its state."""
    assert parse_state(short) is SHORT_FORMS[short]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1000", SlurmState.CANCELLED),
        ("CANCELLED+", SlurmState.CANCELLED),
        (" RUNNING\n", SlurmState.RUNNING),
        ("COMPLETED,COMPLETING", SlurmState.COMPLETING),
        ("PENDING,REQUEUE_HOLD,NEW_FLAG", SlurmState.REQUEUE_HOLD),
        ("NODE_FAIL", SlurmState.NODE_FAIL),
    ],
)
def test_decorated_states_are_read(text: str, state: SlurmState) -> None:
    """What Slurm adds to a state does not hide it."""
    assert parse_state(text) is state


@pytest.mark.parametrize("text", ["", " ", "?", "NEW_STATE", "(null)", "N/A", ",", "+", "0", "COMPLETEDISH"])
def test_unknown_states_are_unknown(text: str) -> None:
    """A state that nobody has heard of is UNKNOWN and no exception."""
    assert parse_state(text) is SlurmState.UNKNOWN


def test_terminal_states() -> None:
    """Exactly the six ends are terminal; UNKNOWN is none."""
    ends = {state.value for state in RunState if state.is_terminal}
    assert ends == {"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT", "PREEMPTED", "LOST"}


def test_running_is_only_the_floor() -> None:
    """A running job is STARTING until the run directory says more."""
    assert run_state(SlurmState.RUNNING) is RunState.STARTING
