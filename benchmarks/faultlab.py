"""Where the rows of the fault matrix happen: an ordinary user's jobs, and what is done to them and their cluster."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm import devcluster

WAIT_S = 100
PROMPT = b'{"text_input": "hello", "sampling_param_max_tokens": 2}'
Record = dict[str, Any]


@dataclass(frozen=True)
class Lab:
    """A cluster and its ordinary user; `state` is set where we are root of a devcluster."""

    user: str
    folder: Path
    env: dict[str, str]
    state: Path | None = None

    def call(self, *argv: str, timeout_s: float = 120) -> str:
        """Run a command as the user; return its output, with what it complains of when it fails."""
        words = argv if self.state is None else ("runuser", "-u", self.user, "--", *argv)
        done = subprocess.run(
            words, env=self.env, cwd=self.folder, check=False, capture_output=True, text=True, timeout=timeout_s
        )
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def tool(self, *argv: str) -> str:
        """Run a command of the package as the user."""
        return self.call(sys.executable, "-m", "slurm_llm", *argv)

    def on_nodes(self, nodes: str, script: str) -> str:
        """Run a shell script as the user in a job of its own on each of some nodes."""
        count = str(len(nodes.split(",")))
        return self.call("srun", "-Q", "-w", nodes, "-N", count, "--ntasks-per-node=1", "sh", "-c", script)

    def as_root(self, node: str, *argv: str) -> None:
        """Run a command as root in a node's namespaces."""
        assert self.state is not None
        pids = {one.name: one.slurmd_pid for one in devcluster.status(self.state).nodes}
        subprocess.run(("nsenter", "-t", str(pids[node]), "-m", "-n", "-u", "-i", *argv), check=True)

    def nodes(self) -> tuple[str, ...]:
        """Return the cluster's nodes, in order."""
        return tuple(sorted(set(self.call("sinfo", "-h", "-N", "-o", "%n").split())))


@contextlib.contextmanager
def open_lab(state: Path | None) -> Iterator[Lab]:
    """Make a folder for the user's runs; as root of the devcluster at `state`, for its user."""
    env = {**os.environ, "LANG": "C.UTF-8"}
    user = pwd.getpwuid(os.getuid()).pw_name
    if state is not None:
        status = devcluster.status(state)
        user = status.user
        env |= {"SLURM_CONF": str(status.slurm_conf), "HOME": pwd.getpwnam(user).pw_dir}
    with tempfile.TemporaryDirectory(dir=pwd.getpwnam(user).pw_dir, prefix="faults ") as folder:
        shutil.chown(folder, user)
        yield Lab(user, Path(folder), env, state)


@dataclass(frozen=True)
class Job:
    """One submitted run."""

    lab: Lab
    id: int
    path: Path

    @property
    def folder(self) -> Path:
        return self.path / f"job-{self.id}"

    def slurm(self, field: str) -> str:
        """Return a field of `scontrol show job`."""
        shown = self.lab.call("scontrol", "show", "job", str(self.id)).split()
        return next((word.partition("=")[2] for word in shown if word.startswith(f"{field}=")), "")

    def nodes(self) -> list[str]:
        """Return the job's nodes in order."""
        return self.lab.call("scontrol", "show", "hostnames", self.slurm("NodeList")).split()

    def result(self, attempt: int = 0) -> Record | None:
        """Return what the attempt's result file says."""
        try:
            value: Record = json.loads((self.folder / f"result.{attempt}.json").read_text())
        except (OSError, ValueError):
            return None
        return value

    def endpoint(self, attempt: int = 0) -> Record | None:
        """Return what the attempt's endpoint file says."""
        try:
            value: Record = json.loads((self.folder / f"endpoint.{attempt}.json").read_text())
        except (OSError, ValueError):
            return None
        return value

    def records(self, attempt: int = 0) -> list[Record]:
        """Return the journals' records in order of time."""
        found = []
        for path in (self.folder / f"attempt-{attempt}" / "journal").glob("*.jsonl"):
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return sorted(found, key=lambda item: item["t"])

    def step(self, name: str) -> str:
        """Return the id of the agents' step, or of the server's, which comes after all others."""
        agents = next(item["step"] for item in self.records() if item["kind"] == "hello")
        if name == "agents":
            return f"{self.id}.{agents}"
        shown = self.lab.call("squeue", "-h", "-s", "-j", str(self.id), "-o", "%i").split()
        numbers = [int(one.rpartition(".")[2]) for one in shown if one.rpartition(".")[2].isdigit()]
        return f"{self.id}.{max(numbers)}"

    def ask(self, timeout_s: float = 30) -> str:
        """Ask the leader for a generation; return `answered`, or what went wrong."""
        made = self.endpoint()
        assert made is not None
        url = f"{made['instances'][0]['url']}/v2/models/{made['model']}/generate"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, PROMPT), timeout=timeout_s) as answer:
                json.load(answer)
        except (OSError, ValueError) as error:
            return str(error)
        return "answered"


