"""From profiles to shapes of clusters: what is imitated, and what is said not to be; nothing is started here."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.devcluster import ClusterSpec, NodeKind, Quality, Queue, Reservation
from slurm_llm.devcluster.config import check_spec
from slurm_llm.imitation import imitate
from slurm_llm.sampling import sample
from slurm_llm.sites.load import parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.yamlio import Document, Tree
from tests.sites.shipped import SITES, profile_of

NODE = NodeKind(2, cpus=64, memory=400_000, gpus=4)


def site(partitions: dict[str, dict[str, Tree]], /, **values: Tree) -> SiteProfile:
    """Return a site whose partitions have four GPUs a node and 64 CPUs unless they say otherwise."""
    common: dict[str, Tree] = {"gpus_per_node": 4, "cpus": {"per_node": 64}, "memory": {"whole_node": "400000M"}}
    own: dict[str, Tree] = {name: {**common, **partition} for name, partition in partitions.items()}
    return parse_site(Document("site", {"schema_version": 1, "name": "here", "partitions": own, **values}))


def one(partition: dict[str, Tree], /, **values: Tree) -> SiteProfile:
    """Return a site with one partition."""
    return site({"gpu": partition}, **values)


@pytest.mark.parametrize(
    ("partition", "kind"),
    [
        ({}, NODE),
        ({"gpu": {"slurm_type": "h100"}}, replace(NODE, gpu_type="h100")),
        ({"gpu_request": {"style": "gres", "name": "accel"}}, replace(NODE, gres="accel")),
        ({"gpu_request": {"style": "none"}}, replace(NODE, gpus=0)),
        ({"gpu_request": {"style": "none", "step": "gres"}}, NODE),
        ({"constraint": "gpu&hbm80g"}, replace(NODE, features=("gpu", "hbm80g"))),
        ({"constraint": "[(thin*2)|fat]"}, replace(NODE, features=("thin", "fat"))),
        ({"cpus": {"per_rank": 12}}, replace(NODE, cpus=48)),
        ({"core_spec": 8}, replace(NODE, cpus=72)),
        ({"memory": {"per_rank": "60G"}}, replace(NODE, memory=240 * 1024)),
        ({"memory": {"style": "mem_per_cpu", "per_cpu": "4G"}}, replace(NODE, memory=256 * 1024)),
        ({"memory": {"whole_node": "0"}}, replace(NODE, memory=128_000)),
        ({"memory": {"style": "none"}}, replace(NODE, memory=128_000)),
        ({"gpus_per_node": 0}, replace(NODE, gpus=0)),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_node_can_give_what_the_partition_asks_for(partition: dict[str, Tree], kind: NodeKind) -> None:
    """GPUs, CPUs, memory and features of a node are those that jobs of the partition name."""
    assert imitate(one(partition)).shape.kinds == (kind,)


def test_partitions_share_nodes_of_one_kind() -> None:
    """Equal nodes are made once; each Slurm partition has those of all logical ones that name it."""
    profile = site(
        {
            "a": {"slurm_partition": "x"},
            "b": {"slurm_partition": "y"},
            "c": {"slurm_partition": "y", "gpus_per_node": 8},
            "both": {"slurm_partition": ["x", "y"]},
        }
    )
    shape = imitate(profile, nodes=3).shape
    assert shape.kinds == (replace(NODE, count=3), replace(NODE, count=3, gpus=8))
    assert shape.queues == (Queue("x", (0,), is_default=True), Queue("y", (0, 1)))


def test_no_partition_is_the_default_one() -> None:
    """Jobs that name no partition find the nodes of all logical ones of that sort in the default one."""
    profile = site({"a": {"constraint": "a"}, "b": {"constraint": "b"}, "c": {"slurm_partition": "here"}})
    assert imitate(profile).shape.queues == (Queue("here-default", (0, 1), is_default=True), Queue("here", (2,)))


def test_the_widest_limits_count() -> None:
    """A Slurm partition or QOS of several logical ones takes what any of these takes."""
    small: dict[str, Tree] = {"slurm_partition": "x", "time": {"max": "01:00:00"}, "limits": {"max_nodes": 2}}
    large: dict[str, Tree] = {
        "slurm_partition": "x",
        "time": {"max": "02:00:00", "by_nodes": [{"max_nodes": 4, "max": "1-00:00:00"}]},
        "limits": {"min_nodes": 3, "max_nodes": 9},
        "nodes": 5,
    }
    shape = imitate(site({"s": {**small, "qos": "q"}, "l": {**large, "qos": "q"}, "d": {**small, "qos": "r"}})).shape
    assert shape.queues == (Queue("x", (0,), is_default=True, max_time="1-00:00:00", max_nodes=5),)
    assert shape.qualities == (Quality("q", "1-00:00:00", 5), Quality("r", "01:00:00", 2))
    assert imitate(site({"s": small, "n": {"slurm_partition": "x"}})).shape.queues[0].max_nodes is None


def test_a_smallest_job_has_room_on_paper_alone() -> None:
    """A partition for large jobs gets so many nodes on paper; for real it takes smaller jobs, and that is said."""
    profile = one({"limits": {"min_nodes": 65}})
    paper, real = imitate(profile, paper=True), imitate(profile)
    assert (paper.shape.nodes, paper.shape.queues[0].min_nodes, paper.missing) == (65, 65, ())
    assert (real.shape.nodes, real.shape.queues[0].min_nodes) == (2, 2)
    assert real.missing == ("partitions.gpu.limits.min_nodes: 2 nodes, not 65",)


@pytest.mark.parametrize(
    ("partition", "exclusive"),
    [({"whole_node": True}, "node"), ({"exclusive": True}, "node"), ({"exclusive": "user"}, "user"), ({}, None)],
    ids=str,
)
def test_whole_nodes(partition: dict[str, Tree], exclusive: str | None) -> None:
    """Slurm gives whole nodes where the site does."""
    assert imitate(one(partition)).shape.queues[0].exclusive == exclusive


def test_one_shared_queue_makes_the_partition_shared() -> None:
    """A Slurm partition is exclusive only where all logical ones agree."""
    shape = imitate(site({"a": {"slurm_partition": "x", "whole_node": True}, "b": {"slurm_partition": "x"}})).shape
    assert shape.queues[0].exclusive is None


def test_reserved_nodes_are_their_own() -> None:
    """A reservation has nodes that no other partition has, though they are of the same kind."""
    shape = imitate(site({"a": {}, "b": {"reservation": "mig"}})).shape
    assert shape.kinds == (NODE, NODE)
    assert shape.reservations == (Reservation("mig", 1),)


def test_names_that_jobs_use_exist() -> None:
    """Licences, excluded nodes and the cluster's name of --clusters are there."""
    partition: dict[str, Tree] = {"licenses": "scratch:1,work", "exclude_nodes": "n[1-2]"}
    shape = imitate(one(partition, slurm={"clusters": "B1"}, exclude_nodes="n3")).shape
    assert (shape.name, shape.licenses, shape.absent) == ("b1", ("scratch:100", "work:100"), ("n1", "n2"))


