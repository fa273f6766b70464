"""What a spec and a site contradict each other in, each told with its numbers; nothing is decided here."""

from __future__ import annotations

import re

from slurm_llm.engines.types import Launch
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.plan.allocation import takes_whole_nodes
from slurm_llm.plan.layout import Layout, cpus_per_rank
from slurm_llm.plan.slices import check_slices
from slurm_llm.plan.timelimits import check_time
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.versions import SlurmVersion
from slurm_llm.spec import JobSpec

PORTS_PER_JOB = 3


def choose_partition(spec: JobSpec, site: SiteProfile, problems: list[Problem]) -> str | None:
    """Return the name of the spec's partition, or of the site's default; append to `problems` when there is none."""
    name = site.partition_name(spec.partition)
    if name in site.partitions:
        return name
    hint = did_you_mean(name, site.partitions)
    allowed = f"partitions of site {site.name}: " + ", ".join(site.partitions)
    problems.append(Problem("partition", f"unknown partition '{name}'", allowed, hint or "choose one of them"))
    return None


def check_launch(spec: JobSpec, site: SiteProfile, launch: Launch) -> list[Problem]:
    """Return what the site lacks for the launch."""
    problems: list[Problem] = []
    launcher = site.launcher
    if launch.needs_mpi and launcher.mpi is None and launcher.by_srun:
        what = f"site {site.name} names no MPI type, and the {launch.name} launch forms an MPI world"
        todo = "set launcher.mpi in the profile (see `srun --mpi=list`)"
        problems.append(Problem("launcher.mpi", what, "pmix, pmix_v4, pmi2, …", todo))
    if spec.replicas > 1 and not launcher.by_srun:
        what = f"site {site.name} starts ranks with {launcher.command.split()[0]}, which cannot start several instances"
        problems.append(Problem("replicas", what, "1", "submit one job for each instance"))
    return problems


def check_site(spec: JobSpec, site: SiteProfile) -> list[Problem]:
    """Return what contradicts the site's rules; `site` is the profile as it is for the job's partition."""
    problems = [*_check_account(spec, site), *_check_ports(spec, site), *_check_offline(spec, site)]
    longest, asked = site.slurm.kill_wait_s - 1, spec.triton.exit_timeout_s
    if asked is not None and asked > longest:
        what = f"{asked} s, but Slurm kills after KillWait, {site.slurm.kill_wait_s} s on site {site.name}"
        problems.append(Problem("triton.exit_timeout_s", what, f"1 to {longest}", "leave it out"))
    if spec.gpu_clocks is not None and not site.policies.gpu_clocks:
        what = f"site {site.name} does not let jobs lock GPU clocks"
        problems.append(Problem("gpu_clocks", what, todo="remove it, or ask the admin for policies.gpu_clocks"))
    return problems


def _check_offline(spec: JobSpec, site: SiteProfile) -> list[Problem]:
    if site.network.internet != "none" or spec.engine == "rehearsal" or spec.model is None:
        return []
    cached = site.storage.hf_home is not None or "HF_HOME" in (spec.env | site.env.set)
    if cached or spec.model.startswith(("/", "./", "../", "~", "$")):
        return []
    what = f"'{spec.model}' would be downloaded, and compute nodes of site {site.name} have no internet"
    return [Problem("model", what, "a path", "download it on a login node and give its path, or set HF_HOME in env")]


def check_partition(
    spec: JobSpec, partition: Partition, layout: Layout | None, version: SlurmVersion | None
) -> list[Problem]:
    """Return what the partition cannot give; without a layout, only what does not depend on it."""
    problems = [*_check_version(partition, version)]
    if layout is None:
        return [*problems, *check_time(spec, partition, None)]
    problems += check_time(spec, partition, layout.asked_nodes)
    problems += _check_nodes(partition, layout)
    problems += check_slices(spec, partition, layout)
    if spec.gpu_clocks is not None and not takes_whole_nodes(partition, layout):
        what = "clocks are locked for all GPUs of a node, and the job shares its nodes with others"
        problems.append(Problem("gpu_clocks", what, todo=f"use all {partition.gpus_per_node} GPUs of each node"))
    return [*problems, *_check_cpus(spec, partition, layout)]


