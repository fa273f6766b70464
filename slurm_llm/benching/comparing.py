"""Two measurements beside each other: relative changes, whether these are noise, and what else differs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slurm_llm.observe import benchresults as kept
from slurm_llm.observe.benchresults import BenchResult, Figure

NOISE, LARGER, UNKNOWN = "within noise", "more than noise", ""
_T = ((1, 12.71), (2, 4.30), (3, 3.18), (4, 2.78), (5, 2.57), (6, 2.45), (8, 2.31), (10, 2.23), (15, 2.13), (30, 2.04))
"""Student's t for 95 %, two-sided, by degrees of freedom; the next lower ones count."""


@dataclass(frozen=True)
class Change:
    """One figure of both: means over their repeats with standard deviations (None without repeats).

    `relative` is (second - first) / first, None where the first is zero.
    """

    name: str
    part: str
    unit: str
    first: float
    second: float
    spreads: tuple[float | None, float | None]
    relative: float | None
    verdict: str


@dataclass(frozen=True)
class Difference:
    """A condition that is not the same."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """What `bench diff` says; with `hindrances` the two measured different things."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    changes: tuple[Change, ...]
    differs: tuple[Difference, ...]
    hindrances: tuple[str, ...]


ROWS = (
    *((kept.REQUESTS, "mean"), (kept.TOKENS, "mean")),
    *((name, part) for name in (kept.LATENCY, kept.FIRST, kept.BETWEEN) for part in ("mean", "p50", "p99")),
    (kept.OUTPUT, "mean"),
)
_Read = Callable[[BenchResult], object]
_SAME: tuple[tuple[str, _Read], ...] = (
    ("tool", lambda one: one.tool.name),
    ("protocol", lambda one: one.load.protocol),
    ("streaming", lambda one: one.load.streaming),
    ("concurrency", lambda one: one.load.concurrency),
    ("request rate", lambda one: (one.load.request_rate, one.load.arrival)),
    ("input tokens", lambda one: one.load.input_tokens),
    ("output tokens", lambda one: one.load.output_tokens),
    ("lengths", lambda one: one.load.lengths),
    ("dataset", lambda one: one.load.dataset_sha256),
    ("tokenizer", lambda one: one.load.tokenizer),
)
"""What must be the same, else different things were measured."""
_TOLD: tuple[tuple[str, _Read], ...] = (
    ("tool's version", lambda one: one.tool.version),
    ("tool ran as", lambda one: one.tool.place),
    ("tool's node", lambda one: one.tool.node),
    ("requests", lambda one: one.load.requests),
    ("duration", lambda one: one.load.duration_s),
    ("warm-up", lambda one: one.load.warmup),
    ("seed", lambda one: one.load.seed),
    ("instance", lambda one: one.load.instance),
    ("run", lambda one: one.served.run_id),
    ("job", lambda one: (one.served.job_id, one.served.attempt)),
    ("engine", lambda one: one.served.engine),
    ("model", lambda one: one.served.model),
    ("site", lambda one: one.served.site),
    ("image", lambda one: one.served.image),
    ("nodes", lambda one: one.served.nodes),
    ("instances", lambda one: one.served.instances),
    ("sizes", lambda one: one.served.sizes),
    ("spec", lambda one: one.served.spec_sha256[:12]),
    ("Triton", lambda one: one.served.triton),
    ("slurm_llm", lambda one: one.served.slurm_llm),
)


def compare(first: Sequence[BenchResult], second: Sequence[BenchResult]) -> Comparison:
    """Compare two measurements, each given as its repeats (one or more)."""
    return Comparison(
        first=tuple(one.number for one in first),
        second=tuple(one.number for one in second),
        changes=tuple(_changes(first, second)),
        differs=tuple(_differences(_TOLD, first[0], second[0])),
        hindrances=tuple(_hindrances(first, second)),
    )


def _hindrances(first: Sequence[BenchResult], second: Sequence[BenchResult]) -> Iterator[str]:
    for one in (*first, *second):
        if not one.valid:
            yield f"bench {one.number} is invalid: {one.reasons[0]}"
    for own in _differences(_SAME, first[0], second[0]):
        yield f"{own.what}: {own.first} in the first, {own.second} in the second"


def _differences(rows: Sequence[tuple[str, _Read]], first: BenchResult, second: BenchResult) -> Iterator[Difference]:
    for what, read in rows:
        one, other = read(first), read(second)
        if one != other:
            yield Difference(what, _shown(one), _shown(other))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name.removesuffix('_size')} {size}" for name, size in value.items() if size != 1) or "all 1"
    if isinstance(value, tuple):
        return " ".join(_shown(one) for one in value if one is not None) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value in (None, "") else str(value)


def _changes(first: Sequence[BenchResult], second: Sequence[BenchResult]) -> Iterator[Change]:
    for name, part in ROWS:
        sides = [_values(side, name, part) for side in (first, second)]
        if not all(sides):
            continue
        (one, spread), (other, its) = _mean(sides[0]), _mean(sides[1])
        relative = (other - one) / one if one else None
        yield Change(name, part, kept.UNITS[name], one, other, (spread, its), relative, _verdict(sides[0], sides[1]))


def _values(results: Sequence[BenchResult], name: str, part: str) -> list[float]:
    figures: list[Figure] = [one.figures[name] for one in results if name in one.figures]
    found = [getattr(one, part) for one in figures]
    return [float(one) for one in found if one is not None]


def _mean(values: Sequence[float]) -> tuple[float, float | None]:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1))


def _verdict(first: Sequence[float], second: Sequence[float]) -> str:
    """Return whether the means differ by more than repeats do: Welch's test at 95 %; needs two repeats of each."""
    (one, spread), (other, its) = _mean(first), _mean(second)
    if spread is None or its is None:
        return UNKNOWN
    parts = (spread**2 / len(first), its**2 / len(second))
    if not sum(parts):
        return NOISE if one == other else LARGER
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    limit = next(t for least, t in reversed(_T) if freedom >= least or least == 1)
    return LARGER if abs(other - one) > limit * math.sqrt(sum(parts)) else NOISE
