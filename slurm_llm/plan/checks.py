"""What a spec and a site contradict each other in, each told with its numbers; nothing is decided here."""

from __future__ import annotations

import re

from slurm_llm.engines import engine_names, find_engine
from slurm_llm.engines.types import Engine
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.plan.layout import Layout, cpus_per_rank
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.formats import parse_time
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

PORTS_PER_JOB = 3


def choose_engine(spec: JobSpec, problems: list[Problem]) -> Engine | None:
    """Return the spec's engine; append to `problems` when this release cannot start it."""
    engine = find_engine(spec.engine)
    if engine is None:
        allowed = ", ".join(engine_names())
        todo = "`rehearse` runs this spec's launch with the rehearsal engine"
        problems.append(Problem("engine", f"'{spec.engine}' cannot be started by this release", allowed, todo))
    return engine


def choose_partition(spec: JobSpec, site: SiteProfile, problems: list[Problem]) -> Partition | None:
    """Return the spec's partition, or the site's default; append to `problems` when there is no such one."""
    name = spec.partition or site.default_partition or next(iter(site.partitions))
    partition = site.partitions.get(name)
    if partition is None:
        hint = did_you_mean(name, site.partitions)
        allowed = f"partitions of site {site.name}: " + ", ".join(site.partitions)
        todo = hint or "choose one of them"
        problems.append(Problem("partition", f"unknown partition '{name}'", allowed, todo))
    return partition


def check_engine(spec: JobSpec, site: SiteProfile, engine: Engine, sizes: ParallelSizes) -> list[Problem]:
    """Return what is wrong with the engine's own arguments, and what the site lacks for its launch."""
    problems = engine.check(spec, sizes)
    if engine.needs_mpi and site.launcher.mpi is None:
        what = f"site {site.name} names no MPI type, and the {engine.launch} launch forms an MPI world"
        todo = "set launcher.mpi in the profile (see `srun --mpi=list`)"
        problems.append(Problem("launcher.mpi", what, "pmix, pmix_v4, pmi2, …", todo))
    return problems


def check_site(spec: JobSpec, site: SiteProfile) -> list[Problem]:
    """Return what contradicts the site's rules, whatever the partition."""
    problems = [*_check_account(spec, site), *_check_ports(spec, site)]
    if spec.container is not None and site.container.runtime == "none":
        what = f"an image is given, but site {site.name} has no container runtime"
        problems.append(Problem("container.image", what, todo="remove `container`, or choose another site"))
    if spec.mounts and spec.container is None:
        what = "mounts are given without a container"
        todo = "remove `mounts`: the ranks see the node's own file systems"
        problems.append(Problem("mounts", what, todo=todo))
    longest, asked = site.slurm.kill_wait_s - 1, spec.triton.exit_timeout_s
    if asked is not None and asked > longest:
        what = f"{asked} s, but Slurm kills after KillWait, {site.slurm.kill_wait_s} s on site {site.name}"
        problems.append(Problem("triton.exit_timeout_s", what, f"1 to {longest}", "leave it out"))
    return problems


def check_partition(spec: JobSpec, partition: Partition, layout: Layout | None) -> list[Problem]:
    """Return what the partition cannot give; without a layout, only what does not depend on it."""
    problems = _check_time(spec, partition)
    if layout is None:
        return problems
    problems += _check_nodes(partition, layout)
    cpus, each = partition.cpus_per_node, cpus_per_rank(spec, partition)
    if cpus is not None and each * layout.ranks_per_node > cpus:
        what = f"{layout.ranks_per_node} ranks × {each} CPUs = {each * layout.ranks_per_node} a node; a node has {cpus}"
        most = cpus // layout.ranks_per_node
        allowed, todo = (f"1 to {most}", "") if most else ("", f"put at most {cpus} ranks on a node")
        problems.append(Problem("resources.cpus_per_rank", what, allowed, todo))
    return problems


def _check_nodes(partition: Partition, layout: Layout) -> list[Problem]:
    limits = [limit for limit in (partition.nodes, partition.limits.max_nodes) if limit is not None]
    if not limits or layout.nodes <= min(limits):
        return []
    what = (
        f"the job needs {layout.nodes} nodes × {layout.ranks_per_node} ranks, the partition gives {min(limits)} nodes"
    )
    return [Problem("resources.nodes", what, f"at most {min(limits)}", "ask for fewer ranks or another partition")]


def _check_time(spec: JobSpec, partition: Partition) -> list[Problem]:
    longest = None if partition.time.max is None else parse_time(partition.time.max)
    if spec.resources.time is None or longest is None:
        return []
    # Slurm takes a limit of zero for none at all.
    asked = parse_time(spec.resources.time) or None
    if asked is not None and asked <= longest:
        return []
    what = f"{spec.resources.time} asked for" if asked is not None else "no limit asked for"
    allowed = f"at most {partition.time.max} in this partition"
    return [Problem("resources.time", what, allowed, "ask for less, or choose another partition")]


def _check_account(spec: JobSpec, site: SiteProfile) -> list[Problem]:
    rules = site.account
    account = spec.account or rules.default
    hint = f"list yours with `{rules.list_command}`" if rules.list_command else "ask your centre for yours"
    if account is None:
        missing = Problem("account", f"site {site.name} requires an account", todo=hint)
        return [missing] if rules.required else []
    if rules.pattern is not None and not re.fullmatch(rules.pattern, account):
        return [Problem("account", f"'{account}' does not look like one of {site.name}", rules.pattern, hint)]
    return []


def _check_ports(spec: JobSpec, site: SiteProfile) -> list[Problem]:
    low, high = (int(port) for port in site.network.ports.split("-"))
    chosen = {
        name: port
        for name in ("http_port", "grpc_port", "metrics_port")
        if (port := getattr(spec.triton, name)) is not None
    }
    problems = []
    if len(set(chosen.values())) < len(chosen):
        listing = ", ".join(f"{name} {port}" for name, port in chosen.items())
        problems.append(Problem("triton", f"two ports are the same: {listing}", "three different ports", "change one"))
    if chosen and spec.replicas > 1:
        what = f"fixed ports ({', '.join(chosen)}) with {spec.replicas} replicas"
        problems.append(Problem("triton", what, todo="leave the ports out: each replica draws its own"))
    taken = sum(low <= port <= high for port in set(chosen.values()))
    room, need = high - low + 1 - taken, PORTS_PER_JOB - len(chosen)
    if room < need:
        what = f"port range exhausted: {site.network.ports} has {room} free ports, a job draws {need}"
        problems.append(Problem("network.ports", what, todo="widen the range in the site profile"))
    return problems
