"""Cells and lines of the live view: marks and colours of states, figures in few characters, tables that fit a width.

Nothing from a log, a name or a server reaches a line but through `Style.plain`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from slurm_llm.agent import fold
from slurm_llm.observe.status import GONE, STOPPING
from slurm_llm.observe.text import clean
from slurm_llm.slurm.states import RunState

ORDER = (fold.ENDED, GONE, STOPPING, fold.WAITING, fold.STARTING, fold.LOADING, fold.LOADED, fold.READY)
"""States of ranks, the worst first."""
RANKED = {state: place for place, state in enumerate(ORDER)}
MARKS = {
    fold.WAITING: "·",
    fold.STARTING: "▁",
    fold.LOADING: "▄",
    fold.LOADED: "▆",
    fold.READY: "■",
    STOPPING: "▒",
    fold.ENDED: "x",
    GONE: "?",
}
PLAIN_MARKS = {
    fold.WAITING: ".",
    fold.STARTING: "s",
    fold.LOADING: "l",
    fold.LOADED: "L",
    fold.READY: "#",
    STOPPING: "t",
    fold.ENDED: "x",
    GONE: "?",
}
COLOURS = {
    fold.WAITING: "bright_black",
    fold.STARTING: "cyan",
    fold.LOADING: "yellow",
    fold.LOADED: "blue",
    fold.READY: "green",
    STOPPING: "magenta",
    fold.ENDED: "bold red",
    GONE: "red",
}
HEADING, FAINT, BAD, WARNING, GOOD = "bold", "bright_black", "bold red", "yellow", "green"
NOTHING = "-"
TREND, PLAIN_TREND, FEWEST = "▁▂▃▄▅▆▇█", "_.:-=+*#", 3
TEN_THOUSAND = 1e4
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Style:
    """How characters are chosen: `unicode` where the terminal's locale has them."""

    unicode: bool = True

    def mark(self, state: str) -> str:
        """Return the one character of a rank's state."""
        return (MARKS if self.unicode else PLAIN_MARKS).get(state, "?")

    def plain(self, text: str) -> str:
        """Return somebody's text as a line may have it: nothing that steers a terminal, in its characters."""
        bare = clean(text).replace("\t", " ")
        return bare if self.unicode else bare.encode("ascii", "replace").decode()

    def bar(self, share: float, width: int) -> str:
        """Return a bar that is filled up to a share, 0 to 1."""
        full = round(max(0.0, min(1.0, share)) * width)
        done, left = ("█", "░") if self.unicode else ("#", ".")
        return done * full + left * (width - full)

    def trend(self, values: Sequence[float]) -> str:
        """Return a mark a value, as high as its share of the highest; nothing for fewer than three."""
        highest = max(values, default=0.0)
        if len(values) < FEWEST or not highest > 0:
            return NOTHING
        marks = TREND if self.unicode else PLAIN_TREND
        return "".join(marks[round(max(0.0, value) / highest * (len(marks) - 1))] for value in values)

    def cut(self, line: Text, width: int) -> Text:
        """Return a line of at most `width` columns; one that was longer ends with an ellipsis."""
        line = line.copy()
        line.truncate(width, overflow="ellipsis" if self.unicode else "crop")
        return line

    @property
    def dot(self) -> str:
        """Between parts of a line."""
        return " · " if self.unicode else " | "

    @property
    def arrow(self) -> str:
        """Between phases."""
        return " › " if self.unicode else " > "


def rank_colour(state: str) -> str:
    """Return the colour of a rank's state."""
    return COLOURS.get(state, "")


def run_colour(state: RunState) -> str:
    """Return the colour of a run's state."""
    if state in (RunState.READY, RunState.COMPLETED):
        return "bold green"
    bad = (RunState.FAILED, RunState.LOST, RunState.TIMED_OUT, RunState.PREEMPTED)
    return "bold red" if state in bad else "bold yellow"


def span(seconds: float) -> str:
    """Return a length of time in the unit that says enough: 2.1 s, 95 s, 12 min, 3.5 h, 2 days."""
    seconds = max(0.0, seconds)
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.{int(seconds / size < 10)}f} {unit}"
    return f"{seconds / 86400:.0f} days"


def age(seconds: float) -> str:
    """Return how old something is, in whole seconds while that is short."""
    return f"{max(0.0, seconds):.0f} s" if seconds < 120 else span(seconds)


def number(value: float | None) -> str:
    """Return a figure in at most six characters; `-` where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) < TEN_THOUSAND:
        whole = value == int(value) or abs(value) >= 100
        return f"{value:.0f}" if whole else f"{value:.1f}" if abs(value) >= 0.95 else f"{value:.2g}"
    size, unit = next((size, unit) for size, unit in _LARGE if abs(value) >= size)
    return f"{value / size:.{int(abs(value) < 100 * size)}f}{unit}"


def took(seconds: float | None, beyond: bool = False) -> str:
    """Return how long something took: 81 ms, 1.23 s, 12 s; `>` where it is more than that."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    text = f"{seconds * 1000:.3g}ms" if seconds < 0.9995 else f"{seconds:.2f}s" if seconds < 10 else f"{seconds:.0f}s"
    return f">{text}" if beyond else text


def gib(mib: float | None) -> str:
    """Return MiB as GiB, in three digits."""
    if mib is None:
        return NOTHING
    value = mib / 1024
    return f"{value:.{2 if value < 1 else 1 if value < 100 else 0}f}"


def percent(share: float | None) -> str:
    """Return a share, 0 to 1, in percent."""
    return NOTHING if share is None else f"{100 * share:.0f}%"


@dataclass(frozen=True)
class Column:
    """A column of a table; those with a higher `worth` stay where there is not room for all."""

    title: str
    worth: int
    right: bool = True


Cell = str | Text


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, beside: str = "") -> list[Text]:
    """Return a heading, with `beside` behind it, and the rows as lines of aligned columns within `width`.

    A column that has nothing in any row is left out, and then those of least worth until the rest fits.
    """
    width -= len(beside)
    kept = [
        at
        for at, column in enumerate(columns)
        if column.worth >= ALWAYS or any(str(row[at]) not in ("", NOTHING) for row in rows)
    ]
    sizes = {at: max([cell_len(columns[at].title), *(_size(row[at]) for row in rows)]) for at in kept}
    while len(kept) > 1 and sum(sizes[at] + 2 for at in kept) - 2 > width:
        kept.remove(min(kept, key=lambda at: (columns[at].worth, -at)))
    heading = Text("  ").join(_aligned(Text(columns[at].title, FAINT), sizes[at], columns[at].right) for at in kept)
    heading.append(beside, FAINT)
    lines = [Text("  ").join(_aligned(row[at], sizes[at], columns[at].right) for at in kept) for row in rows]
    return [heading, *lines]


ALWAYS = 100
"""The worth of a column that is there even when it has nothing."""


def _size(cell: Cell) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)


def _aligned(cell: Cell, size: int, right: bool) -> Text:
    text = cell.copy() if isinstance(cell, Text) else Text(cell)
    room = " " * (size - _size(cell))
    return Text.assemble(room, text) if right else Text.assemble(text, room)


def counts(states: Mapping[str, int], style: Style) -> Text:
    """Return a legend: each state's mark, how many ranks are in it, and its name; the worst first."""
    parts = [
        Text(f"{style.mark(state)} {count} {style.plain(state)}", rank_colour(state))
        for state, count in sorted(states.items(), key=lambda item: RANKED.get(item[0], 0))
    ]
    return Text("  ").join(parts)
