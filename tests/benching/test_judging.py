"""A measurement that must not be used is told, each reason by itself; a sound one has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_llm.benching.judging import Seen, Sight, notes, own_requests, reasons, success_count
from slurm_llm.benching.tools import Outcome
from slurm_llm.observe.benchresults import Counted, Fault, Figure, Load
from slurm_llm.observe.metricstext import parse_metrics
from tests.benching.cases import LOAD

RATE = replace(LOAD, request_rate=8.0, arrival="poisson", concurrency=None)
FIGURES = {"output_tokens": Figure("tokens", 16.0), "output_token_throughput": Figure("tokens/s", 100.0)}
GOOD = Outcome(FIGURES, answered=10, failed=0)
SERVES = Sight("READY", 7, 0)
SEEN = Seen("aiperf", 0, GOOD, "", SERVES, SERVES, (), Counted(100, 114), 3)


def times(first: float, whole: float) -> dict[str, Figure]:
    """Return the figures of a stream."""
    return {"time_to_first_token": Figure("ms", first), "request_latency": Figure("ms", whole)}


def seen(outcome: dict[str, Any] | None = None, **changes: Any) -> Seen:
    """Return what was seen, with some of it changed."""
    return replace(SEEN, outcome=replace(GOOD, **(outcome or {})), **changes)


def test_a_sound_measurement_has_no_reason() -> None:
    """Ten answered, three to warm up, and one that the job's head asked."""
    assert reasons(SEEN, LOAD) == []
    assert reasons(seen(states=("READY",)), LOAD) == []


BAD: list[tuple[Seen, str]] = [
    (replace(SEEN, exit_code=3), "aiperf ended with exit status 3"),
    (replace(SEEN, outcome=None, lost="aiperf left no result"), "aiperf left no result"),
    (seen({"unfinished": "it was cancelled"}), "aiperf did not finish: it was cancelled"),
    (seen({"answered": 9, "failed": 1, "errors": (Fault("boom", 1),)}), "1 of 10 requests failed: boom"),
    (seen({"answered": 8}, counted=Counted(0, 11)), "8 of 10 requests were made"),
    (seen({"figures": {}}), "the answers held no token"),
    (seen({"figures": {"output_tokens": Figure("tokens", 0.0)}}), "the answers held no token"),
    (replace(SEEN, after=Sight("READY", 8, 0)), "job 8 has taken over from job 7 meanwhile"),
    (replace(SEEN, after=Sight("READY", 7, 1)), "the server was started again meanwhile: attempt 0, then 1"),
    (replace(SEEN, after=Sight("FAILED", 7, 0)), "the run was not READY throughout: FAILED"),
    (replace(SEEN, states=("DEGRADED", "READY")), "the run was not READY throughout: DEGRADED"),
    (replace(SEEN, counted=Counted(100, 109)), "Triton counted 9 answered requests, aiperf says 10"),
    (
        replace(SEEN, counted=Counted(100, 117)),
        "Triton counted 17 answered requests, aiperf made 13: somebody else used the server",
    ),
    (replace(SEEN, counted=Counted(100, 4)), "Triton's count of requests went backwards: the server was started again"),
]


@pytest.mark.parametrize(("one", "why"), BAD)
def test_each_reason(one: Seen, why: str) -> None:
    """Exactly one reason, in these words."""
    assert reasons(one, LOAD) == [why]


def test_nothing_answered_is_told_with_what_went_wrong() -> None:
    """All failed: no talk of tokens."""
    found = reasons(seen({"answered": 0, "failed": 10, "figures": {}}, counted=Counted(0, 0)), LOAD)
    assert found == ["10 of 10 requests failed", "no request was answered"]


def test_a_time_has_no_number_of_requests() -> None:
    """As many as there were are right."""
    assert reasons(SEEN, replace(LOAD, requests=None, duration_s=5.0)) == []


NOTED: list[tuple[Seen, Load, list[str]]] = [
    (SEEN, LOAD, []),
    (seen({"notes": ("a word",)}), LOAD, ["a word"]),
    (replace(SEEN, counted=None), LOAD, ["Triton's own count of requests could not be compared"]),
    (SEEN, replace(LOAD, output_tokens=(64.0, 0.0)), ["answers had 16 tokens on average, 64 were asked for"]),
    (replace(SEEN, outcome=None), LOAD, []),
    (seen({"figures": {**FIGURES, **times(19.0, 50.0)}}), LOAD, []),
    (seen({"figures": {**FIGURES, "request_throughput": Figure("requests/s", 5.0)}}), RATE, []),
    (
        seen({"figures": {**FIGURES, "request_throughput": Figure("requests/s", 5.0)}, "answered": 400}),
        RATE,
        ["8 requests/s were asked for, 5 came: tool or server did not keep up"],
    ),
    (
        seen({"figures": {**FIGURES, **times(49.9, 50.0)}}),
        LOAD,
        ["the pieces of answers came together: the first token's time is nearly that of the whole answer"],
    ),
]


@pytest.mark.parametrize(("one", "load", "said"), NOTED)
def test_notes(one: Seen, load: Load, said: list[str]) -> None:
    """What does not spoil a measurement and has to be known."""
    assert notes(one, load) == said


def test_the_count_of_one_model() -> None:
    """All versions of the model that is measured; no figure is not zero."""
    page = """# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 5
nv_inference_request_success{model="m",version="2"} 2
nv_inference_request_success{model="other",version="1"} 90
"""
    families = parse_metrics(page)
    assert success_count(families, "m") == 7
    assert success_count(families, "none") is None


def test_the_jobs_own_requests() -> None:
    """One every so often, for each instance, and one that was under way at either end; none are asked at 0 s."""
    assert own_requests(65.0, 30.0, 2) == 8
    assert own_requests(65.0, 0.0, 1) == 2
