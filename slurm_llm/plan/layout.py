"""Arithmetic of a job: how many nodes, ranks a node and instances, with every contradiction named by its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_llm.engines.types import Launch
from slurm_llm.errors import Problem
from slurm_llm.sites.profile import Partition
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

MAX_RANKS = 32768
"""More than any server takes: a job of more is a slip of the keyboard, and would take this machine minutes to write."""

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "replicas")


@dataclass(frozen=True)
class Layout:
    """How ranks lie on nodes.

    `nodes` of the whole job, `nodes_per_instance` of one instance, `instances_per_node` that share one (then each lies
    on one node), `ranks_per_node` of all instances there, and `gpus_per_rank` (1 also where the site has no GPUs).
    The job has `spare_nodes` beyond them.
    """

    nodes: int
    nodes_per_instance: int
    ranks_per_node: int
    gpus_per_rank: int = 1
    instances_per_node: int = 1
    spare_nodes: int = 0

    @property
    def asked_nodes(self) -> int:
        """Nodes that the job asks for, with those that its ranks do not need."""
        return self.nodes + self.spare_nodes

    @property
    def gpus_per_node(self) -> int:
        """GPUs that the job uses on each of its nodes."""
        return self.ranks_per_node * self.gpus_per_rank

    @property
    def gpus_per_instance_node(self) -> int:
        """GPUs that one instance uses on each of its nodes."""
        return self.gpus_per_node // self.instances_per_node


def build_sizes(spec: JobSpec, problems: list[Problem]) -> ParallelSizes:
    """Return the parallel sizes with the unset expert sizes filled; append what contradicts to `problems`."""
    tensor = spec.tensor_parallel_size
    expert, moe_tensor = spec.moe_expert_parallel_size, spec.moe_tensor_parallel_size
    if expert is None and moe_tensor is None:
        expert, moe_tensor = 1, tensor
    for name, size in (("moe_expert_parallel_size", expert), ("moe_tensor_parallel_size", moe_tensor)):
        if size is not None and tensor % size:
            what = f"{size} does not divide tensor_parallel_size {tensor}"
            allowed = "one of " + ", ".join(map(str, _divisors(tensor)))
            problems.append(Problem(name, what, allowed, "experts share the tensor dimension"))
    expert = expert or max(1, tensor // (moe_tensor or 1))
    moe_tensor = moe_tensor or max(1, tensor // expert)
    if expert * moe_tensor != tensor and not any(p.where.startswith("moe_") for p in problems):
        what = f"moe_tensor {moe_tensor} × moe_expert {expert} = {expert * moe_tensor}"
        allowed = f"their product must be tensor_parallel_size, {tensor}"
        todo = "leave one of the two out and it is filled in"
        problems.append(Problem("moe_expert_parallel_size", what, allowed, todo))
    return ParallelSizes(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=spec.pipeline_parallel_size,
        context_parallel_size=spec.context_parallel_size,
        moe_tensor_parallel_size=moe_tensor,
        moe_expert_parallel_size=expert,
    )


def cpus_per_rank(spec: JobSpec, partition: Partition, gpus_per_rank: int) -> int:
    """Return the spec's number, else for each GPU of a rank the partition's, or a node's CPUs over its GPUs, or 1."""
    known = partition.cpus.per_rank
    if known is None and partition.cpus.per_node and partition.gpus_per_node:
        known = partition.cpus.per_node // partition.gpus_per_node
    return spec.resources.cpus_per_rank or (known or 1) * gpus_per_rank


def build_layout(
    spec: JobSpec,
    sizes: ParallelSizes,
    partition: Partition,
    launch: Launch,
    problems: list[Problem],
    can_share: bool = True,
) -> Layout | None:
    """Return where the ranks go; append what cannot be to `problems` and return None.

    `can_share`: whether this Slurm shows one node's GPUs to several steps at a time.
    """
    fits, unit = _ranks_that_fit(spec, partition), "GPUs" if partition.gpus_per_node else "ranks"
    nodes, asked = spec.resources.nodes, spec.resources.gpus_per_node
    world = launch.gpus or sizes.world_size
    if world * spec.replicas > MAX_RANKS:
        what = f"{_product(sizes, spec.replicas)} needs {world * spec.replicas} {unit}"
        where = next((name for name in SIZES if getattr(spec, name) > 1), "engine_args")
        problems.append(Problem(where, what, f"at most {MAX_RANKS} in a job", "ask for less"))
        return None
    if asked is not None and asked > fits:
        what = f"{asked} {unit} a node asked for, a node of this partition has {fits}"
        problems.append(Problem("resources.gpus_per_node", what, f"1 to {fits}", "ask for more nodes instead"))
        return None
    has_gpus = partition.gpus_per_node > 0
    sharing = _instances_per_node(spec, world, fits, has_gpus) if can_share or not has_gpus else 1
    if sharing > 1:
        return _shared(spec.replicas, sharing, world, launch)
    if nodes is not None and nodes % spec.replicas:
        problems.append(_uneven(spec, nodes, world, fits))
        return None
    per_instance = None if nodes is None else nodes // spec.replicas
    each = _ranks_per_node(world, per_instance, asked, fits)
    if each is None:
        problems.append(_does_not_fit(spec, sizes, fits, unit))
        return None
    instance_nodes = world // each
    if launch.one_node and instance_nodes > 1:
        problems.append(_needs_one_node(launch, world, instance_nodes, unit))
        return None
    ranks, gpus = (each, 1) if launch.rank_per_gpu else (1, each)
    return Layout(instance_nodes * spec.replicas, instance_nodes, ranks, gpus)


