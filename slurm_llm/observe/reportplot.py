"""Lines of figures over time, and throughput against latency, as drawings. Pure geometry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_llm.observe.reportdraw import (
    WIDTH,
    Drawing,
    Path,
    Text,
    common_beginning,
    number,
    polyline,
    short,
    time_scale,
    time_ticks,
    value_ticks,
)
from slurm_llm.observe.reportsamples import Series

WIDE, HEIGHT, TOP, BOTTOM, LEFT = 560.0, 200.0, 14.0, 26.0, 52.0
LINE = 15.0
"""Units between two names beside a plot."""
LETTERS = 24
LETTER = 8.0
"""Units that a character of a name takes."""
LEAST = 0.1
"""A scale of values goes up to this at least: what is below is noise."""
SHORT = 10
"""A longer name of a node is shown without what all begin with."""
GAP_STEPS = 4
"""A line is broken where so many of the series' times have no value."""


@dataclass(frozen=True)
class Point:
    """One load of a benchmark: throughput, latency, and the lowest and highest of each over its repetitions."""

    name: str
    x: float
    y: float
    xs: tuple[float, float]
    ys: tuple[float, float]


def draw_series(series: Sequence[Series], begin: float) -> list[Drawing]:
    """Return a plot for each series; times are told since `begin`."""
    return [_over_time(one, place, begin) for place, one in enumerate(series)]


def _over_time(one: Series, place: int, begin: float) -> Drawing:
    known = [value for line in one.lines for value in line.values if value is not None]
    ends = ", ".join(f"{line.name} {_range(line.values)}" for line in one.lines)
    alike = re.sub(r"[^-_.]+$", "", common_beginning([line.name for line in one.lines]))
    names = [line.name.removeprefix(alike) if len(line.name) > SHORT else line.name for line in one.lines]
    drawing = Drawing(f"series{place}", f"{one.title}, {one.unit}", ends, HEIGHT, WIDE)
    right = WIDE - 12 - LETTER * min(LETTERS, max(map(len, names)))
    scale = time_scale([(one.times[0], max(one.times[-1], one.times[0] + 1.0))], LEFT, right)
    most = _values(drawing, max(*known, LEAST), right)
    for x, text in time_ticks(scale, begin, 64):
        drawing.line((x, TOP, x, HEIGHT - BOTTOM + 4), "grid")
        drawing.texts.append(Text(x, HEIGHT - BOTTOM + 17, text, "tick", "middle"))
    last: list[tuple[float, str, str]] = []
    for index, (line, name) in enumerate(zip(one.lines, names, strict=True)):
        points = [
            (scale.at(at), _height(value, most)) if value is not None else None
            for at, value in zip(one.times, line.values, strict=True)
        ]
        drawing.paths.append(Path(_broken(points), f"curve c{index}", f"{line.name}: {_range(line.values)}"))
        end = next((point for point in reversed(points) if point is not None), None)
        if end is not None:
            last.append((end[1], name, f"c{index}"))
    drawing.texts += _names(last, right)
    return drawing


def _values(drawing: Drawing, most: float, right: float) -> float:
    """Draw the scale of values and return its upper end."""
    ticks = value_ticks(most)
    for value in ticks:
        y = _height(value, ticks[-1])
        drawing.line((LEFT - 4, y, right, y), "axis" if value == 0 else "grid")
        drawing.texts.append(Text(LEFT - 8, y + 4, short(value), "tick", "end"))
    return ticks[-1]


def _height(value: float, most: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most)


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no value"
    return f"{short(min(known))} to {short(max(known))}, last {short(known[-1])}"


def _broken(points: Sequence[tuple[float, float] | None]) -> str:
    """Return a path through the points, with a gap where many are missing; a lone point is a short dash."""
    parts: list[list[tuple[float, float]]] = []
    missing = GAP_STEPS
    for point in points:
        if point is None:
            missing += 1
            continue
        if missing >= GAP_STEPS:
            parts.append([])
        parts[-1].append(point)
        missing = 0
    return "".join(polyline(part if len(part) > 1 else [(part[0][0] - 3, part[0][1]), part[0]]) for part in parts)


def _names(ends: Sequence[tuple[float, str, str]], right: float) -> list[Text]:
    """Return the lines' names beside their ends, moved apart where they would cover each other."""
    found: list[Text] = []
    ordered = sorted(ends)
    low = HEIGHT - BOTTOM - LINE * (len(ordered) - 1)
    before = TOP - LINE
    for place, (y, name, css) in enumerate(ordered):
        at = min(max(y, before + LINE), low + LINE * place)
        before = at
        shown = name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"
        found.append(Text(right + 8, at + 4, shown, f"name {css}"))
    return found


def draw_sweep(points: Sequence[Point], name: str, words: tuple[str, str]) -> Drawing:
    """Return throughput (x) against latency (y), points in order joined; `words` are what x and y are called."""
    told = "; ".join(f"{point.name}: {short(point.x)} at {short(point.y)}" for point in points)
    drawing = Drawing(name, f"{words[1]} (upwards) against {words[0]}", told, HEIGHT)
    right = WIDTH - 60
    across = value_ticks(max(point.xs[1] for point in points), 8)
    most = _values(drawing, max(point.ys[1] for point in points), right)

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * x / across[-1], _height(y, most)

    for value in across:
        x = at(value, 0)[0]
        drawing.line((x, TOP, x, HEIGHT - BOTTOM + 4), "grid")
        drawing.texts.append(Text(x, HEIGHT - BOTTOM + 17, short(value), "tick", "middle"))
    drawing.paths.append(Path(polyline([at(point.x, point.y) for point in points]), "curve c0", told))
    for point in points:
        x, y = at(point.x, point.y)
        _spread(
            drawing,
            [at(point.xs[0], point.y), at(point.xs[1], point.y), at(point.x, point.ys[0])],
            at(point.x, point.ys[1]),
        )
        d = f"M{number(x - 4)} {number(y)}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"
        drawing.paths.append(Path(d, "dot", f"{point.name}: {short(point.x)}, {short(point.y)}"))
        drawing.texts.append(Text(x + 8, y - 6 if y > 2 * TOP else y + 16, point.name, "label"))
    return drawing


def _spread(drawing: Drawing, ends: Sequence[tuple[float, float]], high: tuple[float, float]) -> None:
    left, right, low = ends
    drawing.line((*left, *right), "spread")
    drawing.line((*low, *high), "spread")
