"""A rank that dies, in any phase and manner, is named first, in bounded time, and nothing stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import DEMO, Run, User, wait_for
from tests.cluster.test_main_job import small

pytestmark = pytest.mark.cluster


def end_of(run: Run, rank: int) -> dict[str, object]:
    """Wait for the end, check what it says of `rank`, and return the result."""
    result = run.wait_ended(60)
    assert (result["state"], run.slurm_state()) == ("FAILED", "FAILED"), result
    assert result["first"] is not None, result
    assert (result["first"]["rank"], result["first"]["node"]) == (rank, run.user.cluster.nodes[rank // 2]), result
    status = run.cli("status").stdout
    assert f"rank {rank}" in status
    assert f"rank {rank}" in run.output()
    return dict(result)


@pytest.mark.parametrize(
    ("rank", "main", "number"),
    [
        pytest.param(0, True, signal.SIGKILL, id="leader, server, KILL"),
        pytest.param(0, False, signal.SIGKILL, id="leader, stub, KILL"),
        pytest.param(1, False, signal.SIGKILL, id="worker on the leader's node, stub, KILL"),
        pytest.param(5, False, signal.SIGSEGV, id="worker elsewhere, stub, SEGV"),
        pytest.param(6, True, signal.SIGTERM, id="worker elsewhere, server, TERM"),
    ],
)
def test_a_rank_killed_while_serving(user: User, rank: int, main: bool, number: signal.Signals) -> None:
    """The right rank, node and signal, within seconds, though PMIx kills all the others."""
    run = user.submit()
    run.wait_ready()
    pid = run.pid(rank, main=main)
    killed = time.time()
    os.kill(pid, number)
    result = end_of(run, rank)
    first = result["first"]
    assert isinstance(first, dict)
    assert first["how"] == f"signal {number.name}"
    told = next(item["t"] for item in run.records() if item["kind"] == "state" and item["state"] == "FAILED")
    assert told - killed < 5


def test_a_rank_killed_while_loading(user: User) -> None:
    """A long join keeps the others waiting; the one that dies is named."""
    run = user.submit()
    pid = run.pid(7, main=True)
    os.kill(pid, signal.SIGKILL)
    end_of(run, 7)


def test_an_engine_that_cannot_load_says_why(user: User) -> None:
    """The cause stands in the job's output, in status, and in the rank's own log."""
    run = user.submit()
    broken = run.path / "model_repository" / "tensorrt_llm" / "1" / "engine.py"
    broken.write_text("raise RuntimeError('no such weights')\n")
    result = run.wait_ended(60)
    if result["state"] == "COMPLETED" or (run.job / "endpoint.0.json").exists():
        pytest.fail("the model was loaded before it was broken")
    assert result["state"] == "FAILED"
    assert "no such weights" in run.output()
    assert "no such weights" in run.cli("status").stdout


def test_a_run_directory_that_nodes_cannot_see(user: User) -> None:
    """Every node has a /tmp of its own: submit warns, and the failure without a word of the job is explained."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-llm-"))
    try:
        shutil.chown(folder, user.cluster.user)
        done = user.cli(
            "submit", str(user.write_spec(DEMO)), "--site", "devcluster", "--set", f"log_root={folder}", "--json"
        )
        assert f"{folder}" in done.stderr
        assert "each node's own" in done.stderr
        value = json.loads(done.stdout)
        run = Run(user, Path(value["directory"]), int(value["job_id"]))
        user.runs.append(run)
        run.wait_gone(30)
        status = run.cli("status").stdout
        assert "JobLaunchFailure" in status
        assert "there on the compute nodes too?" in " ".join(status.split())
    finally:
        shutil.rmtree(folder)


def test_a_fixed_port_that_is_taken_ends_the_job_at_once(user: User) -> None:
    """Before anything is loaded, with the port's number."""
    node = user.cluster.nodes[0]
    here, triton = [f"--nodelist={node}"], {"http_port": 18080}
    first = user.submit(small("holder", sbatch_extra=here, triton=triton))
    first.wait_ready()
    second = user.submit(small("late", sbatch_extra=here, triton=triton))
    result = second.wait_ended(60)
    assert result["state"] == "FAILED"
    assert "port 18080 is in use" in second.output()
    assert first.slurm_state() == "RUNNING"


def test_ranks_without_an_mpi_world_do_not_start(user: User) -> None:
    """The preflight finds each task alone in its world, and no server is started."""
    site = user.folder / "nompi.yaml"
    text = user.run("cat", "site.yaml", check=False).stdout
    packaged = json.loads(user.cli("plan", str(user.write_spec(DEMO)), "--site", "devcluster", "--json").stdout)
    assert packaged["step"]["mpi"] == "pmix"
    assert not text
    site.write_text(
        "schema_version: 1\nname: nompi\npartitions:\n  batch:\n    gpus_per_node: 4\n"
        "    gpu_request: {style: gres}\nlauncher: {mpi: none}\n"
    )
    path = user.write_spec(DEMO)
    value = json.loads(user.cli("submit", str(path), "--site", str(site), "--json").stdout)
    run = Run(user, Path(value["directory"]), int(value["job_id"]))
    user.runs.append(run)
    result = run.wait_ended(60)
    assert result["state"] == "FAILED"
    assert "preflight" in result["cause"]
    assert not (run.attempt / "step-0.log").exists()


def test_the_agents_step_lost_ends_the_server(user: User) -> None:
    """Without agents nobody would see a rank die: the job does not go on blind."""
    run = user.submit()
    run.wait_ready()
    step = next(item["step"] for item in run.records() if item["kind"] == "hello")
    user.cluster.slurm("scancel", "--signal=KILL", f"{run.job_id}.{step}")
    wait_for("the job's end", lambda: run.slurm_state() == "FAILED", 60)
    assert "node agents" in run.output()
