"""Slurm's node lists, `n[01-03,7],m2`: expand and fold, padding and order kept; no look-up of any kind.

The grammar is Slurm's own. ClusterShell reads more into such a text (`@group`, `!`, `&`, `^` and outside
programs that resolve groups), which must not happen to a text that came from a cluster; on what both
understand they agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

MAX_NODES = 65536  # Slurm's own bound of one range; a longer list is a mistake, not a cluster

_LITERAL = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_PIECE = re.compile(r"([A-Za-z0-9._-]+)|\[([^\[\]]*)\]", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d+)", re.ASCII)


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the node names of a Slurm node list in its order; an empty text has none.

    Raises ValueError that names the part it cannot read. The width of a range's first number is kept:
    `n[08-10]` is n08 n09 n10, `n[8-10]` is n8 n9 n10.
    """
    names: list[str] = []
    for item in _split_items(text.strip()):
        names += _expand_item(item, text)
        if len(names) > MAX_NODES:
            raise ValueError(f"'{text[:80]}' names more than {MAX_NODES} nodes")
    return tuple(names)


def is_node_name(text: str) -> bool:
    """Return whether `text` can be the name of one node."""
    return _LITERAL.fullmatch(text) is not None


def fold_nodes(names: Iterable[str]) -> str:
    """Return the shortest list that keeps the given order: neighbours that count up share a bracket."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for name in names:
        if not is_node_name(name):
            raise ValueError(f"'{name}' is not a node name")
        match = _NUMBERED.fullmatch(name)
        if not match:
            groups.append((name, []))
            continue
        prefix, digits = match.groups()
        if groups and groups[-1][1] and groups[-1][0] == prefix:
            _append_number(groups[-1][1], digits)
        else:
            groups.append((prefix, [(digits, digits)]))
    return ",".join(_format_group(prefix, ranges) for prefix, ranges in groups)


def _split_items(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    items, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in (0, 1):
            raise ValueError(f"unbalanced bracket at '{text[index:]}' in node list '{text}'")
        if char == "," and depth == 0:
            items.append(text[start:index])
            start = index + 1
    if depth:
        raise ValueError(f"unbalanced bracket at '{text[start:]}' in node list '{text}'")
    return [*items, text[start:]] if text else []


def _expand_item(item: str, whole: str) -> list[str]:
    """Expand one comma-free item; several brackets multiply, the last counts fastest."""
    pieces: list[list[str]] = []
    position, count = 0, 1
    while position < len(item):
        match = _PIECE.match(item, position)
        if not match:
            break
        pieces.append([match[1]] if match[1] else _expand_ranges(match[2], whole))
        count *= len(pieces[-1])
        if count > MAX_NODES:
            raise ValueError(f"'{item[:80]}' names more than {MAX_NODES} nodes")
        position = match.end()
    if not item or position < len(item) or item.startswith("["):
        raise ValueError(f"'{item}' is not a node name or range, in node list '{whole}'")
    return ["".join(parts) for parts in product(*pieces)]


def _expand_ranges(text: str, whole: str) -> list[str]:
    """Expand the inside of one bracket, `01-03,7`."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"'{part}' is not a number or range, in node list '{whole}'")
        low, high = match[1], match[2] or match[1]
        uneven = len(high) < len(low) or (high.startswith("0") and len(high) != len(low))
        if uneven or int(high) < int(low):
            raise ValueError(f"'{part}' is not a rising range of one width, in node list '{whole}'")
        if int(high) - int(low) >= MAX_NODES:
            raise ValueError(f"'{part}' names more than {MAX_NODES} nodes")
        width = len(low) if low.startswith("0") else 0
        numbers += [str(number).zfill(width) for number in range(int(low), int(high) + 1)]
    return numbers


def _append_number(ranges: list[tuple[str, str]], digits: str) -> None:
    """Lengthen the last range when `digits` comes right after it in the same width, else begin another."""
    low, high = ranges[-1]
    width = len(low) if low.startswith("0") else 0
    # A padded range ends where its numbers outgrow the padding: readers differ about n[09-100].
    same_width = not width or len(digits) == width
    if same_width and str(int(high) + 1).zfill(width) == digits:
        ranges[-1] = (low, digits)
    else:
        ranges.append((digits, digits))


def _format_group(prefix: str, ranges: list[tuple[str, str]]) -> str:
    """Return `prefix[…]`, without brackets for a single name."""
    if not ranges:
        return prefix
    texts = [low if low == high else f"{low}-{high}" for low, high in ranges]
    return prefix + (texts[0] if len(texts) == 1 and "-" not in texts[0] else f"[{','.join(texts)}]")