def wait_for(condition: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """Return the first true value of `condition`, or its last one after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return value


def kill_agents(job: Job) -> None:
    job.lab.call("scancel", "--signal=KILL", job.step("agents"))


def scancel_step(job: Job) -> None:
    job.lab.call("scancel", job.step("server"))


def scancel(job: Job) -> None:
    job.lab.call("scancel", str(job.id))


def cancel(job: Job) -> None:
    job.lab.tool("cancel", str(job.folder))


def wait(_job: Job) -> None:
    """Nothing has to be done for it to happen."""


def requeue(job: Job) -> None:
    job.lab.call("scontrol", "requeue", str(job.id))


def remove_logs(job: Job) -> None:
    """Remove the job's folder while it serves; later ask for the end, which has to work all the same."""
    job.lab.call("rm", "-rf", str(job.folder))
    kept = wait_for(lambda: job.records() or None, 20)
    job.lab.call("scancel", "--signal=TERM", "--batch", str(job.id)) if kept else scancel(job)


def restart_controller(job: Job) -> None:
    """End slurmctld and start it again; the model answers without it."""
    assert job.lab.state is not None
    status = devcluster.status(job.lab.state)
    pid = next(one.pid for one in status.daemons if one.name == "slurmctld")
    assert pid is not None and status.spec is not None
    os.kill(pid, signal.SIGTERM)
    time.sleep(3)
    said = job.ask()
    devcluster.up(status.spec)
    cancel(job) if said == "answered" else scancel(job)


def kill_node(job: Job) -> None:
    assert job.lab.state is not None
    devcluster.node_action(job.lab.state, job.nodes()[2], "kill")


def cut_node(job: Job) -> None:
    assert job.lab.state is not None
    devcluster.node_action(job.lab.state, job.nodes()[2], "cut")


ACTIONS: dict[str, Callable[[Job], None]] = {
    "kill agents": kill_agents,
    "scancel step": scancel_step,
    "scancel": scancel,
    "cancel": cancel,
    "wait": wait,
    "requeue": requeue,
    "remove logs": remove_logs,
    "restart controller": restart_controller,
    "kill node": kill_node,
    "cut node": cut_node,
}


@contextlib.contextmanager
def mended(lab: Lab, action: str) -> Iterator[None]:
    """Bring nodes back that an action takes away."""
    try:
        yield
    finally:
        if action in ("kill node", "cut node") and lab.state is not None:
            for node in devcluster.status(lab.state).nodes:
                if not node.serving:
                    devcluster.node_action(lab.state, node.name, "heal" if node.slurmd_pid else "up")


@contextlib.contextmanager
def full_shm(lab: Lab, node: str) -> Iterator[None]:
    """Leave a node's /dev/shm next to nothing: 100 MiB in all, most of them somebody's."""
    lab.as_root(node, "mount", "-o", "remount,size=100m", "/dev/shm")
    lab.as_root(node, "fallocate", "-l", "80M", "/dev/shm/somebody")
    try:
        yield
    finally:
        lab.as_root(node, "rm", "/dev/shm/somebody")
        lab.as_root(node, "mount", "-o", f"remount,size={devcluster.namespaces.SHM_SIZE}", "/dev/shm")


@contextlib.contextmanager
def small_disk(lab: Lab, mib: int = 24) -> Iterator[Path]:
    """Mount a small disk for runs at one place on this host and on every node."""
    image, folder = lab.folder / "disk.img", lab.folder / "disk"
    folder.mkdir()
    with image.open("wb") as stream:
        stream.truncate(mib << 20)
    subprocess.run(("mkfs.ext4", "-q", "-F", str(image)), check=True)
    device = subprocess.run(("losetup", "--find", "--show", str(image)), check=True, capture_output=True, text=True)
    loop = device.stdout.strip()
    mount = ("mount", loop, str(folder))
    try:
        subprocess.run(mount, check=True)
        for node in lab.nodes():
            lab.as_root(node, *mount)
        shutil.chown(folder, lab.user)
        yield folder
    finally:
        for node in lab.nodes():
            with contextlib.suppress(subprocess.CalledProcessError):
                lab.as_root(node, "umount", "-l", str(folder))
        subprocess.run(("umount", "-l", str(folder)), check=False)
        subprocess.run(("losetup", "--detach", loop), check=False)


def fill_disk(job: Job) -> None:
    """Fill the disk that holds the run; the model answers all the same. Make room later and ask for the end."""
    whole = job.path.parent / "somebody"
    job.lab.call("dd", "if=/dev/zero", f"of={whole}", "bs=4k")
    time.sleep(15)
    said = job.ask()
    job.lab.call("rm", str(whole))
    time.sleep(8)
    cancel(job) if said == "answered" else scancel(job)


ACTIONS["fill disk"] = fill_disk


LOOK = """find /dev/shm /tmp -mindepth 1 -user "$(id -un)" 2>/dev/null | grep -v spmix_appdir
ps -u "$(id -un)" -o stat=,args= | grep -E "tritonserver|triton_python|/agent (node|head)" | grep -v "^Z\\|grep"
"""


def left_behind(lab: Lab) -> list[str]:
    """Return what the user's jobs have left on the nodes: files, and processes of engines and agents."""
    said = lab.on_nodes(",".join(lab.nodes()), LOOK)
    return sorted({row for row in said.splitlines() if "error: " not in row})
