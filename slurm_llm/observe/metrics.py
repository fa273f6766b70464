"""The metrics pages of a run's instances as rows: what each figure means, its value and rate on each instance. Pure.

Quantiles of histograms are estimates: within a bucket nothing is known, so a straight line is drawn through it, as
Prometheus' histogram_quantile does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from slurm_llm.observe.metricsfamily import Known
from slurm_llm.observe.metricsknown import KNOWN
from slurm_llm.observe.metricstext import Family, Labels, Sample

MEAN, COUNT = "mean", "count"
QUANTILES = (0.5, 0.99)
ESTIMATED = "estimated from buckets"
GPU, NUMBER = "gpu_uuid", "gpu"
"""Label of a GPU, and ours: GPUs are numbered in the order of their ids, so that instances share rows."""
CREATED = "_created"
"""End of a family that tells since when another one counts, as prometheus_client writes it."""
_GROWING = frozenset({"counter", "histogram", "summary"})
_ORDER = {name: place for place, name in enumerate(KNOWN)}


@dataclass(frozen=True)
class Page:
    """What one instance's leader showed; `families` are those of `parse_metrics`."""

    instance: int
    families: tuple[Family, ...]


@dataclass(frozen=True)
class Cell:
    """A figure on one instance; NaN where there is none yet.

    `rate` is its growth per second between two looks. `beyond`: it is above the last bucket, whose bound this is.
    """

    value: float
    rate: float | None = None
    beyond: bool = False


@dataclass(frozen=True)
class Row:
    """One figure of all instances. `stat` is empty, or which of a distribution's figures it is: count, mean, p50, p99.

    `labels` are those of the page without the model's, `model` is its name (and version, unless that is 1).
    """

    family: str
    kind: str
    known: Known | None
    model: str
    labels: Labels
    stat: str
    meaning: str
    unit: str
    cells: Mapping[int, Cell]


@dataclass(frozen=True)
class _Point:
    """One figure on one instance; `grows` where its difference in time is a rate."""

    stat: str
    labels: Labels
    value: float
    grows: bool = False
    beyond: bool = False


_Key = tuple[str, Labels, str]


def build_metrics(pages: Sequence[Page], later: Sequence[Page] = (), seconds: float = 0.0) -> list[Row]:
    """Return the rows of `pages`, known families first; with `later` its values, and rates over the `seconds` between.

    A counter that has become smaller has no rate: its server was started again meanwhile.
    """
    before = {page.instance: _points(page) for page in pages} if later else {}
    now = {page.instance: _points(page) for page in later or pages}
    families = {family.name: family for page in later or pages for family in page.families}
    keys = dict.fromkeys(key for points in now.values() for key in points)
    place = {name: number for number, name in enumerate(families)}
    rows = []
    for key in sorted(keys, key=lambda key: (_order(key), place[key[0]], *_within(key))):
        cells = {
            instance: _cell(points[key], before.get(instance, {}).get(key), seconds)
            for instance, points in now.items()
            if key in points
        }
        rows.append(_row(families[key[0]], key, cells))
    return rows


def _order(key: _Key) -> int:
    return _ORDER.get(key[0], len(_ORDER))


def _within(key: _Key) -> tuple[str, int, int]:
    """Return a row's place in its family: by model and GPU, then as its parts are known: a page has no order."""
    known, labels = KNOWN.get(key[0]), dict(key[1])
    parts = list(known.parts) if known else []
    part = labels.get(known.category, "") if known else ""
    number = labels.get(NUMBER, "")
    gpu = int(number) if number.isascii() and number.isdecimal() else 0
    return labels.get("model") or labels.get("model_name", ""), gpu, parts.index(part) if part in parts else len(parts)


def restarted(rows: Iterable[Row]) -> list[int]:
    """Return the instances of which some counter went backwards between the two looks."""
    return sorted(
        {number for row in rows for number, cell in row.cells.items() if cell.rate is not None and cell.rate < 0}
    )


