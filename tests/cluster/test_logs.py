"""Logs of a real job, followed from its submission through a failure and a restart to its end."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.cluster.conftest import Run, User, wait_for
from tests.cluster.test_main_job import small

pytestmark = pytest.mark.cluster

Line = dict[str, Any]


def follow(run: Run, got: list[Line], *more: str) -> threading.Thread:
    """Follow the run's logs until they end by themselves; fill `got` then."""

    def work() -> None:
        done = run.cli("logs", "-f", "-n", "all", "--json", *more)
        got.extend(json.loads(row) for row in done.stdout.splitlines())

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_run_is_followed_through_a_restart_to_its_end(user: User) -> None:
    """In order of time, each attempt's lines, ranks folded, and the command ends with the run; later it is the same."""
    fault = {"fault": "rank=3,at=load,kind=exit:3"}
    spec = small(
        "followed",
        4,
        resources={"nodes": 2, "time": "00:05:00"},
        preflight={"mpi": False},
        recovery={"restarts": 1, "backoff_s": 1},
        engine_args=fault,
    )
    run = user.submit(spec)
    got: list[Line] = []
    thread = follow(run, got, "--fold")
    wait_for("the second attempt serves", (run.job / "endpoint.1.json").exists, 90)
    run.cli("cancel")
    thread.join(60)
    assert not thread.is_alive(), "logs -f outlives its run"

    own = [line for line in got if line["rank"] is not None]
    assert {line["attempt"] for line in own} == {0, 1}
    for attempt in (0, 1):
        times = [line["at"] for line in own if line["attempt"] == attempt and "joining MPI" in line["text"]]
        assert times, "every attempt loads"
    loading = [line for line in own if "loading: tensorrt_llm" in line["text"]]
    assert sorted(rank for line in loading for rank in line["ranks"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert any(len(line["ranks"]) > 1 for line in loading), "ranks that say the same are one line"
    said = [line["text"] for line in got if line["source"] == "job"]
    order = ["attempt 0 on", "LOADING", "FAILED", "is started again", "attempt 1 on", "READY"]
    places = [next(at for at, text in enumerate(said) if word in text) for word in order]
    assert places == sorted(places)

    later = [json.loads(row) for row in run.cli("logs", "--attempt", "all", "-n", "all", "--json").stdout.splitlines()]
    assert [line["at"] for line in later] == sorted(line["at"] for line in later)
    assert {(line["attempt"], line["text"]) for line in own} <= {(line["attempt"], line["text"]) for line in later}
    errors = run.cli("logs", "--attempt", "0", "--level", "error", "--source", "job").stdout
    assert "[job] slurm_llm: FAILED: rank 3 on node" in errors
    on_node = run.cli("logs", "--node", user.cluster.nodes[1], "--json").stdout.splitlines()
    assert {json.loads(row)["rank"] for row in on_node} == {2, 3}
