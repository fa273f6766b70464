"""What lint rules see: a profile with the place of each of its values; the rules themselves are in `lintrules_*`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.versions import SlurmVersion, parse_version
from slurm_llm.yamlio import Key, Tree

Severity: TypeAlias = Literal["error", "warning"]


_LABEL = re.compile(r"partition ('[^']*')")


class Hit(NamedTuple):
    """One place that breaks a rule: the key's path, what is wrong there, what to do."""

    path: Key
    what: str
    todo: str


@dataclass(frozen=True)
class View:
    """A profile as rules see it; `tree` is what it was made of, `today` the date to judge ages by.

    `stem` is the file's name without its ending, None where it tells nothing. `unknown` are the paths whose real
    values are faulty, `shared` those of values that stand in partition_defaults.
    """

    profile: SiteProfile
    tree: Mapping[str, Tree]
    today: date
    stem: str | None = None
    unknown: frozenset[Key] = frozenset()
    shared: frozenset[Key] = frozenset()

    def given(self, *path: str | int) -> bool:
        """Tell whether the profile itself says something at `path`, right or wrong."""
        return path in self.unknown or _at(self.tree, path)

    @cached_property
    def version(self) -> SlurmVersion | None:
        """The release of Slurm that the profile names."""
        text = self.profile.slurm.version
        return None if text is None else parse_version(text)

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """Each partition, with the profile as it is for it."""
        return tuple(Queue(self, name, self.profile.for_partition(name)) for name in self.profile.partitions)


@dataclass(frozen=True)
class Queue:
    """One partition; `site` is the profile as it is for it."""

    view: View
    name: str
    site: SiteProfile

    @property
    def partition(self) -> Partition:
        """The partition's own keys."""
        return self.site.partitions[self.name]

    @property
    def gpus(self) -> int | None:
        """GPUs of a node; None where the profile's value is missing or faulty."""
        path = self.own("gpus_per_node")
        is_known = not any(path[:length] in self.view.unknown for length in (1, 2, 3))
        return self.partition.gpus_per_node if is_known else None

    @property
    def label(self) -> str:
        """The partition's name for messages, where `joined_labels` finds it."""
        return f"partition '{self.name}'"

    def own(self, *path: str | int) -> Key:
        """Return the path of a key of the partition."""
        return ("partitions", self.name, *path)

    def given(self, *path: str | int) -> bool:
        """Tell whether the partition's own lines say something at `path`, beside what all partitions share."""
        own = self.own(*path)
        return self.view.given(*own) and own not in self.view.shared

    def at(self, *path: str | int) -> Key:
        """Return where a key stands that holds for the whole site unless the partition changes it."""
        own = self.own(*path)
        return own if self.view.given(*own) else path


SiteCheck: TypeAlias = Callable[[View], Iterator[Hit]]
QueueCheck: TypeAlias = Callable[[Queue], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """A check with its name and severity; the check's docstring says why it is one.

    One that `needs_all` is tried only where no base is missing, which may have what it misses.
    """

    name: str
    severity: Severity
    check: Callable[[View], Iterator[Hit]]
    why: str
    needs_all: bool = False


def site_rules(severity: Severity, *checks: SiteCheck, needs_all: bool = False) -> tuple[Rule, ...]:
    """Return a rule for each check of a whole profile, named after its function."""
    return tuple(Rule(rule_name(check), severity, check, check.__doc__ or "", needs_all) for check in checks)


def queue_rules(severity: Severity, *checks: QueueCheck, needs_all: bool = False) -> tuple[Rule, ...]:
    """Return a rule for each check of a partition, named after its function; it is tried on every partition."""
    return tuple(Rule(rule_name(check), severity, _for_each(check), check.__doc__ or "", needs_all) for check in checks)


def rule_name(check: Callable[..., object]) -> str:
    """Return a function's name as rules are named."""
    return check.__name__.replace("_", "-")


def joined_labels(hits: Iterable[Hit], where: Callable[[Key], str]) -> Iterator[Hit]:
    """Yield `hits`, but one for all partitions that have the same thing said of them at the same place."""
    groups: dict[tuple[str, str, str], list[Hit]] = {}
    for hit in hits:
        groups.setdefault((where(hit.path), _LABEL.sub("\0", hit.what), hit.todo), []).append(hit)
    for group in groups.values():
        names = [match[1] for hit in group if (match := _LABEL.search(hit.what))]
        what = group[0].what
        if len(names) > 1:
            what = _LABEL.sub(lambda _, names=names: f"each of the partitions {', '.join(names)}", what, count=1)  # type: ignore[misc]
        yield Hit(group[0].path, what, group[0].todo)


def _for_each(check: QueueCheck) -> SiteCheck:
    def checked(view: View) -> Iterator[Hit]:
        for queue in view.queues:
            yield from check(queue)

    return checked


def _at(tree: Mapping[str, Tree], path: Key) -> bool:
    at: object = tree
    for step in path:
        items: Mapping[object, object] = dict(enumerate(at)) if isinstance(at, list) else cast(Any, at)
        if not isinstance(items, Mapping) or step not in items:
            return False
        at = items[step]
    return True
