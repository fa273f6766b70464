"""A plan in an allocation that is there already: which nodes it gets, what it lacks, what changes in the script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.plan import Plan
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.plan.guest import as_guest, check_guest, choose_nodes, misfit, need_of
from slurm_llm.plan.types import MasterPlan
from slurm_llm.render import Target, render
from slurm_llm.rundir import JOB_SCRIPT
from slurm_llm.slurm.held import NodeShare
from tests.plan.sites_for_plans import make_plan, make_spec


def plan() -> Plan:
    """Two nodes with two ranks each, a GPU and a CPU for each."""
    return make_plan(tensor_parallel_size=4, resources={"nodes": 2, "cpus_per_rank": 1, "mem_per_node": "2G"})


def share(name: str, cpus: int = 2, gpus: int = 2, mem_mib: int = 2048) -> NodeShare:
    """Return a node's share."""
    return NodeShare(name, cpus, mem_mib, (("gpu", gpus),))


def script(own: Plan) -> str:
    """Return the job's script."""
    return render(own, Target(Path("/runs/x"), "/usr/bin/python3"))[JOB_SCRIPT]


@pytest.mark.parametrize(
    ("shares", "chosen"),
    [
        ([share("n1"), share("n2")], ("n1", "n2")),
        ([share("n1"), share("n2"), share("n3")], ("n1", "n2")),
        ([share("n1", gpus=1), share("n2"), share("n3")], ("n2", "n3")),
        ([share("n1", cpus=1), share("n2")], ("n2",)),
        ([share("n1", mem_mib=1000), share("n2")], ("n2",)),
        ([share("n1", mem_mib=0), share("n2", mem_mib=0)], ("n1", "n2")),
    ],
    ids=["exact", "more nodes", "a GPU short", "a CPU short", "short of memory", "memory is not tracked"],
)
def test_the_first_nodes_that_give_enough_are_taken(shares: list[NodeShare], chosen: tuple[str, ...]) -> None:
    """In the allocation's order; too few are the whole answer."""
    assert choose_nodes(plan(), shares) == chosen


def test_what_is_missing_is_told_with_figures() -> None:
    """Of the plan, and of each node; of many the first ones."""
    rows = [str(row) for row in misfit(plan(), [share(f"n{index}", gpus=1) for index in range(6)], 7)]
    assert rows[0].endswith("the plan needs 2 nodes with 2 CPUs, 2 GPUs, 2048 MiB each; job 7 has 6 nodes")
    assert rows[1] == "  n0  2 CPUs, 1 GPU, 2048 MiB"
    assert rows[5] == "  and 2 more"


def test_memory_of_each_cpu_is_not_compared() -> None:
    """Only what is asked for by the node can be told from what a node gives."""
    own = plan()
    assert need_of(own).mem_mib == 2048
    assert need_of(replace(own, allocation=replace(own.allocation, memory="--mem-per-cpu=2G"))).mem_mib is None


def test_steps_name_their_nodes_only_where_there_are_more() -> None:
    """They share them with whatever else the user runs there; nothing may end the allocation."""
    exact = as_guest(plan(), [share("n1"), share("n2")], 7, 0, here=True)
    assert "--nodelist" not in script(exact)
    assert script(exact).count("--overlap") == script(plan()).count("--overlap") + 2
    more = as_guest(plan(), [share("n1"), share("n2"), share("n3")], 7, 3, here=True)
    assert '--nodelist="$nodes"' in script(more)
    assert "--script-host" not in script(more)
    assert "attempt=3\n" in script(more)
    assert plan_from_json(plan_to_json(more)) == more


def test_the_first_node_is_named_where_the_script_is_elsewhere() -> None:
    """On a login node its own name would be no place for ranks to meet."""
    own = replace(plan(), master=MasterPlan(None, ".fabric", "any"))
    there = as_guest(own, [share("n1"), share("n2")], 7, 0, here=False)
    assert "export MASTER_ADDR=n1.fabric\n" in script(there)
    here = as_guest(own, [share("n1"), share("n2")], 7, 0, here=True)
    assert 'MASTER_ADDR="${SLURMD_NODENAME:-$HOSTNAME}".fabric' in script(here)


def test_what_would_need_another_job_is_refused() -> None:
    """A requeue and a successor; a server that ends for want of requests may be a guest."""
    spec = make_spec(recovery={"requeue": 1}, service={"successors": 1})
    assert [problem.where for problem in check_guest(spec)] == ["recovery.requeue", "service.successors"]
    assert check_guest(make_spec(service={"idle_stop_s": 60}, recovery={"restarts": 1})) == []
