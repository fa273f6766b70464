"""build_plan: from spec and site to a Plan, collecting every contradiction before it gives up."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace

from slurm_llm.containers import plan_container
from slurm_llm.containers.types import ContainerPlan
from slurm_llm.engines import find_engine
from slurm_llm.engines.types import Engine, Known, Launch, SiteServer
from slurm_llm.errors import PlanError, Problem
from slurm_llm.plan.access import check_access, plan_access
from slurm_llm.plan.allocation import build_allocation
from slurm_llm.plan.checks import check_launch, check_partition, check_site, choose_partition
from slurm_llm.plan.client import build_client, check_client
from slurm_llm.plan.environment import build_environment, build_master, build_modules, build_ulimits
from slurm_llm.plan.front import plan_balancer, plan_frontend
from slurm_llm.plan.layout import Layout, build_layout, build_sizes
from slurm_llm.plan.notices import check_notices
from slurm_llm.plan.policies import check_forbidden, check_required
from slurm_llm.plan.prepared import with_products
from slurm_llm.plan.recovery import build_recovery, check_recovery, with_spares
from slurm_llm.plan.secrets import check_secrets
from slurm_llm.plan.service import build_service, check_service
from slurm_llm.plan.staging import build_staging, check_staging, staged
from slurm_llm.plan.steps import launcher_words
from slurm_llm.plan.types import (
    PLAN_SCHEMA,
    SHM_PREFIX,
    EnvironmentPlan,
    InstancePlan,
    LimitPlan,
    Plan,
    PortPlan,
    RankPlan,
    StepPlan,
)
from slurm_llm.plan.warnings import find_warnings
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.versions import SlurmVersion, parse_version
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes, coordinates, group_tables

SLUG_BYTES = 64

Knowing = Callable[[ContainerPlan | None], Known | None]


def slug(name: str) -> str:
    """Return `name` as a part of a file name: at most 64 bytes of letters, digits, '.', '_' and '-'."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")[:SLUG_BYTES].rstrip("-.")
    return text or "job"


@dataclass(frozen=True)
class _Decided:
    """What planning has settled; `site` is the profile as it is for `partition`."""

    engine: Engine
    launch: Launch
    site: SiteProfile
    partition: Partition
    sizes: ParallelSizes
    layout: Layout
    environment: EnvironmentPlan
    container: ContainerPlan | None


def know_nothing(_container: ContainerPlan | None) -> Known | None:
    """Return that nobody has looked into the image: the tables of the engine's releases count."""
    return None


def build_plan(
    spec: JobSpec, site: SiteProfile, version: SlurmVersion | None = None, known: Knowing = know_nothing
) -> Plan:
    """Return the plan of `spec` on `site`; `version` is the cluster's Slurm, where the profile does not say.

    `known` says of the container that the ranks get (None: the nodes) what was read there of the spec's engine.

    Raises:
        PlanError: with one Problem for each contradiction.
    """
    if site.slurm.version is not None:
        version = parse_version(f"slurm {site.slurm.version}")
    spec = with_products(spec)
    own = _decide(spec, site, version, known)
    plan = _with_parts_beside(_compose(spec, own, version), spec, own.site)
    problems = check_required(own.site, plan)
    if problems:
        raise PlanError(problems)
    return plan


def _compose(spec: JobSpec, own: _Decided, version: SlurmVersion | None) -> Plan:
    site, sizes = own.site, own.sizes
    instances, ranks = _place(sizes, own.layout, spec.replicas, own.launch)
    staging = build_staging(spec, site)
    local = staged(spec, staging)
    server = own.engine.server(local, sizes, _site_server(spec, own))
    return Plan(
        schema=PLAN_SCHEMA,
        name=spec.name,
        slug=slug(spec.name),
        site=site.name,
        slurm=None if version is None else str(version),
        engine=spec.engine,
        model=spec.model,
        launch=own.launch.name,
        sizes=sizes,
        replicas=spec.replicas,
        allocation=build_allocation(spec, site, own.partition, own.layout),
        instances=instances,
        ranks=ranks,
        groups=group_tables(sizes) if own.launch.rank_per_gpu else {},
        step=_step(site, own.launch),
        container=own.container,
        server=server,
        ports=_ports(spec, site),
        balancer=plan_balancer(spec),
        frontend=plan_frontend(local),
        shm_prefix=SHM_PREFIX,
        probe=own.engine.probe(server),
        python=site.python,
        local_dir=site.storage.local.rstrip("/") or "/tmp",
        hf_home=None if "HF_HOME" in dict(own.environment.set) else site.storage.hf_home,
        env=own.environment,
        modules=build_modules(site),
        ulimits=build_ulimits(site),
        master=build_master(site),
        interface=site.network.interface,
        gpu_clocks=spec.gpu_clocks,
        preflight_mpi=own.launch.needs_mpi and _wants_mpi_check(spec, site),
        dev_shm_mib=spec.preflight.dev_shm_mib,
        kill_wait_s=site.slurm.kill_wait_s,
        limits=_limits(spec, site),
        recovery=build_recovery(spec),
        staging=staging,
        prologue=_joined(site.prologue, spec.prologue),
        step_prologue=_joined(site.step_prologue),
        epilogue=_joined(spec.epilogue, site.epilogue),
        templates=site.templates,
        warnings=find_warnings(spec, site, own.partition, sizes, own.layout),
    )


