"""The packaged epilog script as Slurm's Epilog: what a job killed at a stroke leaves goes, and nothing else does."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_llm import devcluster
from slurm_llm.process import run
from slurm_llm.sites.epilog import epilog_script
from tests.cluster.conftest import Cluster, Run, Spec, User, wait_for, watched_user

pytestmark = pytest.mark.cluster

STATE = Path("/var/lib/slurm_llm/devcluster-epilog")
SCRIPTS = Path("/var/lib/slurm_llm/devcluster-epilog-scripts")
LOCAL = "/tmp/local disk"
GATE = SCRIPTS / "open"
"""The epilog waits for this file, so that a test sees what there is before."""
SPEC: Spec = {
    "name": "demo",
    "engine": "rehearsal",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "resources": {"nodes": 2, "time": "00:10:00"},
}


@pytest.fixture(scope="module")
def gated() -> Iterator[Cluster]:
    """Bring up two nodes whose epilog waits at the gate."""
    devcluster.down(STATE)
    shutil.rmtree(SCRIPTS, ignore_errors=True)
    SCRIPTS.mkdir(mode=0o755)
    script, gate = SCRIPTS / "epilog.sh", SCRIPTS / "gate.sh"
    script.write_text(epilog_script((LOCAL,)))
    words = f"while [[ ! -e {GATE} ]]; do sleep 0.05; done; exec {shlex.quote(str(script))}"
    gate.write_text(f"#!/bin/bash\n{words} >>{SCRIPTS}/$SLURM_JOB_ID.$SLURMD_NODENAME.log 2>&1\n")
    for path in (script, gate):
        path.chmod(0o755)
    user = os.environ.get("DEVCLUSTER_USER", "llm")
    try:
        status = devcluster.up(devcluster.ClusterSpec(state=STATE, nodes=2, user=user, epilog=gate))
        yield Cluster(STATE, status.slurm_conf, user, tuple(node.name for node in status.nodes))
    finally:
        GATE.touch()
        devcluster.down(STATE)
        shutil.rmtree(SCRIPTS)


@pytest.fixture
def user(gated: Cluster, request: pytest.FixtureRequest) -> Iterator[User]:
    """The cluster's ordinary user; the gate opens at the end."""
    GATE.unlink(missing_ok=True)
    for made in watched_user(gated, request.node.name):
        yield made
        GATE.touch()


@dataclass(frozen=True)
class Decoys:
    """Files on a node that look like a job's: `go` are really named as its own, `stay` are not, or not its user's."""

    go: tuple[str, ...]
    stay: tuple[str, ...]


def decoys_of(job: int) -> Decoys:
    """Return such files; the last two of `stay` are root's, and a link."""
    return Decoys(
        go=(f"/dev/shm/llm{job}a0r70_x", f"/dev/shm/llm{job}a12r0_y z", f"{LOCAL}/llmrun-{job}.0/in/file"),
        stay=(
            *(f"/dev/shm/llm{job}0a0r70_x", f"/dev/shm/llm{job}a0r70", f"/dev/shm/xllm{job}a0r70_x", "/dev/shm/vader"),
            *(f"/tmp/llmrun-{job}/file", f"/tmp/llmrun-{job}.0x/file", f"/tmp/llmrun-{job}0.0/file", "/tmp/kept/file"),
            f"/dev/shm/llm{job}a0r80_roots",
            f"/tmp/llmrun-{job}.9",
        ),
    )


def plant(cluster: Cluster, node: str, decoys: Decoys) -> None:
    """Make these files on a node, as the user but for the last two; links lead from and out of folders that go."""
    account = pwd.getpwnam(cluster.user)
    *plain, roots, link = decoys.stay
    lines = [f"mkdir -p {shlex.quote(str(Path(path).parent))}; : >{shlex.quote(path)}" for path in (*decoys.go, *plain)]
    lines += [f"ln -s /tmp/kept {link}", f"ln -s /tmp/kept {shlex.quote(str(Path(decoys.go[-1]).parent))}/link"]
    identity = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    for words in (
        ("mkdir", "-m", "1777", LOCAL),
        ("touch", roots),
        (*identity, "bash", "-ec", "; ".join(lines)),
    ):
        done = cluster.on_node(node, *words)
        assert done.returncode == 0, done.stderr


def unplant(cluster: Cluster, node: str, decoys: Decoys) -> None:
    """Remove what stayed."""
    folders = [str(Path(path).parent) for path in decoys.stay if path.endswith("/file")]
    cluster.on_node(node, "rm", "-rf", *decoys.stay, *folders, LOCAL)


