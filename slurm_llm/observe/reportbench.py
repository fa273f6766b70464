"""Kept results of benches as rows of a table, and sweeps over concurrency as points to plot. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_llm.observe.benchresults import BETWEEN, FIRST, LATENCY, REQUESTS, TOKENS, BenchResult
from slurm_llm.observe.reportplot import Point
from slurm_llm.observe.text import clean


@dataclass(frozen=True)
class BenchRow:
    """One measurement; throughputs are per second, latencies in ms, None where the tool told none."""

    number: int
    began: float
    load: str
    tool: str
    valid: bool
    answered: int
    failed: int
    requests_s: float | None
    tokens_s: float | None
    latency_ms: float | None
    latency_p99_ms: float | None
    first_token_ms: float | None
    first_token_p99_ms: float | None
    between_tokens_ms: float | None


@dataclass(frozen=True)
class Sweep:
    """Throughput (`x_of`) against latency (`y_of`) of one command's benches, by concurrency, and its first's number."""

    first: int
    x_of: str
    y_of: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Benches:
    """All benches of a run: rows, sweeps, and what is to be known beside them."""

    rows: tuple[BenchRow, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    notes: tuple[str, ...] = ()


def build_benches(results: Sequence[BenchResult], hide: Callable[[str], str]) -> Benches:
    """Return the table and the sweeps of `results`; invalid ones are rows, and in no plot. `hide` hides secrets."""
    found = [_sweep(first, results) for first in dict.fromkeys(one.series.first for one in results if one.series.sweep)]
    notes = [clean(hide(f"bench {one.number}: {text}")) for one in results for text in (*one.reasons, *_errors(one))]
    notes += list(dict.fromkeys(clean(text) for one in results for text in one.notes))
    return Benches(tuple(map(_row, results)), tuple(one for one in found if one is not None), tuple(notes))


def _errors(one: BenchResult) -> Iterable[str]:
    return (f"{fault.count} × {fault.what}" for fault in one.errors)


def _row(one: BenchResult) -> BenchRow:
    return BenchRow(
        number=one.number,
        began=one.began,
        load=clean(_load(one)),
        tool=clean(f"{one.tool.name} {one.tool.version}"),
        valid=one.valid,
        answered=one.requests.answered,
        failed=one.requests.failed,
        requests_s=_part(one, REQUESTS, "mean"),
        tokens_s=_part(one, TOKENS, "mean"),
        latency_ms=_part(one, LATENCY, "mean"),
        latency_p99_ms=_part(one, LATENCY, "p99"),
        first_token_ms=_part(one, FIRST, "mean"),
        first_token_p99_ms=_part(one, FIRST, "p99"),
        between_tokens_ms=_part(one, BETWEEN, "mean"),
    )


def _load(one: BenchResult) -> str:
    own = one.load
    words = [f"{own.request_rate:g} requests/s" if own.request_rate else ""]
    words += [f"concurrency {own.concurrency}" if own.concurrency else "", own.dataset.rpartition("/")[2]]
    tokens = [
        f"{name} {spread[0]:g}" for name, spread in (("in", own.input_tokens), ("out", own.output_tokens)) if spread
    ]
    return ", ".join(filter(None, [*words, *tokens]))


def _part(one: BenchResult, figure: str, part: str) -> float | None:
    own = one.figures.get(figure)
    value = getattr(own, part) if own is not None else None
    return float(value) if value is not None else None


def _sweep(first: int, results: Iterable[BenchResult]) -> Sweep | None:
    own = [one for one in results if one.series.first == first and one.valid and one.load.concurrency]
    x_of = TOKENS if all(_part(one, TOKENS, "mean") is not None for one in own) else REQUESTS
    own = [one for one in own if None not in (_part(one, x_of, "mean"), _part(one, LATENCY, "mean"))]
    loads = sorted({one.load.concurrency or 0 for one in own})
    if len(loads) < 2:
        return None
    points = [_point(load, [one for one in own if one.load.concurrency == load], x_of) for load in loads]
    words = "output tokens per second" if x_of == TOKENS else "requests per second"
    return Sweep(first, words, "mean latency of a request, ms", tuple(points))


def _point(concurrency: int, repeats: Sequence[BenchResult], x_of: str) -> Point:
    xs = [value for one in repeats if (value := _part(one, x_of, "mean")) is not None]
    ys = [value for one in repeats if (value := _part(one, LATENCY, "mean")) is not None]
    name, spread = str(concurrency), ((min(xs), max(xs)), (min(ys), max(ys)))
    return Point(name, statistics.fmean(xs), statistics.fmean(ys), *spread)
