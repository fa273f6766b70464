"""build_plan: from spec and site to a Plan, collecting every contradiction before it gives up."""

from __future__ import annotations

import re
import unicodedata

from slurm_llm.engines.types import Engine, SiteServer
from slurm_llm.errors import PlanError, Problem
from slurm_llm.plan.checks import check_engine, check_partition, check_site, choose_engine, choose_partition
from slurm_llm.plan.layout import Layout, build_layout, build_sizes, cpus_per_rank
from slurm_llm.plan.types import (
    PLAN_SCHEMA,
    SHM_PREFIX,
    Allocation,
    InstancePlan,
    Plan,
    PortPlan,
    RankPlan,
    StepPlan,
)
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes, coordinates, group_tables

SLUG_BYTES = 64


def slug(name: str) -> str:
    """Return `name` as a part of a file name: at most 64 bytes of letters, digits, '.', '_' and '-'."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")[:SLUG_BYTES].rstrip("-.")
    return text or "job"


def build_plan(spec: JobSpec, site: SiteProfile) -> Plan:
    """Return the plan of `spec` on `site`.

    Raises:
        PlanError: with one Problem for each contradiction.
    """
    warnings: list[str] = []
    engine, partition, sizes, layout = _decide(spec, site)
    allocation = _allocation(spec, site, partition, layout, warnings)
    instances, ranks = _place(sizes, layout, spec.replicas)
    _warn_of_spread(sizes, layout, warnings)
    server = engine.server(spec, sizes, _site_server(spec, site))
    low, high = (int(port) for port in site.network.ports.split("-"))
    return Plan(
        schema=PLAN_SCHEMA,
        name=spec.name,
        slug=slug(spec.name),
        site=site.name,
        engine=spec.engine,
        model=spec.model,
        launch=engine.launch,
        sizes=sizes,
        replicas=spec.replicas,
        allocation=allocation,
        instances=instances,
        ranks=ranks,
        groups=group_tables(sizes),
        step=StepPlan(site.launcher.mpi, site.launcher.step.cpu_bind, site.launcher.step.wait_s, site.srun_extra),
        server=server,
        ports=PortPlan(low, high, spec.triton.http_port, spec.triton.grpc_port, spec.triton.metrics_port),
        shm_prefix=SHM_PREFIX,
        probe=engine.probe(server),
        python=site.python,
        local_dir=site.storage.local.rstrip("/") or "/tmp",
        env_set=tuple((key, _env_text(value)) for key, value in {**site.env.set, **spec.env}.items()),
        env_unset=site.env.unset,
        preflight_mpi=site.preflight.mpi if spec.preflight.mpi is None else spec.preflight.mpi,
        dev_shm_mib=spec.preflight.dev_shm_mib,
        kill_wait_s=site.slurm.kill_wait_s,
        ready_s=spec.timeouts.ready_s,
        answer_s=spec.timeouts.answer_s,
        prologue=_joined(site.prologue, spec.prologue),
        epilogue=_joined(spec.epilogue, site.epilogue),
        warnings=tuple(warnings),
    )


def _decide(spec: JobSpec, site: SiteProfile) -> tuple[Engine, Partition, ParallelSizes, Layout]:
    problems: list[Problem] = []
    engine = choose_engine(spec, problems)
    partition = choose_partition(spec, site, problems)
    sizes = build_sizes(spec, problems)
    if engine is not None:
        problems += check_engine(spec, site, engine, sizes)
    problems += check_site(spec, site)
    layout = None if partition is None else build_layout(spec, sizes, partition, problems)
    if partition is not None:
        problems += check_partition(spec, partition, layout)
    if engine is None or partition is None or layout is None or problems:
        raise PlanError(problems)
    return engine, partition, sizes, layout


def _site_server(spec: JobSpec, site: SiteProfile) -> SiteServer:
    # Triton must give up waiting before Slurm kills it, or its shared memory stays behind.
    longest = max(1, min(3, site.slurm.kill_wait_s - 1), site.slurm.kill_wait_s - 5)
    return SiteServer(spec.triton.server or site.triton.server, spec.triton.exit_timeout_s or longest)


def _env_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(*texts: str | None) -> str | None:
    return "\n".join(text.rstrip("\n") for text in texts if text) or None


def _allocation(
    spec: JobSpec, site: SiteProfile, partition: Partition, layout: Layout, warnings: list[str]
) -> Allocation:
    cpus_known = spec.resources.cpus_per_rank or partition.cpus_per_rank or partition.cpus_per_node
    if not cpus_known:
        warnings.append("neither spec nor site says how many CPUs a rank gets: 1 (set resources.cpus_per_rank)")
    time = spec.resources.time or partition.time.default
    if time is None:
        warnings.append("no time limit given: Slurm's own default for the partition counts")
    wanted = partition.gpu_request.style != "none" and partition.gpus_per_node > 0
    return Allocation(
        nodes=layout.nodes,
        ranks_per_node=layout.ranks_per_node,
        gpus_per_node=layout.ranks_per_node if wanted else 0,
        gpu_style=partition.gpu_request.style,
        gpu_type=partition.gpu_request.type,
        cpus_per_rank=cpus_per_rank(spec, partition),
        mem_per_node=spec.resources.mem_per_node or partition.mem_per_node,
        time=time,
        partition=partition.slurm_partition,
        account=spec.account or site.account.default,
        qos=spec.qos or partition.qos,
        constraint="&".join(c for c in (partition.constraint, spec.constraint) if c) or None,
        reservation=spec.reservation or partition.reservation,
        exclusive=partition.exclusive,
        extra=(*site.sbatch_extra, *spec.sbatch_extra),
    )


def _place(
    sizes: ParallelSizes, layout: Layout, replicas: int
) -> tuple[tuple[InstancePlan, ...], tuple[RankPlan, ...]]:
    world = sizes.world_size
    instances, ranks = [], []
    for index in range(replicas):
        first_node, first_rank = index * layout.nodes_per_instance, index * world
        instances.append(InstancePlan(index, first_node, layout.nodes_per_instance, first_rank, first_rank))
        for own in range(world):
            local = own % layout.ranks_per_node
            ranks.append(
                RankPlan(
                    rank=first_rank + own,
                    instance=index,
                    instance_rank=own,
                    node=first_node + own // layout.ranks_per_node,
                    local=local,
                    gpus=(local,),
                    at=coordinates(own, sizes),
                    role="worker" if own else "leader",
                )
            )
    return tuple(instances), tuple(ranks)


def _warn_of_spread(sizes: ParallelSizes, layout: Layout, warnings: list[str]) -> None:
    tensor, each = sizes.tensor_parallel_size, layout.ranks_per_node
    # Groups are contiguous and nodes hold contiguous ranks: they line up only when one divides the other.
    if tensor > each or each % tensor:
        warnings.append(
            f"a tensor group of {tensor} spans several nodes ({each} ranks a node): its all-reduces cross the network"
        )
