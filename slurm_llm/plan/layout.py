"""Arithmetic of a job: how many nodes, ranks a node and instances, with every contradiction named by its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_llm.errors import Problem
from slurm_llm.sites.profile import Partition
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes


@dataclass(frozen=True)
class Layout:
    """Nodes of the whole job, nodes of one instance, and ranks a node (one GPU each where the site has GPUs)."""

    nodes: int
    nodes_per_instance: int
    ranks_per_node: int


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


def cpus_per_rank(spec: JobSpec, partition: Partition) -> int:
    """Return the spec's number, else the partition's, else a node's CPUs over its GPUs, else 1."""
    known = spec.resources.cpus_per_rank or partition.cpus.per_rank
    if known is None and partition.cpus.per_node and partition.gpus_per_node:
        known = partition.cpus.per_node // partition.gpus_per_node
    return known or 1


def build_layout(spec: JobSpec, sizes: ParallelSizes, partition: Partition, problems: list[Problem]) -> Layout | None:
    """Return nodes and ranks a node; append what cannot be to `problems` and return None."""
    fits, unit = _ranks_that_fit(spec, partition), "GPUs" if partition.gpus_per_node else "ranks"
    nodes, asked = spec.resources.nodes, spec.resources.gpus_per_node
    if asked is not None and asked > fits:
        what = f"{asked} {unit} a node asked for, a node of this partition has {fits}"
        problems.append(Problem("resources.gpus_per_node", what, f"1 to {fits}", "ask for more nodes instead"))
        return None
    if nodes is not None and nodes % spec.replicas:
        what = f"{_nodes(nodes)} cannot be shared out evenly to {spec.replicas} replicas"
        more = -(-nodes // spec.replicas) * spec.replicas
        allowed, todo = f"a multiple of {spec.replicas}", f"ask for {_nodes(more)}"
        problems.append(Problem("resources.nodes", what, allowed, todo))
        return None
    per_instance = None if nodes is None else nodes // spec.replicas
    ranks_per_node = _ranks_per_node(sizes.world_size, per_instance, asked, fits)
    if ranks_per_node is None:
        problems.append(_does_not_fit(spec, sizes, fits, unit))
        return None
    instance_nodes = sizes.world_size // ranks_per_node
    return Layout(instance_nodes * spec.replicas, instance_nodes, ranks_per_node)


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
