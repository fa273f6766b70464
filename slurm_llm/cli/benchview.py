"""Measurements as text for people: one, several with a plot, a list, two beside each other. Values in, text out."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.text import NARROW
from slurm_llm.observe.benchresults import BETWEEN, FIRST, LATENCY, OUTPUT, REQUESTS, TOKENS, BenchResult, Figure, Load
from slurm_llm.observe.text import clean

if TYPE_CHECKING:
    from slurm_llm.benching.comparing import Change, Comparison
    from slurm_llm.benching.scene import FoundTool

LABEL = 11
BAR = 20
NAMES = {
    REQUESTS: "requests",
    TOKENS: "output tokens",
    LATENCY: "whole answer",
    FIRST: "first token",
    BETWEEN: "between tokens",
    OUTPUT: "tokens an answer",
}
"""What figures are called; a name of its own for each that a reader has to tell apart."""


def begun_text(number: int, tool: FoundTool, load: Load, place: str, repeat: tuple[int, int]) -> str:
    """Return the line that says what is measured now."""
    again = f", repeat {repeat[0]} of {repeat[1]}" if repeat[1] > 1 else ""
    return f"bench {number}: {tool.tool.name} {tool.version} as {_PLACES[place]}: {load_words(load)}{again}"


_PLACES = {"step": "a step of the job", "job": "a job of its own", "here": "a process here"}


def load_words(load: Load) -> str:
    """Return a load in one sentence."""
    flight = "" if load.concurrency is None else f"{load.concurrency} in flight"
    rate = "" if load.request_rate is None else f"{load.request_rate:g} requests/s ({load.arrival})"
    until = f"{load.requests} requests" if load.requests is not None else f"{load.duration_s or 0:g} s"
    return ", ".join(part for part in (rate, flight, until, _lengths(load)) if part)


def _lengths(load: Load) -> str:
    if load.dataset:
        return load.dataset.rpartition("/")[2]
    if load.lengths:
        return f"{len(load.lengths)} pairs of lengths"
    return " → ".join(_spread(one) for one in (load.input_tokens, load.output_tokens) if one) + " tokens"


def _spread(pair: tuple[float, float]) -> str:
    return f"{pair[0]:g}" + (f" ± {pair[1]:g}" if pair[1] else "")


def number_text(value: float | None) -> str:
    """Return a figure with three or four digits that count."""
    if value is None:
        return "-"
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


def results_text(results: Sequence[BenchResult], root: str) -> str:
    """Return what `bench` prints in the end: one in full, several as a table with a plot."""
    if len(results) == 1:
        return "\n".join(_whole(results[0], root))
    rows = [list_text(results), *_plot(results), *_remarks(results)]
    return "\n".join([*rows, *_labelled("kept", f"{root}/bench/{results[0].number}-{results[-1].number}")])


def list_text(results: Sequence[BenchResult]) -> str:
    """Return the table that `bench list` prints."""
    lines = columns([_HEAD, *map(_row, results)], left=3)
    invalid = [] if all(one.valid for one in results) else ["! is invalid, and must not be used"]
    return "\n".join([*lines, "whole answer, first token, between tokens: mean and P99 in ms", *invalid])


_HEAD = ["no", "when", "load", "req/s", "tok/s", "answer", "P99", "first", "P99", "between", ""]


def _row(one: BenchResult) -> list[str]:
    load, figures = one.load, one.figures
    rate = "" if load.request_rate is None else f"{load.request_rate:g}/s"
    words = " ".join(part for part in (rate, "" if load.concurrency is None else f"c{load.concurrency}") if part)
    told = [(name, "mean") for name in (REQUESTS, TOKENS)]
    told += [(LATENCY, "mean"), (LATENCY, "p99"), (FIRST, "mean"), (FIRST, "p99"), (BETWEEN, "mean")]
    return [
        f"{one.number}{'' if one.valid else '!'}",
        time.strftime("%d %H:%M", time.localtime(one.began)),
        words,
        *(short_text(_part(figures.get(name), part)) for name, part in told),
        "",
    ]


def short_text(value: float | None) -> str:
    """Return a figure in at most six characters, as far as thousands and millions go."""
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if value is not None and abs(value) >= size:
            return f"{value / (1e6 if letter == 'M' else 1e3):.4g}{letter}"
    return number_text(value).replace(",", "")


def _part(figure: Figure | None, part: str) -> float | None:
    value: float | None = getattr(figure, part) if figure else None
    return value


def _whole(one: BenchResult, root: str) -> Iterator[str]:
    verdict = click.style("valid", fg="green") if one.valid else click.style("INVALID", fg="red", bold=True)
    served = one.served
    yield f"bench {one.number}  {verdict}  {clean(served.name)}  {served.run_id}  job {served.job_id}"
    for why in one.reasons:
        yield from _labelled("because", why)
    tool = one.tool
    yield from _labelled("tool", f"{tool.name} {tool.version}, {_PLACES[tool.place]} on {tool.node or 'no node'}")
    how = "streaming" if one.load.streaming else "whole answers"
    yield from _labelled("load", f"{load_words(one.load)}, {how}, {one.load.warmup} to warm up")
    answers = f"{one.requests.answered} answered, {one.requests.failed} failed, in {one.ended - one.began:.1f} s"
    yield from _labelled("requests", f"{answers} with the tool's own start")
    for error in one.errors[:3]:
        yield from _labelled("error", f"{error.count} × {error.what}"[:400])
    if one.figures:
        yield ""
        yield from _figures(one)
    for note in one.notes:
        yield from _labelled("note", note)
    yield from _labelled("kept", f"{root}/bench/{one.number}")


def _figures(one: BenchResult) -> Iterator[str]:
    rows = [["", "mean", "P50", "P99", "max", ""]]
    for name in (REQUESTS, TOKENS, LATENCY, FIRST, BETWEEN, OUTPUT):
        figure = one.figures.get(name)
        if figure is not None:
            parts = (figure.mean, figure.p50, figure.p99, figure.max)
            rows.append([NAMES[name], *("" if part is None else number_text(part) for part in parts), figure.unit])
    yield from (f"  {line}" for line in columns(rows))


def columns(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return rows as lines: the first `left` columns and the last one begin together, those between end together."""
    last = len(rows[0]) - 1
    widths = [max(len(row[place]) for row in rows) for place in range(last + 1)]
    shaped = [
        [cell.ljust(width) if place < left or place == last else cell.rjust(width) for place, (cell, width) in pairs]
        for pairs in ([*enumerate(zip(row, widths, strict=True))] for row in rows)
    ]
    return ["  ".join(row).rstrip() for row in shaped]


