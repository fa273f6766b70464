"""From what a cluster tells of partitions and nodes to logical partitions: one for each kind of GPU; values only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slurm_llm.slurm.gres import GpuGres, parse_gpus
from slurm_llm.slurm.nodesets import expand_nodes
from slurm_llm.slurm.survey import NodeKind, PartitionRules, Survey

_MODEL = re.compile(
    r"(?:^|[^a-z0-9])((?:gb|gh|b|h|a|l|v|p|k|t)\d{1,4}s?|rtx[a-z0-9_]*|mi\d{2,3}[a-z]?|gh200|titan\w*)(?![a-z0-9])"
)
_MIG = re.compile(r"\d+g\.\d+gb")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Shape:
    """One kind of node in a partition: `nodes` of them, `up` of which can take jobs now, sizes the smallest one's.

    `mem_mib` is what jobs may have. `features` are those that all of them have, `some` those that only some have, with
    the number of nodes. `arch` is empty where unknown.
    """

    gpu: GpuGres
    nodes: int
    up: int
    cpus: int
    mem_mib: int
    threads_per_core: int
    features: frozenset[str]
    some: tuple[tuple[str, int], ...]
    arch: str
    mixed: bool
    boots: bool

    @property
    def model(self) -> str:
        """The GPU's model as type or features name it, an empty text where neither does."""
        return self.gpu.type or next(iter(sorted(model_features(self.features))), "")


@dataclass(frozen=True)
class Queue:
    """One logical partition: a Slurm partition, or those of its nodes that have one kind of GPU.

    `typed` asks for the GPUs by their type, `constraint` for the nodes by a feature; `others` are the kinds beside it.
    """

    name: str
    rules: PartitionRules
    shape: Shape
    typed: bool = False
    constraint: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Left:
    """A Slurm partition that has no entry, and why."""

    name: str
    why: str


def build_queues(survey: Survey) -> tuple[list[Queue], list[Left]]:
    """Return the logical partitions, and the Slurm partitions that have none."""
    queues: list[Queue] = []
    left: list[Left] = []
    for rules in survey.partitions:
        own = [kind for kind in survey.kinds if kind.partition == rules.name]
        why = _why_left(rules, own)
        if why:
            left.append(Left(rules.name, why))
        else:
            queues += _queues_of(rules, _shapes(own, survey.nodes))
    return _with_unique_names(queues), left


def model_features(features: Iterable[str]) -> set[str]:
    """Return the features that name a model of GPU."""
    return {feature for feature in features if _MODEL.search(feature.lower())}


def _why_left(rules: PartitionRules, kinds: list[NodeKind]) -> str:
    state = rules.get("State").upper()
    if state != "UP":
        return f"State={state or 'unknown'}"
    if rules.get("RootOnly").upper() == "YES":
        return "RootOnly=YES"
    if rules.get("Hidden").upper() == "YES":
        return "Hidden=YES"
    return "" if any(kind.is_up for kind in kinds) else "none of its nodes is up"


def _queues_of(rules: PartitionRules, shapes: list[Shape]) -> list[Queue]:
    base = _PLAIN.sub("-", rules.name).strip("-.") or "partition"
    shapes = [shape for shape in shapes if shape.up]
    if len(shapes) == 1:
        return [Queue(base, rules, shapes[0])]
    labels = [_label(shape, shapes) for shape in shapes]
    return [
        Queue(
            name=f"{base}-{_PLAIN.sub('-', label)}",
            rules=rules,
            shape=shape,
            typed=_is_typed(shape, shapes),
            constraint=_constraint(shape, shapes),
            others=tuple(other for other in labels if other != label),
        )
        for label, shape in zip(labels, shapes, strict=True)
    ]


def _label(shape: Shape, shapes: list[Shape]) -> str:
    if not shape.gpu.count:
        return "cpu"
    model = shape.model or "gpu"
    same = [other for other in shapes if other.gpu.count and other.model == shape.model]
    return model if len(same) == 1 else f"{model}x{shape.gpu.count}"


