"""The run's page: what it says in each phase, of GPUs, of leaders that do not answer, and of thousands of ranks."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from slurm_llm.agent import journal, probe
from slurm_llm.agent.exporter import Exporter, Sources, route
from slurm_llm.agent.exposition import OWN
from slurm_llm.agent.nodes import Nodes
from slurm_llm.agent.runfamilies import FAMILIES
from slurm_llm.observe.metricstext import parse_metrics
from tests.http_server import serve
from tests.observe.run_dirs import RunDir, make_plan
from tests.observe.test_metrics import PAGES

Labels = dict[str, str]
EVERYTHING = "run ranks instances"


@dataclass
class Page:
    """A run's exporter, told what a test wants, and its page as read by our other, strict reader."""

    folder: Path
    fields: dict[str, Any] = field(default_factory=dict)
    state: str = "READY"
    records: list[journal.Record] = field(default_factory=list)
    leaders: dict[int, probe.Leader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = RunDir(self.folder / "run", plan=make_plan(**self.fields))
        self.plan = json.loads(run.paths.plan.read_text())
        self.alive = Nodes()
        sources = Sources(lambda: self.state, self.records, self.leaders, self.alive)
        self.exporter = Exporter(self.plan, str(run.root), str(run.root / "job-7" / "attempt-0"), sources)

    def hear(self, kind: str, **fields: Any) -> None:
        """Tell what the head hears of a node's agent."""
        item = journal.record(kind, **fields)
        self.exporter.tally.hear(item)
        if kind not in ("beat", "sample"):
            self.records.append(item)
        self.alive.heard(str(item["node"]), 0.0)

    def beat(self, user_s: float = 1.0, system_s: float = 0.5, log: int = 10) -> None:
        """Let every rank be seen, with a figure of each kind."""
        for item in self.plan["ranks"]:
            own = {"u": user_s, "s": system_s, "n": 1, "st": "S", "m": 2.0, "r": 0.0, "log": log}
            self.hear("beat", node=f"n{item['node']}", ranks={str(item["rank"]): own})

    def load(self, ranks: int | None = None) -> None:
        """Let the engines of the first ranks begin."""
        for item in self.plan["ranks"][:ranks]:
            node = f"n{item['node']}"
            self.hear("found", node=node, rank=item["rank"], pid=100 + item["rank"], main=True, name="tritonserver")

    def samples(self, name: str = EVERYTHING) -> dict[str, list[tuple[Labels, float]]]:
        """Return labels and values by the names of our own families, and of all others."""
        found: dict[str, list[tuple[Labels, float]]] = {}
        for family in parse_metrics(self.exporter.make(name).decode()):
            assert family.help
            found[family.name.removeprefix(OWN)] = [(dict(one.labels), one.value) for one in family.samples]
        return found


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """Two instances of two ranks each, on two nodes."""
    return Page(
        tmp_path, {"replicas": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "resources": {"nodes": 2}}
    )


def ones(samples: list[tuple[Labels, float]], label: str) -> list[str]:
    """Return a label's values where the sample is 1."""
    return [labels[label] for labels, value in samples if value == 1]


def test_it_is_there_before_anything_else(page: Page) -> None:
    """While agents and ranks are still on their way: what the run is, its state, and that all ranks are awaited."""
    page.state = "STARTING"
    found = page.samples()
    assert ones(found["run_state"], "state") == ["STARTING"]
    assert {labels["state"]: value for labels, value in found["ranks"]}["waiting"] == 4
    (info, _), *_ = found["run_info"]
    assert (info["run"], info["engine"], info["served_as"]) == ("20261130-104000-abcd", "rehearsal", "tensorrt_llm")
    assert not {"rank_up", "scrape_up", "ready_timestamp_seconds"} & set(found)


def test_ranks_have_labels_that_say_where_they_are(page: Page) -> None:
    """Rank, node, instance and role; one that ended is not up, and has no memory any more."""
    page.load()
    page.beat()
    page.hear("ended", node="n1", rank=3, pid=103, main=True, how="signal SIGKILL", name="tritonserver")
    found = page.samples()
    assert [labels for labels, _ in found["rank_up"]] == [
        {"rank": str(rank), "node": f"n{rank // 2}", "instance": str(rank // 2), "role": role}
        for rank, role in enumerate(["leader", "worker", "leader", "worker"])
    ]
    assert [value for _, value in found["rank_up"]] == [1, 1, 1, 0]
    assert [labels["state"] for labels, _ in found["rank_state"]] == ["loading", "loading", "loading", "ended"]
    assert [value for _, value in found["rank_rss_bytes"]] == [2 << 20] * 3
    assert {labels["node"] for labels, _ in found["node_silent_seconds"]} == {"n0", "n1"}


def test_a_counter_never_goes_back(page: Page) -> None:
    """A compiler that a rank ran ends, and its CPU time leaves the sum over living processes."""
    page.load()
    for user_s in (1.0, 9.0, 3.0, 4.0):
        page.beat(user_s)
    assert [value for _, value in page.samples()["rank_cpu_seconds_total"]] == [10.5] * 4


def test_a_logs_age_is_since_it_has_grown(page: Page) -> None:
    """Not since its figures came."""
    page.load()
    page.beat(log=10)
    page.exporter.tally.logged = {rank: at - 100.0 for rank, at in page.exporter.tally.logged.items()}
    page.beat(log=10)
    assert all(value >= 100 for _, value in page.samples()["rank_log_age_seconds"])
    page.beat(log=11)
    assert all(value < 100 for _, value in page.samples()["rank_log_age_seconds"])


def test_gpus_are_named_by_number_and_uuid(page: Page) -> None:
    """Memory in bytes, use from 0 to 1, and which of them each rank uses; a figure that is not known is left out."""
    page.load()
    page.hear("gpus", node="n0", gpus=[{"gpu": 3, "uuid": "GPU-a", "total_mib": 1000}])
    ranks = {"0": {"rss_mib": 1, "gpu_mib": 5, "gpu_util": 50, "gpus": [3, 4]}, "1": {"rss_mib": 1}}
    page.hear("sample", node="n0", ranks=ranks, gpus={"3": [10, 75], "4": [20, None]})
    page.hear("xid", node="n0", gpu=3, xid=79)
    page.hear("xid", node="n0", gpu=3, xid=31, other=True)
    found = page.samples()
    three, four = ({"node": "n0", "gpu": "3", "uuid": "GPU-a"}, {"node": "n0", "gpu": "4", "uuid": ""})
    assert found["gpu_memory_used_bytes"] == [(three, 10 << 20), (four, 20 << 20)]
    assert found["gpu_memory_total_bytes"] == [(three, 1000 << 20)]
    assert found["gpu_utilization_ratio"] == [(three, 0.75)]
    ((labels, value),) = found["rank_gpu_memory_bytes"]
    assert (labels["rank"], value) == ("0", 5 << 20)
    assert [labels["gpus"] for labels, _ in found["rank_gpus_info"]] == ["3,4"]
    assert found["xid_errors_total"] == [({"node": "n0"}, 1)]


def test_what_the_heads_own_questions_bring(page: Page) -> None:
    """The last generation of each instance and how long it took, and its health."""
    page.load()
    page.exporter.tally.answered(probe.Said(0, probe.Answer(200, ""), generation=True, took_s=0.25))
    page.exporter.tally.answered(probe.Said(1, probe.Answer(None, "timed out"), generation=True, took_s=60.0))
    page.exporter.tally.answered(probe.Said(1, probe.Answer(503, "")))
    found = page.samples()
    assert [(labels["instance"], labels["rank"], value) for labels, value in found["probe_success"]] == [
        ("0", "0", 1),
        ("1", "2", 0),
    ]
    assert [value for _, value in found["probe_duration_seconds"]] == [0.25, 60]
    assert [(labels["instance"], value) for labels, value in found["instance_ready"]] == [("1", 0)]


TRITON = (PAGES / "triton-1.txt").read_bytes()


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>log in</html>\n"), (500, TRITON), (200, b""), (200, TRITON + b"half a li")]
)
def test_a_leader_that_gives_no_page_costs_the_others_nothing(page: Page, status: int, body: bytes) -> None:
    """Its own figures are missing, it is told that they are, and all else is there; a comment says why."""

    def answer(_path: str, _body: dict[str, object]) -> tuple[int, Iterator[bytes]]:
        return status, iter([body])

    page.load()
    with serve(answer) as served:
        port = urlsplit(served.url).port or 0
        page.leaders[1] = probe.Leader(1, "127.0.0.1", 0, 0, port)
        page.leaders[0] = probe.Leader(0, "127.0.0.1", 0, 0, 1)
        found = page.samples()
        text = page.exporter.make(EVERYTHING).decode()
    assert [(labels["instance"], value) for labels, value in found["scrape_up"]] == [("0", 0), ("1", 0)]
    assert "run_state" in found and "nv_inference_request_success" not in found
    remarks = [line for line in text.splitlines() if line.startswith("# instance")]
    assert [line.split(":")[0] for line in remarks] == ["# instance 0", "# instance 1"]


def test_a_request_may_leave_parts_out(page: Page) -> None:
    """Of thousands of ranks an overview may do; what it asks for is a page of its own."""
    page.load()
    page.beat()
    with serve(lambda path, body: (200, iter([TRITON]))) as served:
        page.leaders[1] = probe.Leader(1, "127.0.0.1", 0, 0, urlsplit(served.url).port or 0)
        assert {"rank_up", "nv_cpu_utilization", "ranks"} <= set(page.samples(route("/metrics")))
        assert {"rank_up", "nv_cpu_utilization"} & set(page.samples(route("/metrics?ranks=0"))) == {
            "nv_cpu_utilization"
        }
        found = page.samples(route("/metrics?instances=0&ranks=0"))
    assert not {"rank_up", "nv_cpu_utilization", "scrape_up"} & set(found) and "ranks" in found
    assert route("/metrics?ranks=1&x=%00") == EVERYTHING
    assert [route(target) for target in ("/", "/metrics/", "//metrics", "http://n/metrics")] == [""] * 4


def test_every_family_of_the_table_is_on_the_page(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/metrics.md and the dashboard are checked against that table."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", "4000000000")
    full = Page(page.folder / "again", page.fields)
    for kind, at in (("begin", 1.0), ("server", 2.0)):
        full.records.append({"t": at, "kind": kind})
    for rank in range(4):
        full.records.append({"t": 3.0, "kind": "start", "rank": rank, "node": "n0"})
    full.load()
    full.beat()
    full.hear("hello", node="n0")
    full.records += [journal.record("state", state="READY")]
    full.hear("gpus", node="n0", gpus=[{"gpu": 0, "uuid": "GPU-a", "total_mib": 1000}])
    used = {"gpu_mib": 5, "gpu_util": 50, "gpus": [0]}
    full.hear("sample", node="n0", ranks={"0": used}, gpus={"0": [10, 75]})
    for generation in (True, False):
        full.exporter.tally.answered(probe.Said(0, probe.Answer(200, ""), generation=generation))
    full.leaders[0] = probe.Leader(0, "127.0.0.1", 0, 0, 1)
    assert set(full.samples()) == set(FAMILIES)


def test_a_hostile_name_stays_a_label(tmp_path: Path) -> None:
    """A run's name may hold what the format gives a meaning."""
    page = Page(tmp_path, {"name": 'a"b\\c}ü 1'})
    ((labels, _),) = page.samples()["run_info"]
    assert labels["name"] == 'a"b\\c}ü 1'


def test_thousands_of_ranks(tmp_path: Path) -> None:
    """The page is whole, and the second one is made of what the first has found out."""
    page = Page(tmp_path, {"replicas": 512, "resources": {"nodes": 2048}})
    page.load()
    page.beat()
    assert len(page.plan["ranks"]) == 4096
    assert len(page.samples()["rank_rss_bytes"]) == 4096
    folded = page.exporter._folded
    assert page.exporter.make(EVERYTHING) and page.exporter._folded is folded


@pytest.mark.parametrize(
    ("access", "interface", "host"),
    [
        ({"bind": "all"}, None, "localhost"),
        ({"bind": "loopback"}, None, "127.0.0.1"),
        ({"bind": "interface"}, "lo", "127.0.0.1"),
        ({"bind": "interface"}, "none0", ""),
    ],
)
def test_it_listens_on_the_addresses_that_the_site_allows(
    page: Page, monkeypatch: pytest.MonkeyPatch, access: dict[str, str], interface: str | None, host: str
) -> None:
    """Where servers may not be reached from outside the page may not either; without such an address there is none."""
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    page.plan.update(access=access, interface=interface)
    noted: list[str] = []
    address = page.exporter.start(lambda kind, **_: noted.append(kind))
    assert (urlsplit(address).hostname or "") == host
    assert noted == ["exporter" if host else "warning"]


def test_it_listens_where_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a port of the site's range, told in the journal; off where the spec says so; never a reason to fail."""
    noted: list[tuple[str, dict[str, Any]]] = []

    def note(kind: str, **fields: Any) -> None:
        noted.append((kind, fields))

    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    page = Page(tmp_path / "on")
    address = urlsplit(page.exporter.start(note))
    assert noted == [("exporter", {"host": "localhost", "port": address.port})]
    assert page.plan["ports"]["low"] <= (address.port or 0) <= page.plan["ports"]["high"]
    connection = http.client.HTTPConnection("localhost", address.port or 0, timeout=60)
    connection.request("GET", address.path)
    assert b"slurm_llm_run_info{" in connection.getresponse().read()
    connection.close()
    assert Page(tmp_path / "off", {"metrics": {"exporter": False}}).exporter.start(note) == ""
    page.plan["ports"].update(low=address.port, high=address.port)
    assert page.exporter.start(note) == ""
    assert [kind for kind, _ in noted] == ["exporter", "warning"]
