"""A profile against the cluster's own words: each key that contradicts has a row, and what agrees is OK."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_llm.observe.checkrows import Row, Verdict, exit_code
from slurm_llm.observe.refusals import explain_refusal, explain_step
from slurm_llm.observe.sitefacts import ClusterFacts, compare
from slurm_llm.sites.load import parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.commands import PartitionFacts
from slurm_llm.slurm.survey import NodeKind
from slurm_llm.slurm.trial import PartitionLimits
from slurm_llm.slurm.versions import SlurmVersion
from slurm_llm.yamlio import Document, Tree

FACTS = ClusterFacts(
    version=SlurmVersion(23, 11, 4),
    config={"KillWait": "30 sec", "TopologyPlugin": "topology/block", "MpiDefault": "pmix"},
    partitions=(
        PartitionFacts("gpu", True, True, 86400, 8, 64, 500_000, "gpu:a100:4(S:0-1)"),
        PartitionFacts("mixed", False, True, None, 2, 32, 250_000, "gpu:a40:8"),
        PartitionFacts("mixed", False, True, None, 3, 48, 250_000, "gpu:h100:4"),
        PartitionFacts("bare", False, False, 3600, 4, 96, 250_000, ""),
    ),
    limits={"gpu": PartitionLimits("gpu", 4, 86400, 8, "UP")},
    mpi_types=("pmix", "none", "pmi2"),
    srun_options=frozenset({"mpi", "container-image"}),
    programs=frozenset({"apptainer"}),
)


def make_site(partitions: dict[str, Tree], **values: Tree) -> SiteProfile:
    """Return a site with these logical partitions."""
    base: dict[str, Tree] = {"schema_version": 1, "name": "here", "partitions": partitions}
    return parse_site(Document("site", {**base, "launcher": {"mpi": "pmix"}, **values}))


GOOD: dict[str, Tree] = {"slurm_partition": "gpu", "gpus_per_node": 4, "limits": {"max_nodes": 4}, "nodes": 8}


def rows_of(profile: SiteProfile, facts: ClusterFacts = FACTS) -> list[Row]:
    """Compare every partition."""
    return compare(profile, tuple(profile.partitions), facts)


def test_a_profile_that_agrees_is_ok_in_every_row() -> None:
    """Version to the release series, KillWait, MPI type, plugin, sizes and limits."""
    own: dict[str, Tree] = {
        **GOOD,
        "time": {"max": "1-00:00:00", "default": "60"},
        "cpus": {"per_node": 64},
        "memory": {"whole_node": "480G"},
        "gpu": {"slurm_type": "a100"},
        "gpu_request": {"typed": True},
        "segment": 4,
    }
    rows = rows_of(make_site({"gpu": own}, slurm={"version": "23.11"}, container={"runtime": "pyxis"}))
    assert {row.verdict for row in rows} == {Verdict.OK}
    assert len(rows) == 13
    assert exit_code(rows) == 0


@pytest.mark.parametrize(
    ("change", "key", "todo"),
    [
        ({"slurm_partition": "cpu"}, "slurm_partition", "one of bare, gpu, mixed"),
        ({"slurm_partition": ["gpu", "cpu"]}, "slurm_partition", "one of bare, gpu, mixed"),
        ({"time": {"max": "7-00:00:00"}}, "time.max", '"1-00:00:00"'),
        ({"time": {"max": "UNLIMITED"}}, "time.max", '"1-00:00:00"'),
        ({"time": {"default": "2-00"}}, "time.default", '"1-00:00:00"'),
        ({"nodes": 9}, "nodes", "nodes: 8"),
        ({"limits": {"max_nodes": 5}}, "limits.max_nodes", "max_nodes: 4"),
        ({"gpus_per_node": 8}, "gpus_per_node", "gpus_per_node: 4"),
        ({"gpu": {"slurm_type": "h100"}}, "gpu.slurm_type", "one of a100"),
        ({"cpus": {"per_node": 128}}, "cpus.per_node", "per_node: 64"),
        ({"memory": {"whole_node": "1T"}}, "memory.whole_node", "at most 500000M"),
        ({"memory": {"per_rank": "150G"}}, "memory.per_rank", "4 ranks ask for 600G together"),
        ({"memory": {"per_rank": "150G"}}, "memory.per_rank", "at most 125000M"),
        ({"memory": {"style": "mem_per_gpu", "per_rank": "150G"}}, "memory.per_rank", "at most 125000M"),
        ({"memory": {"per_rank": "180G", "whole_node": "0"}}, "memory.per_rank", "3 ranks ask for"),
        ({"slurm_partition": "bare", "limits": {}, "nodes": 4, "time": {"max": "10"}}, "gpus_per_node", "must be none"),
    ],
)
def test_each_contradiction_of_a_partition_is_a_row(change: dict[str, Tree], key: str, todo: str) -> None:
    """One row differs, with the key to change and what to; exit code 3."""
    rows = rows_of(make_site({"gpu": {**GOOD, "time": {"max": "60"}, **change}}))
    [row] = [row for row in rows if row.verdict is Verdict.DIFFERS]
    assert row.key == f"partitions.gpu.{key}"
    assert todo in row.todo
    assert exit_code(rows) == 3


@pytest.mark.parametrize(
    "memory",
    [
        {"per_rank": "120G"},
        # A job on all GPUs asks for whole_node, not for four times this.
        {"per_rank": "150G", "whole_node": "0"},
        {"per_rank": "150G", "style": "none"},
    ],
)
def test_memory_that_fits_a_node_is_no_contradiction(memory: dict[str, Tree]) -> None:
    """All ranks of a node together count, as far as they are ever asked for."""
    rows = rows_of(make_site({"gpu": {**GOOD, "time": {"max": "60"}, "memory": memory}}))
    assert [row for row in rows if row.verdict is Verdict.DIFFERS] == []


def test_a_type_that_no_request_names_is_noted() -> None:
    """It is right, and without effect."""
    rows = rows_of(make_site({"gpu": {**GOOD, "gpu": {"slurm_type": "a100"}}}))
    [row] = [row for row in rows if row.name == "GPU type"]
    assert row.verdict is Verdict.NOTE
    assert row.todo.startswith("no request names it: partitions.gpu.gpu_request.typed: true")


@pytest.mark.parametrize(
    ("own", "most", "noted"),
    [
        ({"limits": {}}, 4, True),
        ({"limits": {}, "nodes": 4}, 4, False),
        ({"limits": {}}, 80, False),
        ({"limits": {}, "nodes": None}, 80, False),
    ],
)
def test_a_limit_that_nobody_reaches_is_not_noted(own: dict[str, Tree], most: int, noted: bool) -> None:
    """Where the partition, or what the profile uses of it, has no more nodes than the limit, it adds nothing."""
    facts = replace(FACTS, limits={"gpu": PartitionLimits("gpu", most, 86400, 8, "UP")})
    rows = rows_of(make_site({"gpu": {**GOOD, **own}}), facts)
    assert [row.verdict for row in rows if row.name == "nodes a job"] == ([Verdict.NOTE] if noted else [])


def _kind(partition: str, nodes: int, gres: str, *features: str) -> NodeKind:
    return NodeKind(partition, True, False, nodes, 64, 500_000, 1, "n", gres, features)


KINDS = (
    _kind("gpu", 5, "gpu:a100:4(S:0-1)", "a100", "ib"),
    _kind("gpu", 1, "gpu:a100:4", "a100", "ib", "hbm80g"),
    _kind("gpu", 2, "gpu:a100:4", "a100"),
    _kind("mixed", 2, "gpu:a40:8"),
    _kind("mixed", 3, "gpu:h100:4"),
)


@pytest.mark.parametrize(
    ("constraint", "verdict", "found", "todo"),
    [
        ("ib", Verdict.OK, "6 of 8 nodes of gpu have them", ""),
        ("ib&hbm80g", Verdict.OK, "1 of 8 nodes of gpu have them", ""),
        ("hbm80g|a100", Verdict.OK, "8 of 8 nodes of gpu have them", ""),
        ("[ib*2&hbm80g*1]", Verdict.OK, "nodes of gpu have them", ""),
        ("hbm40g", Verdict.DIFFERS, "no node of gpu has feature hbm40g", "did you mean 'hbm80g'?"),
        ("gpu", Verdict.DIFFERS, "no node of gpu has feature gpu", "one of a100, hbm80g, ib"),
        ("ib|rack1&rack2", Verdict.DIFFERS, "no node of gpu has feature rack1, rack2", "one of a100"),
    ],
)
def test_a_constraint_is_held_against_the_nodes_features(
    constraint: str, verdict: Verdict, found: str, todo: str
) -> None:
    """sinfo has them: a word that no node has is a job that never starts."""
    facts = replace(FACTS, kinds=KINDS)
    rows = rows_of(make_site({"gpu": {**GOOD, "constraint": constraint, "nodes": None}}), facts)
    [row] = [row for row in rows if row.name == "features"]
    assert (row.verdict, row.found, row.key) == (verdict, found, "partitions.gpu.constraint")
    assert row.todo.startswith(todo)
    assert bool(row.todo) is bool(todo)


def test_features_that_no_node_has_together() -> None:
    """Each is there, and no node has both."""
    kinds = (_kind("gpu", 4, "gpu:4", "a"), _kind("gpu", 4, "gpu:4", "b"))
    rows = rows_of(make_site({"gpu": {**GOOD, "constraint": "a&b"}}), replace(FACTS, kinds=kinds))
    assert [row.found for row in rows if row.name == "features"] == ["no node of gpu has all of them"]
    bare = replace(FACTS, kinds=(_kind("gpu", 8, "gpu:4"),))
    rows = rows_of(make_site({"gpu": {**GOOD, "constraint": "a"}}), bare)
    assert [row.todo for row in rows if row.name == "features"] == ["they have none: remove it"]


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ({"constraint": "ib", "nodes": 6}, Verdict.OK),
        ({"constraint": "ib", "nodes": 5}, Verdict.NOTE),
        ({"constraint": "ib", "nodes": 8}, Verdict.DIFFERS),
        ({"nodes": 6}, Verdict.NOTE),
        (
            {"slurm_partition": "mixed", "nodes": 3, "gpu": {"slurm_type": "h100"}, "gpu_request": {"typed": True}},
            Verdict.OK,
        ),
    ],
)
def test_nodes_that_a_constraint_or_a_type_chooses_are_counted(own: dict[str, Tree], verdict: Verdict) -> None:
    """A partition of one part of the nodes has as many as that part."""
    rows = rows_of(make_site({"gpu": {**GOOD, **own}}), replace(FACTS, kinds=KINDS))
    assert [row.verdict for row in rows if row.name == "nodes"] == [verdict]


@pytest.mark.parametrize(
    ("values", "key", "verdict"),
    [
        ({"slurm": {"version": "22.05.8"}}, "slurm.version", Verdict.DIFFERS),
        ({"slurm": {"version": "23.11.5"}}, "slurm.version", Verdict.DIFFERS),
        ({"slurm": {"kill_wait_s": 60}}, "slurm.kill_wait_s", Verdict.DIFFERS),
        ({"launcher": {"mpi": "pmix_v5"}}, "launcher.mpi", Verdict.DIFFERS),
        ({"launcher": {}}, "launcher.mpi", Verdict.NOTE),
        ({"launcher": {"command": "ibrun"}}, "launcher.command", Verdict.UNKNOWN),
        ({"container": {"runtime": "cscs_ce"}}, "container.runtime", Verdict.DIFFERS),
        ({"container": {"runtime": "apptainer"}}, "container.runtime", Verdict.OK),
        ({"container": {"runtime": "podman_hpc"}}, "container.runtime", Verdict.UNKNOWN),
    ],
)
def test_what_holds_for_the_whole_site(values: dict[str, Tree], key: str, verdict: Verdict) -> None:
    """A program may be on the nodes alone: that it is not here says nothing yet."""
    assert [row.verdict for row in rows_of(make_site({"gpu": GOOD}, **values)) if row.key == key] == [verdict]


def test_kinds_of_nodes_of_one_partition_count_each() -> None:
    """Eight of one kind or four of another are both right, and the larger node's CPUs count."""
    own: dict[str, Tree] = {"slurm_partition": "mixed", "cpus": {"per_node": 48}}
    for gpus, verdict in ((4, Verdict.OK), (8, Verdict.OK), (2, Verdict.DIFFERS)):
        rows = rows_of(make_site({"mixed": {**own, "gpus_per_node": gpus}}))
        assert [row.verdict for row in rows if row.key == "partitions.mixed.gpus_per_node"] == [verdict]


