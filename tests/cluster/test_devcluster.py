"""The devcluster itself, on a running one: jobs as an ordinary user, limits, nodes lost and brought back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from slurm_llm.devcluster import (
    ClusterSpec,
    ClusterStatus,
    NodeKind,
    Queue,
    Shape,
    down,
    node_action,
    status,
    up,
)
from slurm_llm.devcluster.config import Paths, names_of
from slurm_llm.devcluster.daemons import Daemons
from slurm_llm.devcluster.namespaces import namespaces_of, processes_in
from slurm_llm.errors import InputError, NotReady, RunNotFound

pytestmark = pytest.mark.cluster

SECOND = Path("/var/lib/slurm_llm/devcluster-test")
PAPER = Path("/var/lib/slurm_llm/devcluster-paper-test")


class Cluster(Protocol):
    """What the fixture `cluster` yields."""

    state: Path
    slurm_conf: Path
    user: str
    nodes: tuple[str, ...]


def as_user(conf: Path, user: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the ordinary user, in their home directory."""
    words = ["runuser", "-u", user, "--", "env", f"HOME=/home/{user}", f"SLURM_CONF={conf}", *argv]
    return subprocess.run(words, cwd=f"/home/{user}", capture_output=True, text=True, timeout=120)


def wait_until(true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def second() -> Iterator[ClusterStatus]:
    """A small cluster of its own beside the shared one, so that nobody else's jobs are lost with its nodes."""
    down(SECOND)
    try:
        yield up(ClusterSpec(state=SECOND, nodes=2, gpus_per_node=0, accounting=False))
    finally:
        down(SECOND)


def test_up_again_is_quick_and_changes_nothing(cluster: Cluster) -> None:
    """A second `up` with the same options returns at once and the same daemons run."""
    before = status(cluster.state)
    spec = _spec(cluster.state)
    began = time.monotonic()
    after = up(spec)
    assert time.monotonic() - began < 3
    assert after.daemons == before.daemons


def test_up_with_other_options_says_down_first(cluster: Cluster) -> None:
    """Other options are refused and the way out is said."""
    spec = _spec(cluster.state)
    with pytest.raises(InputError, match="down"):
        up(replace(spec, nodes=spec.nodes + 1))


def test_ranks_on_every_node_have_their_own_host(cluster: Cluster) -> None:
    """A step over all nodes sees as many host names, addresses and private /tmp as there are nodes."""
    script = "hostname; hostname -I; stat -c %d /tmp; stat -c %d /dev/shm"
    done = as_user(cluster.slurm_conf, cluster.user, "srun", f"-N{len(cluster.nodes)}", "sh", "-c", script)
    words = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert set(cluster.nodes) <= set(words)
    assert len(set(words)) == 4 * len(cluster.nodes)


def test_gpus_are_dealt_out(cluster: Cluster) -> None:
    """A step that asks for two GPUs sees two of them."""
    script = "echo $CUDA_VISIBLE_DEVICES"
    done = as_user(cluster.slurm_conf, cluster.user, "srun", "--gpus-per-node=2", "sh", "-c", script)
    assert len(done.stdout.strip().split(",")) == 2, done.stderr


def test_memory_limit_ends_a_step(cluster: Cluster) -> None:
    """A task that takes more than it asked for is killed."""
    hog = "import time; x = bytearray(400 << 20); time.sleep(60)"
    done = as_user(cluster.slurm_conf, cluster.user, "srun", "--mem=100", "/usr/bin/python3", "-c", hog)
    assert done.returncode != 0
    assert "memory limit" in done.stderr


def test_an_unknown_account_is_refused(cluster: Cluster) -> None:
    """Accounting is enforced: nobody submits to an account that is not theirs."""
    if not _spec(cluster.state).accounting:
        pytest.skip("this cluster has no accounting")
    done = as_user(cluster.slurm_conf, cluster.user, "sbatch", "-A", "nobody", "--wrap", "true")
    assert done.returncode != 0
    assert "Invalid account" in done.stderr


def test_without_accounting_sacct_says_so(second: ClusterStatus) -> None:
    """The cluster without accounting runs jobs, and sacct answers that it is disabled."""
    assert as_user(second.slurm_conf, second.user, "srun", "-N2", "hostname").returncode == 0
    done = as_user(second.slurm_conf, second.user, "sacct")
    assert done.returncode == 1
    assert "disabled" in done.stdout + done.stderr


def test_down_stops_slurmd_alone(second: ClusterStatus) -> None:
    """`node down` leaves the job's processes running; `up` brings slurmd back into the same /tmp."""
    node = second.nodes[0].name
    wrap = "touch /tmp/mark; exec sleep 300"
    submit = ("sbatch", "--parsable", "-o", "/dev/null", "-w", node, "--wrap", wrap)
    job = as_user(second.slurm_conf, second.user, *submit).stdout.strip()
    netns = names_of(SECOND).netns(node)
    wait_until(lambda: "sleep 300" in _commands(netns))
    lost = node_action(SECOND, node, "down")
    assert not lost.all_up
    assert "sleep 300" in _commands(netns)
    assert node_action(SECOND, node, "up").all_up
    check = as_user(second.slurm_conf, second.user, "srun", "-w", node, "ls", "/tmp/mark")
    assert check.returncode == 0, check.stderr
    as_user(second.slurm_conf, second.user, "scancel", job)
    wait_until(lambda: "sleep 300" not in _commands(netns))


def test_cut_hides_the_shared_tree_and_heal_undoes_it(second: ClusterStatus) -> None:
    """A cut node sees an empty shared tree; healed, it takes jobs and sees the tree again."""
    node = second.nodes[1].name
    home = Path(f"/home/{second.user}")
    mark = home / "devcluster-mark"
    mark.touch()
    try:
        found = {row.name: row for row in node_action(SECOND, node, "cut").nodes}
        assert not found[node].link
        assert list(_inside(node, home)) == []
        assert mark.exists()
        assert node_action(SECOND, node, "heal").all_up
        assert mark.name in [path.name for path in _inside(node, home)]
        done = as_user(second.slurm_conf, second.user, "srun", "-w", node, "ls", str(mark))
        assert done.returncode == 0, done.stderr
    finally:
        mark.unlink()


def test_a_cut_node_is_noticed_and_comes_back(second: ClusterStatus) -> None:
    """The controller calls a cut node down within 45 seconds, and `heal` brings it back."""
    node = second.nodes[1].name
    node_action(SECOND, node, "cut")
    wait_until(lambda: _state(node).startswith("down"), timeout_s=45)
    assert node_action(SECOND, node, "heal").all_up


def test_kill_leaves_nothing_on_the_node(second: ClusterStatus) -> None:
    """`node kill` ends every process there and its /dev/shm is fresh after `up`."""
    node = second.nodes[0].name
    done = as_user(second.slurm_conf, second.user, "srun", "-w", node, "touch", "/dev/shm/mark")
    assert done.returncode == 0, done.stderr
    # Killed while it ends the job, the node would be asked about it again only half a minute later.
    wait_until(lambda: not as_user(second.slurm_conf, second.user, "squeue", "-h", "-w", node).stdout)
    node_action(SECOND, node, "kill")
    assert processes_in([names_of(SECOND).netns(node)]) == ()
    assert node_action(SECOND, node, "up").all_up
    done = as_user(second.slurm_conf, second.user, "srun", "-w", node, "ls", "/dev/shm")
    assert (done.returncode, done.stdout) == (0, "")


def test_up_restarts_what_died(second: ClusterStatus) -> None:
    """A killed controller is started again by `up`, with the nodes that still run."""
    daemons = _daemons()
    daemons.stop("slurmctld", grace_s=0)
    assert not status(SECOND).all_up
    again = up(_spec(SECOND))
    assert again.all_up
    assert [row.slurmd_pid for row in again.nodes] == [row.slurmd_pid for row in status(SECOND).nodes]


def test_unknown_nodes_and_actions_are_named(second: ClusterStatus) -> None:
    """A typing error in a node or an action changes nothing and says what there is."""
    with pytest.raises(InputError, match="no such node"):
        node_action(SECOND, "nobody", "up")
    with pytest.raises(InputError, match="did you mean 'heal'"):
        node_action(SECOND, second.nodes[0].name, "heel")


def test_heal_of_a_killed_node_says_why_it_is_not_up(second: ClusterStatus) -> None:
    """Healing brings no slurmd back: the message says that it does not run."""
    node = second.nodes[0].name
    node_action(SECOND, node, "kill")
    with pytest.raises(NotReady, match="slurmd does not run"):
        node_action(SECOND, node, "heal")
    assert node_action(SECOND, node, "up").all_up


def test_down_leaves_nothing_and_may_be_repeated(second: ClusterStatus) -> None:
    """After `down` no process, namespace, link, mount or hosts line is left; a second one does nothing."""
    tag = names_of(SECOND).tag
    assert down(SECOND)
    assert _daemons().marked() == ()
    assert namespaces_of(SECOND) == ()
    assert [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(tag)] == []
    assert str(SECOND) not in Path("/proc/self/mountinfo").read_text()
    assert str(SECOND) not in Path("/etc/hosts").read_text()
    assert [path.name for path in SECOND.iterdir()] == ["log"]
    assert not down(SECOND)
    assert not status(SECOND).exists
    with pytest.raises(RunNotFound):
        node_action(SECOND, second.nodes[0].name, "up")


def test_up_refuses_a_directory_that_is_not_its_own() -> None:
    """A directory with somebody's files is never taken for a state directory."""
    with pytest.raises(InputError, match="neither empty nor"):
        up(ClusterSpec(state=Path("/usr/lib")))


def test_up_refuses_an_epilog_that_cannot_run() -> None:
    """Slurm would drain every node after its first job; it is said at once instead."""
    with pytest.raises(InputError, match="cannot be executed"):
        up(ClusterSpec(state=SECOND, epilog=Path("/etc/passwd")))
    assert not status(SECOND).exists


def test_a_cluster_on_paper_takes_another_shape_and_runs_nothing() -> None:
    """Jobs are judged by the shape of the moment; there is no node, and `down` leaves nothing."""
    first = Shape("first", (NodeKind(300, cpus=8, memory=8000),), (Queue("one", (0,), is_default=True),))
    second = replace(first, name="second", queues=(Queue("two", (0,), is_default=True, max_nodes=4),))
    spec = ClusterSpec(state=PAPER, user=os.environ.get("DEVCLUSTER_USER", "llm"), own_shape=first, paper=True)
    down(PAPER)
    try:
        assert _judged(up(spec), "-p", "one", "-N", "300") == 0
        assert _judged(up(replace(spec, own_shape=second)), "-p", "one", "-N", "4") != 0
        assert _judged(status(PAPER), "-p", "two", "-N", "4") == 0
        assert _judged(status(PAPER), "-p", "two", "-N", "5") != 0
        assert status(PAPER).all_up and status(PAPER).nodes == ()
        with pytest.raises(InputError, match="down"):
            up(replace(spec, own_shape=None, paper=False))
    finally:
        down(PAPER)
    assert [path.name for path in PAPER.iterdir()] == ["log"]
    assert not any(names_of(PAPER).tag in path.name for path in Path("/sys/class/net").iterdir())


def _judged(found: ClusterStatus, *options: str) -> int:
    return as_user(found.slurm_conf, found.user, "sbatch", "--test-only", *options, "--wrap", "true").returncode


def _daemons() -> Daemons:
    paths = Paths(SECOND)
    return Daemons(SECOND, paths.pids, paths.log)


def _spec(state: Path) -> ClusterSpec:
    spec = status(state).spec
    assert spec is not None
    return spec


def _commands(netns: str) -> list[str]:
    found = [Path(f"/proc/{process.pid}/cmdline") for process in processes_in([netns])]
    return [path.read_text().replace("\0", " ").strip() for path in found if path.exists()]


def _inside(node: str, path: Path) -> Iterator[Path]:
    """Yield what a directory holds in the mounts of a node."""
    pid = _daemons().running(f"holder-{node}")
    return Path(f"/proc/{pid}/root{path}").iterdir()


def _state(node: str) -> str:
    return next(row.state for row in status(SECOND).nodes if row.name == node)
