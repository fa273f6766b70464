"""A loaded site as rows, one for each value, each with the place in the files that it is from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_llm.errors import Problem, SiteError, did_you_mean
from slurm_llm.sites.merge import DEFAULTS, PARTITIONS
from slurm_llm.yamlio import Document, Key, Tree, dotted, parse_scalar

if TYPE_CHECKING:
    from slurm_llm.sites.load import Site

_MERGED_AWAY = {DEFAULTS, "extends", "standalone", "base"}


@dataclass(frozen=True)
class Leaf:
    """One value of a site; `origin` is `file:line` and `place` its key there, both None of a default."""

    key: Key
    value: Tree
    origin: str | None = None
    place: Key | None = None

    @property
    def name(self) -> str:
        """The key as people write it."""
        return dotted(self.key)

    @property
    def is_silent(self) -> bool:
        """Whether it is a default that emits nothing: null, or empty."""
        return self.origin is None and (self.value is None or self.value in ("", [], {}))


def leaves(site: Site, partition: str | None = None) -> list[Leaf]:
    """Return every value of `site` in the order of the schema; with `partition`, as a job there finds them.

    Raises:
        SiteError: no such partition.
    """
    profile = site.profile
    if partition is not None:
        if partition not in profile.partitions:
            raise SiteError(_unknown_partition(site, partition))
        profile = profile.for_partition(partition)
    value: dict[str, Tree] = profile.model_dump(mode="json", exclude=_MERGED_AWAY)
    found = _leaves(value, (), site.document, partition)
    # What a partition does not change is the site's; for one partition the changes have been laid over the site.
    return [leaf for leaf in found if not _changes_the_site(leaf, value) or (partition is None and leaf.origin)]


def _unknown_partition(site: Site, name: str) -> Problem:
    known = list(site.profile.partitions)
    what = f"site {site.profile.name} has no partition '{name}'"
    return Problem(
        f"{site.profile.name}:{name}", what, "its partitions: " + ", ".join(known), did_you_mean(name, known)
    )


def _changes_the_site(leaf: Leaf, value: dict[str, Tree]) -> bool:
    return leaf.key[0] == PARTITIONS and len(leaf.key) > 2 and leaf.key[2] in value


def _leaves(value: Tree, key: Key, document: Document, partition: str | None) -> Iterator[Leaf]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _leaves(child, (*key, name), document, partition)
        return
    places = [key] if partition is None else [(PARTITIONS, partition, *key), key]
    place = next((place for place in places if place in document.lines), None)
    yield Leaf(key, value, None if place is None else document.origin(place), place)


def by_item(leaf: Leaf, document: Document) -> list[Leaf]:
    """Return a list that several files made as one leaf for each of its items; any other leaf as it is."""
    if not isinstance(leaf.value, list) or leaf.place is None:
        return [leaf]
    places = [(*leaf.place, index) for index in range(len(leaf.value))]
    if len({document.sources.get(place) for place in places}) < 2:
        return [leaf]
    rows = zip(leaf.value, places, strict=True)
    return [Leaf((*leaf.key, place[-1]), item, document.origin(place), place) for item, place in rows]


def tree_of(rows: Iterable[Leaf]) -> dict[str, Tree]:
    """Return leaves as the mapping whose values they are."""
    tree: dict[str, Tree] = {}
    for leaf in rows:
        at = tree
        for step in leaf.key[:-1]:
            following = at.setdefault(str(step), {})
            if isinstance(following, dict):
                at = following
        at[str(leaf.key[-1])] = leaf.value
    return tree


def value_text(value: Tree) -> str:
    """Return a value on one line, as YAML would take it."""
    if isinstance(value, str) and value and parse_scalar(value) == value:
        return value
    return _inner_text(value)


def _inner_text(value: Tree) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_inner_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inner_text(item)}" for key, item in value.items()) + "}"
    # Inside brackets, more characters than alone need quotes.
    plain = isinstance(value, str) and _is_plain(value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def _is_plain(value: str) -> bool:
    return bool(value) and parse_scalar(value) == value and not set(value) & set("[]{},\n")
