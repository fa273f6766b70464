"""A site's profile compared with what the live cluster says of itself: a row a fact; nothing is asked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_llm.errors import did_you_mean
from slurm_llm.observe.checkrows import Row, Verdict
from slurm_llm.observe.nodechoice import chosen_nodes, feature_words, is_plain, meets
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.commands import PartitionFacts
from slurm_llm.slurm.formats import format_mem, format_time, parse_mem_mib, parse_time
from slurm_llm.slurm.gres import GpuGres, parse_gpus
from slurm_llm.slurm.survey import NodeKind
from slurm_llm.slurm.trial import PartitionLimits
from slurm_llm.slurm.versions import SlurmVersion

SITE = "site"
MOST_FEATURES = 12
"""Features that a row lists."""
SRUN_FLAGS = {"pyxis": "container-image", "cscs_ce": "environment"}
"""Container runtimes that are options of srun, by the option that shows that their plugin is there."""
PROGRAMS = {
    "apptainer": "apptainer",
    "singularity": "singularity",
    "shifter": "shifter",
    "podman_hpc": "podman-hpc",
    "charliecloud": "ch-run",
    "enroot": "enroot",
}
"""Container runtimes that are programs."""


@dataclass(frozen=True)
class ClusterFacts:
    """What the cluster and this machine said; empty is what they did not say, `silent` says why by question."""

    version: SlurmVersion | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[PartitionFacts, ...] = ()
    limits: Mapping[str, PartitionLimits] = field(default_factory=dict)
    mpi_types: tuple[str, ...] = ()
    srun_options: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    """Those that were found on PATH here."""
    kinds: tuple[NodeKind, ...] = ()
    """Every kind of node with its features."""
    missing_paths: frozenset[str] = frozenset()
    """Absolute paths of the profile that are not on this machine."""
    silent: Mapping[str, str] = field(default_factory=dict)


def programs_of(profile: SiteProfile) -> frozenset[str]:
    """Return the programs that a site's jobs start, as far as this machine may have them."""
    own = profile.container
    runtime = PROGRAMS.get(own.runtime)
    words = [profile.launcher.command.split()[0], *([own.program or runtime] if runtime else [])]
    return frozenset(word for word in words if word)


def paths_of(profile: SiteProfile) -> dict[str, str]:
    """Return key → path of what the profile expects to exist; `$NAME` is not yet replaced."""
    storage = profile.storage
    named = {
        "python": profile.python if "/" in (profile.python or "") else None,
        "triton.server": profile.triton.server,
        "storage.images": storage.images,
        "storage.models": storage.models,
        "storage.hf_home": storage.hf_home,
        "templates": profile.templates,
    }
    return {key: path for key, path in named.items() if path is not None}


def compare(profile: SiteProfile, names: Sequence[str], facts: ClusterFacts) -> list[Row]:
    """Return the rows of the whole site, then those of the partitions `names`.

    What a partition changes of the site is compared too: such rows stand with the partition.
    """
    shared = {name: site_rows(profile.for_partition(name), facts) for name in names}
    common = [row for row in next(iter(shared.values()), []) if all(row in rows for rows in shared.values())]
    rows = [_silence(question, words) for question, words in facts.silent.items()] + common
    for name in names:
        own = [_moved(row, name) for row in shared[name] if row not in common]
        rows += own + partition_rows(name, profile.partitions[name], facts)
    return rows


def _silence(question: str, words: str) -> Row:
    return Row(SITE, question, Verdict.SILENT, " ".join(words.split()))


def _moved(row: Row, name: str) -> Row:
    return replace(row, topic=topic_of(name))


def topic_of(name: str) -> str:
    """Return the topic of a logical partition's rows."""
    return f"partition {name}"


def site_rows(profile: SiteProfile, facts: ClusterFacts) -> list[Row]:
    """Return the rows of what does not depend on the Slurm partition."""
    rows = [_version(profile, facts), _kill_wait(profile, facts), _mpi(profile, facts)]
    rows += [_launcher(profile, facts), _container(profile, facts), *_paths(profile, facts)]
    return [row for row in rows if row is not None]


