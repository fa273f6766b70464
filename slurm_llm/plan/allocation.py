"""What is asked of Slurm for a job: decided from spec and partition, in the partition's own dialect."""

from __future__ import annotations

from slurm_llm.plan.layout import Layout, cpus_per_rank
from slurm_llm.plan.notices import notice_options
from slurm_llm.plan.timelimits import choose_time
from slurm_llm.plan.types import Allocation, Gpus
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.formats import format_mem, parse_mem_mib
from slurm_llm.spec import JobSpec


def build_allocation(spec: JobSpec, site: SiteProfile, partition: Partition, layout: Layout) -> Allocation:
    """Return the allocation; `site` is the profile as it is for this partition."""
    return Allocation(
        nodes=layout.nodes,
        spare_nodes=layout.spare_nodes,
        ranks_per_node=layout.ranks_per_node,
        gpus_per_rank=layout.gpus_per_rank,
        instances_per_node=layout.instances_per_node,
        gpus=_gpus(partition, layout),
        cpus_per_rank=cpus_per_rank(spec, partition, layout.gpus_per_rank),
        cpu_style=_cpu_style(partition),
        memory=_memory(spec, partition, layout),
        time=choose_time(spec, partition, layout.asked_nodes),
        partition=_partition(partition),
        account=spec.account or site.account.default,
        qos=spec.qos or partition.qos,
        constraint=_both(partition.constraint, spec.constraint),
        reservation=spec.reservation or partition.reservation,
        exclude=",".join(text for text in (site.exclude_nodes, spec.exclude_nodes) if text) or None,
        others=(*_others(site, partition, layout), *notice_options(spec)),
        extra=(*site.sbatch_extra, *spec.sbatch_extra),
        skip=tuple(dict.fromkeys((*site.policies.forbid, *site.sbatch_skip))),
    )


def _asks_for_gpus(partition: Partition) -> bool:
    """Return whether jobs ask for GPUs: without that --cpus-per-gpu and --mem-per-gpu are refused."""
    return partition.gpus_per_node > 0 and partition.gpu_request.style != "none"


def _cpu_style(partition: Partition) -> str:
    style = partition.cpus.style
    return "cpus_per_task" if style == "cpus_per_gpu" and not _asks_for_gpus(partition) else style


def _both(site: str | None, spec: str | None) -> str | None:
    """Return both constraints in one: Slurm reads from left to right, so a side with `|` is put in parentheses."""
    given = [text for text in (site, spec) if text]
    return "&".join(f"({text})" if "|" in text and len(given) > 1 else text for text in given) or None


def takes_whole_nodes(partition: Partition, layout: Layout) -> bool:
    """Return whether no other job can share the job's nodes."""
    full = 0 < partition.gpus_per_node <= layout.gpus_per_node
    return full or partition.whole_node or partition.exclusive is True


def _gpus(partition: Partition, layout: Layout) -> Gpus:
    request = partition.gpu_request
    step = request.style if request.step == "same" else request.step
    whole = partition.whole_node and request.style != "gpus_per_task"
    count = partition.gpus_per_node if whole else layout.gpus_per_node
    wanted = partition.gpus_per_node > 0 and (request.style != "none" or step != "none")
    kind = partition.gpu.slurm_type if request.typed else None
    return Gpus(count if wanted else 0, request.style, step, kind, request.name, partition.gpus_per_node > 0)


def _memory(spec: JobSpec, partition: Partition, layout: Layout) -> str | None:
    own = partition.memory
    if spec.resources.mem_per_node is not None:
        return f"--mem={spec.resources.mem_per_node}"
    if own.style == "none":
        return None
    if own.whole_node is not None and takes_whole_nodes(partition, layout):
        return f"--mem={own.whole_node}"
    if own.style == "mem_per_cpu":
        return None if own.per_cpu is None else f"--mem-per-cpu={own.per_cpu}"
    if own.per_rank is None:
        return None
    if own.style == "mem_per_gpu" and _asks_for_gpus(partition):
        return f"--mem-per-gpu={own.per_rank}"
    return f"--mem={format_mem(parse_mem_mib(own.per_rank) * layout.gpus_per_node)}"


def _partition(partition: Partition) -> str | None:
    own = partition.slurm_partition
    return ",".join(own) if isinstance(own, tuple) else own


def _others(site: SiteProfile, partition: Partition, layout: Layout) -> tuple[str, ...]:
    segment = layout.asked_nodes if partition.segment == "all" else partition.segment
    exclusive = partition.exclusive
    named = (
        ("clusters", site.slurm.clusters),
        ("segment", segment),
        ("licenses", partition.licenses),
        ("network", site.network.flags),
        ("switches", partition.switches),
        ("core-spec", partition.core_spec),
        ("threads-per-core", partition.cpus.threads_per_core),
        ("hint", partition.cpus.hint),
        ("distribution", partition.distribution),
        ("wait-all-nodes", 1 if partition.wait_all_nodes else None),
        ("exclusive", exclusive if isinstance(exclusive, str) else None),
    )
    options = tuple(f"--{name}={value}" for name, value in named if value is not None)
    return (*options, "--exclusive") if exclusive is True else options
