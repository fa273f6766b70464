"""What a cluster consists of: kinds of nodes, partitions, QOS, accounts, and their lines of slurm.conf; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class NodeKind:
    """`count` equal nodes; memory in MiB. GPUs are asked for under the name `gres`, and under `gpu_type` if any."""

    count: int
    cpus: int
    memory: int
    gpus: int = 0
    gres: str = "gpu"
    gpu_type: str | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Queue:
    """A Slurm partition: `kinds` are places in `Shape.kinds`, times are in Slurm's formats, None is no limit.

    `exclusive` gives whole nodes to a job (`node`) or to a user.
    """

    name: str
    kinds: tuple[int, ...]
    is_default: bool = False
    max_time: str | None = None
    default_time: str | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    exclusive: Literal["node", "user"] | None = None


@dataclass(frozen=True)
class Quality:
    """A QOS, which refuses jobs beyond its limits; None is no limit."""

    name: str
    max_time: str | None = None
    max_nodes: int | None = None


@dataclass(frozen=True)
class Reservation:
    """All nodes of one kind, kept for the cluster's user."""

    name: str
    kind: int


@dataclass(frozen=True)
class Shape:
    """A cluster.

    `absent` are nodes that exist by name only, so that jobs can exclude them; `forbid` and `require` are options that
    the submit filter refuses jobs with and without, as `--mem`.
    """

    name: str
    kinds: tuple[NodeKind, ...]
    queues: tuple[Queue, ...]
    qualities: tuple[Quality, ...] = ()
    accounts: tuple[str, ...] = ("devcluster",)
    licenses: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    absent: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    require: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Number of nodes of all kinds."""
        return sum(kind.count for kind in self.kinds)

    @property
    def most_gpus(self) -> int:
        """GPUs of the node that has most of them."""
        return max(kind.gpus for kind in self.kinds)

    @property
    def gres_names(self) -> tuple[str, ...]:
        """Names of the generic resources that there are."""
        return tuple(dict.fromkeys(kind.gres for kind in self.kinds if kind.gpus))

    @property
    def share_of_memory(self) -> int:
        """MiB for a CPU that a job gets when it asks for no memory, so that its neighbour on the node gets some."""
        return min(kind.memory // kind.cpus for kind in self.kinds)

    @property
    def words(self) -> tuple[str, ...]:
        """Every name that comes to stand in a configuration file or in a command of sacctmgr."""
        own = [self.name, *self.accounts, *self.licenses, *self.absent, *self.gres_names]
        own += [name for kind in self.kinds for name in (*kind.features, kind.gpu_type) if name is not None]
        parts = (self.queues, self.qualities, self.reservations)
        return tuple(dict.fromkeys((*own, *(one.name for part in parts for one in part))))

    def members(self) -> Iterator[tuple[NodeKind, range]]:
        """Yield every kind with the places of its nodes, counted from 0 over the whole cluster."""
        first = 0
        for kind in self.kinds:
            yield kind, range(first, first + kind.count)
            first += kind.count


def plain_shape(nodes: int, cpus: int, memory: int, gpus: int) -> Shape:
    """Return a cluster of equal nodes with two partitions: a default one for a day, and one for half an hour."""
    return Shape(
        name="devcluster",
        kinds=(NodeKind(nodes, cpus, memory, gpus),),
        queues=(
            Queue("batch", (0,), is_default=True, max_time="1-00:00:00", default_time="01:00:00"),
            Queue("debug", (0,), max_time="00:30:00", default_time="00:10:00"),
        ),
    )


def shape_from_tree(tree: dict[str, Any]) -> Shape:
    """Return the shape whose `asdict` went through JSON."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}
    values["kinds"] = tuple(NodeKind(**{**kind, "features": tuple(kind["features"])}) for kind in tree["kinds"])
    values["queues"] = tuple(Queue(**{**queue, "kinds": tuple(queue["kinds"])}) for queue in tree["queues"])
    values["qualities"] = tuple(Quality(**quality) for quality in tree["qualities"])
    values["reservations"] = tuple(Reservation(**one) for one in tree["reservations"])
    return Shape(**values)


def node_lines(shape: Shape, names: Sequence[str], addresses: Sequence[str] | None) -> Iterator[str]:
    """Yield the lines of the nodes and of their GRES; without addresses the nodes are on paper."""
    if shape.gres_names:
        yield f"GresTypes={','.join(shape.gres_names)}"
    for kind, places in shape.members():
        for place in places:
            # Nobody looks for a node of a cloud that is powered down, and a test of a job takes it for available.
            where = "" if addresses is None else f" NodeAddr={addresses[place]}"
            state = "CLOUD" if addresses is None else "UNKNOWN"
            yield f"NodeName={names[place]}{where} {_node_text(kind)} State={state}"
    if shape.absent:
        yield f"NodeName={','.join(shape.absent)} CPUs=1 State=CLOUD"
    if shape.absent or addresses is None:
        yield from ("SuspendProgram=/bin/true", "ResumeProgram=/bin/true", "SuspendTime=INFINITE")


def _node_text(kind: NodeKind) -> str:
    text = (
        f"CPUs={kind.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={kind.cpus} ThreadsPerCore=1"
        f" RealMemory={kind.memory}"
    )
    if kind.gpus:
        text += f" Gres={kind.gres}:{_type_of(kind)}{kind.gpus}"
    return text + (f" Features={','.join(kind.features)}" if kind.features else "")


def _type_of(kind: NodeKind) -> str:
    return f"{kind.gpu_type}:" if kind.gpu_type else ""


def queue_lines(shape: Shape, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the partitions."""
    members = [[names[place] for place in places] for _, places in shape.members()]
    for queue in shape.queues:
        nodes = ",".join(node for kind in queue.kinds for node in members[kind])
        limits = (
            ("Default", "YES" if queue.is_default else None),
            ("MaxTime", queue.max_time),
            ("DefaultTime", queue.default_time),
            ("MinNodes", queue.min_nodes),
            ("MaxNodes", queue.max_nodes),
            ("OverSubscribe", "EXCLUSIVE" if queue.exclusive == "node" else None),
            ("ExclusiveUser", "YES" if queue.exclusive == "user" else None),
        )
        words = [f"{name}={value}" for name, value in limits if value is not None]
        yield " ".join((f"PartitionName={queue.name}", f"Nodes={nodes}", *words, "State=UP"))


def device_lines(shape: Shape, names: Sequence[str], folder: str) -> Iterator[str]:
    """Yield the lines of gres.conf; every node names the same devices, which do nothing."""
    yield "AutoDetect=off"
    for kind, places in shape.members():
        if not kind.gpus:
            continue
        last = kind.gpus - 1
        nodes = ",".join(names[place] for place in places)
        words = [f"NodeName={nodes}", f"Name={kind.gres}", *([f"Type={kind.gpu_type}"] if kind.gpu_type else [])]
        yield " ".join((*words, f"File={folder}/gpu" + (f"[0-{last}]" if last else "0")))
