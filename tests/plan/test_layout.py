"""Where ranks go: instances that share a node, and launches whose one rank a node holds several GPUs."""

from __future__ import annotations

import pytest

from slurm_llm.engines.types import LEADER, RAY, SINGLE, Launch
from slurm_llm.errors import Problem
from slurm_llm.plan import build_plan
from slurm_llm.plan.layout import Layout, build_layout, build_sizes
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan, make_site, make_spec


def _layout(launch: Launch, gpus: int, **values: Tree) -> tuple[Layout | None, list[str]]:
    problems: list[Problem] = []
    spec = make_spec(**values)
    partition = make_site({"gpus_per_node": gpus}).partitions["gpu"]
    return build_layout(spec, build_sizes(spec, problems), partition, launch, problems), list(map(str, problems))


@pytest.mark.parametrize(
    ("launch", "values", "layout"),
    [
        # As many instances share a node as its GPUs take, and every node holds the same number.
        (LEADER, {"tensor_parallel_size": 2, "replicas": 4}, Layout(1, 1, 8, 1, 4)),
        (LEADER, {"tensor_parallel_size": 2, "replicas": 6}, Layout(2, 1, 6, 1, 3)),
        (LEADER, {"tensor_parallel_size": 2, "replicas": 5}, Layout(5, 1, 2, 1, 1)),
        (LEADER, {"tensor_parallel_size": 8, "replicas": 2}, Layout(2, 1, 8, 1, 1)),
        (LEADER, {"tensor_parallel_size": 16, "replicas": 2}, Layout(4, 2, 8, 1, 1)),
        # What the spec says wins.
        (LEADER, {"tensor_parallel_size": 2, "replicas": 4, "resources": {"nodes": 2}}, Layout(2, 1, 4, 1, 2)),
        (LEADER, {"tensor_parallel_size": 2, "replicas": 4, "resources": {"nodes": 4}}, Layout(4, 1, 2, 1, 1)),
        (LEADER, {"tensor_parallel_size": 2, "replicas": 4, "resources": {"gpus_per_node": 4}}, Layout(2, 1, 4, 1, 2)),
        # One rank holds all GPUs of its instance on a node.
        (SINGLE, {"tensor_parallel_size": 4}, Layout(1, 1, 1, 4, 1)),
        (SINGLE, {"tensor_parallel_size": 2, "replicas": 4}, Layout(1, 1, 4, 2, 4)),
        (RAY, {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, Layout(2, 2, 1, 8, 1)),
    ],
)
def test_ranks_and_gpus_of_a_node(launch: Launch, values: dict[str, Tree], layout: Layout) -> None:
    """Nodes, nodes of an instance, ranks a node, GPUs a rank, instances a node; a node has eight GPUs."""
    assert _layout(launch, 8, **values) == (layout, [])


@pytest.mark.parametrize(
    ("launch", "values", "message"),
    [
        (
            SINGLE,
            {"tensor_parallel_size": 16},
            "launch: the single launch runs on one node, an instance of 16 GPUs would take 2: "
            "an instance that fits a node: choose another `launch`, or smaller parallel sizes",
        ),
        (
            LEADER,
            {"tensor_parallel_size": 4, "replicas": 4, "resources": {"nodes": 3}},
            "resources.nodes: 3 nodes cannot be shared out evenly to 4 replicas: a multiple of 4, or 2: "
            "ask for 4 nodes",
        ),
    ],
)
def test_what_cannot_be_is_refused(launch: Launch, values: dict[str, Tree], message: str) -> None:
    """With the numbers, and what to ask for instead."""
    assert _layout(launch, 8, **values) == (None, [message])


def test_instances_of_a_node_have_gpus_of_their_own() -> None:
    """Slots are counted over the node, local ids within the instance, as Slurm counts them in its step."""
    plan = make_plan(tensor_parallel_size=2, replicas=2)
    assert [(one.instance, one.node, one.local, one.gpus) for one in plan.ranks] == [
        (0, 0, 0, (0,)),
        (0, 0, 1, (1,)),
        (1, 0, 0, (2,)),
        (1, 0, 1, (3,)),
    ]


@pytest.mark.parametrize(("version", "nodes"), [("21.08.8", 2), ("22.05.8", 1)])
def test_an_older_slurm_shows_a_nodes_gpus_to_one_step_at_a_time(version: str, nodes: int) -> None:
    """Before 22.05 `--overlap` does not share GPUs, so each instance gets a node of its own."""
    spec, site = make_spec(tensor_parallel_size=2, replicas=2), make_site(slurm={"version": version})
    assert build_plan(spec, site).allocation.nodes == nodes
