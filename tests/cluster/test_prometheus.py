"""Debian's Prometheus scrapes a running job through the list that `metrics --sd` writes; the job's page is sound."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent.runfamilies import FAMILIES
from tests.cluster.conftest import Cluster, Run, wait_for, watched_user
from tests.observe.test_metrics_dashboard import GRAFANA, expressions

pytestmark = pytest.mark.cluster

SPEC = {
    "name": "scraped",
    "engine": "rehearsal",
    "tensor_parallel_size": 2,
    "replicas": 2,
    "resources": {"nodes": 2, "time": "00:10:00"},
}
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str) -> str:
    """Return a page, past any proxy."""
    with OPENER.open(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus of the test's own."""

    url: str

    def api(self, path: str, **query: str) -> Any:
        """Return the data of an answer; anything but success is an error."""
        value = json.loads(get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"))
        assert value["status"] == "success", value
        return value["data"]

    def ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series that an expression has now."""
        rows = self.api("query", query=expression)["result"]
        return [(row["metric"], float(row["value"][1])) for row in rows]

    def health(self) -> list[str]:
        """Return how each target is."""
        return [one["health"] for one in self.api("targets", state="active")["activeTargets"]]


@pytest.fixture(scope="module")
def run(cluster: Cluster) -> Iterator[Run]:
    """Two instances of two ranks each, on two nodes."""
    for user in watched_user(cluster, "prometheus"):
        made = user.submit(SPEC)
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def prometheus(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Debian's Prometheus by the configuration in docs/grafana, only that it looks more often, and elsewhere."""
    folder = tmp_path_factory.mktemp("prometheus")
    run.user.cli("metrics", "--sd", "-o", "sd.json")
    text = (GRAFANA / "prometheus.yml").read_text(encoding="utf-8")
    for there, here in (
        ("/shared/prometheus/*.json", str(run.user.folder / "sd.json")),
        ("alerts.yaml", str(GRAFANA / "alerts.yaml")),
        ("15s", "1s"),
        ("30s", "1s"),
        ("scrape_timeout: 10s", "scrape_timeout: 1s"),
    ):
        assert there in text
        text = text.replace(there, here)
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(["prometheus", *words, f"--web.listen-address={place}"], stdout=log, stderr=log)
    made = Prometheus(f"http://{place}")
    try:
        wait_for("Prometheus answers", lambda: child.poll() is not None or answers(made))
        assert child.poll() is None, (folder / "log").read_text()
        yield made
    finally:
        child.terminate()
        child.wait(30)


def answers(prometheus: Prometheus) -> bool:
    """Tell whether Prometheus is up."""
    try:
        return "Ready" in get(f"{prometheus.url}/-/ready")
    except OSError:
        return False


def exporter(run: Run) -> str:
    """Return the address of the job's page."""
    address: str = json.loads(run.cli("endpoint", "--json").stdout)["exporter"]
    return address


def promtool(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Prometheus' own checker."""
    return subprocess.run(["promtool", *words], input=given, capture_output=True, text=True, timeout=60, check=False)


def test_the_page_is_in_order(run: Run) -> None:
    """Prometheus' own checker has nothing against our families, and reads the leaders' beside them (3: their names)."""
    ours = promtool("check", "metrics", given=get(f"{exporter(run)}?instances=0"))
    assert (ours.returncode, ours.stdout + ours.stderr) == (0, "")
    whole = promtool("check", "metrics", given=get(exporter(run)))
    assert whole.returncode == 3 and "slurm_llm_" not in whole.stderr and "error while linting" not in whole.stderr
    for words in (("rules", "alerts.yaml"), ("config", "prometheus.yml")):
        assert promtool("check", words[0], str(GRAFANA / words[1])).returncode == 0


def test_it_was_there_before_the_model(run: Run) -> None:
    """A start is watched too; and what a shell gets is the same address."""
    at = {item["kind"]: item["t"] for item in run.records() if item["kind"] in ("exporter", "leader")}
    assert at["exporter"] < at["leader"]
    assert f"SLURM_LLM_EXPORTER={exporter(run)}\n" in run.cli("endpoint", "--env").stdout + "\n"


def test_series_say_whose_they_are(run: Run, prometheus: Prometheus) -> None:
    """One scrape brings the run's own families and both instances', with rank, node and instance; the list says which
    job it is."""
    wait_for("the target is up", lambda: prometheus.health() == ["up"])
    up = prometheus.ask("slurm_llm_rank_up")
    assert sorted((one["rank"], one["instance"], one["role"], value) for one, value in up) == [
        ("0", "0", "leader", 1),
        ("1", "0", "worker", 1),
        ("2", "1", "leader", 1),
        ("3", "1", "worker", 1),
    ]
    nodes = {one["rank"]: one["node"] for one, _ in up}
    asked = prometheus.ask("nv_inference_request_success")
    assert [(one["instance"], one["rank"], one["node"]) for one, _ in asked] == [
        ("0", "0", nodes["0"]),
        ("1", "2", nodes["2"]),
    ]
    assert {(one["slurm_job"], one["run_name"]) for one, _ in (*up, *asked)} == {(str(run.job_id), "scraped")}
    told = {name.removeprefix("slurm_llm_") for name in prometheus.api("label/__name__/values")}
    gpus = {name for name in FAMILIES if "gpu" in name}
    assert set(FAMILIES) - gpus <= told


def test_the_dashboard_and_the_alerts_can_be_asked(prometheus: Prometheus) -> None:
    """Every expression is one, by the real Prometheus; those of every run have an answer."""
    wait_for("two scrapes", lambda: prometheus.ask("count_over_time(slurm_llm_attempt[1m]) > 2"))
    found = {text: prometheus.ask(text) for text in sorted(set(expressions()))}
    ours = [
        text for text in found if "slurm_llm_run" in text or "slurm_llm_rank_" in text or "nv_inference_req" in text
    ]
    silent = {
        text for text in ours if not found[text] and not any(word in text for word in ("gpu", "summary", "FAILED"))
    }
    assert {text for text in silent if "==" not in text and "<" not in text} == set()
    assert prometheus.ask('ALERTS{alertname!~"RunEndsSoon"}') == []


def test_a_leader_that_stands_still_costs_only_its_own_figures(run: Run, prometheus: Prometheus) -> None:
    """The run's page goes on, the other instance's figures too, and it says whose are missing."""
    pid, lacks = run.pid(2, main=True), "# instance 1: no answer within"
    signal_to(pid, signal.SIGSTOP)
    try:
        # A page is handed out for a moment after it was made.
        text = wait_for("the page tells", lambda: text_with(run, lacks))
    finally:
        signal_to(pid, signal.SIGCONT)
    assert [line[-1] for line in text.splitlines() if line.startswith("slurm_llm_scrape_up")] == ["1", "0"]
    assert 'nv_inference_count{rank="0"' in text and 'nv_inference_count{rank="2"' not in text
    wait_for("all figures again", lambda: {value for _, value in prometheus.ask("slurm_llm_scrape_up")} == {1.0})


def text_with(run: Run, words: str) -> str:
    """Return the page once it has these words, else an empty text."""
    text = get(exporter(run))
    return text if words in text else ""


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal as root."""
    subprocess.run(["kill", f"-{number.value}", str(pid)], check=True)


def test_a_flood_of_clients_does_not_disturb_the_job(run: Run, prometheus: Prometheus) -> None:
    """200 connections that say nothing, or ask and never read: others get the page, the run goes on."""
    place = urllib.parse.urlsplit(exporter(run))
    with ExitStack() as held:
        for number in range(200):
            made = held.enter_context(socket.create_connection((place.hostname or "", place.port or 0), 30))
            made.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" if number % 2 else b"GET /")
        before = prometheus.ask("slurm_llm_node_silent_seconds")
        assert 'slurm_llm_run_state{state="READY"} 1' in get(exporter(run))
    assert len(before) == 2
    assert json.loads(run.cli("status", "--json").stdout)["state"] == "READY"
    assert "warning" not in {item["kind"] for item in run.records()}


def test_an_ended_job_leaves_the_list(run: Run, prometheus: Prometheus) -> None:
    """And Prometheus lets it go."""
    sd = Path(run.user.folder / "sd.json")
    run.cli("cancel")
    run.user.cli("metrics", "--sd", "-o", "sd.json")
    assert json.loads(sd.read_text()) == []
    wait_for("the target is gone", lambda: prometheus.health() == [])
    (gone,) = (text for text in expressions() if "unless on (run)" in text)
    (served,) = wait_for("its absence is seen", lambda: prometheus.ask(gone))
    assert served[0]["slurm_job"] == str(run.job_id)
