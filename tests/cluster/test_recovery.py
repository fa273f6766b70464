"""A server that fails is started again, on other nodes, or its job is requeued, where the spec asks for it."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_llm import devcluster
from slurm_llm.api import find_run
from slurm_llm.errors import NotReady, RequestFailed
from slurm_llm.process import run as execute
from slurm_llm.surroundings import Surroundings
from tests.cluster.conftest import DEMO, Run, Spec, User, wait_for
from tests.cluster.test_main_job import ask, small

pytestmark = pytest.mark.cluster

PATIENCE_S = 30.0
FOUR_RANKS = small("recovery", 4, resources={"nodes": 2, "time": "00:10:00"}, preflight={"mpi": False})


class Client:
    """Asks a run's newest endpoint through the package without a pause, and keeps how each request went."""

    def __init__(self, run: Run) -> None:
        environ = {**os.environ, "SLURM_CONF": str(run.user.cluster.slurm_conf)}
        self.run = find_run(str(run.path), around=Surroundings(environ, Path("/")))
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
                self.run.generate("Hello", max_tokens=2, timeout_s=2 * PATIENCE_S)
                self.good += 1
            except RequestFailed as error:
                self.lost.append(str(error))
            except NotReady:
                time.sleep(0.1)
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def end(self) -> None:
        """Stop asking; a request that hangs fails here."""
        self.stop.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "a request hangs"


def serves(run: Run, attempt: int) -> str:
    """Wait until an attempt serves, and return where."""
    path = run.job / f"endpoint.{attempt}.json"
    wait_for(f"attempt {attempt} serves", path.exists, 60)
    return str(json.loads(path.read_text())["instances"][0]["url"])


def result(run: Run, attempt: int) -> dict[str, Any]:
    """Wait for an attempt's result and return it."""
    path = run.job / f"result.{attempt}.json"
    wait_for(f"attempt {attempt} has ended", path.exists, 60)
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def status(run: Run) -> dict[str, Any]:
    """Return what `status` says."""
    value: dict[str, Any] = json.loads(run.cli("status", "--json", check=False).stdout)
    return value


def found(run: Run, attempt: int, rank: int) -> list[dict[str, Any]]:
    """Return the records of a rank's processes that its node's agent has found in an attempt."""
    texts = [path.read_text() for path in (run.job / f"attempt-{attempt}" / "journal").glob("*.jsonl")]
    items = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
    gone = {item["pid"] for item in items if item["kind"] == "ended"}
    return [item for item in items if item["kind"] == "found" and item["rank"] == rank and item["pid"] not in gone]


def kill(run: Run, attempt: int, rank: int) -> None:
    """Kill the stub of a rank, which is what MPI and the model live in."""
    for item in found(run, attempt, rank):
        if not item["main"]:
            os.kill(item["pid"], signal.SIGKILL)


def nodes_of(run: Run, attempt: int) -> set[str]:
    """Return the nodes on which an attempt's ranks have been seen."""
    return {str(item["node"]) for rank in range(4) for item in found(run, attempt, rank)}


def ps(*argv: str) -> str:
    """Return what ps prints."""
    return execute(("ps", *argv)).stdout


def start_at_once(run: Run) -> None:
    """Slurm lets a requeued job wait for two minutes: wait only until the steps of its last start have gone.

    Step ids begin at 0 again, and PMIx cannot bind a socket that a step of the same id still holds.
    """
    wait_for("the job is in the queue again", lambda: run.slurm_state() == "PENDING", 60)
    wait_for("its steps have gone", lambda: f"slurmstepd: [{run.job_id}." not in ps("-eo", "args="))
    run.user.cluster.slurm("scontrol", "update", f"JobId={run.job_id}", "StartTime=now")


def test_a_failed_server_is_started_again_under_load(user: User) -> None:
    """Requests are answered again; those that were lost got an error, none hung; each attempt has its own logs."""
    run = user.submit({**DEMO, "recovery": {"restarts": 1, "backoff_s": 1}})
    run.wait_ready()
    client = Client(run)
    try:
        wait_for("the first answers", lambda: client.good > 3)
        os.kill(run.pid(5, main=False), signal.SIGKILL)
        serves(run, 1)
        before = client.good
        wait_for("answers of the second attempt", lambda: client.good > before + 3)
        said = status(run)
        assert (said["state"], said["attempt"]) == ("READY", 1)
        assert [(one["attempt"], one["state"]) for one in said["earlier"]] == [(0, "FAILED")]
    finally:
        client.end()
    assert client.longest_s < PATIENCE_S
    assert all(client.lost)
    first = result(run, 0)
    assert (first["state"], first["first"]["rank"], first["exit_code"]) == ("FAILED", 5, 1)
    assert all((run.job / f"attempt-{number}" / "rank-5.log").stat().st_size for number in (0, 1))
    run.cli("cancel")
    assert result(run, 1)["state"] == "COMPLETED"
    run.wait_gone()
    assert run.slurm_state() == "COMPLETED"


