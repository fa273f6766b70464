"""Where a rank stands in the parallel layout, by TensorRT-LLM's order; arithmetic only.

Tensor is fastest, then context, then pipeline; inside the tensor dimension expert parallel is fastest. The
package's planner has the same rules; they are repeated since this file runs where the package is missing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Size of every dimension; the world has tensor x context x pipeline ranks."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    moe_tensor: int = 1
    moe_expert: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tensor * self.context * self.pipeline


@dataclass(frozen=True)
class Place:
    """Position of one rank in every dimension, and the sizes it counts in."""

    sizes: Sizes
    tensor: int
    context: int
    pipeline: int
    moe_tensor: int
    moe_expert: int

    def __str__(self) -> str:
        words = [f"tp {self.tensor}", f"pp {self.pipeline}"]
        if self.sizes.context > 1:
            words.append(f"cp {self.context}")
        if self.sizes.moe_expert > 1:
            words.append(f"moe_tp {self.moe_tensor} moe_ep {self.moe_expert}")
        return " ".join(words)


def place_of(rank: int, sizes: Sizes) -> Place:
    """Return where `rank` stands."""
    rest, tensor = divmod(rank, sizes.tensor)
    pipeline, context = divmod(rest, sizes.context)
    moe_tensor, moe_expert = divmod(tensor, sizes.moe_expert)
    return Place(sizes, tensor, context, pipeline, moe_tensor, moe_expert)


@dataclass(frozen=True)
class Members:
    """Ranks of each group that one rank belongs to, itself included, ascending."""

    tensor: tuple[int, ...]
    context: tuple[int, ...]
    pipeline: tuple[int, ...]
    moe_tensor: tuple[int, ...]
    moe_expert: tuple[int, ...]


def members_of(rank: int, sizes: Sizes) -> Members:
    """Return the groups of `rank`."""
    place = place_of(rank, sizes)
    first = rank - place.tensor
    plane = sizes.tensor * sizes.context
    return Members(
        tensor=tuple(range(first, first + sizes.tensor)),
        context=tuple(place.pipeline * plane + c * sizes.tensor + place.tensor for c in range(sizes.context)),
        pipeline=tuple(rank % plane + p * plane for p in range(sizes.pipeline)),
        moe_tensor=tuple(first + t * sizes.moe_expert + place.moe_expert for t in range(sizes.moe_tensor)),
        moe_expert=tuple(first + place.moe_tensor * sizes.moe_expert + e for e in range(sizes.moe_expert)),
    )


def share(total: int, parts: int, index: int) -> range:
    """Return the `index`-th of `parts` contiguous pieces of range(total), as even as possible, some empty."""
    size, longer = divmod(total, parts)
    begin = index * size + min(index, longer)
    return range(begin, begin + size + (1 if index < longer else 0))
