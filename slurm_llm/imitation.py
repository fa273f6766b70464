"""From a site's profile to the shape of a devcluster that imitates it, and what it does not imitate of it; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from slurm_llm.devcluster import NodeKind, Quality, Queue, Reservation, Shape
from slurm_llm.devcluster.submitfilter import can_see
from slurm_llm.sampling import sample
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.formats import format_time, parse_mem_mib, parse_time
from slurm_llm.slurm.nodesets import expand_nodes

NODES_OF_A_KIND = 2
ACCOUNT = "devcluster"
_CPUS, _MIB_PER_CPU = 8, 2000
"""What a node has where the profile does not say."""
_LICENSES = 100
_FEATURE = re.compile(r"[^\s&|,!()\[\]]+")
_COUNT = re.compile(r"\*\d+")


@dataclass(frozen=True)
class Imitation:
    """A cluster's shape, an account that jobs there may name, and what is not as on the site: `key: why`."""

    shape: Shape
    account: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Logical:
    """One partition of the profile, with the profile as it is there and the kind of its nodes."""

    name: str
    site: SiteProfile
    partition: Partition
    kind: NodeKind

    @property
    def key(self) -> tuple[NodeKind, str | None]:
        """What the partitions have in common that share nodes: a reservation keeps its nodes from all others."""
        return replace(self.kind, count=0), self.partition.reservation

    @property
    def real(self) -> tuple[str | None, ...]:
        """The Slurm partitions that jobs name; None for the default one."""
        own = self.partition.slurm_partition
        return own if isinstance(own, tuple) else (own,)

    @property
    def max_time_s(self) -> int | None:
        """The longest time of any job, None for no limit."""
        rules = self.partition.time
        texts = [text for text in (rules.max, *(tier.max for tier in rules.by_nodes)) if text is not None]
        return _longest(parse_time(text) for text in texts) if texts else None

    @property
    def max_nodes(self) -> int | None:
        """Nodes of the largest job, None for no limit."""
        limits = (self.partition.nodes, self.partition.limits.max_nodes)
        return min((limit for limit in limits if limit is not None), default=None)


def imitate(
    profile: SiteProfile, *, nodes: int = NODES_OF_A_KIND, paper: bool = False, account: str | None = None
) -> Imitation:
    """Return the shape of a cluster with `nodes` nodes of every kind that the profile's partitions have.

    On paper a kind has at least as many nodes as the smallest job of its partitions. The account is `account`, else the
    profile's own, else one of the form that it wants.
    """
    logicals = _logicals(profile, nodes, paper)
    keys = list(dict.fromkeys(one.key for one in logicals))
    kinds = [replace(key[0], count=max(one.kind.count for one in logicals if one.key == key)) for key in keys]
    chosen = account or _account(profile)
    shape = Shape(
        name=(profile.slurm.clusters or profile.name).lower(),
        kinds=tuple(kinds),
        queues=tuple(_queues(profile, logicals, keys, kinds)),
        qualities=tuple(_qualities(logicals)),
        accounts=tuple(dict.fromkeys((chosen, *(_account(one.site) for one in logicals)))),
        licenses=_licenses(logicals),
        reservations=tuple(Reservation(key[1], place) for place, key in enumerate(keys) if key[1] is not None),
        absent=_absent(logicals),
        forbid=_agreed(_forbidden(one) for one in logicals),
        require=_agreed(_required(one) for one in logicals),
    )
    return Imitation(shape, chosen, tuple(dict.fromkeys(_missing(profile, logicals, shape))))


def _logicals(profile: SiteProfile, nodes: int, paper: bool) -> list[_Logical]:
    found = []
    for name in profile.partitions:
        site = profile.for_partition(name)
        partition = site.partitions[name]
        count = max(nodes, partition.limits.min_nodes or 1) if paper else nodes
        found.append(_Logical(name, site, partition, _kind(partition, count)))
    return found


def _kind(partition: Partition, count: int) -> NodeKind:
    request, gpus, own = partition.gpu_request, partition.gpus_per_node, partition.cpus
    # Where neither jobs nor steps ask for GPUs, a job that does is refused on the site too.
    asked = request.style != "none" or request.step not in ("same", "none")
    cpus = own.per_node or max((own.per_rank or 1) * max(gpus, 1), gpus, _CPUS)
    return NodeKind(
        count=count,
        cpus=cpus + (partition.core_spec or 0),
        memory=_memory(partition, cpus),
        gpus=gpus if asked else 0,
        gres=request.name,
        gpu_type=partition.gpu.slurm_type if asked else None,
        features=tuple(dict.fromkeys(_FEATURE.findall(_COUNT.sub("", partition.constraint or "")))),
    )


def _memory(partition: Partition, cpus: int) -> int:
    """Return MiB for the most that a job can ask of a node; where the profile names none, a share for each CPU."""
    own = partition.memory
    sizes = ((own.whole_node, 1), (own.per_rank, max(partition.gpus_per_node, 1)), (own.per_cpu, cpus))
    return max((parse_mem_mib(text) * times for text, times in sizes if text), default=0) or _MIB_PER_CPU * cpus


