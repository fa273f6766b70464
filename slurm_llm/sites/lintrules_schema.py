"""A profile's faults against the schema, all of them, and the profile that is left without them.

What is faulty is taken out, or replaced where the schema insists on a value, and the rest is tried again: so no fault
hides another one, nor a rule's finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from slurm_llm.errors import Problem
from slurm_llm.schema import document_path, problem_at
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.sites.remedies import remedy
from slurm_llm.yamlio import Document, Key, Tree

MAX_ROUNDS = 20
ANY = "*"
_PARTITION: Tree = {"gpus_per_node": 0}
_STAND_INS: dict[Key, Tree] = {
    ("schema_version",): 1,
    ("name",): "unnamed",
    ("partitions",): {"unnamed": _PARTITION},
    ("partitions", ANY): _PARTITION,
    ("partitions", ANY, "gpus_per_node"): 0,
}
"""Values for what the schema insists on; no rule judges them."""

_RULES = {"extra_forbidden": "unknown-key", "missing": "missing-key"}
_MANAGED = "is set by slurm_llm itself"


@dataclass(frozen=True)
class Fault:
    """One fault against the schema; `path` is where it stands in the document."""

    path: Key
    rule: str
    problem: Problem


@dataclass
class Leftover:
    """The faults, and the profile without them: None where the whole file has a wrong form.

    `tree` is what the profile was made of, `origins` the place in the document of each path in it, `out` the paths
    that were taken out.
    """

    faults: dict[Key, Fault] = field(default_factory=dict)
    out: set[Key] = field(default_factory=set)
    stand_ins: set[Key] = field(default_factory=set)
    profile: SiteProfile | None = None
    tree: dict[str, Tree] = field(default_factory=dict)
    origins: dict[Key, Key] = field(default_factory=dict)

    def origin(self, path: Key) -> Key:
        """Return where `path` of the tree stands in the document: list items move up when an earlier one is out."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return (*self.origins[path[:length]], *path[length:])
        return path

    def size(self) -> tuple[int, int, int]:
        """Return what grows or changes with every round that finds something new."""
        return len(self.faults), len(self.out), len(self.stand_ins)


def find_faults(document: Document) -> Leftover:
    """Return every fault of `document` against the schema of profiles, and what is left without them."""
    left = Leftover()
    for _ in range(MAX_ROUNDS):
        before = left.size()
        _prune(document.value, left)
        items = _validate(left)
        for path, group in _grouped(left, items).items():
            _note(document, left, path, group)
        if left.profile is not None or left.size() == before:
            break
    return left


def _validate(left: Leftover) -> list[Any]:
    try:
        left.profile = SiteProfile.model_validate(left.tree)
    except ValueError as error:  # pydantic's own error is one
        found: list[Any] = cast(Any, error).errors(include_url=False)
        return found
    return []


def _grouped(left: Leftover, items: Iterable[Any]) -> dict[Key, list[Any]]:
    groups: dict[Key, list[Any]] = {}
    for item in items:
        groups.setdefault(left.origin(document_path(left.tree, item["loc"])), []).append(item)
    return groups


def _note(document: Document, left: Leftover, path: Key, items: list[Any]) -> None:
    """Add one fault, and say what to take out so that the rest can be tried again."""
    is_new, is_missing = path not in left.faults, items[0]["type"] == "missing"
    if is_missing and _stand_in(path) is None:
        # Nothing stands in for it: its whole section goes. What lacks a key because that was taken out is no fault.
        is_new = is_new and path not in left.out
        left.out |= {path[:-1]} - {()}
    elif is_new:
        left.out.add(path)
        left.stand_ins |= {path} if _stand_in(path) is not None else set()
    else:
        left.stand_ins.discard(path)
    if is_new:
        problem = problem_at(SiteProfile, document, path, items, remedy)
        rule = "managed-option" if _MANAGED in problem.what else _RULES.get(items[0]["type"], "wrong-value")
        left.faults[path] = Fault(path, rule, problem)


def _prune(value: dict[str, Tree], left: Leftover) -> None:
    """Make the tree anew: the document's without what is out, with the stand-ins."""
    left.origins = {}
    left.tree = cast(dict[str, Tree], _kept(value, (), (), left))
    for path in left.stand_ins:
        at: Any = left.tree
        for step in path[:-1]:
            at = at.get(step) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at[path[-1]] = _stand_in(path)


def _kept(value: Tree, here: Key, origin: Key, left: Leftover) -> Tree:
    if here:
        left.origins[here] = origin
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if (*origin, key) not in left.out}
        return {key: _kept(item, (*here, key), (*origin, key), left) for key, item in kept.items()}
    if isinstance(value, list):
        items = [(at, item) for at, item in enumerate(value) if (*origin, at) not in left.out]
        return [_kept(item, (*here, now), (*origin, at), left) for now, (at, item) in enumerate(items)]
    return value


def _stand_in(path: Key) -> Tree:
    def fits(pattern: Key) -> bool:
        return len(pattern) == len(path) and all(own in (ANY, step) for own, step in zip(pattern, path, strict=True))

    return next((value for pattern, value in _STAND_INS.items() if fits(pattern)), None)
