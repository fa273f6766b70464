"""Merging profiles: pure functions on trees in which every value knows the file and line that it is from.

Mappings merge, everything else replaces what lies below it, except `{append: […]}`, which adds to a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from slurm_llm.errors import Problem
from slurm_llm.yamlio import FROM_FLAG, Document, Key, Scalar, Tree, dotted

APPEND = "append"
DEFAULTS = "partition_defaults"
PARTITIONS = "partitions"

Origin: TypeAlias = tuple[str, int]
NOWHERE: Origin = ("", FROM_FLAG)


@dataclass(frozen=True)
class Node:
    """A value of a tree; `origin` is its file and line, or a text that says whence it is and FROM_FLAG."""

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    origin: Origin = NOWHERE

    def children(self) -> dict[str, Node]:
        """Return what stands below a mapping's keys; nothing for other values and for `{append: …}`."""
        return self.value if isinstance(self.value, dict) and self.appended() is None else {}

    def is_mapping(self) -> bool:
        """Whether this is a mapping, and not one that appends."""
        return isinstance(self.value, dict) and self.appended() is None

    def appended(self) -> tuple[Node, ...] | None:
        """Return the items of `{append: […]}`, None of anything else."""
        if not isinstance(self.value, dict) or self.value.keys() != {APPEND}:
            return None
        items = self.value[APPEND].value
        return items if isinstance(items, tuple) else None

    def where(self) -> str:
        """Return `file:line`, or the text that says whence it is."""
        source, line = self.origin
        return source if line == FROM_FLAG else f"{source}:{line}"


@dataclass(frozen=True)
class Layer:
    """One file, or a spec's `site:`; `over` ones also win over what the layers below say for a single partition."""

    document: Document
    over: bool = False


@dataclass(frozen=True)
class Merged:
    """The one document that the layers make, and every fault of the merging.

    `defaults` are the places (`file:line`) of `partition_defaults`, whose values now stand in every partition.
    """

    document: Document
    problems: tuple[Problem, ...] = ()
    defaults: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _State:
    """A profile while it is merged: `top` is all but the partitions and what is common to them."""

    top: Node = Node({})
    common: Node | None = None
    partitions: dict[str, Node] | None = None
    partitions_origin: Origin = NOWHERE


def merge_layers(layers: Sequence[Layer], source: str) -> Merged:
    """Return `layers`, the lowest first, as one document; `source` is the file that what is missing is missed in."""
    problems: list[Problem] = []
    state = _State()
    for layer in layers:
        own = _split(_checked(node_of(layer.document), (), problems))
        state = _over(_settled(state, problems), own, problems) if layer.over else _on(state, own, problems)
    state = _settled(state, problems)
    common = frozenset() if state.common is None else frozenset(node.where() for node in _nodes(state.common))
    return Merged(document_of(_joined(state), source), tuple(dict.fromkeys(problems)), common - {""})


def merge(lower: Node | None, upper: Node, problems: list[Problem], path: Key = ()) -> Node:
    """Return `upper` over `lower`; an `{append: …}` that finds no list below waits for one."""
    if lower is None:
        return upper
    items = upper.appended()
    if items is not None:
        return _appended(lower, items, upper, problems, path)
    if not (lower.is_mapping() and upper.is_mapping()):
        return upper
    merged = dict(lower.children())
    for key, node in upper.children().items():
        merged[key] = merge(merged.get(key), node, problems, (*path, key))
    return Node(merged, lower.origin)


def _appended(lower: Node, items: tuple[Node, ...], upper: Node, problems: list[Problem], path: Key) -> Node:
    waiting = lower.appended()
    if waiting is not None:
        return Node({APPEND: Node((*waiting, *items), upper.origin)}, upper.origin)
    if isinstance(lower.value, tuple):
        return Node((*lower.value, *items), upper.origin)
    if lower.value is None:
        return Node(items, upper.origin)
    kind = "a mapping" if lower.is_mapping() else "a single value"
    below = f" ({lower.where()})" if lower.where() else ""
    what = f"{dotted(path)}: nothing can be appended: below stands {kind}, no list{below}"
    problems.append(Problem(upper.where(), what, todo=_to_prepend(path) or "write the whole value"))
    return lower


def _to_prepend(path: Key) -> str:
    """Return what to write where somebody appends to a variable, which is one text."""
    return f"put paths in front with env: {{prepend: {{{path[-1]}: [/path]}}}}" if path[-3:-1] == ("env", "set") else ""


def _resolved(node: Node, below: Node | None, problems: list[Problem], path: Key = ()) -> Node:
    """Return `node` with each `{append: …}` that still waits added to the list at its place in `below`."""
    if node.appended() is not None:
        return merge(below or Node(None), node, problems, path)
    if not node.is_mapping():
        return node
    own = {} if below is None else below.children()
    children = {key: _resolved(child, own.get(key), problems, (*path, key)) for key, child in node.children().items()}
    return replace(node, value=children)


def _split(tree: Node) -> _State:
    top = dict(tree.children())
    partitions, common = top.get(PARTITIONS), top.get(DEFAULTS)
    # What is no mapping stays where it is, for the schema to refuse it there.
    if common is not None and common.is_mapping():
        del top[DEFAULTS]
    else:
        common = None
    if partitions is None or not partitions.is_mapping():
        return _State(Node(top), common)
    del top[PARTITIONS]
    # A partition with nothing below its name only says that it is there.
    named = {
        name: Node({}, node.origin) if node.value is None else node for name, node in partitions.children().items()
    }
    return _State(Node(top), common, named, partitions.origin)