def test_restarts_come_to_an_end(user: User) -> None:
    """The last failure is the job's; its status says so to Slurm too."""
    run = user.submit({**DEMO, "recovery": {"restarts": 1, "backoff_s": 0}})
    for attempt in (0, 1):
        serves(run, attempt)
        kill(run, attempt, 3)
    run.wait_gone()
    assert run.slurm_state() == "FAILED"
    assert not (run.job / "attempt-2").exists()
    assert status(run)["state"] == "FAILED"
    assert "the server is not started again: no restart is left" in run.output()


def test_a_cancel_between_two_starts_is_the_end(user: User) -> None:
    """Nobody wants the server back that they have just cancelled."""
    run = user.submit({**DEMO, "recovery": {"restarts": 3, "backoff_s": 60}})
    run.wait_ready()
    os.kill(run.pid(1, main=False), signal.SIGKILL)
    wait_for("the first attempt's result", (run.job / "result.0.json").exists)
    wait_for("the restart is announced", lambda: "started again in 60 s" in run.output())
    assert status(run)["state"] == "STARTING"
    run.cli("cancel", check=False)
    run.wait_gone(20)
    assert not (run.job / "attempt-1").exists()


def lose_a_node(user: User, spec: Spec, *, of_script: bool = False) -> tuple[Run, str]:
    """Submit, and lose a node of the ranks, the script's or another one; the caller brings it back."""
    run = user.submit(spec)
    run.wait_ready()
    script = user.cluster.slurm("squeue", "-h", "-j", str(run.job_id), "-o", "%B").stdout.strip()
    node = script if of_script else min(nodes_of(run, 0) - {script})
    devcluster.node_action(user.cluster.state, node, "kill")
    return run, node


def test_a_lost_node_is_left_out_where_there_is_a_spare_one(user: User) -> None:
    """The job outlives it, the next attempt runs elsewhere and answers; nothing stays on the nodes that live."""
    run, node = lose_a_node(user, {**FOUR_RANKS, "recovery": {"restarts": 1, "backoff_s": 0, "spare_nodes": 1}})
    try:
        url = serves(run, 1)
        assert node not in nodes_of(run, 1)
        assert len(nodes_of(run, 1)) == 2
        assert ask(url, "The future of AI is", sampling_param_max_tokens=8)["text_output"] == "egilo wo"
        assert f"without {node} (lost in attempt 0)" in run.output()
        assert result(run, 0)["lost_node"] == node
        for name in set(user.cluster.nodes) - {node}:
            names = ("-name", f"llm{run.job_id}a0r*", "-o", "-name", f"llmrun-{run.job_id}.0")
            left = user.cluster.on_node(name, "find", "/dev/shm", "/tmp", *names).stdout
            assert left == "", name
        wait_for("Slurm has taken the node out", lambda: node not in _nodes_in_slurm(user, run), 90)
        assert ask(url, "Hello", sampling_param_max_tokens=2)["text_output"]
        run.cli("cancel")
        run.wait_gone()
        assert run.slurm_state() == "COMPLETED"
    finally:
        devcluster.node_action(user.cluster.state, node, "up")


def _nodes_in_slurm(user: User, run: Run) -> set[str]:
    listed = user.cluster.slurm("squeue", "-h", "-j", str(run.job_id), "-o", "%N").stdout.strip()
    return set(user.cluster.slurm("scontrol", "show", "hostnames", listed).stdout.split())


def test_without_a_spare_node_a_lost_one_is_the_end(user: User) -> None:
    """A restart that waits for a dead node would hold the others until the time limit."""
    run, node = lose_a_node(user, {**FOUR_RANKS, "recovery": {"restarts": 3, "backoff_s": 0}})
    try:
        wait_for("the end is told", lambda: "is not started again: 1 of its 2 nodes live" in run.output(), 60)
        run.wait_gone(90)
        assert not (run.job / "attempt-1").exists()
    finally:
        devcluster.node_action(user.cluster.state, node, "up")