def _plot(results: Sequence[BenchResult]) -> Iterator[str]:
    """Yield bars over the concurrency, repeats as their mean; nothing without a sweep, or of what is invalid."""
    levels = dict.fromkeys(one.load.concurrency for one in results if one.series.sweep)
    points = [[one for one in results if one.load.concurrency == level and one.valid] for level in levels]
    if not any(points):
        return
    sides = [[_mean(point, name, part) for point in points] for name, part in ((TOKENS, "mean"), (LATENCY, "p50"))]
    tops = [max((value for value in side if value is not None), default=0.0) for side in sides]
    yield ""
    yield f"{'in flight':>9}  {'output tokens/s':<{BAR + 8}}  whole answer, P50, ms"
    for level, *values in zip(levels, *sides, strict=True):
        bars = (f"{bar(value, top)} {number_text(value)}" for value, top in zip(values, tops, strict=True))
        left, right = bars
        yield f"{level:>9}  {left:<{BAR + 8}}  {right}".rstrip()
    yield ""


def bar(value: float | None, top: float) -> str:
    """Return a bar of at most BAR characters, `top` being the longest."""
    ink = "█" if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" else "#"
    return ink * (0 if value is None or top <= 0 else max(1, round(BAR * value / top)))


def _mean(point: Sequence[BenchResult], name: str, part: str) -> float | None:
    found = [value for one in point if (value := _part(one.figures.get(name), part)) is not None]
    return sum(found) / len(found) if found else None


def _remarks(results: Sequence[BenchResult]) -> Iterator[str]:
    for one in results:
        for why in one.reasons:
            yield from _labelled(f"bench {one.number}", f"invalid: {why}")
    for note in dict.fromkeys(note for one in results for note in one.notes):
        yield from _labelled("note", note)


def diff_text(made: Comparison, sides: Sequence[Sequence[BenchResult]]) -> str:
    """Return what `bench diff` prints."""
    lines = []
    for word, side in zip(("A", "B"), sides, strict=True):
        one, more = side[0], f", {len(side)} repeats" if len(side) > 1 else ""
        lines.append(f"{word}  bench {one.number} of {one.served.run_id}: {load_words(one.load)}{more}")
    rows = [["", "", "A", "B", "change", "unit"], *map(_change, made.changes)]
    lines += ["", *(f"  {line}" for line in columns(rows, left=2)), ""]
    lines += [line for one in made.differs for line in _labelled("differs", f"{one.what}: {one.first} | {one.second}")]
    if any(change.spreads[0] is None or change.spreads[1] is None for change in made.changes):
        lines += _labelled("note", "without --repeat on both sides nobody knows what is noise")
    return "\n".join(lines)


def _change(one: Change) -> list[str]:
    relative = "-" if one.relative is None else f"{one.relative:+.1%}"
    part = "" if one.part == "mean" and one.name in (REQUESTS, TOKENS, OUTPUT) else one.part.replace("p", "P")
    cells = (_with_spread(one.first, one.spreads[0]), _with_spread(one.second, one.spreads[1]))
    return [NAMES[one.name], part, *cells, relative, f"{one.unit}{'  ' + one.verdict if one.verdict else ''}"]


def _with_spread(value: float, spread: float | None) -> str:
    return number_text(value) if spread is None else f"{number_text(value)} ± {number_text(spread)}"


def _labelled(label: str, text: str) -> list[str]:
    rows = textwrap.wrap(clean(text), NARROW - LABEL - 2, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {label if not place else '':<{LABEL}}{row}" for place, row in enumerate(rows)]
