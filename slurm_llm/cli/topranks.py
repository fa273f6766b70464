"""The part of the live view that shows ranks and nodes: a table of nodes if it fits, else a grid and the worst nodes.

Pure: values in, lines out, never more of them than asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from slurm_llm.agent import fold
from slurm_llm.cli.topcells import (
    ALWAYS,
    FAINT,
    HEADING,
    NOTHING,
    RANKED,
    Column,
    Style,
    counts,
    gib,
    rank_colour,
    table,
)
from slurm_llm.observe.live import NodeNow, Snapshot

TROUBLE, NUMBER, LOAD = "trouble", "number", "load"
ORDERS = (TROUBLE, NUMBER, LOAD)
MOST_MARKS = 32
"""Ranks of a node that get a mark each in its row."""
LABEL = 6
LEAST_LIST = 3
"""Lines that the list of the worst nodes gets beside a grid, with its heading."""
GAP = 3
A_ROW_EACH = 10
"""So many nodes get a row each where there is room."""

_COLUMNS = (
    Column("node", ALWAYS, right=False),
    Column("ranks", ALWAYS, right=False),
    Column("memory GiB", 40),
    Column("GPU GiB", 60),
    Column("GPU", 50),
)


@dataclass(frozen=True)
class Order:
    """How rows are sorted, and from which page on they are shown."""

    by: str = TROUBLE
    page: int = 0

    def part(self, count: int, room: int) -> tuple[int, int]:
        """Return the first row of the page and the one behind its last, of `count` rows with room for some."""
        if count <= room or room <= 0:
            return 0, min(count, max(0, room))
        first = self.page % -(-count // room) * room
        return first, min(count, first + room)

    def words(self, first: int, last: int, count: int) -> str:
        """Return which rows of how many are shown, in which order; nothing when all are."""
        return f"  {first + 1}-{last} of {count} by {self.by}" if last - first < count else ""


def rank_lines(snapshot: Snapshot, width: int, rows: int, style: Style, order: Order) -> list[Text]:
    """Return at most `rows` lines on all ranks and nodes."""
    total = Counter(one.state for one in snapshot.ranks)
    about = f"{total.get(fold.READY, 0)} of {len(snapshot.ranks)} ready on {_count(len(snapshot.nodes), 'node')}"
    room = rows - 1
    if room < 1:
        return []
    each, body = _body(snapshot, states_of(snapshot), (width, room), style, order)
    about += f", {each} a mark" if each else ""
    return [Text.assemble(("ranks", HEADING), f"  {about}  ", counts(total, style)), *body][:rows]


def _body(
    snapshot: Snapshot, states: Mapping[str, Sequence[str]], size: tuple[int, int], style: Style, order: Order
) -> tuple[int, list[Text]]:
    """Return the lines below the heading, and how many nodes a mark stands for where it is none of a rank."""
    for way in (_as_table, _as_grid):
        found = way(snapshot, states, size, style, order)
        if found is not None:
            return 0, found
    return _as_blocks(snapshot, states, size, style, order)


def wanted_lines(snapshot: Snapshot, width: int, style: Style) -> int:
    """Return how many lines would show every node in a row, beside each other where there are many, or all ranks."""
    if len(snapshot.nodes) <= A_ROW_EACH:
        return len(snapshot.nodes) + 2
    some = _node_table(snapshot.nodes[:A_ROW_EACH], states_of(snapshot), width, style)
    beside = max(1, (width + GAP) // (_width(some) + GAP))
    as_table = -(-len(snapshot.nodes) // beside) + 2
    return min(as_table, 1 + -(-len(snapshot.ranks) // max(1, width - LABEL)) + A_ROW_EACH)


def states_of(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return node → the states of its ranks, in order of rank."""
    found: dict[str, list[str]] = {one.name: [] for one in snapshot.nodes}
    for one in snapshot.ranks:
        found[one.node].append(one.state)
    return found