@pytest.mark.parametrize(
    ("account", "name"),
    [
        ({}, "devcluster"),
        ({"required": True}, "devcluster"),
        ({"default": "proj"}, "proj"),
        ({"pattern": r"project_\d+"}, "project_1"),
        ({"pattern": "[A-Z]{3}-.*_g"}, "AAA-a_g"),
        ({"pattern": "(def|rrg)-[A-Z]+"}, "def-A"),
        ({"pattern": "[Bb]erzelius-\\d{4}-\\d+"}, "berzelius-1111-1"),
    ],
    ids=str,
)
def test_an_account_that_fits(account: dict[str, Tree], name: str) -> None:
    """There is an account of the site's form, in Slurm's small letters where the form allows them."""
    made = imitate(one({}, account=account))
    assert (made.account, made.missing) == (name, ())
    assert made.account in made.shape.accounts
    assert imitate(one({}, account=account), account="mine").account == "mine"


def test_an_account_form_that_cannot_be_met_is_said() -> None:
    """A form that no account was found for is told with the way out."""
    made = imitate(one({}, account={"pattern": "(?=x)y.*"}))
    assert "name one with --account" in made.missing[0]


def test_policies_become_a_filter() -> None:
    """What all partitions refuse or want, a filter does; what it cannot see is told."""
    policies: dict[str, Tree] = {"forbid": ["--mem", "--export"], "require": ["--time", "--chdir"]}
    made = imitate(one({}, policies=policies, account={"required": True}))
    assert (made.shape.forbid, made.shape.require) == (("--mem",), ("--account", "--time"))
    assert made.missing == ("policies.forbid: --export is taken", "policies.require: jobs without --chdir are taken")


