"""`top` of a real run under load: what is shown is what goes on, before, while and after it serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.conftest import Run, User
from tests.cluster.test_main_job import ask

pytestmark = pytest.mark.cluster


def picture(run: Run) -> dict[str, Any]:
    """Return what `top --json` says."""
    value: dict[str, Any] = json.loads(run.cli("top", "--once", "--json", "--interval", "1").stdout)
    return value


@contextmanager
def load(url: str) -> Iterator[None]:
    """Ask for short texts, one after the other, while the block runs."""
    enough = threading.Event()

    def work() -> None:
        while not enough.is_set():
            ask(url, "Hello", sampling_param_max_tokens=2)

    asking = threading.Thread(target=work)
    asking.start()
    try:
        yield
    finally:
        enough.set()
        asking.join()


def test_a_run_under_load(user: User) -> None:
    """Eight of eight ranks, the memory of four nodes, requests by the second, the phases of the start, the end."""
    run = user.submit()
    with load(run.url()):
        made = picture(run)
        shown = run.cli("top", "--once", "--interval", "1").stdout
    assert [rank["state"] for rank in made["ranks"]] == ["ready"] * 8
    assert made["total"]["requests_per_s"] > 0
    assert made["instances"][0]["look"]["figures"]["failed"] == 0
    assert made["instances"][0]["look"]["probe"]["good"] and made["instances"][0]["look"]["probe"]["took_s"] > 0
    assert [node["states"] for node in made["nodes"]] == [{"ready": 2}] * 4
    assert all(node["rss_mib"] > 10 for node in made["nodes"])
    took = {phase["name"]: phase["seconds"] for phase in made["phases"]}
    assert set(took) >= {"queue", "check", "launch", "load", "answer"} and None not in took.values()
    assert [event["text"] for event in made["events"]][-1] == "READY"
    assert "8 of 8 ready on 4 nodes" in shown and max(map(len, shown.splitlines())) <= 80
    run.cli("cancel")
    run.wait_gone()
    after = picture(run)
    assert after["status"]["state"] == "COMPLETED"
    assert after["total"] is None and {rank["state"] for rank in after["ranks"]} <= {"ended", "gone"}