def _queues(
    profile: SiteProfile, logicals: Sequence[_Logical], keys: list[tuple[NodeKind, str | None]], kinds: list[NodeKind]
) -> Iterator[Queue]:
    """Yield every Slurm partition: the nodes of all logical ones that name it, the widest of their limits."""
    names = dict.fromkeys(name for one in logicals for name in one.real)
    unnamed = profile.name if profile.name not in names else f"{profile.name}-default"
    first = None if None in names else profile.partition_name(None)
    for name in names:
        own = [one for one in logicals if name in one.real]
        places = sorted({keys.index(one.key) for one in own})
        fewest = min(one.partition.limits.min_nodes or 1 for one in own)
        yield Queue(
            name=unnamed if name is None else name,
            kinds=tuple(places),
            is_default=name is None if first is None else any(one.name == first for one in own),
            max_time=_time(own),
            min_nodes=min(fewest, max(kinds[place].count for place in places)) if fewest > 1 else None,
            max_nodes=_longest(one.max_nodes for one in own),
            exclusive=_exclusive(own),
        )


def _exclusive(own: Sequence[_Logical]) -> Literal["node", "user"] | None:
    if all(one.partition.whole_node or one.partition.exclusive is True for one in own):
        return "node"
    return "user" if all(one.partition.exclusive == "user" for one in own) else None


def _qualities(logicals: Sequence[_Logical]) -> Iterator[Quality]:
    """Yield every QOS with the widest limits of the logical partitions that name it."""
    for name in dict.fromkeys(one.partition.qos for one in logicals):
        own = [one for one in logicals if one.partition.qos == name]
        if name is not None:
            yield Quality(name, _time(own), _longest(one.max_nodes for one in own))


def _time(own: Sequence[_Logical]) -> str | None:
    longest = _longest(one.max_time_s for one in own)
    return None if longest is None else format_time(longest)


def _longest(limits: Iterable[int | None]) -> int | None:
    """Return the widest of some limits, None being none at all."""
    known = list(limits)
    return None if None in known else max(limit for limit in known if limit is not None)


def _account(site: SiteProfile) -> str:
    rules = site.account
    if rules.default is not None or rules.pattern is None:
        return rules.default or ACCOUNT
    made_up = sample(rules.pattern) or ACCOUNT
    # Slurm keeps accounts in small letters.
    return made_up.lower() if re.fullmatch(rules.pattern, made_up.lower()) else made_up


def _licenses(logicals: Sequence[_Logical]) -> tuple[str, ...]:
    words = [word for one in logicals for word in re.split(r"[,|]", one.partition.licenses or "")]
    names = dict.fromkeys(word.partition(":")[0].partition("@")[0].strip() for word in words)
    return tuple(f"{name}:{_LICENSES}" for name in names if name)


def _absent(logicals: Sequence[_Logical]) -> tuple[str, ...]:
    nodes = [node for one in logicals for node in expand_nodes(one.site.exclude_nodes or "")]
    return tuple(dict.fromkeys(nodes))


def _forbidden(one: _Logical) -> tuple[str, ...]:
    # A filter sees no difference between these two, and what the site itself wants must pass.
    wanted = {"gres": "--gpus-per-node", "gpus_per_node": "--gres"}.get(one.partition.gpu_request.style)
    return tuple(option for option in one.site.policies.forbid if option != wanted and can_see(option))


def _required(one: _Logical) -> tuple[str, ...]:
    account = ("--account",) if one.site.account.required else ()
    return tuple(option for option in (*account, *one.site.policies.require) if can_see(option))


def _agreed(sets: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return what is in all of them: the filter is the cluster's, not a partition's."""
    first, *others = sets
    return tuple(dict.fromkeys(option for option in first if all(option in other for other in others)))


def _missing(profile: SiteProfile, logicals: Sequence[_Logical], shape: Shape) -> Iterator[str]:
    """Yield what jobs could depend on and the imitation does not have."""
    if "," in (profile.slurm.clusters or ""):
        yield f"slurm.clusters: one cluster, {shape.name}, not {profile.slurm.clusters}"
    for one in logicals:
        yield from _missing_of_partition(one, shape)
        yield from _missing_of_site(one, shape)


def _missing_of_partition(one: _Logical, shape: Shape) -> Iterator[str]:
    own, where = one.partition, f"partitions.{one.name}"
    if own.segment is not None:
        yield f"{where}.segment: Slurm 22.05 has no --segment, it came with 24.05"
    if own.exclusive == "topo":
        yield f"{where}.exclusive: Slurm 22.05 has no --exclusive=topo, it came with 24.05"
    if own.time.by_nodes or own.time.node_hours is not None:
        yield f"{where}.time: a partition has one limit, whatever the number of nodes"
    if own.qos is not None and "," in own.qos:
        yield f"{where}.qos: Slurm 22.05 takes one QOS a job, several came with 24.11"
    if own.licenses is not None and re.search("[|@]", own.licenses):
        yield f"{where}.licenses: neither alternatives nor licences of servers"
    fewest, count = own.limits.min_nodes or 1, max(kind.count for kind in shape.kinds)
    if fewest > count:
        yield f"{where}.limits.min_nodes: {count} nodes, not {fewest}"


def _missing_of_site(one: _Logical, shape: Shape) -> Iterator[str]:
    policies, runtime = one.site.policies, one.site.container.runtime
    for option in policies.forbid:
        if option not in shape.forbid:
            yield f"policies.forbid: {option} is taken"
    for option in policies.require:
        if option not in shape.require:
            yield f"policies.require: jobs without {option} are taken"
    if runtime == "shifter":
        yield "container.runtime: Shifter's options of sbatch are those of its own Slurm plugin"
    if one.site.slurm.node_daemon != "slurmd":
        yield f"slurm.node_daemon: slurmd, not {one.site.slurm.node_daemon}"
    pattern = one.site.account.pattern
    if pattern is not None and not any(re.fullmatch(pattern, account) for account in shape.accounts):
        yield f"account.pattern: no account of the form {pattern}: name one with --account"
