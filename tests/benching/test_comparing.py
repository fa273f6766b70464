"""Two measurements beside each other: changes, noise, other conditions, and when they cannot be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_llm.benching.comparing import LARGER, NOISE, UNKNOWN, compare
from slurm_llm.observe.benchresults import BenchResult, Load
from tests.benching.cases import LOAD, result


def rates(*values: float) -> list[BenchResult]:
    return [result(number, rate=value) for number, value in enumerate(values, 1)]


def test_a_relative_change() -> None:
    """Of each figure that both have; without repeats nobody knows whether it is noise."""
    made = compare(rates(10.0), rates(12.0))
    first = made.changes[0]
    assert (first.name, first.first, first.second, first.verdict) == ("request_throughput", 10.0, 12.0, UNKNOWN)
    assert first.relative == pytest.approx(0.2)
    assert [(one.name, one.part) for one in made.changes[1:]] == [
        ("request_latency", part) for part in ("mean", "p50", "p99")
    ]
    assert (made.differs, made.hindrances) == ((), ())
    assert compare(rates(0.0), rates(1.0)).changes[0].relative is None


NOISY = [
    ((10.0, 10.1, 9.9), (12.0, 12.1, 11.9), LARGER),
    ((10.0, 14.0, 6.0), (12.0, 16.0, 8.0), NOISE),
    ((10.0, 10.2), (10.1, 10.3), NOISE),
    # Two repeats say little: with one degree of freedom the limit is 12.7 deviations.
    ((10.0, 10.1), (11.0, 13.0), NOISE),
    ((10.0, 10.0), (10.0, 10.0), NOISE),
    ((10.0, 10.0), (11.0, 11.0), LARGER),
    ((10.0, 10.1), (11.0,), UNKNOWN),
]


@pytest.mark.parametrize(("first", "second", "verdict"), NOISY)
def test_repeats_tell_noise(first: tuple[float, ...], second: tuple[float, ...], verdict: str) -> None:
    """By Welch's test at 95 %: a difference counts only beyond what the repeats of both sides scatter."""
    assert compare(rates(*first), rates(*second)).changes[0].verdict == verdict


OTHER_LOADS: list[tuple[dict[str, Any], str]] = [
    ({"concurrency": 4}, "concurrency: 2 in the first, 4 in the second"),
    ({"streaming": False}, "streaming: yes in the first, no in the second"),
    ({"request_rate": 2.0, "arrival": "poisson"}, "request rate: none in the first, 2 poisson in the second"),
    ({"input_tokens": (64.0, 8.0)}, "input tokens: 32 0 in the first, 64 8 in the second"),
    ({"dataset_sha256": "f" * 64}, "dataset: none in the first"),
    ({"tokenizer": "/other"}, "tokenizer: none in the first, /other in the second"),
]


@pytest.mark.parametrize(("changes", "why"), OTHER_LOADS)
def test_another_load_cannot_be_compared(changes: dict[str, Any], why: str) -> None:
    """What was asked of the server must be the same."""
    load: Load = replace(LOAD, **changes)
    (found,) = compare([result()], [result(2, load=load)]).hindrances
    assert found.startswith(why)


def test_an_invalid_one_cannot_be_compared() -> None:
    """Nor a set of repeats with one among them."""
    bad = result(3, valid=False, reasons=("it broke",))
    assert compare([result()], [result(2), bad]).hindrances == ("bench 3 is invalid: it broke",)


def test_other_conditions_are_told() -> None:
    """They may be what the comparison is about."""
    other = replace(result().served, sizes={"tensor_parallel_size": 1, "pipeline_parallel_size": 1}, triton="2.60.0")
    made = compare([result()], [result(2, served=other, load=replace(LOAD, requests=20))])
    assert [(one.what, one.first, one.second) for one in made.differs] == [
        ("requests", "10", "20"),
        ("sizes", "tensor_parallel 2", "all 1"),
        ("Triton", "2.51.0", "2.60.0"),
    ]
    assert made.hindrances == ()
