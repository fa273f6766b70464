"""What a served model keeps from other users of the cluster; the other user is `nobody`, who has an id of his own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster.conftest import Cluster, Run, User, wait_for, watched_user
from tests.cluster.test_main_job import ask, small

pytestmark = pytest.mark.cluster

INTRUDER = (Path(__file__).parent / "intruder.py").read_text()
FEW_FILES = 150
LIMITS = {"unready_s": 4, "answer_s": 4, "probe_s": 1}


def intrude(cluster: Cluster, node: str, *words: str) -> Any:
    """Return what another user finds on a node."""
    done = cluster.on_node(node, "runuser", "-u", "nobody", "--", sys.executable, "-I", "-c", INTRUDER, *words)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def leader_node(run: Run) -> str:
    return next(str(item["node"]) for item in run.records() if item["kind"] == "leader")


def test_servers_listen_where_the_site_wants_them(cluster: Cluster, user: User) -> None:
    """On one interface, balancer included: its address is the endpoint's, and loopback has nobody."""
    network = {"network": {"bind": "interface", "interface": "eth0"}}
    pair = small("bound", ranks=1, replicas=2, balancer="haproxy", resources={"nodes": 1, "time": "00:05:00"})
    run = user.submit({**pair, "site": network})
    value = run.wait_ready()
    urls = [str(one["url"]) for one in (*value["instances"], value["balancer"])]
    node, addresses = leader_node(run), {urlsplit(url).hostname for url in urls}
    assert len(addresses) == 1
    assert addresses <= set(cluster.on_node(node, "hostname", "-I").stdout.split())
    assert all(ask(url, "hello")["text_output"] for url in urls)
    inside = [f"http://127.0.0.1:{urlsplit(url).port}" for url in urls]
    assert [intrude(cluster, node, "reach", url) for url in inside] == [0, 0, 0]


def test_a_server_on_loopback_is_reached_on_its_node_alone(cluster: Cluster, user: User) -> None:
    """The head asks it there; from elsewhere nobody listens on its port."""
    spec = small("inward", ranks=1, resources={"nodes": 1, "time": "00:05:00"})
    run = user.submit({**spec, "site": {"network": {"bind": "loopback"}}})
    (one,) = run.wait_ready()["instances"]
    node, url = leader_node(run), urlsplit(one["url"])
    assert url.hostname == "127.0.0.1"
    away = next(name for name in cluster.nodes if name != node)
    assert intrude(cluster, node, "reach", one["url"]) == 200
    assert intrude(cluster, away, "reach", f"http://{node}:{url.port}") == 0


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[Run]:
    """A run with a key, on a site that lets a server open few files and counts what is hung soon."""
    watched = watched_user(cluster, "security")
    user = next(watched)
    spec = small("guarded", resources={"nodes": 2, "time": "00:10:00"}, access={"key": True}, timeouts=LIMITS)
    made = user.submit({**spec, "site": {"ulimits": {"nofile": FEW_FILES}}})
    made.wait_ready()
    yield made
    next(watched, None)


def test_another_user_is_refused_what_changes_the_server_and_inference(cluster: Cluster, guarded: Run) -> None:
    """From another node, over both protocols: only health and counts answer, and the server goes on to serve."""
    (one,) = guarded.wait_ready()["instances"]
    away = next(node for node in cluster.nodes if node != leader_node(guarded))
    said = intrude(cluster, away, "apis", one["url"], one["grpc"], "tensorrt_llm")
    open_to_all = {
        "GET /v2/models/tensorrt_llm/stats",
        "GET /v2/health/ready",
        "gRPC ModelStatistics",
        "gRPC ServerReady",
    }
    assert {name: said.pop(name) for name in sorted(open_to_all)} == {
        name: "OK" if name.startswith("gRPC") else 200 for name in open_to_all
    }
    refused = {name: text for name, text in said.items() if text == 403 or "This protocol is restricted" in str(text)}
    assert refused == said
    assert guarded.cli("status", "--json").returncode == 0


