"""What a spec asks to be done after a failure: what it asks of Slurm, which nodes steps name, what is in vain."""

from __future__ import annotations

import subprocess

import pytest

from slurm_llm.errors import PlanError, SpecError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.plan.steps import helper_step, sbatch_options, shell_line, world_step
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan, make_site, make_spec

SPARES: dict[str, Tree] = {"restarts": 1, "spare_nodes": 2}
FOUR: dict[str, Tree] = {"tensor_parallel_size": 16}
"""Sixteen ranks on four nodes of the tests' site."""


def nodes_of(words: tuple[str, ...], nodes: str) -> str:
    """Return the nodes that a step names once the job's shell has read its line."""
    (word,) = [word for word in words if word.startswith("--nodelist=")]
    done = subprocess.run(
        ["bash", "-uc", f"nodes={nodes}; printf %s {shell_line([word])}"], capture_output=True, text=True, check=True
    )
    return done.stdout.partition("=")[2]


@pytest.mark.parametrize(
    ("recovery", "there", "missing"),
    [
        ({}, {"--nodes=4", "--ntasks=16", "--no-requeue"}, {"--no-kill", "--requeue"}),
        ({"restarts": 2}, {"--nodes=4", "--no-requeue"}, {"--no-kill", "--requeue"}),
        ({"requeue": 1}, {"--nodes=4", "--requeue"}, {"--no-kill", "--no-requeue"}),
        (SPARES, {"--nodes=6", "--ntasks=24", "--no-kill", "--no-requeue"}, {"--requeue"}),
    ],
)
def test_what_is_asked_of_slurm(recovery: dict[str, Tree], there: set[str], missing: set[str]) -> None:
    """Spare nodes make the job larger and let it outlive a node; Slurm may requeue it only where the spec lets it."""
    options = set(sbatch_options(make_plan(**FOUR, recovery=recovery), "out"))
    assert there <= options
    assert not missing & options


def test_a_total_of_gpus_counts_spare_nodes() -> None:
    """Slurm would deal too few GPUs out."""
    plan = make_plan({"gpu_request": {"style": "gpus"}}, **FOUR, recovery=SPARES)
    assert "--gpus=24" in sbatch_options(plan, "out")


def test_without_spare_nodes_no_step_names_any() -> None:
    """Such a job's lines stay as they were."""
    plan = make_plan(**FOUR, recovery={"restarts": 3, "requeue": 1})
    for words in (helper_step(plan), helper_step(plan, living=True), world_step(plan, "/run")):
        assert "nodelist" not in shell_line(words)
    assert helper_step(plan, living=True) == helper_step(plan)


def test_every_step_names_its_nodes() -> None:
    """Agents and preflight take all of an attempt's nodes; instances share them out, in order, without a gap."""
    plan = make_plan(tensor_parallel_size=8, replicas=3, recovery=SPARES)
    nodes = "a,b,c,d,e,f"
    assert nodes_of(helper_step(plan), nodes) == nodes
    assert nodes_of(world_step(plan, "/run"), nodes) == nodes
    parts = [nodes_of(world_step(plan, "/run", one), nodes) for one in plan.instances]
    assert parts == ["a,b", "c,d", "e,f"]
    assert not any("--relative" in word for one in plan.instances for word in world_step(plan, "/run", one))


def test_ranks_take_no_spare_node() -> None:
    """Their places are those of a job without spare ones."""
    plain, spare = make_plan(**FOUR), make_plan(**FOUR, recovery=SPARES)
    assert spare.ranks == plain.ranks
    assert (spare.allocation.nodes, spare.allocation.asked_nodes) == (4, 6)


def test_steps_share_what_a_lost_step_holds() -> None:
    """Without --overlap srun waits until Slurm has given up the lost node (22.05.8: "Requested nodes are busy")."""
    assert "--overlap" in world_step(make_plan(**FOUR, recovery=SPARES), "/run")
    assert "--overlap" not in world_step(make_plan(**FOUR), "/run")


@pytest.mark.parametrize(
    ("site", "values", "said"),
    [
        ({}, {"recovery": {"spare_nodes": 1}}, "recovery.restarts is 0"),
        ({}, {"tensor_parallel_size": 4, "recovery": SPARES}, "no other can replace that"),
        ({"launcher": {"command": "mpirun"}}, {"recovery": SPARES}, "cannot leave out a node"),
        ({"sbatch_skip": ["--no-kill"]}, {"recovery": SPARES}, "--no-kill"),
        ({"policies": {"forbid": ["--requeue"]}}, {"recovery": {"requeue": 1}}, "--requeue"),
    ],
)
def test_what_is_in_vain_is_a_problem(site: dict[str, Tree], values: dict[str, Tree], said: str) -> None:
    """Found before the job waits for nodes that it cannot use."""
    with pytest.raises(PlanError) as caught:
        build_plan(make_spec(**{**FOUR, **values}), make_site(**site))
    assert said in str(caught.value)


def test_spare_nodes_count_against_the_partitions_limit() -> None:
    """Slurm would let such a job wait for ever."""
    with pytest.raises(PlanError, match="6 nodes"):
        make_plan({"nodes": 5}, **FOUR, recovery=SPARES)


def test_a_plan_with_recovery_comes_back() -> None:
    """Its JSON form holds all of it."""
    plan: Plan = make_plan(**FOUR, recovery={**SPARES, "requeue": 3, "reset_s": 60, "backoff_s": 0})
    assert plan_from_json(plan_to_json(plan)) == plan


def test_numbers_have_limits() -> None:
    """No negative ones, and none that is a slip of the finger."""
    with pytest.raises(SpecError):
        make_spec(recovery={"restarts": -1})
    with pytest.raises(SpecError):
        make_spec(recovery={"reset_s": 0})
