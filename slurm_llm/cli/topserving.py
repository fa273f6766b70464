"""The part of the live view that shows instances: what each does now, and all of them together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from slurm_llm.cli.topcells import (
    ALWAYS,
    BAD,
    FAINT,
    HEADING,
    NOTHING,
    WARNING,
    Cell,
    Column,
    Style,
    age,
    number,
    percent,
    table,
    took,
)
from slurm_llm.cli.topranks import LOAD, NUMBER, TROUBLE, Order
from slurm_llm.observe.live import InstanceNow, Snapshot
from slurm_llm.observe.livefigures import Figures, Probe

OLD_S = 6.0
"""Figures that are older than this say so."""

_COLUMNS = (
    Column("instance", ALWAYS, right=False),
    Column("node", 40, right=False),
    Column("ranks", 50),
    Column("req/s", ALWAYS),
    Column("failed/s", 92),
    Column("queue", 90),
    Column("in work", 70),
    Column("KV", 85),
    Column("tok/s", 88),
    Column("mean", 80),
    Column("p50", 65),
    Column("p99", 75),
    Column("first", 72),
    Column("probe", 71),
    Column("answered", 45),
    Column("trend", 42, right=False),
    Column("", 97, right=False),
)


def instance_lines(snapshot: Snapshot, width: int, rows: int, style: Style, order: Order, now: float) -> list[Text]:
    """Return at most `rows` lines: a heading, all instances together where there are several, then each."""
    several = len(snapshot.instances) > 1
    room = max(0, rows - 1 - several)
    first, last = order.part(len(snapshot.instances), room)
    # Where all of them are seen they need not move about.
    by = NUMBER if order.by == TROUBLE and last - first == len(snapshot.instances) else order.by
    shown = sorted_instances(snapshot.instances, by)[first:last]
    body: list[Sequence[Cell]] = [_row(one, style, now) for one in shown]
    if several and snapshot.total is not None:
        body.insert(0, _all(snapshot.instances, snapshot.total))
    part = order.words(first, last, len(snapshot.instances))
    lines = table(_COLUMNS, body, width, part)
    lines[0].stylize(HEADING, 0, len("instance"))
    return lines[: max(0, rows)]


def _all(instances: Sequence[InstanceNow], total: Figures) -> Sequence[Cell]:
    """Return the row of all instances together."""
    answering = sum(one.look.figures is not None and not one.look.problem for one in instances)
    about = f"{answering} answer" if answering < len(instances) else ""
    ranks = f"{sum(one.ready for one in instances)}/{sum(one.ranks for one in instances)}"
    return (f"all {len(instances)}", "", ranks, *_figures(total, ""), "", about)


def sorted_instances(instances: Sequence[InstanceNow], by: str) -> list[InstanceNow]:
    """Return the instances: those in trouble first, or those with most requests, or by their numbers."""
    if by == LOAD:
        return sorted(instances, key=lambda one: -((one.look.figures and one.look.figures.requests_per_s) or 0.0))
    return sorted(instances, key=_trouble) if by == TROUBLE else list(instances)


def _trouble(one: InstanceNow) -> tuple[bool, bool, float]:
    failures = one.look.figures.failures_per_s if one.look.figures else None
    return not one.look.problem, one.ready >= one.ranks, -(failures or 0.0)


def _row(one: InstanceNow, style: Style, now: float) -> Sequence[Cell]:
    ranks: Cell = f"{one.ready}/{one.ranks}"
    if one.ready < one.ranks:
        ranks = Text(f"{one.ready}/{one.ranks}", WARNING)
    figures = _figures(one.look.figures or Figures(), _probe(one.look.probe))
    if one.look.problem:
        figures = tuple(Text(str(cell), FAINT) for cell in figures)
    trend = style.trend(one.look.trend)
    return (str(one.instance), style.plain(one.node), ranks, *figures, trend, _about(one, style, now))


def _figures(own: Figures, probe: Cell) -> tuple[Cell, ...]:
    failed: Cell = number(own.failures_per_s)
    if own.failures_per_s:
        failed = Text(number(own.failures_per_s), BAD)
    elif own.failures_per_s == 0 and not own.failed:
        failed = NOTHING
    return (
        number(own.requests_per_s),
        failed,
        number(own.waiting),
        number(own.running),
        percent(own.kv_cache),
        number(own.tokens_per_s),
        took(own.latency.mean_s),
        took(own.latency.p50_s),
        took(own.latency.p99_s, own.latency.beyond),
        took(own.first_token.mean_s),
        probe,
        number(own.answered),
    )


def _probe(own: Probe | None) -> Cell:
    if own is None:
        return NOTHING
    return took(own.took_s) if own.good else Text("failed", BAD)


def _about(one: InstanceNow, style: Style, now: float) -> Cell:
    """Return what to know of an instance's figures: how old they are, why there are none, that they began anew."""
    look = one.look
    since = None if look.at is None else now - look.at
    if look.problem:
        old = f", {age(since)} old" if since is not None else ""
        return Text(f"{style.plain(look.problem)}{old}", BAD)
    if look.figures is not None and look.figures.restarted:
        return Text("began anew", WARNING)
    return Text(f"{age(since)} old", WARNING) if since is not None and since > OLD_S else ""