def test_the_owner_has_the_key(guarded: Run) -> None:
    """The printed curl line works as it is, so do our own verbs, and none of them tells the key."""
    (one,) = guarded.wait_ready()["instances"]
    name, _, key = Path(one["key_file"]).read_text().strip().partition(": ")
    assert (name, len(key)) == ("slurm-llm-key", 48)
    made = json.loads(guarded.cli("endpoint", "--json").stdout)
    assert json.loads(guarded.user.run("bash", "-c", made["curl"]).stdout)["text_output"]
    assert guarded.cli("generate", "hello").stdout.strip()
    shown = [guarded.cli(*words).stdout for words in (["endpoint"], ["endpoint", "--env"], ["status"], ["logs"])]
    assert "SLURM_LLM_KEY_FILE" in shown[1]
    assert not [text for text in shown if key in text]
    kept = [path for path in guarded.path.rglob("*") if path.is_file() and key in path.read_text(errors="replace")]
    assert kept == [Path(one["key_file"])]


def test_the_value_that_closes_the_rest_is_kept_nowhere(cluster: Cluster, guarded: Run) -> None:
    """Its only place is the server's own command line."""
    words = Path(f"/proc/{guarded.pid(0, main=True)}/cmdline").read_text().split("\0")
    closed = {word.rpartition("slurm-llm-closed=")[2] for word in words if "slurm-llm-closed=" in word}
    assert len(closed) == 1
    (value,) = closed
    assert len(value) == 48
    assert not [
        path for path in guarded.path.rglob("*") if path.is_file() and value in path.read_text(errors="replace")
    ]


def test_another_user_reads_no_file_of_the_run(cluster: Cluster, guarded: Run) -> None:
    """Neither in the run directory nor on the node: Triton's shared memory holds prompts."""
    node = leader_node(guarded)
    owner = cluster.user
    names = cluster.on_node(node, "find", "/dev/shm", "/tmp", "-mindepth", "1", "-user", owner).stdout.splitlines()
    assert [name for name in names if name.startswith("/dev/shm/llm")]
    inside = [path for path in guarded.path.rglob("*") if not path.is_symlink() and path.suffix != ".out"]
    assert not [path for path in inside if path.stat().st_mode & 0o077]
    assert intrude(cluster, node, "read", str(guarded.path), *map(str, inside), *names) == []


def flood(cluster: Cluster, run: Run, seconds: float, *kinds: str) -> list[str]:
    """Have another user open all the connections that the server may have, and return the states after that."""
    (one,) = run.wait_ready()["instances"]
    host = leader_node(run)
    ports = f"{urlsplit(one['url']).port},{urlsplit(one['metrics']).port},{one['grpc'].rpartition(':')[2]}"
    for kind in kinds:
        assert intrude(cluster, host, "crowd", host, ports, str(FEW_FILES), str(seconds), kind)
    wait_for("it serves again", lambda: json.loads(run.cli("status", "--json").stdout)["state"] == "READY", 20)
    assert run.cli("generate", "hello").stdout.strip()
    assert not (run.job / "attempt-1").exists()
    return [str(item["state"]) for item in run.records() if item["kind"] == "state"]


def test_requests_without_an_end_and_garbage_harm_nobody(cluster: Cluster, guarded: Run) -> None:
    """Slow headers, a gigabyte that is announced, and bytes that are no protocol's, to all three ports."""
    assert "FAILED" not in flood(cluster, guarded, 1.5, "slow", "huge", "garbage")


def test_a_server_without_a_free_connection_is_not_hung(cluster: Cluster, guarded: Run) -> None:
    """For longer than it may be unready nobody new gets in: it is degraded, and recovers by itself."""
    states = flood(cluster, guarded, LIMITS["unready_s"] + 3, "idle")
    assert states[-2:] == ["DEGRADED", "READY"]
    reasons = [item["reason"] for item in guarded.records() if item.get("state") == "DEGRADED"]
    assert "it accepts no further connections, too many are open" in reasons[-1]