def _with_parts_beside(plan: Plan, spec: JobSpec, site: SiteProfile) -> Plan:
    """Return the plan with what is beside the server: who may reach it, its service, its client, its metrics."""
    return replace(
        plan,
        service=build_service(spec),
        client=build_client(spec),
        access=plan_access(spec, site),
        exporter=site.metrics.exporter if spec.metrics.exporter is None else spec.metrics.exporter,
    )


def _ports(spec: JobSpec, site: SiteProfile) -> PortPlan:
    low, high = (int(port) for port in site.network.ports.split("-"))
    return PortPlan(low, high, spec.triton.http_port, spec.triton.grpc_port, spec.triton.metrics_port)


def _wants_mpi_check(spec: JobSpec, site: SiteProfile) -> bool:
    return site.preflight.mpi if spec.preflight.mpi is None else spec.preflight.mpi


def _limits(spec: JobSpec, site: SiteProfile) -> LimitPlan:
    own, startup = spec.timeouts, site.startup
    return LimitPlan(
        ready_s=round(own.ready_s * startup.timeout_factor) + startup.boot_s,
        stall_s=round(own.stall_s * startup.timeout_factor),
        answer_s=own.answer_s,
        probe_s=own.probe_s,
        unready_s=own.unready_s,
    )


def _step(site: SiteProfile, launch: Launch) -> StepPlan:
    launcher = site.launcher
    return StepPlan(
        command=launcher_words(launcher.command),
        mpi=launcher.mpi if launch.needs_mpi else "none",
        cpu_bind=launcher.step.cpu_bind,
        gpu_bind=launcher.step.gpu_bind,
        wait_s=launcher.step.wait_s,
        extra=site.srun_extra,
        skip=site.srun_skip,
    )


def _decide(spec: JobSpec, whole: SiteProfile, version: SlurmVersion | None, known: Knowing) -> _Decided:
    problems: list[Problem] = []
    engine = find_engine(spec.engine)
    name = choose_partition(spec, whole, problems)
    site = whole if name is None else whole.for_partition(name)
    partition = None if name is None else site.partitions[name]
    sizes = build_sizes(spec, problems)
    environment = build_environment(spec, site)
    names = tuple(name for name, _ in environment.set)
    gpus = partition is not None and partition.gpus_per_node > 0
    in_container: list[Problem] = []
    container = plan_container(spec, site, gpus, names, in_container)
    image = None if container is None else container.image
    launch = engine.launch(spec, sizes)
    problems += engine.check(spec, sizes, image, known(container))
    problems += check_launch(spec, site, launch)
    problems += check_site(spec, site)
    problems += [*check_forbidden(spec, site), *check_notices(spec, site)]
    shares = version is None or version.overlap_shares_gres
    layout = None if partition is None else build_layout(spec, sizes, partition, launch, problems, shares)
    layout = with_spares(layout, spec)
    problems += check_recovery(spec, site, layout)
    problems += check_access(spec, site, layout, image)
    problems += check_secrets(spec)
    if partition is not None:
        problems += check_partition(spec, partition, layout, version)
    if partition is not None and layout is not None:
        problems += check_service(spec, site, partition, layout.nodes)
    problems += check_staging(spec, site, container=container is not None)
    problems += check_client(spec, container=container is not None)
    problems += in_container
    if partition is None or layout is None or problems:
        raise PlanError(problems)
    return _Decided(engine, launch, site, partition, sizes, layout, environment, container)


def _site_server(spec: JobSpec, own: _Decided) -> SiteServer:
    site = own.site
    # Triton must give up waiting before Slurm kills it, or its shared memory stays behind.
    longest = max(1, min(3, site.slurm.kill_wait_s - 1), site.slurm.kill_wait_s - 5)
    # A job that hands over ends at its leisure; where Slurm kills it sooner the agents clean up.
    drain = 0 if spec.service is None else spec.service.drain_s
    return SiteServer(
        home=spec.triton.server or site.triton.server,
        exit_timeout_s=max(spec.triton.exit_timeout_s or longest, drain),
        image=None if own.container is None else own.container.image,
        gpus_per_node=own.layout.gpus_per_instance_node,
    )


def _joined(*texts: str | None) -> str | None:
    return "\n".join(text.rstrip("\n") for text in texts if text) or None


def _place(
    sizes: ParallelSizes, layout: Layout, replicas: int, launch: Launch
) -> tuple[tuple[InstancePlan, ...], tuple[RankPlan, ...]]:
    world = layout.nodes_per_instance * layout.ranks_per_node // layout.instances_per_node
    instances, ranks = [], []
    for index in range(replicas):
        first_node = index * layout.nodes_per_instance // layout.instances_per_node
        first_slot = index % layout.instances_per_node * layout.gpus_per_instance_node
        first_rank = index * world
        instances.append(InstancePlan(index, first_node, layout.nodes_per_instance, first_rank, first_rank))
        each = world // layout.nodes_per_instance
        for own in range(world):
            slot = first_slot + own % each * layout.gpus_per_rank
            ranks.append(
                RankPlan(
                    rank=first_rank + own,
                    instance=index,
                    instance_rank=own,
                    node=first_node + own // each,
                    local=own % each,
                    gpus=tuple(range(slot, slot + layout.gpus_per_rank)),
                    at=coordinates(own if launch.rank_per_gpu else 0, sizes),
                    role="worker" if own else "leader",
                )
            )
    return tuple(instances), tuple(ranks)