def test_the_filter_takes_what_the_site_wants() -> None:
    """--gres and --gpus-per-node are one to a filter: a site that forbids the one and wants the other gets no such."""
    assert imitate(one({}, policies={"forbid": ["--gres"]})).shape.forbid == ()
    typed = imitate(one({"gpu_request": {"style": "gres"}}, policies={"forbid": ["--gpus-per-node"]}))
    assert (typed.shape.forbid, typed.missing) == ((), ("policies.forbid: --gpus-per-node is taken",))


@pytest.mark.parametrize(
    ("partition", "values", "key"),
    [
        ({"segment": 4}, {}, "partitions.gpu.segment"),
        ({"exclusive": "topo"}, {}, "partitions.gpu.exclusive"),
        ({"time": {"node_hours": 1.5}}, {}, "partitions.gpu.time"),
        ({"licenses": "a@server"}, {}, "partitions.gpu.licenses"),
        ({"qos": "a,b"}, {}, "partitions.gpu.qos"),
        ({}, {"slurm": {"clusters": "a,b"}}, "slurm.clusters"),
        ({}, {"slurm": {"node_daemon": "psslurm"}}, "slurm.node_daemon"),
        ({}, {"container": {"runtime": "shifter"}}, "container.runtime"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_imitated_is_said(partition: dict[str, Tree], values: dict[str, Tree], key: str) -> None:
    """Each thing that Slurm 22.05 or one machine does not have is named by its key."""
    assert [text.partition(":")[0] for text in imitate(one(partition, **values)).missing] == [key]


@pytest.mark.parametrize("name", SITES)
def test_every_packaged_profile_has_a_shape(name: str) -> None:
    """Any packaged profile can be imitated, on paper and for real, with an account that it takes."""
    profile = profile_of(name)
    for paper in (False, True):
        made = imitate(profile, paper=paper)
        check_spec(ClusterSpec(own_shape=made.shape, paper=paper))
        assert re.fullmatch(profile.account.pattern or ".*", made.account)
        assert sum(queue.is_default for queue in made.shape.queues) == 1


@given(st.from_regex(r"([a-z]{1,3}|\\d[+*?]?|\\w\{2\}|\.|\[a-c_]\+?|\(ab\|c\)|\(\?:x\|y\)\?){1,6}", fullmatch=True))
def test_a_sample_matches_its_pattern(pattern: str) -> None:
    """For patterns of the parts that are read there is a sample, and it matches."""
    text = sample(pattern)
    assert text is not None and re.fullmatch(pattern, text)


@pytest.mark.parametrize("pattern", ["a(?=b)", "[^a]", "(a)\\1", "a{2"])
def test_a_sample_is_never_wrong(pattern: str) -> None:
    """Beyond these parts there may be none, but never one that does not match."""
    text = sample(pattern)
    assert text is None or re.fullmatch(pattern, text)
