"""What a stage's job asks of Slurm, and how its commands get into the container: the serving job's own ways."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_llm.app import Job
from slurm_llm.containers import plan_container
from slurm_llm.errors import PlanError, Problem, did_you_mean
from slurm_llm.plan import Plan
from slurm_llm.plan.allocation import build_allocation
from slurm_llm.plan.checks import check_partition, check_site
from slurm_llm.plan.environment import build_environment, build_modules
from slurm_llm.plan.layout import Layout
from slurm_llm.plan.policies import check_required
from slurm_llm.plan.recovery import build_recovery
from slurm_llm.plan.timelimits import HOUR_S, longest_time
from slurm_llm.plan.types import Allocation, InstancePlan
from slurm_llm.preparation import Stage
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.sites.secrets import names_secret
from slurm_llm.slurm.formats import format_time
from slurm_llm.slurm.options import option_name
from slurm_llm.slurm.versions import parse_version
from slurm_llm.spec import Container, JobSpec, Recovery, Resources

NOT_A_STAGES = frozenset({"output", "open-mode", "requeue", "no-requeue"})
"""Options of the serving job that the stage's submission sets itself."""


def plan_stage(job: Job, name: str, own: Stage, folders: Iterable[str], mpi: bool) -> Plan:
    """Return the plan of the stage's job: one task on one node, in the same dialect as the serving job's.

    `folders` are to be seen in the container, at their own place. With `mpi` a task inside it may start MPI, alone:
    importing TensorRT-LLM does.

    Raises:
        PlanError: what the partition or the site does not give.
    """
    where, problems = _where(name), list[Problem]()
    site = site_of(job, name, own)
    partition_name = site.partition_name(None)
    partition = site.partitions[partition_name]
    spec = _spec(job, name, own, partition, folders)
    layout = Layout(1, 1, 1, max(1, own.gpus))
    if own.gpus > partition.gpus_per_node > 0 or (own.gpus and not partition.gpus_per_node):
        what = f"{own.gpus} GPUs asked for, a node of partition {partition_name} has {partition.gpus_per_node}"
        problems.append(Problem(f"{where}.gpus", what))
    version = None if job.plan.slurm is None else parse_version(f"slurm {job.plan.slurm}")
    problems += _renamed(where, [*check_partition(spec, partition, layout, version), *check_site(spec, site)])
    environment = build_environment(spec, site)
    problems += _secrets(environment.set)
    names = tuple(variable for variable, _ in environment.set)
    container = plan_container(spec, site, own.gpus > 0, names, problems)
    if problems:
        raise PlanError(problems)
    allocation = _allocation(build_allocation(spec, site, partition, layout), own, partition)
    plan = replace(
        job.plan,
        name=spec.name,
        replicas=1,
        allocation=allocation,
        instances=(InstancePlan(0, 0, 1, 0, 0),),
        ranks=(),
        groups={},
        step=replace(job.plan.step, mpi=site.launcher.mpi if mpi else "none", skip=(*site.srun_skip, "label")),
        container=container,
        recovery=build_recovery(spec),
        service=None,
        hf_home=None if "HF_HOME" in names else site.storage.hf_home,
        env=environment,
        modules=build_modules(site),
        master=None,
    )
    missing = check_required(site, plan)
    if missing:
        raise PlanError(missing)
    return plan


def _where(name: str) -> str:
    return name if name == "bench" else f"prepare.{name}"


def _spec(job: Job, name: str, own: Stage, partition: Partition, folders: Iterable[str]) -> JobSpec:
    """Return a spec of the stage's own size; what belongs to another partition than the serving job's is left out."""
    spec, moved = job.spec, own.partition not in (None, job.spec.partition)
    container = spec.container
    if job.plan.container is not None:
        image = None if container is None else container.image
        mounts = () if container is None else container.mounts
        container = Container(image=image, mounts=(*mounts, *dict.fromkeys(folders)))
    changes: dict[str, object] = {
        "name": f"{spec.name}:{name}",
        "model": None,
        "replicas": 1,
        "prepare": None,
        "recovery": Recovery(),
        "resources": Resources(
            nodes=1, cpus_per_rank=own.cpus, mem_per_node=own.mem, time=own.time or _usual_time(partition)
        ),
        "partition": own.partition or spec.partition,
        "container": container,
    }
    if moved:
        changes.update(qos=None, constraint=None, reservation=None, exclude_nodes=None)
    return spec.model_copy(update=changes)


def _usual_time(partition: Partition) -> str:
    longest, _ = longest_time(partition, 1)
    return format_time(HOUR_S if longest is None else min(longest, HOUR_S))


def _allocation(own: Allocation, stage: Stage, partition: Partition) -> Allocation:
    """Return the allocation with the stage's own number of GPUs, which may be none."""
    if stage.gpus or partition.whole_node:
        return own
    gpus = replace(own.gpus, per_node=0)
    per_gpu = own.memory is not None and own.memory.startswith("--mem-per-gpu")
    style = "cpus_per_task" if own.cpu_style == "cpus_per_gpu" else own.cpu_style
    return replace(own, gpus=gpus, cpu_style=style, memory=None if per_gpu else own.memory)


def _renamed(where: str, problems: Iterable[Problem]) -> Iterable[Problem]:
    """Yield problems about resources under the names that stages have for them."""
    names = {"resources.time": "time", "resources.cpus_per_rank": "cpus", "resources.nodes": "partition"}
    for one in problems:
        yield replace(one, where=f"{where}.{names[one.where]}") if one.where in names else one


def _secrets(values: Iterable[tuple[str, str]]) -> Iterable[Problem]:
    for name, _ in values:
        if names_secret(name):
            what = f"the value of {name} would stand in the script of every stage"
            yield Problem(f"env.{name}", what, "a variable of your shell: jobs inherit it", f"`export {name}=…` there")


def stage_options(options: Iterable[str]) -> tuple[str, ...]:
    """Return those of a job's options that a stage's submission does not set itself."""
    return tuple(option for option in options if option_name(option) not in NOT_A_STAGES)


def site_of(job: Job, name: str, own: Stage) -> SiteProfile:
    """Return the profile as it is for the stage's partition.

    Raises:
        PlanError: the site has no such partition.
    """
    whole = job.site.profile
    partition = whole.partition_name(own.partition or job.spec.partition)
    if partition not in whole.partitions:
        where, what = f"{_where(name)}.partition", f"unknown partition '{partition}'"
        hint = did_you_mean(partition, whole.partitions) or "choose one of them"
        raise PlanError(Problem(where, what, ", ".join(whole.partitions), hint))
    return whole.for_partition(partition)
