"""Hangs and lost nodes: named within the limits of the spec, with the rank that holds up the others."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

import pytest

from slurm_llm import devcluster
from tests.cluster.conftest import DEMO, Run, User, wait_for
from tests.cluster.test_main_job import ask

pytestmark = pytest.mark.cluster

LIMITS = {"answer_s": 5, "probe_s": 3, "stall_s": 8}


def _submit(user: User, **timeouts: int) -> Run:
    run = user.submit({**DEMO, "timeouts": timeouts})
    run.wait_ready()
    return run


def _named(run: Run, timeout_s: float) -> str:
    """Return what the job's output says of the failure."""

    def failure() -> str:
        return next((row for row in run.output().splitlines() if " FAILED: " in row), "")

    return str(wait_for("the failure is named", failure, timeout_s))


@pytest.mark.parametrize("rank", [0, 5])
def test_a_stopped_rank_is_named(user: User, rank: int) -> None:
    """A process that is stopped answers nothing and ends nothing: probe and answer limits bound the time."""
    run = _submit(user, **LIMITS)
    os.kill(run.pid(rank, main=False), signal.SIGSTOP)
    said = _named(run, 30)
    assert f"rank {rank} holds up the others: a process of it is stopped" in said
    result: dict[str, Any] = run.wait_ended()
    assert (result["state"], run.slurm_state()) == ("FAILED", "FAILED")


def test_a_run_goes_on_without_its_folder(user: User) -> None:
    """Somebody removes the job's logs while it serves: what the head knows is written again, and a cancel is heard."""
    run = _submit(user)
    url = run.url()
    shutil.rmtree(run.job)
    wait_for("what is known is there again", lambda: any(item["kind"] == "found" for item in run.records()), 30)
    assert ask(url, "hello")["text_output"]
    user.cluster.slurm("scancel", "--signal=TERM", "--batch", str(run.job_id))
    assert run.wait_ended()["state"] == "COMPLETED"
    assert "it was removed" in run.output()


@pytest.mark.parametrize(
    ("action", "why"),
    [("cut", "it does not answer on the network"), ("kill", "neither its agent nor its slurmd answers")],
)
def test_a_lost_node_is_named_long_before_slurm_gives_it_up(user: User, action: str, why: str) -> None:
    """Slurm only knows it after SlurmdTimeout, and would say so; silence and the dead network say it before."""
    run = _submit(user)
    node = user.cluster.nodes[2]
    devcluster.node_action(user.cluster.state, node, action)
    try:
        said = _named(run, 30)
        assert f"node {node} is lost: {why}" in said
        run.wait_gone(90)
    finally:
        devcluster.node_action(user.cluster.state, node, "heal" if action == "cut" else "up")
