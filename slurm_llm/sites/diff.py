"""Two sites, or partitions of them, side by side: the keys in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slurm_llm.sites.find import IDENTITY
from slurm_llm.sites.merge import PARTITIONS
from slurm_llm.sites.view import Leaf
from slurm_llm.yamlio import Key, Tree, dotted

PARTITION = "partition"
"""Stands for the partition's own name where one partition is held against another."""


@dataclass(frozen=True)
class Row:
    """A key in which two sites differ; a side that has no such key is None."""

    key: str
    first: Leaf | None
    second: Leaf | None


def compare(first: Iterable[Leaf], second: Iterable[Leaf]) -> list[Row]:
    """Return the keys whose values differ, in the order of the schema.

    A value that no file sets is the default; one that is explicitly null differs from one that is not set. What says
    which site it is (IDENTITY) is only compared where both are the same.
    """
    one, other = {leaf.key: leaf for leaf in first}, {leaf.key: leaf for leaf in second}
    same = _named(one) == _named(other)
    keys = [key for key in _in_order(list(one), list(other)) if same or key[0] not in IDENTITY]
    rows = [Row(dotted(key), one.get(key), other.get(key)) for key in keys]
    return [row for row in rows if _differ(row.first, row.second)]


def _named(rows: Mapping[Key, Leaf]) -> Tree:
    name = rows.get(("name",))
    return None if name is None else name.value


def of_partition(rows: Iterable[Leaf]) -> list[Leaf]:
    """Return the leaves of one partition under a key without its name, so that any other can be held against it."""
    named = [replace(leaf, key=(PARTITION, *leaf.key[2:])) if leaf.key[0] == PARTITIONS else leaf for leaf in rows]
    return [leaf for leaf in named if leaf.key != ("default_partition",)]


def _in_order(one: list[Key], other: list[Key]) -> list[Key]:
    """Return all keys once: those of `one`, and each that only `other` has behind the one that it follows there."""
    order, known, at = list(one), set(one), 0
    for key in other:
        if key in known:
            at = order.index(key) + 1
        else:
            order.insert(at, key)
            at += 1
    return order


def _differ(first: Leaf | None, second: Leaf | None) -> bool:
    if first is None or second is None:
        only = first or second
        # A default of a section that the other side has not is no difference worth a row.
        return only is not None and only.origin is not None
    if _exact(first.value) != _exact(second.value):
        return True
    return first.value is None and (first.origin is None) != (second.origin is None)


def _exact(value: Tree) -> tuple[type, Tree]:
    # In Python, 1 == True.
    return type(value), value