def _as_table(
    snapshot: Snapshot, states: Mapping[str, Sequence[str]], size: tuple[int, int], style: Style, order: Order
) -> list[Text] | None:
    """Return all nodes in rows, beside each other where that is needed; None when they do not fit."""
    width, room = size
    if len(snapshot.nodes) > room * max(1, width // 8):
        return None
    # All of them are seen: they need not move about.
    by = NUMBER if order.by == TROUBLE else order.by
    lines = _node_table(sorted_nodes(snapshot.nodes, by), states, width, style)
    if len(lines) <= room:
        return lines
    heading, body, wide = lines[0], lines[1:], _width(lines)
    beside = max(1, (width + GAP) // (wide + GAP))
    tall = -(-len(body) // beside)
    if tall + 1 > room:
        return None
    parts = [body[start : start + tall] for start in range(0, len(body), tall)]
    rows = ([part[at] for part in parts if at < len(part)] for at in range(tall))
    return [_beside([heading] * len(parts), wide), *(_beside(row, wide) for row in rows)]


def _as_grid(
    snapshot: Snapshot, states: Mapping[str, Sequence[str]], size: tuple[int, int], style: Style, order: Order
) -> list[Text] | None:
    """Return a mark for every rank, nodes apart where that fits, then the worst nodes; None when it does not fit."""
    width, room = size
    for gap in (" ", ""):
        grid = _grid([states[one.name] for one in snapshot.nodes], width, gap, style)
        if len(grid) <= room - (LEAST_LIST if room > 2 * LEAST_LIST else 0):
            return [*grid, *_worst(snapshot.nodes, states, (width, room - len(grid)), style, order)]
    return None


def _as_blocks(
    snapshot: Snapshot, states: Mapping[str, Sequence[str]], size: tuple[int, int], style: Style, order: Order
) -> tuple[int, list[Text]]:
    """Return marks for nodes, each for as many that all fit, with the state of the worst rank; then the worst nodes.

    The number before them is that of the nodes of a mark.
    """
    width, room = size
    worst = [min((RANKED.get(state, 0), state) for state in states[one.name]) for one in snapshot.nodes]
    most = max(1, room - LEAST_LIST) * max(1, _in_a_row(width))
    each = -(-len(worst) // most)
    blocks = [[min(worst[start : start + each])[1]] for start in range(0, len(worst), each)]
    grid = _grid(blocks, width, "", style, each)
    return each, [*grid, *_worst(snapshot.nodes, states, (width, room - len(grid)), style, order)]


def _in_a_row(width: int) -> int:
    """Return how many marks stand in a row, a round number where there is room."""
    room = max(1, width - LABEL)
    return room - room % 10 if room > 10 else room


def _grid(groups: Sequence[Sequence[str]], width: int, gap: str, style: Style, each: int = 1) -> list[Text]:
    """Return rows of marks, each with the number of its first one; a group is not broken where it fits in a row.

    A mark stands for `each` of what is counted.
    """
    room = _in_a_row(width) if all(len(group) == 1 for group in groups) else max(1, width - LABEL)
    rows: list[Text] = []
    width = LABEL + room
    filled, number = width, 0
    for group in groups:
        for start in range(0, len(group), room):
            part = group[start : start + room]
            apart = gap if filled > LABEL else ""
            if filled + len(apart) + len(part) > width:
                rows.append(Text(f"{number:>{LABEL - 1}} ", FAINT))
                filled, apart = LABEL, ""
            rows[-1].append(apart)
            for state in part:
                rows[-1].append(style.mark(state), rank_colour(state))
            filled += len(apart) + len(part)
            number += len(part) * each
    return rows


def _worst(
    nodes: Sequence[NodeNow], states: Mapping[str, Sequence[str]], size: tuple[int, int], style: Style, order: Order
) -> list[Text]:
    """Return a page of the nodes in rows; nothing when there is no room for a heading and a row."""
    width, room = size
    if room < 2:
        return []
    first, last = order.part(len(nodes), room - 1)
    part = order.words(first, last, len(nodes))
    return _node_table(sorted_nodes(nodes, order.by)[first:last], states, width, style, part)


def sorted_nodes(nodes: Sequence[NodeNow], by: str) -> list[NodeNow]:
    """Return the nodes: the worst first, or in their own order, or those with most memory in use first."""
    if by == TROUBLE:
        return sorted(nodes, key=_trouble)
    if by == LOAD:
        return sorted(nodes, key=lambda one: (-sum(gpu.used_mib for gpu in one.gpus), -(one.rss_mib or 0.0)))
    return list(nodes)


def _trouble(node: NodeNow) -> tuple[int, int]:
    worst = min((RANKED.get(state, 0) for state in node.states), default=len(RANKED))
    return worst, -sum(count for state, count in node.states.items() if RANKED.get(state, 0) == worst)


def _node_table(
    nodes: Sequence[NodeNow], states: Mapping[str, Sequence[str]], width: int, style: Style, beside: str = ""
) -> list[Text]:
    rows = [
        (
            style.plain(one.name),
            _marks(states[one.name], style),
            gib(one.rss_mib),
            _gpu_memory(one),
            _gpu_use(one),
        )
        for one in nodes
    ]
    return table(_COLUMNS, rows, width, beside)


def _marks(states: Sequence[str], style: Style) -> Text:
    if len(states) > MOST_MARKS:
        return counts(Counter(states), style)
    text = Text()
    for state in states:
        text.append(style.mark(state), rank_colour(state))
    return text


def _gpu_memory(node: NodeNow) -> str:
    """Return what is in use of how much on all GPUs of the node; the latter where every GPU tells it."""
    if not node.gpus:
        return NOTHING
    used = sum(one.used_mib for one in node.gpus)
    totals = [one.total_mib for one in node.gpus]
    known = [one for one in totals if one is not None]
    return f"{used / 1024:.0f}/{sum(known) / 1024:.0f}" if len(known) == len(totals) else f"{used / 1024:.0f}"


def _gpu_use(node: NodeNow) -> str:
    """Return how busy the node's GPUs are on average."""
    known = [one.util for one in node.gpus if one.util is not None]
    return f"{sum(known) / len(known):.0f}%" if known else NOTHING


def _beside(parts: Sequence[Text], wide: int) -> Text:
    line = Text()
    for at, part in enumerate(parts):
        line.append_text(part)
        if at < len(parts) - 1:
            line.append(" " * (wide - part.cell_len + GAP))
    return line


def _width(lines: Sequence[Text]) -> int:
    return max((line.cell_len for line in lines), default=0)


def _count(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
