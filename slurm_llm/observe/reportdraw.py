"""Shapes of a drawing, and scales of time and value to put them at. Pure geometry: knows no run and no page."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

WIDTH = 1000.0
"""Units that a drawing is wide which fills the page; the page scales it."""
BREAK = 26.0
"""Units that are left where a scale leaves time out."""
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True)
class Rect:
    """A rectangle; `css` are classes, `title` is shown on hovering and read aloud, `label` stands inside."""

    x: float
    y: float
    width: float
    height: float
    css: str
    title: str = ""
    label: str = ""


@dataclass(frozen=True)
class Text:
    """A line of text from, around or up to `x` (`anchor` start, middle, end), on the base line `y`."""

    x: float
    y: float
    text: str
    css: str = ""
    anchor: str = "start"


@dataclass(frozen=True)
class Path:
    """A path in SVG's words."""

    d: str
    css: str
    title: str = ""


@dataclass
class Drawing:
    """A drawing of `width` × `height` units; `text` says in words what it shows, for those who do not see it.

    `note` stands beside its title: what a scale is counted from.
    """

    name: str
    title: str
    text: str
    height: float
    width: float = WIDTH
    note: str = ""
    rects: list[Rect] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)

    def line(self, ends: tuple[float, float, float, float], css: str) -> None:
        """Add a straight line from (x, y) to (x, y)."""
        x1, y1, x2, y2 = (number(one) for one in ends)
        self.paths.append(Path(f"M{x1} {y1}L{x2} {y2}", css))


def number(value: float) -> str:
    """Return a coordinate as short as it can be said."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Piece:
    """A stretch of time and where it lies on the drawing."""

    begin: float
    end: float
    left: float
    right: float

    def at(self, moment: float) -> float:
        """Return the place of a moment, which is put at the nearer end when it lies outside."""
        share = (moment - self.begin) / (self.end - self.begin) if self.end > self.begin else 0.0
        return self.left + (self.right - self.left) * min(1.0, max(0.0, share))


@dataclass(frozen=True)
class TimeScale:
    """Where moments lie; between two pieces time is left out."""

    pieces: tuple[Piece, ...]

    def at(self, moment: float) -> float:
        """Return the place of a moment; one that is left out lies in the middle of its gap."""
        for before, piece in zip((None, *self.pieces), self.pieces, strict=False):
            if moment < piece.begin and before is not None:
                return (before.right + piece.left) / 2
            if moment <= piece.end or piece is self.pieces[-1]:
                return piece.at(moment)
        return self.pieces[-1].right

    @property
    def gaps(self) -> list[tuple[Piece, Piece]]:
        """Return the pieces before and after each stretch that is left out."""
        return list(zip(self.pieces, self.pieces[1:], strict=False))


def time_scale(windows: Sequence[tuple[float, float]], left: float, right: float) -> TimeScale:
    """Return a scale that shows `windows`, in order, each as wide as it is long but at least a fifth of all."""
    lengths = [max(end - begin, 1e-3) for begin, end in windows]
    room = right - left - BREAK * (len(windows) - 1)
    floor = 0.2 * sum(lengths) if len(windows) > 1 else 0.0
    weights = [max(length, floor) for length in lengths]
    pieces, at = [], left
    for (begin, _), length, weight in zip(windows, lengths, weights, strict=True):
        width = room * weight / sum(weights)
        pieces.append(Piece(begin, begin + length, at, at + width))
        at += width + BREAK
    return TimeScale(tuple(pieces))


def time_ticks(scale: TimeScale, zero: float, apart: float = 70.0) -> list[tuple[float, str]]:
    """Return place and words of ticks at even times since `zero`, at least about `apart` units from each other."""
    found: list[tuple[float, str]] = []
    for piece in scale.pieces:
        per_second = (piece.right - piece.left) / (piece.end - piece.begin)
        step = next((one for one in _STEPS_S if one * per_second >= apart), _STEPS_S[-1])
        while step * per_second < apart:
            step *= 2
        first, last = math.ceil((piece.begin - zero) / step - 1e-6), math.floor((piece.end - zero) / step + 1e-6)
        found += [(piece.at(zero + place * step), elapsed(place * step, step)) for place in range(first, last + 1)]
    return found


def elapsed(seconds: float, step: float = 1.0) -> str:
    """Return a time since a beginning: 0.5 s, 42 s, 3:05, 2:07:00, 1 d 2:07:00; tenths where `step` has them."""
    sign, seconds = ("−", -seconds) if seconds < -1e-9 else ("", abs(seconds))
    digits = 1 if step < 1 else 0
    seconds = round(seconds, digits)
    if seconds < 60:
        return f"{sign}{seconds:.{digits}f} s"
    minutes, rest = divmod(seconds, 60)
    tail = f"{rest:0{4 if digits else 2}.{digits}f}"
    hours, minutes = divmod(int(minutes), 60)
    if not hours:
        return f"{sign}{minutes}:{tail}"
    days, hours = divmod(hours, 24)
    return f"{sign}{f'{days} d ' if days else ''}{hours}:{minutes:02}:{tail}"


def span(seconds: float | None) -> str:
    """Return a length of time for people: 0.31 s, 4.2 s, 95 s, 12 min, 3.5 h, 2.1 days; a dash for None."""
    if seconds is None:
        return "–"
    for limit, size, unit in ((1, 1, "s"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if abs(seconds) < limit:
            value = seconds / size
            return f"{value:.{2 if abs(value) < 1 else int(abs(value) < 10)}f}\u00a0{unit}"
    return f"{seconds / 86400:.1f}\u00a0days"


def clock(moment: float | None, tenths: bool = False) -> str:
    """Return a moment in local time; a dash for None."""
    if moment is None:
        return "–"
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    return f"{text}.{int(moment % 1 * 10)}" if tenths else text


def value_ticks(most: float, count: int = 4) -> list[float]:
    """Return even values from 0 to the first that is not below `most`, about `count` steps."""
    if not math.isfinite(most) or most <= 0:
        most = 1.0
    rough = most / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough - 1e-12 * size)
    return [round(place * step, 10) for place in range(math.ceil(most / step - 1e-9) + 1)]


def short(value: float) -> str:
    """Return a figure in a few characters: 0.25, 12.5, 1,250, 3.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Return a path through points."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def common_beginning(names: Sequence[str]) -> str:
    """Return what all node names begin with, up to a letter or a dash, so that numbers stay whole."""
    if len(set(names)) < 2:
        return ""
    low, high = min(names), max(names)
    alike = next(place for place, pair in enumerate(zip(low + "\0", high, strict=False)) if pair[0] != pair[1])
    return re.sub(r"\d+$", "", low[:alike])
