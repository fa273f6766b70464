"""MIG slices as GPUs: one a server, however the site asks for them."""

from __future__ import annotations

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.plan import build_plan
from slurm_llm.sites.load import parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import spec_from_mapping
from slurm_llm.yamlio import Document, Tree

TYPED: dict[str, Tree] = {"gpu": {"slurm_type": "nvidia_a100_1g.10gb"}, "gpu_request": {"typed": True}}
SLICES: list[dict[str, Tree]] = [
    TYPED,
    {"gpu": {"slurm_type": "h100_1c.3g.40gb"}},
    {"gpu": {"model": "A100 MIG 2g.20GB"}},
    {"reservation": "1g.10gb"},
]


def site(partition: dict[str, Tree]) -> SiteProfile:
    """Return a site whose only partition has seven GPUs a node."""
    values: dict[str, Tree] = {"schema_version": 1, "name": "here", "launcher": {"mpi": "pmix"}}
    whole: dict[str, Tree] = {"gpus_per_node": 7, "cpus": {"per_node": 56}, **partition}
    return parse_site(Document("site", {**values, "partitions": {"slices": whole}}))


def refusals(partition: dict[str, Tree], **values: Tree) -> list[str]:
    """Return what planning says of an llmapi spec there."""
    given: dict[str, Tree] = {"name": "one", "engine": "llmapi", "model": "org/model", "resources": {"time": "1:00:00"}}
    try:
        build_plan(spec_from_mapping({**given, **values}), site(partition))
    except PlanError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("partition", SLICES, ids=str)
def test_a_server_on_several_slices_is_refused(partition: dict[str, Tree]) -> None:
    """The size that asks for them is named, and the slice."""
    (told,) = refusals(partition, pipeline_parallel_size=2)
    assert told.startswith("pipeline_parallel_size: a server on 2 GPUs") and "g." in told
    assert "one slice a server" in told


def test_copies_in_one_server_are_refused_too() -> None:
    """Each has a slice of its own, but Triton's process sees one."""
    (told,) = refusals(TYPED, engine_args={"gpu_device_ids": "0;1"})
    assert told.startswith("engine_args.gpu_device_ids: a server on 2 GPUs")


def test_a_spec_may_reserve_slices() -> None:
    """Where they are had by reservation, the partition knows nothing of them."""
    assert refusals({}, tensor_parallel_size=2) == []
    assert len(refusals({}, tensor_parallel_size=2, reservation="1g.10gb")) == 1


@pytest.mark.parametrize("partition", SLICES, ids=str)
def test_servers_on_a_slice_each_are_planned(partition: dict[str, Tree]) -> None:
    """As many as a node has."""
    assert refusals(partition, replicas=7) == []


def test_a_step_asks_for_one_slice_by_its_type() -> None:
    """Three instances on a node: the job asks for three, and each of its steps for one."""
    values: dict[str, Tree] = {"name": "one", "engine": "llmapi", "model": "org/model", "replicas": 3}
    plan = build_plan(spec_from_mapping(values), site(TYPED))
    assert (plan.allocation.gpus.per_node, plan.allocation.gpus.type) == (3, "nvidia_a100_1g.10gb")
    assert [rank.gpus for rank in plan.ranks] == [(0,), (1,), (2,)]


def test_the_rehearsal_engine_has_ranks_on_cpus() -> None:
    """A site's check rehearses two ranks on a node, whatever its GPUs are."""
    assert refusals(TYPED, engine="rehearsal", model=None, tensor_parallel_size=2) == []
