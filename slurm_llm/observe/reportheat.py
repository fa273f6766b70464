"""All ranks at once, as cells of node and local rank: what they came to, and how long each took to start. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from slurm_llm.observe.reportbars import LABEL_WIDTH
from slurm_llm.observe.reportdraw import WIDTH, Drawing, Path, Rect, Text, common_beginning, number, span
from slurm_llm.observe.reporttimes import STATES, RankLine

CELL, GAP, NODE_GAP, TOP = 11.0, 1.0, 16.0, 6.0
STEPS = 5
"""Shades of a time, from the shortest to the longest."""
APART_S, APART_SHARE, APART_TIMES = 0.3, 0.25, 8.0
"""A rank is late that took so many seconds, such a share, and so many times the usual distance, longer than the middle
one: the usual distance is the middle one of all distances."""
MOST_LABEL = 18


@dataclass(frozen=True)
class Times:
    """How long ranks took for one thing: `of` says for what, `seconds` by rank; `late` are those that stand out."""

    of: str
    seconds: Mapping[int, float]
    late: tuple[int, ...]

    @property
    def bounds(self) -> list[float]:
        """The upper bounds of all shades but the last."""
        low, high = min(self.seconds.values()), max(self.seconds.values())
        return [low + (high - low) * step / STEPS for step in range(1, STEPS)]


def start_times(ranks: Sequence[RankLine]) -> Times | None:
    """Return how long the start of each rank took; None where hardly any is known.

    The time of loading is used where most ranks tell it, else the time up to the engine's process.
    """
    loads = {rank.rank: rank.load_s for rank in ranks if rank.load_s is not None}
    starts = {rank.rank: rank.start_s for rank in ranks if rank.start_s is not None}
    of, found = ("loading", loads) if len(loads) * 2 > len(ranks) else (_STARTING, starts)
    if len(found) * 2 <= len(ranks) or len(found) < 2:
        return None
    middle = statistics.median(found.values())
    usual = statistics.median(abs(value - middle) for value in found.values())
    bound = middle + max(APART_S, APART_SHARE * middle, APART_TIMES * usual)
    late = sorted((rank for rank, value in found.items() if value > bound), key=lambda rank: -found[rank])
    return Times(of, found, tuple(late))


_STARTING = "the step's start to the engine's process"


def draw_states(ranks: Sequence[RankLine], name: str) -> Drawing:
    """Return what each rank came to, a cell each; neighbours on a node that are alike are one cell."""
    grid = _Grid.of(ranks)
    counts = {state: sum(rank.state == state for rank in ranks) for state in STATES}
    words = ", ".join(f"{count} {STATES[state][1]}" for state, count in counts.items() if count)
    drawing = Drawing(name, "State of every rank, by node", words, grid.height)
    for node, own in grid.nodes.items():
        x, y = grid.place(node)
        drawing.texts.append(Text(x - 4, y + 9, grid.label(node), "label small", "end"))
        for state, members in groupby(own, lambda rank: rank.state):
            alike = list(members)
            title = f"{own[0].node}: {_ranks(alike)}: {STATES[state][1]}" + _how(alike)
            wide = (CELL + GAP) * len(alike) - GAP
            at = x + (CELL + GAP) * own.index(alike[0])
            letter = STATES[state][0] if state != "serve" and state != "ended" else ""
            drawing.rects.append(Rect(at, y, wide, CELL, f"cell s-{state}", title, letter))
            if state == "first":
                ring = f"M{number(at - 4.5)} {number(y + 5.5)}a10 10 0 1 0 20 0a10 10 0 1 0 -20 0z"
                drawing.paths.append(Path(ring, "ring", title))
    return drawing


def draw_times(ranks: Sequence[RankLine], times: Times, name: str) -> Drawing:
    """Return how long each rank took, a cell each in a shade; those that are late have a frame."""
    grid = _Grid.of(ranks)
    longest = max(times.seconds, key=lambda rank: times.seconds[rank])
    words = f"shortest {span(min(times.seconds.values()))}, longest {span(times.seconds[longest])}: rank {longest}"
    drawing = Drawing(name, f"Time from {times.of}" if times.of == _STARTING else "Time of loading", words, grid.height)
    bounds, late = times.bounds, set(times.late)
    for node, own in grid.nodes.items():
        x, y = grid.place(node)
        drawing.texts.append(Text(x - 4, y + 9, grid.label(node), "label small", "end"))
        for place, rank in enumerate(own):
            seconds = times.seconds.get(rank.rank)
            shade = "none" if seconds is None else str(sum(seconds > bound for bound in bounds))
            css = f"cell t-{shade}" + (" late" if rank.rank in late else "")
            title = f"rank {rank.rank}, {rank.node}: {span(seconds)}"
            drawing.rects.append(Rect(x + (CELL + GAP) * place, y, CELL, CELL, css, title))
    return drawing


def _ranks(members: Sequence[RankLine]) -> str:
    first, last = members[0].rank, members[-1].rank
    return f"rank {first}" if first == last else f"ranks {first}–{last}"


def _how(members: Sequence[RankLine]) -> str:
    ways = {rank.how for rank in members if rank.how}
    return f" ({next(iter(ways))})" if len(ways) == 1 else ""


@dataclass(frozen=True)
class _Grid:
    """Nodes in columns, from top to bottom: where each is, in units."""

    nodes: dict[str, list[RankLine]]
    order: dict[str, int]
    beginning: str
    label_width: float
    column_width: float
    rows: int

    @staticmethod
    def of(ranks: Sequence[RankLine]) -> _Grid:
        """Arrange ranks by their nodes."""
        nodes: dict[str, list[RankLine]] = {}
        for rank in ranks:
            nodes.setdefault(rank.node, []).append(rank)
        beginning = common_beginning(list(nodes))
        longest = max(min(MOST_LABEL, len(name) - len(beginning)) for name in nodes)
        label_width = 8 + LABEL_WIDTH * longest
        column_width = label_width + (CELL + GAP) * max(map(len, nodes.values())) + NODE_GAP
        columns = max(1, int((WIDTH + NODE_GAP) / column_width))
        rows = -(-len(nodes) // columns)
        return _Grid(nodes, {name: at for at, name in enumerate(nodes)}, beginning, label_width, column_width, rows)

    @property
    def height(self) -> float:
        """Units that all rows take."""
        return TOP + self.rows * (CELL + GAP) + 2

    def place(self, node: str) -> tuple[float, float]:
        """Return where a node's first cell is."""
        column, row = divmod(self.order[node], self.rows)
        return column * self.column_width + self.label_width, TOP + row * (CELL + GAP)

    def label(self, node: str) -> str:
        """Return a node's name without what all begin with, its end where that is too long."""
        name = node.removeprefix(self.beginning)
        return name if len(name) <= MOST_LABEL else "…" + name[-MOST_LABEL + 1 :]