def _joined(state: _State) -> Node:
    top = dict(state.top.children())
    if state.partitions is not None:
        top.setdefault(PARTITIONS, Node(state.partitions, state.partitions_origin))
    if state.common is not None and not state.partitions:
        # No partition has taken them in: the schema shall see them all the same.
        top[DEFAULTS] = state.common
    return Node(top)


def _on(state: _State, own: _State, problems: list[Problem]) -> _State:
    """Return a lower layer with the next one on it, partition on partition."""
    top = merge(state.top, own.top, problems)
    common = state.common if own.common is None else merge(state.common, own.common, problems, (DEFAULTS,))
    if own.partitions is None:
        return replace(state, top=top, common=common)
    partitions = dict(state.partitions or {})
    for name, node in own.partitions.items():
        partitions[name] = merge(partitions.get(name), node, problems, (PARTITIONS, name))
    origin = own.partitions_origin if state.partitions is None else state.partitions_origin
    return _State(top, common, partitions, origin)


def _over(state: _State, own: _State, problems: list[Problem]) -> _State:
    """Return a settled profile with a layer over it that also wins over the profile's partitions."""
    common = None if state.common is None else _yielding(state.common, own.top)
    partitions = state.partitions
    if partitions is not None:
        shared = own.common or Node({})
        partitions = {name: _yielding(_yielding(node, own.top), shared) for name, node in partitions.items()}
    return _on(replace(state, common=common, partitions=partitions), own, problems)


def _yielding(own: Node, change: Node) -> Node:
    return (_give_way(own, change) or Node({}, own.origin)) if own.is_mapping() else own


def _settled(state: _State, problems: list[Problem]) -> _State:
    """Return the profile with what is common to partitions laid under each, and no `{append: …}` left."""
    top = _resolved(state.top, None, problems)
    common = None if state.common is None else _resolved(state.common, top, problems, (DEFAULTS,))
    if state.partitions is None:
        return replace(state, top=top, common=common)
    partitions = {}
    for name, node in state.partitions.items():
        path = (PARTITIONS, name)
        whole = node if common is None else replace(merge(common, node, problems, path), origin=node.origin)
        partitions[name] = _resolved(whole, top, problems, path)
    return replace(state, top=top, common=common, partitions=partitions)


def _give_way(own: Node, change: Node) -> Node | None:
    """Return what is left of a partition's `own` when a stronger layer sets `change` for the whole site."""
    items = change.appended()
    if items is not None:
        # What is added for the whole site is added where a partition has a list of its own, too.
        own_items = () if own.value is None else own.value
        return Node((*own_items, *items), own.origin) if isinstance(own_items, tuple) else own
    if not change.is_mapping() or not own.is_mapping():
        return own if change.value == {} else None
    kept = dict(own.children())
    for key in [key for key in change.children() if key in kept]:
        left = _give_way(kept[key], change.children()[key])
        if left is None or left.value == {}:
            del kept[key]
        else:
            kept[key] = left
    return replace(own, value=kept)


def _checked(node: Node, path: Key, problems: list[Problem]) -> Node:
    """Return `node` without an `{append: …}` that holds no list; each is told."""
    if node.appended() is not None or not isinstance(node.value, dict):
        return node
    if path and node.value.keys() == {APPEND}:
        what = f"{dotted(path)}: `{APPEND}` takes a list"
        todo = _to_prepend(path) or "put the value in brackets"
        problems.append(Problem(node.where(), what, f"{{{APPEND}: [value, …]}}", todo))
        inner = node.value[APPEND]
        return node if isinstance(inner.value, dict) else Node({APPEND: Node((inner,), inner.origin)}, node.origin)
    return replace(node, value={key: _checked(child, (*path, key), problems) for key, child in node.value.items()})


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    below = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, tuple) else ()
    for child in below:
        yield from _nodes(child)


def node_of(document: Document) -> Node:
    """Return a document as a tree of nodes."""
    return _node(document, document.value, ())


def _node(document: Document, value: Tree, path: Key) -> Node:
    line = document.lines.get(path, FROM_FLAG)
    # What has no line of its own, as a mapping from Python or below a flag, is from where its parent is.
    origin = (document.where(path) if line == FROM_FLAG else document.sources.get(path, document.source), line)
    if isinstance(value, dict):
        return Node({key: _node(document, child, (*path, key)) for key, child in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Node(tuple(_node(document, child, (*path, index)) for index, child in enumerate(value)), origin)
    return Node(value, origin)


def document_of(tree: Node, source: str) -> Document:
    """Return a tree of nodes as a document of `source`."""
    lines: dict[Key, int] = {}
    sources: dict[Key, str] = {}
    value = _tree(tree, (), lines, sources)
    return Document(source, value if isinstance(value, dict) else {}, lines, sources)


def _tree(node: Node, path: Key, lines: dict[Key, int], sources: dict[Key, str]) -> Tree:
    if path:
        sources[path], lines[path] = node.origin
    if isinstance(node.value, dict):
        return {key: _tree(child, (*path, key), lines, sources) for key, child in node.value.items()}
    if isinstance(node.value, tuple):
        return [_tree(child, (*path, index), lines, sources) for index, child in enumerate(node.value)]
    return node.value