def test_where_slurm_counts_no_gpus_none_may_be_asked_for() -> None:
    """A whole-node site without GRES is not contradicted, only not known."""
    own: dict[str, Tree] = {"slurm_partition": "bare", "gpus_per_node": 4, "gpu_request": {"style": "none"}}
    rows = {row.key: row.verdict for row in rows_of(make_site({"bare": own}))}
    assert rows["partitions.bare.gpus_per_node"] is Verdict.UNKNOWN
    assert rows["partitions.bare.slurm_partition"] is Verdict.NOTE


def test_what_a_partition_changes_of_the_site_stands_with_it() -> None:
    """The wrong MPI type of one partition is told there, and what all share is told once."""
    profile = make_site({"gpu": GOOD, "other": {**GOOD, "launcher": {"mpi": "openmpi"}}}, slurm={"version": "23.11"})
    topics = {(row.topic, row.name): row.verdict for row in rows_of(profile)}
    assert topics["site", "Slurm"] is Verdict.OK
    assert topics["partition other", "MPI type"] is Verdict.DIFFERS
    assert topics["partition gpu", "MPI type"] is Verdict.OK
    assert ("site", "MPI type") not in topics


def test_a_question_without_an_answer_is_told() -> None:
    """Its rows are missing, the others stay, and the exit code is that of a Slurm that does not answer."""
    facts = replace(FACTS, partitions=(), silent={"sinfo": "sinfo got no answer"})
    rows = rows_of(make_site({"gpu": GOOD}), facts)
    assert [row.name for row in rows if row.verdict is Verdict.SILENT] == ["sinfo"]
    assert not [row for row in rows if row.topic == "partition gpu"]
    assert exit_code(rows) == 6


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("allocation failure: Invalid partition name specified", "partitions.gpu.slurm_partition"),
        ("Invalid account or account/partition combination specified", "account"),
        ("allocation failure: Invalid qos specification", "partitions.gpu.qos"),
        ("allocation failure: Invalid feature specification", "partitions.gpu.constraint"),
        ("Requested node configuration is not available", "partitions.gpu.gpus_per_node, .gpu"),
        ("error: Invalid generic resource (gres) specification", "partitions.gpu.gpu_request"),
        ("Invalid Trackable RESource (TRES) specification", "partitions.gpu.gpu_request"),
        ("More processors requested than permitted", "partitions.gpu.cpus"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "partitions.gpu.time"),
        ("error: Invalid --time specification", "partitions.gpu.time"),
        ("error: Memory specification can not be satisfied", "partitions.gpu.memory"),
        ("Requested reservation is invalid", "partitions.gpu.reservation"),
        ("allocation failure: Invalid license specification", "partitions.gpu.licenses"),
        ("Node count specification invalid", "partitions.gpu.limits.min_nodes"),
        ("fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.", "partitions.gpu.gpu_request.style"),
        ("unrecognized option '--segment=2'", "segment of the partition; sbatch_extra"),
        ("unrecognized option '--foo=1'", "sbatch_extra, sbatch_skip"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "partitions.gpu.limits",
        ),
        ("Unable to contact slurm controller (connect failure)", ""),
        ("ERROR: your job has no project", "policies.forbid, policies.require"),
    ],
)
def test_slurms_words_point_at_a_key(said: str, key: str) -> None:
    """The texts are those of slurm_errno.c and slurm_opt.c; unknown ones are likely a submit filter's."""
    hint = explain_refusal(said, "gpu")
    assert hint.key.startswith(key)
    assert bool(hint.key) is bool(key)
    assert hint.todo


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("srun: error: Couldn't find the specified plugin name for mpi/foo looking at all files", "launcher.mpi"),
        ("slurm_llm: node n1: the image /x has no /var/spool/pmix.1", "container"),
        ("probe-rank.sh: line 9: /opt/python3: No such file or directory", "python, container.python"),
        ("srun: error: Unable to create step for job 4: Invalid generic resource (gres)", "gpu_request.step"),
        ("srun: unrecognized option '--foo'", "srun_extra, srun_skip"),
        ("slurm_llm: cannot source /opt/container/env.sh", "env.source"),
        ("nothing that is known", ""),
    ],
)
def test_words_about_a_step_point_at_a_key(said: str, key: str) -> None:
    """What srun and the scripts say when ranks do not even start."""
    assert explain_step(said, ("pmix",)).key.startswith(key)
