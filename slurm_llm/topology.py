"""Parallel sizes, rank coordinates and where each rank sits; pure values that plan and engines share.

The layout is TensorRT-LLM's Mapping: tensor is fastest, then context, then pipeline; inside the tensor dimension
expert parallel is fastest, then mixture-of-experts tensor parallel (TensorRT-LLM, tensorrt_llm/mapping.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ParallelSizes:
    """Sizes of every dimension; world size is tensor × context × pipeline, experts do not multiply it."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    moe_tensor_parallel_size: int = 1
    moe_expert_parallel_size: int = 1

    @property
    def world_size(self) -> int:
        """Number of ranks of one instance."""
        return self.tensor_parallel_size * self.context_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class Coordinates:
    """Position of one rank in every dimension, each counted from 0."""

    tensor: int
    context: int
    pipeline: int
    moe_tensor: int
    moe_expert: int


@dataclass(frozen=True)
class Groups:
    """Ranks of the instance that one rank talks to, itself included, in ascending order."""

    tensor: tuple[int, ...]
    context: tuple[int, ...]
    pipeline: tuple[int, ...]
    moe_tensor: tuple[int, ...]
    moe_expert: tuple[int, ...]


def coordinates(rank: int, sizes: ParallelSizes) -> Coordinates:
    """Return the position of `rank`, 0 <= rank < world size."""
    tensor = rank % sizes.tensor_parallel_size
    rest = rank // sizes.tensor_parallel_size
    return Coordinates(
        tensor=tensor,
        context=rest % sizes.context_parallel_size,
        pipeline=rest // sizes.context_parallel_size,
        moe_tensor=tensor // sizes.moe_expert_parallel_size,
        moe_expert=tensor % sizes.moe_expert_parallel_size,
    )


def groups(rank: int, sizes: ParallelSizes) -> Groups:
    """Return the groups of `rank` in every dimension."""
    tp, cp, pp = sizes.tensor_parallel_size, sizes.context_parallel_size, sizes.pipeline_parallel_size
    ep = sizes.moe_expert_parallel_size
    at = coordinates(rank, sizes)
    first = rank - at.tensor
    stage = at.pipeline * tp * cp
    return Groups(
        tensor=tuple(range(first, first + tp)),
        context=tuple(stage + c * tp + at.tensor for c in range(cp)),
        pipeline=tuple(p * tp * cp + at.context * tp + at.tensor for p in range(pp)),
        moe_tensor=tuple(first + m * ep + at.moe_expert for m in range(sizes.moe_tensor_parallel_size)),
        moe_expert=tuple(first + at.moe_tensor * ep + e for e in range(ep)),
    )


def group_tables(sizes: ParallelSizes) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return every group of every dimension once, by dimension, in order of the groups' first ranks."""
    tp, cp, pp = sizes.tensor_parallel_size, sizes.context_parallel_size, sizes.pipeline_parallel_size
    ep, world = sizes.moe_expert_parallel_size, sizes.world_size
    stage = tp * cp
    return {
        "tensor": tuple(tuple(range(first, first + tp)) for first in range(0, world, tp)),
        "context": tuple(
            tuple(range(start + own, start + stage, tp)) for start in range(0, world, stage) for own in range(tp)
        ),
        "pipeline": tuple(tuple(range(own, own + pp * stage, stage)) for own in range(stage)),
        "moe_tensor": tuple(
            tuple(range(first + own, first + tp, ep)) for first in range(0, world, tp) for own in range(ep)
        ),
        "moe_expert": tuple(tuple(range(first, first + ep)) for first in range(0, world, ep)),
    }