def _check_cpus(spec: JobSpec, partition: Partition, layout: Layout) -> list[Problem]:
    cpus, each = partition.cpus.per_node, cpus_per_rank(spec, partition, layout.gpus_per_rank)
    whole = partition.whole_node and partition.cpus.style == "cpus_per_gpu" and layout.gpus_per_rank == 1
    count, of_what = (partition.gpus_per_node, "GPUs") if whole else (layout.ranks_per_node, "ranks")
    if cpus is None or each * count <= cpus:
        return []
    what = f"{count} {of_what} × {each} CPUs = {each * count} a node; a node has {cpus}"
    most = cpus // count
    allowed, todo = (f"1 to {most}", "") if most else ("", f"put at most {cpus} ranks on a node")
    return [Problem("resources.cpus_per_rank", what, allowed, todo)]


def _check_version(partition: Partition, version: SlurmVersion | None) -> list[Problem]:
    if version is None or version.supports_segment:
        return []
    wanted = {"segment": partition.segment is not None, "exclusive: topo": partition.exclusive == "topo"}
    return [
        Problem(f"partitions: {key}", f"Slurm {version} does not know it", "from Slurm 24.05 on", "remove the key")
        for key, given in wanted.items()
        if given
    ]


def _check_nodes(partition: Partition, layout: Layout) -> list[Problem]:
    problems, limits = [], partition.limits
    most = [limit for limit in (partition.nodes, limits.max_nodes) if limit is not None]
    if most and layout.asked_nodes > min(most):
        shape = f"{layout.asked_nodes} nodes × {layout.ranks_per_node} ranks"
        what, todo = f"the job needs {shape}, the partition gives {min(most)} nodes", "ask for fewer ranks"
        problems.append(Problem("resources.nodes", what, f"at most {min(most)}", f"{todo} or another partition"))
    if limits.min_nodes is not None and layout.asked_nodes < limits.min_nodes:
        what, allowed = f"the job needs {layout.asked_nodes} nodes", f"at least {limits.min_nodes} in this partition"
        problems.append(Problem("resources.nodes", what, allowed, "choose another partition"))
    each = partition.gpus_per_node if partition.whole_node else layout.gpus_per_node
    gpus = layout.asked_nodes * each
    if limits.max_gpus is not None and gpus > limits.max_gpus:
        what, allowed = f"the job takes {gpus} GPUs", f"at most {limits.max_gpus} in this partition"
        problems.append(Problem("resources.nodes", what, allowed, "ask for fewer ranks"))
    segment = partition.segment
    if isinstance(segment, int) and layout.asked_nodes > segment and layout.asked_nodes % segment:
        what, allowed = f"{layout.asked_nodes} nodes in segments of {segment}", f"a multiple of {segment}"
        problems.append(Problem("resources.nodes", what, allowed, "ask for more or fewer ranks"))
    return problems


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
    if spec.balancer is not None and spec.balancer.port in chosen.values():
        what = f"{spec.balancer.port} is a port of Triton too, and both are on the first node"
        problems.append(Problem("balancer.port", what, todo="change one, or leave it out"))
    if chosen and spec.replicas > 1:
        what = f"fixed ports ({', '.join(chosen)}) with {spec.replicas} replicas"
        problems.append(Problem("triton", what, todo="leave the ports out: each replica draws its own"))
    taken = sum(low <= port <= high for port in set(chosen.values()))
    room, need = high - low + 1 - taken, PORTS_PER_JOB - len(chosen)
    if room < need:
        what = f"port range exhausted: {site.network.ports} has {room} free ports, a job draws {need}"
        problems.append(Problem("network.ports", what, todo="widen the range in the site profile"))
    return problems