def _is_typed(shape: Shape, shapes: list[Shape]) -> bool:
    types = {other.gpu.type for other in shapes if other.gpu.count}
    return bool(shape.gpu.type) and len(types) > 1


def _constraint(shape: Shape, shapes: list[Shape]) -> str:
    """Return a feature that only these nodes have, where the type of GPU does not tell them from others."""
    alike = [other for other in shapes if other is not shape and other.gpu.count and other.gpu.type == shape.gpu.type]
    if not shape.gpu.count or not alike:
        return ""
    own = shape.features.difference(*(other.features for other in alike))
    return next(iter((*sorted(model_features(own)), *sorted(own))), "")


def _shapes(kinds: list[NodeKind], nodes: Mapping[str, Mapping[str, str]]) -> list[Shape]:
    groups: dict[tuple[str, int, str], list[tuple[NodeKind, GpuGres]]] = {}
    for kind in kinds:
        for gpu in _gpus(kind.gres):
            model = "" if gpu.type or not gpu.count else "".join(sorted(model_features(kind.features)))
            groups.setdefault((gpu.type, gpu.count, model), []).append((kind, gpu))
    return [_shape(group, nodes) for group in groups.values()]


def _shape(group: list[tuple[NodeKind, GpuGres]], nodes: Mapping[str, Mapping[str, str]]) -> Shape:
    kinds = [kind for kind, _ in group]
    known = [_details(kind, nodes) for kind in kinds]
    cpus = [_number(own.get("CPUEfctv", "")) or kind.cpus for kind, own in zip(kinds, known, strict=True)]
    memory = [
        max(0, kind.mem_mib - _number(own.get("MemSpecLimit", ""))) for kind, own in zip(kinds, known, strict=True)
    ]
    arches = {own["Arch"] for own in known if own.get("Arch")}
    features = frozenset(kinds[0].features).intersection(*(kind.features for kind in kinds))
    return Shape(
        gpu=group[0][1],
        nodes=sum(kind.nodes for kind in kinds),
        up=sum(kind.nodes for kind in kinds if kind.is_up),
        cpus=min(cpus),
        mem_mib=min(memory),
        threads_per_core=max(kind.threads_per_core for kind in kinds),
        features=features,
        some=_some(kinds, features),
        arch=arches.pop() if len(arches) == 1 else "",
        mixed=len(set(cpus)) > 1 or len(set(memory)) > 1,
        boots=any(kind.boots for kind in kinds),
    )


def _some(kinds: list[NodeKind], common: frozenset[str]) -> tuple[tuple[str, int], ...]:
    """Return the features beyond the common ones, each with the number of nodes that have it."""
    counts: dict[str, int] = {}
    for kind in kinds:
        for feature in kind.features:
            counts[feature] = counts.get(feature, 0) + kind.nodes
    return tuple((feature, number) for feature, number in sorted(counts.items()) if feature not in common)


def _details(kind: NodeKind, nodes: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Return what scontrol says of the kind's first node, nothing where that one was not asked for."""
    try:
        first = expand_nodes(kind.names)[:1]
    except ValueError:
        return {}
    return nodes.get(first[0], {}) if first else {}


def _gpus(gres: str) -> list[GpuGres]:
    """Return a node's GPUs, one entry a type; slices of GPUs count only where there is nothing else."""
    try:
        found = [gpu for gpu in parse_gpus(gres) if gpu.count]
    except ValueError:
        found = []
    whole = [gpu for gpu in found if not _MIG.search(gpu.type)]
    counts: dict[str, int] = {}
    for gpu in whole or found:
        counts[gpu.type] = counts.get(gpu.type, 0) + gpu.count
    return [GpuGres(kind, count) for kind, count in counts.items()] or [GpuGres("", 0)]


def _with_unique_names(queues: list[Queue]) -> list[Queue]:
    seen: dict[str, int] = {}
    for index, queue in enumerate(queues):
        seen[queue.name] = seen.get(queue.name, 0) + 1
        if seen[queue.name] > 1:
            queues[index] = replace(queue, name=f"{queue.name}-{seen[queue.name]}")
    return queues


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
