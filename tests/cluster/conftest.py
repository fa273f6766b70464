"""A real Slurm cluster and an ordinary user on it, for tests that submit jobs.

The cluster is the devcluster's default one, or that of DEVCLUSTER_STATE with DEVCLUSTER_USER: brought up when it is not
there, and left as it was found.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurm_llm import devcluster
from slurm_llm.process import Completed, run

DEMO = {
    "name": "demo",
    "engine": "rehearsal",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 2,
    "moe_expert_parallel_size": 2,
    "moe_tensor_parallel_size": 2,
    "resources": {"nodes": 4, "time": "00:10:00"},
}
Spec = dict[str, Any]


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Return the first true value of `condition`, asked every 50 ms; fail with `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up."""

    state: Path
    slurm_conf: Path
    user: str
    nodes: tuple[str, ...]

    def slurm(self, *argv: str) -> Completed:
        """Run a Slurm command as root."""
        return run(argv, env={**os.environ, "SLURM_CONF": str(self.slurm_conf)})

    def on_node(self, node: str, *argv: str) -> Completed:
        """Run a command with a node's own /tmp, /dev/shm and network."""
        found = {one.name: one.slurmd_pid for one in devcluster.status(self.state).nodes}
        return run(("nsenter", "-t", str(found[node]), "-m", "-n", "-u", "-i", *argv))

    def leftovers(self) -> list[str]:
        """Return what jobs of the user have left on any node."""
        found = []
        for node in self.nodes:
            names = self.on_node(node, "find", "/dev/shm", "/tmp", "-mindepth", "1", "-user", self.user).stdout
            found += [f"{node}:{name}" for name in names.splitlines() if "spmix_appdir" not in name]
        return found

    def processes(self) -> list[str]:
        """Return the user's processes that jobs would leave, zombies aside."""
        rows = run(("ps", "-u", self.user, "-o", "stat=,args=")).stdout.splitlines()
        return [row for row in rows if not row.startswith("Z") and ("triton" in row or "agent" in row)]


