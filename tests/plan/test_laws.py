"""What holds for every plan: ranks, places, GPUs and groups add up, and JSON loses nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_llm.errors import PlanError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan, make_site, make_spec

SMALL = st.integers(min_value=1, max_value=6)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan of any layout that fits its site; what does not fit is no example."""
    tensor = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    expert = draw(st.none() | st.sampled_from([size for size in (1, 2, 3, 4, 6, 8) if tensor % size == 0]))
    resources: dict[str, Tree] = {
        "nodes": draw(st.none() | st.integers(min_value=1, max_value=24)),
        "gpus_per_node": draw(st.none() | SMALL),
    }
    spec = make_spec(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=draw(SMALL),
        context_parallel_size=draw(st.integers(min_value=1, max_value=3)),
        moe_expert_parallel_size=expert,
        replicas=draw(st.integers(min_value=1, max_value=3)),
        resources=resources,
    )
    gpus, style = draw(st.integers(min_value=0, max_value=8)), draw(st.sampled_from(["gres", "gpus_per_node", "none"]))
    try:
        return build_plan(spec, make_site({"gpus_per_node": gpus, "gpu_request": {"style": style}}))
    except PlanError:
        assume(False)
        raise


@given(plans())
def test_every_rank_is_there_once(plan: Plan) -> None:
    """Ranks count from 0 without a gap; each instance has one leader, its rank 0, and world size ranks."""
    assert [rank.rank for rank in plan.ranks] == list(range(plan.world_size * plan.replicas))
    for instance in plan.instances:
        own = [rank for rank in plan.ranks if rank.instance == instance.index]
        assert [rank.instance_rank for rank in own] == list(range(plan.world_size))
        assert [rank.rank for rank in own if rank.role == "leader"] == [instance.leader] == [instance.first_rank]
        assert {rank.node for rank in own} == set(range(instance.first_node, instance.first_node + instance.nodes))


@given(plans())
def test_no_two_ranks_share_a_place(plan: Plan) -> None:
    """Local index in an instance, and GPU, are each one rank's of a node; nodes are the allocation's and full."""
    own = plan.allocation
    assert len({(rank.node, rank.instance, rank.local) for rank in plan.ranks}) == len(plan.ranks)
    assert len({(rank.node, gpu) for rank in plan.ranks for gpu in rank.gpus}) == len(plan.ranks)
    assert len(plan.ranks) == own.nodes * own.ranks_per_node
    assert {rank.node for rank in plan.ranks} == set(range(own.nodes))
    assert all(rank.local < own.ranks_per_node for rank in plan.ranks)


@given(plans())
def test_ranks_times_gpus_is_the_allocation(plan: Plan) -> None:
    """Where GPUs are asked for, as many are as the ranks use."""
    own = plan.allocation
    used = sum(len(rank.gpus) for rank in plan.ranks)
    assert own.gpus.per_node * own.nodes == (used if own.gpus.per_node else 0)


@given(plans())
def test_ranks_stand_in_slurms_block_order(plan: Plan) -> None:
    """srun's block distribution gives rank r of a step node r // ranks a node: the plan says the same."""
    each, sharing = plan.allocation.ranks_per_node, plan.allocation.instances_per_node
    assert all((rank.node, *rank.gpus) == divmod(rank.rank, each) for rank in plan.ranks)
    assert all(rank.local == rank.instance_rank % (each // sharing) for rank in plan.ranks)


@given(plans())
def test_groups_partition_an_instance(plan: Plan) -> None:
    """Every dimension's groups hold each rank of an instance once."""
    for table in plan.groups.values():
        assert sorted(rank for group in table for rank in group) == list(range(plan.world_size))


@given(plans())
def test_json_gives_the_plan_back(plan: Plan) -> None:
    """Reading inverts writing."""
    assert plan_from_json(plan_to_json(plan)) == plan


def test_json_is_ascii_with_a_line_for_each_rank() -> None:
    """What runs in the job may not know UTF-8, and people read and compare this file."""
    plan = make_plan(name='模型 "é"', tensor_parallel_size=4, env={"A": "ü"})
    text = plan_to_json(plan)
    assert text.isascii()
    assert sum(line.lstrip().startswith('{"rank":') for line in text.splitlines()) == 4
    assert plan_from_json(text) == plan


def test_json_of_another_schema_is_refused() -> None:
    """A plan of a later release is not misread."""
    text = plan_to_json(replace(make_plan(), schema=99))
    with pytest.raises(ValueError, match="plan schema 99, this slurm_llm reads 1"):
        plan_from_json(text)


@pytest.mark.parametrize(
    ("values", "dimension", "expected"),
    [
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, "tensor", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, "pipeline", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ({"tensor_parallel_size": 4, "moe_expert_parallel_size": 2}, "moe_tensor", ((0, 2), (1, 3))),
        ({"tensor_parallel_size": 4, "moe_expert_parallel_size": 2}, "moe_expert", ((0, 1), (2, 3))),
    ],
)
def test_a_plan_holds_tensorrt_llms_groups(
    values: dict[str, Tree], dimension: str, expected: tuple[tuple[int, ...], ...]
) -> None:
    """The examples of TensorRT-LLM's mapping (tensorrt_llm/mapping.py)."""
    assert make_plan(**values).groups[dimension] == expected