def quantile(share: float, buckets: Sequence[tuple[float, float]]) -> tuple[float, bool] | None:
    """Return the estimated quantile of cumulative `buckets` (upper bound, count), and whether it lies beyond the last.

    Beyond the last finite bound nothing is known: that bound is returned, with True. None without any observation.
    """
    total = buckets[-1][1] if buckets else 0.0
    finite = [bound for bound, _ in buckets if math.isfinite(bound)]
    if not total > 0 or not finite:
        return None
    wanted = share * total
    low, below = min(0.0, finite[0]), 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            if not math.isfinite(bound):
                break
            return low + (bound - low) * max(0.0, wanted - below) / (count - below), False
        low, below = bound, count
    return finite[-1], True


def _points(page: Page) -> dict[_Key, _Point]:
    gpus = sorted({dict(one.labels).get(GPU, "") for family in page.families for one in family.samples} - {""})
    numbers = {name: str(number) for number, name in enumerate(gpus)}
    made = {}
    names = {family.name for family in page.families}
    for family in page.families:
        if _tells_since_when(family.name, names):
            continue
        for point in _family_points(family):
            labels = tuple((NUMBER, numbers[text]) if name == GPU else (name, text) for name, text in point.labels)
            made[family.name, labels, point.stat] = point
    return made


def _tells_since_when(name: str, names: Set[str]) -> bool:
    base = name.removesuffix(CREATED)
    return base != name and (base in names or f"{base}_total" in names)


def _family_points(family: Family) -> Iterator[_Point]:
    if family.kind not in ("histogram", "summary"):
        for sample in family.samples:
            yield _Point("", sample.labels, sample.value, grows=family.kind in _GROWING)
        return
    groups: dict[Labels, list[Sample]] = {}
    for sample in family.samples:
        labels = tuple(pair for pair in sample.labels if pair[0] not in ("le", "quantile"))
        groups.setdefault(labels, []).append(sample)
    for labels, samples in groups.items():
        yield from _distribution(family, labels, samples)


def _distribution(family: Family, labels: Labels, samples: Sequence[Sample]) -> Iterator[_Point]:
    values = {sample.name: sample.value for sample in samples}
    count, total = values.get(f"{family.name}_count", math.nan), values.get(f"{family.name}_sum", math.nan)
    yield _Point(COUNT, labels, count, grows=True)
    yield _Point(MEAN, labels, total / count if count else math.nan)
    if family.kind == "summary":
        for share, value in _bounds(samples, "quantile"):
            yield _Point(f"p{100 * share:g}", labels, value)
        return
    buckets = _bounds(samples, "le")
    for share in QUANTILES:
        value, beyond = quantile(share, buckets) or (math.nan, False)
        yield _Point(f"p{100 * share:g}", labels, value, beyond=beyond)


def _bounds(samples: Iterable[Sample], label: str) -> list[tuple[float, float]]:
    """Return (the label's number, value) of each sample that has the label, in order of that number."""
    named = ((dict(sample.labels).get(label), sample.value) for sample in samples)
    return sorted((_number(text), value) for text, value in named if text is not None)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def _cell(now: _Point, before: _Point | None, seconds: float) -> Cell:
    grows = now.grows and before is not None and seconds > 0
    rate = (now.value - before.value) / seconds if grows and before is not None else None
    return Cell(now.value, rate, now.beyond)


def _row(family: Family, key: _Key, cells: Mapping[int, Cell]) -> Row:
    name, labels, stat = key
    known, found = KNOWN.get(name), dict(labels)
    model, version = found.pop("model", "") or found.pop("model_name", ""), found.pop("version", "1")
    if known and found.get("engine") == "0":
        # vLLM numbers its engines, and has one.
        del found["engine"]
    category = found.get(known.category, "") if known else ""
    meaning = known.parts.get(category, known.meaning) if known else family.help
    unit = known.unit if known else ""
    if stat == COUNT:
        meaning, unit = "observations", ""
    elif stat:
        meaning = ESTIMATED if family.kind == "histogram" and stat != MEAN else ""
    return Row(
        family=name,
        kind=family.kind,
        known=known,
        model=model if version in ("", "1") else f"{model} version {version}",
        labels=tuple(found.items()),
        stat=stat,
        meaning=meaning,
        unit=unit,
        cells=cells,
    )