def _version(profile: SiteProfile, facts: ClusterFacts) -> Row | None:
    told, own = profile.slurm.version, facts.version
    if own is None:
        return None
    key = "slurm.version"
    if told is None:
        return Row(SITE, "Slurm", Verdict.OK, f"{own}", "not given: asked when a job is planned", key)
    same = str(own) == told or (told.count(".") == 1 and told == f"{own.year}.{own.month:02}")
    return _verdict(same, Row(SITE, "Slurm", Verdict.OK, str(own), told, key), f'{key}: "{own}"')


def _kill_wait(profile: SiteProfile, facts: ClusterFacts) -> Row | None:
    words = facts.config.get("KillWait", "").split()
    if not words or not words[0].isdecimal():
        return None
    key, told = "slurm.kill_wait_s", profile.slurm.kill_wait_s
    row = Row(SITE, "KillWait", Verdict.OK, f"{words[0]} s", f"{told} s", key)
    return _verdict(int(words[0]) == told, row, f"{key}: {words[0]}")


def _mpi(profile: SiteProfile, facts: ClusterFacts) -> Row | None:
    told, key = profile.launcher.mpi, "launcher.mpi"
    if not profile.launcher.by_srun or not facts.mpi_types:
        return None
    offered = ", ".join(facts.mpi_types)
    if told is None:
        default = facts.config.get("MpiDefault") or "none"
        return Row(SITE, "MPI type", Verdict.NOTE, f"srun offers {offered}; default {default}", "not given", key)
    row = Row(SITE, "MPI type", Verdict.OK, f"srun offers {offered}", told, key)
    return _verdict(told in facts.mpi_types, row, f"one of {offered}")


def _launcher(profile: SiteProfile, facts: ClusterFacts) -> Row | None:
    program = profile.launcher.command.split()[0]
    if program == "srun":
        return None
    return _program("launcher", program, facts, "launcher.command")


def _program(name: str, program: str, facts: ClusterFacts, key: str) -> Row:
    if program in facts.programs:
        return Row(SITE, name, Verdict.OK, "on PATH here", program, key)
    todo = "the compute nodes may have it, perhaps by a module: --run tells"
    return Row(SITE, name, Verdict.UNKNOWN, "not on PATH here", program, key, todo)


def _container(profile: SiteProfile, facts: ClusterFacts) -> Row | None:
    own = profile.container
    if own.runtime in PROGRAMS:
        return _program("container", own.program or PROGRAMS[own.runtime], facts, "container.runtime")
    flag = SRUN_FLAGS.get(own.runtime)
    if flag is None or not facts.srun_options:
        return None
    row = Row(SITE, "container", Verdict.OK, f"srun has --{flag}", own.runtime, "container.runtime")
    if flag in facts.srun_options:
        return row
    todo = "the plugin is not loaded here (plugstack.conf); `srun --help` shows the options of plugins"
    return replace(row, verdict=Verdict.DIFFERS, found=f"srun has no --{flag}", todo=todo)


def _paths(profile: SiteProfile, facts: ClusterFacts) -> list[Row]:
    rows = []
    for key, path in paths_of(profile).items():
        if path in facts.missing_paths:
            todo = "the compute nodes may have it: --run tells"
            rows.append(Row(SITE, "path", Verdict.UNKNOWN, "not on this machine", path, key, todo))
        else:
            rows.append(Row(SITE, "path", Verdict.OK, "is here", path, key))
    return rows


def partition_rows(name: str, own: Partition, facts: ClusterFacts) -> list[Row]:
    """Return the rows of one logical partition."""
    if not facts.partitions:
        return []
    wanted = own.slurm_partition
    asked = wanted if isinstance(wanted, tuple) else (wanted,) if wanted is not None else ()
    known = {one.name for one in facts.partitions}
    missing = [part for part in asked if part not in known]
    key = f"partitions.{name}.slurm_partition"
    listing = ", ".join(sorted(known))
    if missing:
        found = f"the cluster has no {', '.join(missing)}"
        return [Row(topic_of(name), "partition", Verdict.DIFFERS, found, ",".join(asked), key, f"one of {listing}")]
    kinds = [one for one in facts.partitions if (one.name in asked if asked else one.is_default)]
    if not kinds:
        found = "the cluster has no default partition"
        verdict = Verdict.UNKNOWN
        return [Row(topic_of(name), "partition", verdict, found, "none", key, f"it may need one of {listing}")]
    facts_of: tuple[Callable[[str, Partition, list[PartitionFacts], ClusterFacts], Row | None], ...]
    facts_of = (_exists, _time, _features, _nodes, _most_nodes, _gpus, _gpu_type, _cpus, _memory, _share, _segment)
    rows = (fact(name, own, kinds, facts) for fact in facts_of)
    return [row for row in rows if row is not None]


