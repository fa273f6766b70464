"""`submit --in-allocation` on a real Slurm: the run comes and goes, the allocation stays."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, Spec, User, wait_for, watched_user

pytestmark = pytest.mark.cluster

GUEST: Spec = {"name": "guest", "engine": "rehearsal", "tensor_parallel_size": 2}


@dataclass(frozen=True)
class Held:
    """An allocation of three nodes with one GPU each, and its holder."""

    user: User
    job_id: int

    def start(self, *argv: str, spec: Spec | None = None) -> subprocess.Popen[bytes]:
        """Start a run in it, as from a shell of salloc."""
        path = self.user.write_spec(spec or GUEST)
        command = ("submit", str(path), "--site", "devcluster", "--in-allocation", *argv)
        account = pwd.getpwnam(self.user.cluster.user)
        env = {"HOME": account.pw_dir, "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "SLURM_JOB_ID": str(self.job_id)}
        env.update({name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ})
        return subprocess.Popen(
            [*self.user.program, *command],
            env={**env, "SLURM_CONF": str(self.user.cluster.slurm_conf)},
            cwd=self.user.folder,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def state(self) -> str:
        """Return Slurm's word for the allocation."""
        shown = self.user.cluster.slurm("scontrol", "show", "job", str(self.job_id)).stdout
        return shown.partition("JobState=")[2].split()[0]

    def runs(self) -> list[Path]:
        """Return the folders of its runs, oldest first."""
        return sorted(self.user.folder.glob(f"logs/*/job-{self.job_id}"))

    def ready(self, number: int) -> Path:
        """Wait until the run of that number in order serves, and return its folder."""
        wait_for(f"run {number}", lambda: len(self.runs()) > number, 30)
        folder = self.runs()[number]
        wait_for("its endpoint", lambda: list(folder.glob("endpoint.*.json")), 60)
        return folder

    def result(self, folder: Path) -> dict[str, Any]:
        """Wait for the result of a run."""
        (path,) = wait_for("a result", lambda: list(folder.glob("result.*.json")), 60)
        value: dict[str, Any] = json.loads(path.read_text())
        return value


def end(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Wait for a run's own process, and return its status and what it has said."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


@pytest.fixture(scope="module")
def held(cluster: Cluster) -> Iterator[Held]:
    """Hold an allocation for all tests."""
    with contextmanager(watched_user)(cluster, "in_allocation") as user:
        asked = ("salloc", "--no-shell", "-N3", "--ntasks-per-node=2", "--gres=gpu:1", "--time=00:20:00")
        said = user.run(*asked).stderr
        own = Held(user, int(said.partition("Granted job allocation ")[2].split()[0]))
        yield own
        cluster.slurm("scancel", str(own.job_id))
        wait_for("the end", lambda: own.state() not in {"RUNNING", "COMPLETING"}, 30)


def test_a_run_is_a_guest(held: Held) -> None:
    """On the first nodes that give what it needs; nobody else gets in; cancel ends it, and not the allocation."""
    process = held.start()
    folder = held.ready(0)
    status = json.loads(held.user.cli("status", str(held.job_id), "--json").stdout)
    assert (status["state"], status["guest"], status["nodes"]) == ("READY", True, 2)
    assert held.user.cli("generate", str(held.job_id), "Hello", "--max-tokens", "3").stdout.strip()
    code, _, err = end(held.start())
    assert (code, "another run of yours is in job" in err) == (5, True), err
    told = held.user.cli("cancel", str(held.job_id))
    assert "COMPLETED" in told.stdout
    code, out, err = end(process)
    assert (code, held.state()) == (0, "RUNNING"), err
    assert "READY" in out
    assert "slurm      RUNNING: the allocation goes on" in err
    assert held.result(folder)["cause"] == "stopped on request"
    assert (folder.parent / f"slurm-{held.job_id}.out").read_text() == out


def test_ctrl_c_gives_the_terminal_back(held: Held) -> None:
    """A second run in the same allocation; it counts its attempts on, so that nothing of the first can be its own."""
    before = len(held.runs())
    process = held.start()
    folder = held.ready(before)
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)
    assert (code, held.state()) == (0, "RUNNING"), err
    assert "the server stops in order; the allocation stays" in err
    assert held.result(folder)["state"] == "COMPLETED"
    (attempt,) = [int(path.name.rpartition("-")[2]) for path in folder.glob("attempt-*")]
    # Runs of another cluster's job of the same number count too, where the user has some.
    assert attempt >= before


def test_a_run_ends_with_whoever_started_it(held: Held) -> None:
    """A shell that is killed leaves no server in the allocation."""
    before = len(held.runs())
    process = held.start()
    folder = held.ready(before)
    process.kill()
    process.communicate()
    assert held.result(folder)["state"] == "COMPLETED"
    wait_for("the script's end", lambda: not held.user.cluster.processes(), 30)
    assert held.state() == "RUNNING"


def test_too_small_an_allocation_is_refused(held: Held) -> None:
    """With the figures of both, before anything is written."""
    before = held.runs()
    code, _, err = end(held.start(spec={**GUEST, "tensor_parallel_size": 8, "resources": {"nodes": 4}}))
    assert code == 4
    assert f"the plan needs 4 nodes with 2 CPUs, 2 GPUs each; job {held.job_id} has 3 nodes" in err
    assert held.runs() == before


def test_the_end_of_the_allocation_ends_all(held: Held) -> None:
    """The run says why, and nothing is left on any node. (The last test: the allocation is gone after it.)"""
    before = len(held.runs())
    process = held.start()
    folder = held.ready(before)
    held.user.cluster.slurm("scancel", str(held.job_id))
    end(process)
    assert held.result(folder)["state"] in {"COMPLETED", "CANCELLED"}
