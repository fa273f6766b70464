"""What needs another cluster than the default one: sixteen nodes, eight GPUs a node, no accounting, an older Triton."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_llm import devcluster
from slurm_llm.tritonhome import home_links
from slurm_llm.yamlio import dump, load_document
from tests.cluster.conftest import Cluster, User, watched_user
from tests.cluster.test_main_job import ask

pytestmark = pytest.mark.cluster

STATE = Path("/var/lib/slurm_llm/devcluster-16")
OLD_TRITON = Path(sys.prefix) / "triton-2.43"


@pytest.fixture(scope="module")
def large() -> Iterator[Cluster]:
    """A cluster of sixteen nodes of eight GPUs, without accounting, beside the default one."""
    devcluster.down(STATE)
    spec = devcluster.ClusterSpec(state=STATE, nodes=16, gpus_per_node=8, accounting=False, user="llm16")
    status = devcluster.up(spec)
    yield Cluster(STATE, status.slurm_conf, spec.user, spec.node_names)
    devcluster.down(STATE)


@pytest.fixture
def user16(large: Cluster, request: pytest.FixtureRequest) -> Iterator[User]:
    """The ordinary user of the large cluster."""
    yield from watched_user(large, request.node.name)


def site_of(user: User) -> Path:
    """Write the devcluster's profile with eight GPUs a node, and return it."""
    value: dict[str, Any] = load_document(Path("site_configs/devcluster.yaml")).value
    for partition in value["partitions"].values():
        partition["gpus_per_node"] = 8
    path = user.folder / "devcluster.yaml"
    path.write_text(dump(value))
    path.chmod(0o644)
    return path


def test_thirty_two_ranks_on_sixteen_nodes(user16: User) -> None:
    """They form one world, answer, and end in order; status needs no accounting."""
    spec = {
        "name": "32 ranks",
        "engine": "rehearsal",
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 4,
        "resources": {"nodes": 16, "time": "00:10:00"},
    }
    run = user16.submit(spec, site=str(site_of(user16)))
    assert len(ask(run.url(120), "Hello", sampling_param_max_tokens=8)["text_output"]) == 8
    status = json.loads(run.cli("status", "--json").stdout)
    assert (status["state"], status["ranks_ready"]) == ("READY", 32)
    run.cli("cancel")
    assert run.wait_ended()["state"] == "COMPLETED"
    assert json.loads(run.cli("status", "--json").stdout)["state"] == "COMPLETED"


def test_eight_ranks_of_an_older_triton_share_a_node(user16: User) -> None:
    """Five starts in five tries: with one prefix for all, Triton 2.43's servers collide in most simultaneous starts."""
    links = home_links(OLD_TRITON / "pytriton", sys.version_info[:2])
    assert links, f"no Triton 2.43 in {OLD_TRITON}: `make test` installs it"
    home = user16.folder / "triton"
    for name, target in links.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(target)
    # This release sets the stub's mode itself, which only its owner may.
    stub = home / "backends/python/triton_python_backend_stub"
    stub.unlink()
    shutil.copy(links["backends/python/triton_python_backend_stub"], stub)
    shutil.chown(stub, user16.cluster.user)
    spec = {
        "name": "older",
        "engine": "rehearsal",
        "tensor_parallel_size": 8,
        "resources": {"nodes": 1, "time": "00:10:00"},
        "preflight": {"mpi": False},
        "triton": {"server": str(home)},
    }
    site = str(site_of(user16))
    texts = set()
    for _ in range(5):
        run = user16.submit(spec, site=site)
        assert "2.43" in (run.attempt / "rank-0.log").read_text() if run.url() else False
        texts.add(ask(run.url(), "Hello")["text_output"])
        run.cli("cancel")
        assert run.wait_ended()["state"] == "COMPLETED"
    assert len(texts) == 1


def test_a_node_that_is_lost_ends_the_job(user16: User) -> None:
    """The job does not hold the other nodes until its time limit, and status does not call it completed."""
    run = user16.submit(site=str(site_of(user16)))
    run.wait_ready()
    lost = run.records()
    node = sorted({item["node"] for item in lost if item["kind"] == "hello"})[-1]
    devcluster.node_action(STATE, node, "kill")
    try:
        run.wait_gone(90)
        status = json.loads(run.cli("status", "--json").stdout)
        assert status["state"] in ("FAILED", "LOST"), status
    finally:
        devcluster.node_action(STATE, node, "up")
