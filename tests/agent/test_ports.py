from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.agent import ports


@pytest.fixture
def taken() -> Iterator[int]:
    """Hold a port."""
    with socket.socket() as held:
        held.bind(("0.0.0.0", 0))
        held.listen()
        yield held.getsockname()[1]


def test_a_fixed_port_that_is_in_use_is_named(taken: int) -> None:
    """Triton itself names only the first clash, after loading; we name it before."""
    with pytest.raises(ValueError, match=f"port {taken} is in use"):
        ports.draw(20000, 20010, 1, [taken, 0, 0])


def test_a_taken_port_is_not_drawn(taken: int) -> None:
    """A port in use is passed over; a range without three free ones is exhausted."""
    with pytest.raises(ValueError, match=f"no 3 free ports in {taken}-{taken} on this node"):
        ports.draw(taken, taken, 1, [0, 0, 0])


@given(seed=st.integers(0, 10**9), size=st.integers(3, 400))
def test_drawn_ports_are_distinct_and_in_range(seed: int, size: int) -> None:
    """Whatever the job id, three different ports of the site's range, the fixed one kept."""
    low = 31000
    drawn = ports.draw(low, low + size - 1, seed, [0, 39999, 0])
    assert drawn[1] == 39999
    assert len({*drawn}) == 3
    assert all(low <= port < low + size for port in (drawn[0], drawn[2]))


def test_neighbouring_jobs_start_far_apart() -> None:
    """Two jobs that start together on one node do not ask for the same ports."""
    first, second = (ports.draw(20000, 29999, job, [0, 0, 0]) for job in (1000, 1001))
    assert not set(first) & set(second)
