"""What the servers counted at the moment of a report: a table and a few figures that stand out. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from slurm_llm.observe.livefigures import Figures
from slurm_llm.observe.metrics import Row
from slurm_llm.observe.metricstext import Family
from slurm_llm.observe.text import clean

UNUSED = (Family("", "untyped", "", ()),)
"""The page of a server that has counted nothing yet, to compare with."""
ALWAYS = ("nv_inference_request_failure", "nv_inference_pending_request_count")
"""Families whose zeros say something."""
MOST_COLUMNS = 16
"""Instances that the table has a column for; headlines are of all."""


@dataclass(frozen=True)
class MetricRow:
    """One figure on each instance, None where it has none, and the same in words."""

    name: str
    meaning: str
    unit: str
    values: tuple[float | None, ...]
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Metrics:
    """Figures since the servers' start; `headlines` are those of all instances together, `problems` who was silent."""

    instances: tuple[int, ...]
    headlines: tuple[tuple[str, str], ...]
    rows: tuple[MetricRow, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def build_report_metrics(
    rows: Sequence[Row],
    instances: Sequence[int],
    notes: Iterable[str],
    problems: Iterable[str],
    headlines: Iterable[tuple[str, str]],
    words: Callable[[float, str], str],
) -> Metrics:
    """Return the known families that say anything; `words` puts a value and its unit into a few characters."""
    shown = [row for row in rows if row.known is not None and _tells(row)]
    columns = instances[:MOST_COLUMNS]
    notes = [
        *notes,
        *([f"the table is of {len(columns)} of {len(instances)} instances"] if columns != instances else []),
    ]
    return Metrics(
        instances=tuple(columns),
        headlines=tuple(headlines),
        rows=tuple(_row(row, columns, words) for row in shown),
        notes=tuple(map(clean, notes)),
        problems=tuple(map(clean, problems)),
    )


def _tells(row: Row) -> bool:
    values = [cell.value for cell in row.cells.values() if math.isfinite(cell.value)]
    return any(values) or (bool(values) and row.family in ALWAYS)


def _row(row: Row, instances: Sequence[int], words: Callable[[float, str], str]) -> MetricRow:
    labels = [f"{name} {value}" if name == "gpu" else value for name, value in row.labels]
    cells = [row.cells.get(number) for number in instances]
    meaning = row.meaning or (row.known.meaning if row.known else "")
    return MetricRow(
        name=clean(" ".join([row.family, *labels, *([row.stat] if row.stat else [])])),
        meaning=clean(meaning),
        unit=row.unit,
        values=tuple(cell.value if cell and math.isfinite(cell.value) else None for cell in cells),
        shown=tuple(
            "–" if cell is None else (">" if cell.beyond else "") + words(cell.value, row.unit) for cell in cells
        ),
    )


def headlines(whole: Figures, now: Figures) -> tuple[tuple[str, str], ...]:
    """Return label and value of what stands out: `whole` since the servers' start, `now` between two looks."""
    return tuple((label, text) for label, text in _headlines(whole, now) if text is not None)


def _headlines(whole: Figures, now: Figures) -> Iterator[tuple[str, str | None]]:
    yield "requests answered", _number(whole.answered)
    yield "failed", _number(whole.failed)
    yield "requests per second so far", _number(whole.requests_per_s)
    yield "requests per second now", _number(now.requests_per_s)
    yield "tokens per second so far", _number(whole.tokens_per_s)
    yield "tokens per second now", _number(now.tokens_per_s)
    yield "waiting now", _number(now.waiting)
    yield "in the engine now", _number(now.running)
    yield "KV cache in use", None if now.kv_cache is None else f"{now.kv_cache:.0%}"
    for label, spread in (("time of a request", whole.latency), ("time to the first token", whole.first_token)):
        yield f"mean {label}", _time(spread.mean_s)
        yield f"P99 {label}", None if spread.p99_s is None else f"{'>' * spread.beyond}{_time(spread.p99_s)}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.3g}" if value < 100 and value != int(value) else f"{value:,.0f}"


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
