"""Ranks are laid out as TensorRT-LLM's Mapping lays them, and every group table is a partition of the ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.topology import Coordinates, ParallelSizes, coordinates, group_tables, groups

SMALL = st.integers(min_value=1, max_value=4)
SIZES = st.builds(
    lambda moe_tp, moe_ep, cp, pp: ParallelSizes(moe_tp * moe_ep, pp, cp, moe_tp, moe_ep), SMALL, SMALL, SMALL, SMALL
)
DIMENSIONS = ("tensor", "context", "pipeline", "moe_tensor", "moe_expert")


@pytest.mark.parametrize(
    ("sizes", "dimension", "expected"),
    [
        (ParallelSizes(4, 2, 1, 4, 1), "tensor", ((0, 1, 2, 3), (4, 5, 6, 7))),
        (ParallelSizes(4, 2, 1, 4, 1), "pipeline", ((0, 4), (1, 5), (2, 6), (3, 7))),
        (ParallelSizes(4, 2, 1, 4, 1), "context", tuple((rank,) for rank in range(8))),
        (ParallelSizes(4, 1, 1, 2, 2), "moe_tensor", ((0, 2), (1, 3))),
        (ParallelSizes(4, 1, 1, 2, 2), "moe_expert", ((0, 1), (2, 3))),
        (ParallelSizes(4, 1, 1, 1, 4), "moe_expert", ((0, 1, 2, 3),)),
        (ParallelSizes(4, 1, 1, 4, 1), "moe_tensor", ((0, 1, 2, 3),)),
        (ParallelSizes(2, 2, 2, 2, 1), "tensor", ((0, 1), (2, 3), (4, 5), (6, 7))),
        (ParallelSizes(2, 2, 2, 2, 1), "context", ((0, 2), (1, 3), (4, 6), (5, 7))),
        (ParallelSizes(2, 2, 2, 2, 1), "pipeline", ((0, 4), (1, 5), (2, 6), (3, 7))),
        (ParallelSizes(4, 2, 1, 2, 2), "moe_tensor", ((0, 2), (1, 3), (4, 6), (5, 7))),
        (ParallelSizes(), "tensor", ((0,),)),
    ],
)
def test_groups_are_tensorrt_llms(sizes: ParallelSizes, dimension: str, expected: tuple[tuple[int, ...], ...]) -> None:
    """Tensor is fastest, then context, then pipeline; inside tensor, experts are fastest (tensorrt_llm/mapping.py)."""
    assert group_tables(sizes)[dimension] == expected


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0, Coordinates(0, 0, 0, 0, 0)),
        (1, Coordinates(1, 0, 0, 0, 1)),
        (2, Coordinates(2, 0, 0, 1, 0)),
        (4, Coordinates(0, 1, 0, 0, 0)),
        (8, Coordinates(0, 0, 1, 0, 0)),
        (15, Coordinates(3, 1, 1, 1, 1)),
    ],
)
def test_coordinates_of_a_rank(rank: int, expected: Coordinates) -> None:
    """Positions of tp4 · cp2 · pp2 with moe_tp2 · moe_ep2, counted by hand."""
    assert coordinates(rank, ParallelSizes(4, 2, 2, 2, 2)) == expected


@given(SIZES)
def test_ranks_and_coordinates_are_one_to_one(sizes: ParallelSizes) -> None:
    """Every rank has coordinates of its own, inside the sizes; world size is tensor × context × pipeline."""
    places = [coordinates(rank, sizes) for rank in range(sizes.world_size)]
    assert sizes.world_size == (sizes.tensor_parallel_size * sizes.context_parallel_size * sizes.pipeline_parallel_size)
    assert len(set(places)) == sizes.world_size
    assert len({(at.tensor, at.context, at.pipeline) for at in places}) == sizes.world_size
    for at in places:
        assert at.moe_tensor * sizes.moe_expert_parallel_size + at.moe_expert == at.tensor
        assert (at.tensor, at.context, at.pipeline) < (
            sizes.tensor_parallel_size,
            sizes.context_parallel_size,
            sizes.pipeline_parallel_size,
        )


@given(SIZES)
def test_every_table_partitions_the_ranks(sizes: ParallelSizes) -> None:
    """In every dimension each rank is in exactly one group, groups have that dimension's size and come in order."""
    expected = dict(
        zip(
            DIMENSIONS,
            (
                sizes.tensor_parallel_size,
                sizes.context_parallel_size,
                sizes.pipeline_parallel_size,
                sizes.moe_tensor_parallel_size,
                sizes.moe_expert_parallel_size,
            ),
            strict=True,
        )
    )
    for dimension, table in group_tables(sizes).items():
        assert sorted(rank for group in table for rank in group) == list(range(sizes.world_size))
        assert {len(group) for group in table} == {expected[dimension]}
        assert all(list(group) == sorted(group) for group in table)
        assert [group[0] for group in table] == sorted(group[0] for group in table)


@given(SIZES)
def test_tables_and_the_groups_of_one_rank_agree(sizes: ParallelSizes) -> None:
    """A rank's own groups are those of the tables that hold it."""
    tables = group_tables(sizes)
    for rank in range(sizes.world_size):
        own = groups(rank, sizes)
        for dimension in DIMENSIONS:
            assert getattr(own, dimension) == next(group for group in tables[dimension] if rank in group)


@given(SIZES)
def test_ranks_of_a_group_differ_in_one_coordinate(sizes: ParallelSizes) -> None:
    """Along a tensor, context or pipeline group only that coordinate changes."""
    tables = group_tables(sizes)
    for dimension in ("tensor", "context", "pipeline"):
        fixed = [name for name in ("tensor", "context", "pipeline") if name != dimension]
        for group in tables[dimension]:
            places = [coordinates(rank, sizes) for rank in group]
            assert [getattr(at, dimension) for at in places] == list(range(len(group)))
            assert len({tuple(getattr(at, name) for name in fixed) for at in places}) == 1