def existing(cluster: Cluster, node: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of some paths that there are on a node."""
    script = 'for path; do [[ -e $path || -L $path ]] && printf "%s\\n" "$path"; done; true'
    return tuple(cluster.on_node(node, "bash", "-c", script, "bash", *paths).stdout.splitlines())


def left_by(cluster: Cluster, job: int) -> dict[str, int]:
    """Return how many regions and folders of a job's two ranks there are on each node."""
    names = ("(", "-name", f"llm{job}a0r[0-3]_*", "-o", "-name", f"llmrun-{job}.0", ")")
    found = {
        node: cluster.on_node(node, "find", "/dev/shm", "/tmp", "-maxdepth", "1", *names) for node in cluster.nodes
    }
    return {node: len(done.stdout.splitlines()) for node, done in found.items()}


def kill_at_a_stroke(one: Run) -> None:
    """Send SIGKILL to all processes of a run: ranks, agents, head and script."""
    uid, mark = pwd.getpwnam(one.user.cluster.user).pw_uid, f"SLURM_JOB_ID={one.job_id}".encode()

    def processes() -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if entry.stat().st_uid == uid and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    while pids := processes():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_killed_job_leaves_nothing_and_its_neighbour_serves_on(user: User) -> None:
    """All of the job's goes, whatever looks like it stays, and the neighbour on the same nodes loses nothing."""
    cluster = user.cluster
    killed, neighbour = user.submit(SPEC), user.submit(SPEC)
    killed.wait_ready()
    neighbour.wait_ready()
    decoys = decoys_of(killed.job_id)
    for node in cluster.nodes:
        plant(cluster, node, decoys)
    kill_at_a_stroke(killed)
    wait_for("the job ends", lambda: killed.slurm_state() != "RUNNING", 30)
    before, others = left_by(cluster, killed.job_id), left_by(cluster, neighbour.job_id)
    assert min(before.values()) > 1 and min(others.values()) > 1

    GATE.touch()
    killed.wait_gone(30)
    wait_for("the nodes are free of it", lambda: not cluster.slurm("squeue", "-h", "-t", "CG").stdout, 30)
    assert left_by(cluster, killed.job_id) == dict.fromkeys(cluster.nodes, 0)
    assert left_by(cluster, neighbour.job_id) == others
    for node in cluster.nodes:
        assert existing(cluster, node, decoys.go) == ()
        assert existing(cluster, node, decoys.stay) == decoys.stay
        unplant(cluster, node, decoys)
    assert json.loads(neighbour.cli("status", "--json").stdout)["state"] == "READY"
    said = [path.read_text() for path in SCRIPTS.glob(f"{killed.job_id}.*.log")]
    assert said == ["", ""]


def test_empty_folders_of_the_python_backend_go_when_their_user_has_left() -> None:
    """Of a user without a process, old and empty ones go; full, young and other users' ones stay."""
    stranger, other = 54321, 54322
    environment = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": str(stranger), "SLURM_JOB_GID": str(stranger)}
    names = ("old", "full", "young", "other")
    with ExitStack() as made:
        paths = {name: Path(made.enter_context(TemporaryDirectory(prefix="python_env_", dir="/tmp"))) for name in names}
        (paths["full"] / "file").touch()
        for name, path in paths.items():
            owner = other if name == "other" else stranger
            os.chown(path, owner, owner)
            os.utime(path, None if name == "young" else (0, 0))
        assert run(("/bin/bash", "-c", epilog_script(())), env=environment).returncode == 0
        assert [name for name, path in paths.items() if path.exists()] == ["full", "young", "other"]
        paths["old"].mkdir()


def test_copies_of_weights_go_unless_they_are_kept_or_read() -> None:
    """The killed job reads them no more; another job's mark, and files of other names, are left alone."""
    stranger, marks = 54321, {"a-11111111": ("7",), "kept-22222222": ("7",), "read-33333333": ("7", "8")}
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(stranger), "SLURM_JOB_GID": str(stranger)}
    with TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place) / f"llmstage-{stranger}"
        for name, jobs in marks.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "weights").touch()
            (folder / f"{name}.json").write_text(json.dumps({"keep": name.startswith("kept")}))
            for ending in ("lock", *(f"use-{job}" for job in jobs)):
                (folder / f"{name}.{ending}").touch()
        (folder / "other").touch()
        for path in (Path(place), folder, *folder.rglob("*")):
            os.chown(path, stranger, stranger)
        assert run(("/bin/bash", "-c", epilog_script((place,))), env=environment).returncode == 0
        ends = ("", ".json", ".lock")
        left = [*(f"kept-22222222{end}" for end in ends), "other"]
        left += [*(f"read-33333333{end}" for end in ends), "read-33333333.use-8"]
        assert sorted(path.name for path in folder.iterdir()) == left


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "0"},
        {"SLURM_JOB_ID": "5; touch /tmp/x", "SLURM_JOB_UID": "1000"},
        {"SLURM_JOB_ID": ".*", "SLURM_JOB_UID": "1000"},
        {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "PATH": "/nowhere"},
    ],
    ids=["nothing", "root", "shell", "pattern", "no path"],
)
def test_the_script_never_fails_a_node(environment: dict[str, str], tmp_path: Path) -> None:
    """Whatever it is given it ends with 0, says nothing and touches nothing of others."""
    kept = tmp_path / "llmrun-5.0"
    kept.mkdir()
    script = tmp_path / "epilog.sh"
    script.write_text(epilog_script((str(tmp_path), "/no/such/folder")))
    done = run(("/bin/bash", str(script)), env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert kept.is_dir()