def gpus_in_use(user: User) -> int:
    """Return how many GPUs Slurm believes to be in use."""
    shown = user.cluster.slurm("scontrol", "--details", "show", "node").stdout
    return sum(int(count) for count in re.findall(r"GresUsed=gpu:(\d+)", shown))


def test_a_job_that_loses_its_scripts_node_does_not_stay(user: User) -> None:
    """With --no-kill Slurm would keep it RUNNING, without a script and without steps, until its time limit."""
    spec = {**FOUR_RANKS, "recovery": {"restarts": 1, "spare_nodes": 1}}
    run, node = lose_a_node(user, spec, of_script=True)
    try:
        value = result(run, 0)
        assert (value["state"], value["lost_node"]) == ("FAILED", node)
        run.wait_gone(90)
        assert status(run)["state"] == "FAILED"
    finally:
        devcluster.node_action(user.cluster.state, node, "up")
    wait_for("no GPU is in use", lambda: gpus_in_use(user) == 0)


@pytest.mark.parametrize("recovery", [{"requeue": 1}, {"restarts": 1, "spare_nodes": 1, "requeue": 1}])
def test_a_requeue_waits_until_slurm_has_given_up_a_lost_node(user: User, recovery: dict[str, int]) -> None:
    """Before that Slurm would keep GPUs of the other nodes marked as used, for every job."""
    run, node = lose_a_node(user, {**FOUR_RANKS, "recovery": recovery})
    try:
        if "spare_nodes" in recovery:
            serves(run, 1)
            kill(run, 1, 0)
        wait_for("the job is in the queue again", lambda: run.slurm_state() == "PENDING", 90)
        run.cli("cancel", check=False)
        run.wait_gone(90)
    finally:
        devcluster.node_action(user.cluster.state, node, "up")
    wait_for("no GPU is in use", lambda: gpus_in_use(user) == 0)


def test_a_job_is_requeued_without_the_node_that_is_at_fault(user: User) -> None:
    """Its GPU is broken, says the log: the next start is elsewhere; requeues come to an end as restarts do."""
    run = user.submit({**FOUR_RANKS, "recovery": {"requeue": 1}})
    run.wait_ready()
    (node,) = {str(item["node"]) for item in found(run, 0, 3)}
    with (run.attempt / "rank-3.log").open("a") as log:
        log.write("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    kill(run, 0, 3)
    start_at_once(run)
    assert f"the job is requeued; requeues left after that: 0; without {node}" in run.output()
    serves(run, 1)
    assert node not in nodes_of(run, 1)
    said = status(run)
    assert (said["state"], said["attempt"], said["earlier"][0]["state"]) == ("READY", 1, "FAILED")
    assert (run.job / "attempt-0" / "rank-3.log").stat().st_size
    kill(run, 1, 3)
    assert result(run, 1)["state"] == "FAILED"
    run.wait_gone()
    assert run.slurm_state() == "FAILED"


def test_a_run_that_waits_for_its_requeue_is_pending(user: User) -> None:
    """Whoever waits for it waits on; a cancel ends it."""
    run = user.submit({**FOUR_RANKS, "recovery": {"requeue": 1}})
    run.wait_ready()
    kill(run, 0, 1)
    wait_for("the job is in the queue again", lambda: run.slurm_state() == "PENDING", 60)
    # Slurm gives its reason with its next look at the queue.
    wait_for("the reason is known", lambda: (status(run)["pending"] or {}).get("code") == "BeginTime", 60)
    said = status(run)
    assert said["state"] == "PENDING"
    assert said["notes"][0] == "requeued: it waits to start once more"
    run.cli("cancel", check=False)
    run.wait_gone()
    assert status(run)["state"] in ("FAILED", "CANCELLED")


def test_a_job_that_slurm_requeues_starts_afresh(user: User) -> None:
    """Nobody has asked for recovery, but the site lets Slurm requeue jobs: each start is an attempt of its own."""
    run = user.submit({**FOUR_RANKS, "site": {"sbatch_skip": ["--no-requeue"]}})
    run.wait_ready()
    user.cluster.slurm("scontrol", "requeue", str(run.job_id))
    start_at_once(run)
    url = serves(run, 1)
    assert result(run, 0)["state"] == "COMPLETED"
    assert ask(url, "Hello", sampling_param_max_tokens=2)["text_output"]
    assert status(run)["attempt"] == 1
    run.cli("cancel")
    assert result(run, 1)["state"] == "COMPLETED"