@dataclass(frozen=True)
class Run:
    """One submitted run."""

    user: User
    path: Path
    job_id: int

    @property
    def job(self) -> Path:
        return self.path / f"job-{self.job_id}"

    @property
    def attempt(self) -> Path:
        return self.job / "attempt-0"

    def output(self) -> str:
        """Return the job's own output."""
        return (self.path / f"slurm-{self.job_id}.out").read_text(errors="replace")

    def wait_ready(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for the endpoint file and return it; a job that ends instead fails at once."""

        def ready_or_over() -> Any:
            return (self.job / "endpoint.0.json").exists() or self.result_file().exists()

        wait_for(f"job {self.job_id} ready", ready_or_over, timeout_s)
        assert (self.job / "endpoint.0.json").exists(), self.output()
        value: dict[str, Any] = json.loads((self.job / "endpoint.0.json").read_text())
        return value

    def url(self, timeout_s: float = 60.0) -> str:
        """Return the leader's URL."""
        return str(self.wait_ready(timeout_s)["instances"][0]["url"])

    def result_file(self) -> Path:
        return self.job / "result.0.json"

    def wait_gone(self, timeout_s: float = 60.0) -> None:
        """Wait until Slurm has let the job go."""
        wait_for(f"job {self.job_id} ended", lambda: self.slurm_state() not in LIVE, timeout_s)

    def wait_ended(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until Slurm has let the job go, and return its result file."""
        self.wait_gone(timeout_s)
        value: dict[str, Any] = json.loads(self.result_file().read_text())
        return value

    def slurm_state(self) -> str:
        """Return Slurm's word for the job's state."""
        shown = self.user.cluster.slurm("scontrol", "show", "job", str(self.job_id)).stdout
        return shown.partition("JobState=")[2].split()[0]

    def records(self) -> list[dict[str, Any]]:
        """Return the journals' records in order of time."""
        texts = [path.read_text() for path in (self.attempt / "journal").glob("*.jsonl")]
        items = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
        return sorted(items, key=lambda item: item["t"])

    def pid(self, rank: int, main: bool) -> int:
        """Return the process id of a rank's tritonserver, or of the stub below it that has stayed."""

        def find() -> int:
            gone = {item["pid"] for item in self.records() if item["kind"] == "ended"}
            found = [
                item["pid"]
                for item in self.records()
                if item["kind"] == "found" and item["rank"] == rank and item["main"] is main
            ]
            return next((pid for pid in found if pid not in gone), 0)

        return int(wait_for(f"process of rank {rank}", find, 20))

    def cli(self, verb: str, *argv: str, check: bool = True) -> Completed:
        """Run a verb of the command line on this run."""
        return self.user.cli(verb, str(self.job), *argv, check=check)


LIVE = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}


@dataclass(frozen=True)
class User:
    """The ordinary user, in a folder whose name has a space; the package is found only where it is installed."""

    cluster: Cluster
    folder: Path
    runs: list[Run] = field(default_factory=list)

    def run(self, *argv: str, check: bool = True, timeout_s: float = 120.0) -> Completed:
        """Run a command as the user in the user's folder."""
        account = pwd.getpwnam(self.cluster.user)
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        env = {"HOME": account.pw_dir, "PATH": path, "SLURM_CONF": str(self.cluster.slurm_conf), "LANG": "C.UTF-8"}
        # A checkout in place of the installed package, where the caller says so.
        env.update({name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ})
        done = run(
            ("runuser", "-u", account.pw_name, "--", "env", "-C", str(self.folder), *argv), env=env, timeout_s=timeout_s
        )
        assert not check or done.returncode == 0, done
        return done

    @property
    def program(self) -> tuple[str, ...]:
        """The words of `python -m slurm_llm`."""
        return (sys.executable, "-m", "slurm_llm")

    def cli(self, *argv: str, check: bool = True, timeout_s: float = 120.0) -> Completed:
        """Run `python -m slurm_llm` as the user."""
        return self.run(*self.program, *argv, check=check, timeout_s=timeout_s)

    def write_spec(self, spec: Spec, name: str = "job.yaml") -> Path:
        """Write a spec into the user's folder (JSON is YAML)."""
        path = self.folder / name
        path.write_text(json.dumps(spec))
        path.chmod(0o644)
        return path

    def submit(self, spec: Spec | None = None, *, site: str = "devcluster") -> Run:
        """Submit a spec, the demo's by default, and return the run."""
        path = self.write_spec(spec or DEMO)
        done = self.cli("submit", str(path), "--site", site, "--json")
        value = json.loads(done.stdout)
        made = Run(self, Path(value["directory"]), int(value["job_id"]))
        self.runs.append(made)
        return made


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Bring the default cluster up unless it is; take it down only if it was not."""
    spec = devcluster.ClusterSpec(
        state=Path(os.environ.get("DEVCLUSTER_STATE", devcluster.DEFAULT_STATE)),
        user=os.environ.get("DEVCLUSTER_USER", "llm"),
    )
    before = devcluster.status(spec.state)
    if not before.all_up:
        # Whatever a run that crashed has left of it is no ground to build on.
        devcluster.down(spec.state)
    status = before if before.all_up else devcluster.up(spec)
    assert status.spec is not None
    yield Cluster(spec.state, status.slurm_conf, status.spec.user, status.spec.node_names)
    if not before.all_up:
        devcluster.down(spec.state)


@pytest.fixture
def user(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[User]:
    """The default cluster's ordinary user."""
    yield from watched_user(cluster, request.node.name)


def watched_user(cluster: Cluster, name: str) -> Iterator[User]:
    """Give the user a fresh folder; afterwards end the test's jobs and insist that nodes are clean."""
    account = pwd.getpwnam(cluster.user)
    folder = Path(account.pw_dir) / "slurm llm tests" / name[:60]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        os.chown(path, account.pw_uid, account.pw_gid)
    made = User(cluster, folder)
    yield made
    for one in made.runs:
        if one.slurm_state() in LIVE:
            cluster.slurm("scancel", str(one.job_id))
    for one in made.runs:
        wait_for(f"job {one.job_id} gone", lambda one=one: one.slurm_state() not in LIVE)  # type: ignore[misc]
    insist_on_none("processes", cluster.processes)
    insist_on_none("leftovers", cluster.leftovers)


def insist_on_none(what: str, find: Callable[[], list[str]]) -> None:
    """Wait until there is none, and name those that stay."""
    deadline = time.monotonic() + 10
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not found, f"{what} that stay: {found}"
