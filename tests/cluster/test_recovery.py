"""A server that fails is started again in its allocation, where the spec asks for it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import DEMO, Run, User, wait_for
from tests.cluster.test_main_job import ask

pytestmark = pytest.mark.cluster

PATIENCE_S = 30.0


class Client:
    """Asks the newest endpoint of a run without a pause, and keeps how each request went."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.good = 0
        self.lost: list[str] = []
        self.longest_s = 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                ask(_newest(self.run), "Hello", sampling_param_max_tokens=2)
                self.good += 1
            except (urllib.error.URLError, OSError, ValueError) as error:
                self.lost.append(str(error))
                time.sleep(0.1)
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def end(self) -> None:
        """Stop asking; a request that hangs fails here."""
        self.stop.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "a request hangs"


def _newest(run: Run) -> str:
    newest = max(run.job.glob("endpoint.*.json"), key=lambda path: int(path.name.split(".")[1]))
    return str(json.loads(newest.read_text())["instances"][0]["url"])


def _wait_for_endpoint(run: Run, attempt: int) -> Path:
    path = run.job / f"endpoint.{attempt}.json"
    wait_for(f"attempt {attempt} serves", path.exists, 60)
    return path


def test_a_failed_server_is_started_again_under_load(user: User) -> None:
    """Requests are answered again; those that were lost got an error, none hung; each attempt has its own logs."""
    run = user.submit({**DEMO, "recovery": {"restarts": 1, "backoff_s": 1}})
    run.wait_ready()
    client = Client(run)
    wait_for("the first answers", lambda: client.good > 3)
    os.kill(run.pid(5, main=False), signal.SIGKILL)
    _wait_for_endpoint(run, 1)
    before = client.good
    wait_for("answers of the second attempt", lambda: client.good > before + 3)
    status: dict[str, Any] = json.loads(run.cli("status", "--json").stdout)
    assert (status["state"], status["attempt"]) == ("READY", 1)
    client.end()
    assert client.longest_s < PATIENCE_S
    first = json.loads((run.job / "result.0.json").read_text())
    assert (first["state"], first["first"]["rank"]) == ("FAILED", 5)
    assert all((run.job / f"attempt-{number}" / "rank-5.log").stat().st_size for number in (0, 1))
    run.cli("cancel")
    wait_for("the second result", (run.job / "result.1.json").exists)
    run.wait_gone()
    assert run.slurm_state() == "COMPLETED"


def test_restarts_come_to_an_end(user: User) -> None:
    """The last failure is the job's; its status says so to Slurm too."""
    run = user.submit({**DEMO, "recovery": {"restarts": 1, "backoff_s": 0}})
    for attempt in (0, 1):
        _wait_for_endpoint(run, attempt)
        text = (run.job / f"attempt-{attempt}" / "journal").glob("*.jsonl")
        records = [json.loads(line) for path in text for line in path.read_text().splitlines() if line.startswith("{")]
        stubs = {item["pid"] for item in records if item["kind"] == "found" and item["rank"] == 3 and not item["main"]}
        gone = {item["pid"] for item in records if item["kind"] == "ended"}
        for pid in stubs - gone:
            os.kill(pid, signal.SIGKILL)
    run.wait_gone()
    assert run.slurm_state() == "FAILED"
    assert not (run.job / "attempt-2").exists()
    assert json.loads(run.cli("status", "--json", check=False).stdout)["state"] == "FAILED"


def test_a_cancel_between_two_starts_is_the_end(user: User) -> None:
    """Nobody wants the server back that they have just cancelled."""
    run = user.submit({**DEMO, "recovery": {"restarts": 3, "backoff_s": 60}})
    run.wait_ready()
    os.kill(run.pid(1, main=False), signal.SIGKILL)
    wait_for("the first attempt's result", (run.job / "result.0.json").exists)
    wait_for("the restart is announced", lambda: "started again in 60 s" in run.output())
    assert json.loads(run.cli("status", "--json").stdout)["state"] == "STARTING"
    run.cli("cancel", check=False)
    run.wait_gone(20)
    assert not (run.job / "attempt-1").exists()