def _shared(replicas: int, sharing: int, world: int, launch: Launch) -> Layout:
    ranks, gpus = (sharing * world, 1) if launch.rank_per_gpu else (sharing, world)
    return Layout(replicas // sharing, 1, ranks, gpus, sharing)


def _instances_per_node(spec: JobSpec, world: int, fits: int, has_gpus: bool) -> int:
    """Return how many instances share each node: as the spec says, else as many as its GPUs take."""
    nodes, asked, replicas = spec.resources.nodes, spec.resources.gpus_per_node, spec.replicas
    if nodes is not None:
        sharing, rest = divmod(replicas, nodes)
        good = rest == 0 and sharing * world <= fits and asked in (None, sharing * world)
        return sharing if good else 1
    if asked is not None:
        sharing, rest = divmod(asked, world)
        return sharing if rest == 0 and sharing and replicas % sharing == 0 else 1
    return max(d for d in _divisors(replicas) if d == 1 or d * world <= fits) if has_gpus else 1


def _uneven(spec: JobSpec, nodes: int, world: int, fits: int) -> Problem:
    what = f"{_nodes(nodes)} cannot be shared out evenly to {spec.replicas} replicas"
    more = -(-nodes // spec.replicas) * spec.replicas
    fewer = [d for d in _divisors(spec.replicas) if d < spec.replicas and spec.replicas // d * world <= fits]
    allowed = f"a multiple of {spec.replicas}" + "".join(f", or {d}" for d in fewer)
    return Problem("resources.nodes", what, allowed, f"ask for {_nodes(more)}")


def _needs_one_node(launch: Launch, world: int, nodes: int, unit: str) -> Problem:
    what = f"the {launch.name} launch runs on one node, an instance of {world} {unit} would take {nodes}"
    todo = "choose another `launch`, or smaller parallel sizes"
    return Problem("launch", what, "an instance that fits a node", todo)


def _ranks_that_fit(spec: JobSpec, partition: Partition) -> int:
    if partition.gpus_per_node:
        return partition.gpus_per_node
    cpus = partition.cpus.per_node
    each = spec.resources.cpus_per_rank or partition.cpus.per_rank or 1
    return max(1, cpus // each) if cpus else spec.resources.gpus_per_node or 1_000_000


def _ranks_per_node(world: int, nodes: int | None, asked: int | None, fits: int) -> int | None:
    if nodes is not None:
        each, rest = divmod(world, nodes)
        good = rest == 0 and 1 <= each <= fits and asked in (None, each)
        return each if good else None
    if asked is not None:
        return asked if world % asked == 0 else None
    return max(each for each in _divisors(world) if each <= fits)


def _does_not_fit(spec: JobSpec, sizes: ParallelSizes, fits: int, unit: str) -> Problem:
    """Say why; the sentence has all numbers and ends with what to ask for."""
    world = sizes.world_size
    nodes, asked = spec.resources.nodes, spec.resources.gpus_per_node
    each = asked or fits
    need = f"{_product(sizes, spec.replicas)} needs {world * spec.replicas} {unit}"
    possible = [d for d in _divisors(world) if d <= each]
    fewest = world // possible[-1] * spec.replicas
    if nodes is None:
        choices = ", ".join(map(str, possible))
        what = f"{need}; that is no multiple of {each} {unit} a node; ask for one of {choices}"
        return Problem("resources.gpus_per_node", what)
    have = f"{_nodes(nodes)} × {each} {unit} = {nodes * each}"
    if world * spec.replicas > nodes * each:
        return Problem("resources.nodes", f"{need}; {have}; ask for {_nodes(fewest)}")
    if asked is not None and world % asked == 0:
        idle = f"{unit} would stay idle; ask for {_nodes(fewest)}, or leave gpus_per_node out"
        return Problem("resources.nodes", f"{need}; {have}; {idle}")
    if asked is not None and nodes % spec.replicas == 0 and world % (nodes // spec.replicas) == 0:
        idle = f"{nodes * each - world * spec.replicas} {unit} would stay idle; leave gpus_per_node out"
        return Problem("resources.gpus_per_node", f"{need}; {have}; {idle}")
    choices = ", ".join(str(world // d * spec.replicas) for d in reversed(possible))
    return Problem(
        "resources.nodes", f"{need}; {_nodes(nodes)} cannot share that evenly; ask for one of {choices} nodes"
    )


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _product(sizes: ParallelSizes, replicas: int) -> str:
    parts = [f"tensor {sizes.tensor_parallel_size}"]
    if sizes.context_parallel_size > 1:
        parts.append(f"context {sizes.context_parallel_size}")
    if sizes.pipeline_parallel_size > 1:
        parts.append(f"pipeline {sizes.pipeline_parallel_size}")
    if replicas > 1:
        parts.append(f"{replicas} replicas")
    return " × ".join(parts)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