def _exists(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row:
    down = sorted({one.name for one in kinds if not one.is_up})
    key = f"partitions.{name}.slurm_partition"
    told = own.slurm_partition
    profile = ",".join(told) if isinstance(told, tuple) else told or "none: Slurm's default"
    if down:
        found = f"not up: {', '.join(down)}"
        return Row(topic_of(name), "partition", Verdict.NOTE, found, profile, key, "ask the admins")
    return Row(topic_of(name), "partition", Verdict.OK, ", ".join(sorted({one.name for one in kinds})), profile, key)


def _time(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row:
    limits = [one.time_limit_s for one in kinds]
    longest = None if None in limits else max(limit for limit in limits if limit is not None)
    most = format_time(longest)
    told = {key: text for key in ("max", "default", "min") if (text := getattr(own.time, key)) is not None}
    too_long = next((key for key, text in told.items() if longest is not None and _exceeds(text, longest)), None)
    key = f"partitions.{name}.time.{too_long or 'max'}"
    row = Row(topic_of(name), "time", Verdict.OK, f"at most {most}", told.get(too_long or "max", "no limit given"), key)
    if too_long is not None:
        return replace(row, verdict=Verdict.DIFFERS, todo=f'{key}: "{most}", unless a QOS of yours allows more')
    if own.time.max is None and longest is not None:
        return replace(row, verdict=Verdict.NOTE, todo=f'{key}: "{most}" refuses longer jobs before Slurm does')
    return row


def _exceeds(text: str, longest: int) -> bool:
    asked = parse_time(text)
    return asked is None or asked > longest


def _features(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    told, key, there = own.constraint, f"partitions.{name}.constraint", _kinds_of(kinds, facts)
    if told is None or not there:
        return None
    known = sorted({feature for one in there for feature in one.features})
    missing = [word for word in feature_words(told) if word not in known]
    parts = ", ".join(sorted({one.name for one in kinds}))
    row = Row(topic_of(name), "features", Verdict.OK, f"nodes of {parts} have them", told, key)
    if missing:
        more = ", …" if len(known) > MOST_FEATURES else ""
        listing = f"one of {', '.join(known[:MOST_FEATURES])}{more}" if known else "they have none: remove it"
        found = f"no node of {parts} has feature {', '.join(missing)}"
        return replace(row, verdict=Verdict.DIFFERS, found=found, todo=did_you_mean(missing[0], known) or listing)
    if not is_plain(told):
        return row
    fitting, every = sum(one.nodes for one in there if meets(told, one.features)), sum(one.nodes for one in there)
    if not fitting:
        return replace(row, verdict=Verdict.DIFFERS, found=f"no node of {parts} has all of them", todo="'|' is either")
    return replace(row, found=f"{fitting} of {every} nodes of {parts} have them")


def _kinds_of(kinds: list[PartitionFacts], facts: ClusterFacts) -> list[NodeKind]:
    names = {one.name for one in kinds}
    return [one for one in facts.kinds if one.partition in names]


def _nodes(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    if own.nodes is None:
        return None
    every, key = sum(one.nodes for one in kinds), f"partitions.{name}.nodes"
    chosen = chosen_nodes(own, _kinds_of(kinds, facts))
    total = every if chosen is None else chosen
    found = f"{total}" if total == every else f"{total} of {every}, by constraint or type of GPU"
    row = Row(topic_of(name), "nodes", Verdict.OK, found, f"{own.nodes}", key)
    if own.nodes < total:
        # Perhaps on purpose: some may be kept for others.
        return replace(row, verdict=Verdict.NOTE, todo=f"jobs of more than {own.nodes} nodes are refused here")
    return _verdict(own.nodes == total, row, f"{key}: {total}")


def _most_nodes(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    told, key = own.limits.max_nodes, f"partitions.{name}.limits.max_nodes"
    limits = [facts.limits[one.name].max_nodes for one in kinds if one.name in facts.limits]
    most = None if not limits or None in limits else max(limit for limit in limits if limit is not None)
    if told is None:
        # More nodes than there are nobody can ask for: the limit adds nothing.
        if most is None or min(own.nodes or most + 1, sum(one.nodes for one in kinds)) <= most:
            return None
        todo = f"{key}: {most} refuses larger jobs before Slurm does"
        return Row(topic_of(name), "nodes a job", Verdict.NOTE, f"at most {most}", "no limit given", key, todo)
    row = Row(topic_of(name), "nodes a job", Verdict.OK, "no limit" if most is None else str(most), str(told), key)
    return _verdict(most is None or told <= most, row, f"{key}: {most}")


def _gpus(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row:
    counts = sorted({sum(gpu.count for gpu in _gpus_of(one)) for one in kinds})
    key, told = f"partitions.{name}.gpus_per_node", own.gpus_per_node
    shown = " or ".join(map(str, counts))
    row = Row(topic_of(name), "GPUs a node", Verdict.OK, f"{shown} (sinfo)", str(told), key)
    if counts == [0] and told:
        if own.gpu_request.style == "none" or own.gpu_request.name != "gpu":
            return replace(row, verdict=Verdict.UNKNOWN, found="Slurm counts none", todo="--run looks at the nodes")
        todo = "where Slurm counts no GPUs, gpu_request.style must be none"
        return replace(row, verdict=Verdict.DIFFERS, found="Slurm counts none", todo=todo)
    return _verdict(told in counts, row, f"{key}: {counts[-1]}")


def _gpus_of(one: PartitionFacts) -> tuple[GpuGres, ...]:
    try:
        return parse_gpus(one.gres)
    except ValueError:
        return ()


def _gpu_type(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    told, key = own.gpu.slurm_type, f"partitions.{name}.gpu.slurm_type"
    types = sorted({gpu.type for one in kinds for gpu in _gpus_of(one) if gpu.type})
    if told is None or not (types or own.gpu_request.typed):
        return None
    found = ", ".join(types) or "GPUs without a type"
    row = Row(topic_of(name), "GPU type", Verdict.OK, found, told, key)
    todo = f"one of {found}" if types else "leave it out, with gpu_request.typed: false"
    if told in types and not own.gpu_request.typed:
        todo = f"no request names it: partitions.{name}.gpu_request.typed: true, or leave it out"
        return replace(row, verdict=Verdict.NOTE, todo=todo)
    return _verdict(told in types, row, todo)


def _cpus(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    told, most, key = own.cpus.per_node, max(one.cpus for one in kinds), f"partitions.{name}.cpus.per_node"
    if told is None or not most:
        return None
    row = Row(topic_of(name), "CPUs a node", Verdict.OK, str(most), str(told), key)
    return _verdict(told <= most, row, f"{key}: {most}")


def _memory(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    told, most, key = own.memory.whole_node, max(one.mem_mib for one in kinds), f"partitions.{name}.memory.whole_node"
    if told is None or not most:
        return None
    row = Row(topic_of(name), "memory", Verdict.OK, f"{most}M a node", told, key)
    return _verdict(parse_mem_mib(told) <= most, row, f"at most {most}M")


def _share(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    """Compare what the ranks of a node may ask for together with what a node has."""
    most, memory, key = max(one.mem_mib for one in kinds), own.memory, f"partitions.{name}.memory.per_rank"
    if memory.per_rank is None or memory.style not in ("mem", "mem_per_gpu") or not most:
        return None
    # A job that takes every GPU asks for memory.whole_node where that is given.
    ranks = own.gpus_per_node - (memory.whole_node is not None)
    if ranks < 1 or (memory.whole_node is not None and (own.whole_node or own.exclusive is True)):
        return None
    need = parse_mem_mib(memory.per_rank) * ranks
    row = Row(topic_of(name), "memory a rank", Verdict.OK, f"{most}M a node", f"{memory.per_rank}", key)
    todo = f"at most {most // ranks}M: {ranks} ranks ask for {format_mem(need)} together"
    return _verdict(need <= most, row, todo)


def _segment(name: str, own: Partition, kinds: list[PartitionFacts], facts: ClusterFacts) -> Row | None:
    plugin, key = facts.config.get("TopologyPlugin", ""), f"partitions.{name}.segment"
    if own.segment is None or not plugin:
        return None
    row = Row(topic_of(name), "segment", Verdict.OK, plugin, str(own.segment), key)
    return _verdict("block" in plugin, row, "--segment needs topology/block: remove it")


def _verdict(good: bool, row: Row, todo: str) -> Row:
    return row if good else replace(row, verdict=Verdict.DIFFERS, todo=todo)
