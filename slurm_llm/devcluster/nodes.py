"""One node of a cluster: started, stopped, cut off, healed, killed, and Slurm's word on its state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.devcluster.config import SLURMD_PORT, ClusterSpec, Machine, Paths, names_of
from slurm_llm.devcluster.daemons import SEARCH_PATH, Daemon, Daemons, listens
from slurm_llm.devcluster.namespaces import (
    holder_argv,
    holder_ready,
    inside,
    kill_all_in,
    link_is_up,
    set_link,
)
from slurm_llm.errors import NotReady, Problem, SetupError
from slurm_llm.process import Completed, run

SERVING = ("idle", "mixed", "allocated", "completing")
NUDGE_EVERY_S = 1.5
CUT_SOURCE = "devcluster-cut"
ACTIONS = ("down", "up", "cut", "heal", "kill")


@dataclass(frozen=True)
class Cluster:
    """An existing cluster: its options, what was found on the machine, its processes, its shared tree."""

    spec: ClusterSpec
    machine: Machine
    shared: Path

    @property
    def paths(self) -> Paths:
        return Paths(self.spec.state)

    @property
    def daemons(self) -> Daemons:
        return Daemons(self.spec.state, self.paths.pids, self.paths.log)

    def slurm(self, *argv: str, timeout_s: float = 30.0) -> Completed:
        """Run a Slurm command against this cluster."""
        env = {"PATH": SEARCH_PATH, "LC_ALL": "C", "SLURM_CONF": str(self.paths.slurm_conf)}
        return run(argv, env=env, timeout_s=timeout_s)


def start_node(cluster: Cluster, node: str) -> None:
    """Start a node's holder and slurmd unless they run."""
    daemons, slurmd, holder = cluster.daemons, f"slurmd-{node}", f"holder-{node}"
    pid = daemons.running(holder)
    if pid is None:
        # Whatever is left has the mounts of a holder that died; a new slurmd would not see them.
        netns = names_of(cluster.spec.state).netns(node)
        kill_all_in([netns])
        pid = daemons.start(Daemon(holder, holder_argv(netns, node)))
        made = pid
        daemons.wait(holder, lambda: holder_ready(made), timeout_s=20)
    if daemons.running(slurmd) is None:
        conf = str(cluster.paths.slurm_conf)
        daemons.start(Daemon(slurmd, inside(pid, "slurmd", "-D", "-f", conf)), {"SLURM_CONF": conf})


def stop_slurmd(cluster: Cluster, node: str) -> None:
    """Stop a node's slurmd and nothing else: its jobs' processes run on."""
    cluster.daemons.stop(f"slurmd-{node}")


def kill_node(cluster: Cluster, node: str) -> None:
    """Kill every process of a node; its /tmp and /dev/shm go with the last one, as at a power cut."""
    kill_all_in([names_of(cluster.spec.state).netns(node)])
    for name in (f"slurmd-{node}", f"holder-{node}"):
        cluster.daemons.stop(name, grace_s=0)


def cut_node(cluster: Cluster, node: str) -> None:
    """Pull a node's cable and hide the shared tree from it.

    Paths below the shared tree are gone for the node's processes from now on. What they hold open already
    (files, working directories) keeps working: a frozen file system cannot be had for one node alone.
    """
    holder = cluster.daemons.running(f"holder-{node}")
    if holder is not None and not _hidden(holder):
        options = "ro,size=4k,mode=0755"
        mount = ("mount", "-t", "tmpfs", "-o", options, CUT_SOURCE, str(cluster.shared))
        _in_node(holder, *mount)
    set_link(names_of(cluster.spec.state), node, up=False)


def heal_node(cluster: Cluster, node: str) -> None:
    """Undo `cut_node`; a node that was not cut stays as it is."""
    set_link(names_of(cluster.spec.state), node, up=True)
    holder = cluster.daemons.running(f"holder-{node}")
    while holder is not None and _hidden(holder):
        # Lazily: a process may have gone into the empty tree.
        _in_node(holder, "umount", "--lazy", str(cluster.shared))


def _hidden(holder: int) -> bool:
    return f" {CUT_SOURCE} " in Path(f"/proc/{holder}/mountinfo").read_text()


def _in_node(holder: int, *argv: str) -> None:
    done = run(inside(holder, *argv))
    if done.returncode:
        raise SetupError(f"{' '.join(argv)}: {done.stderr.strip()}")


def node_states(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return Slurm's state and reason of every node, empty when the controller does not answer."""
    done = cluster.slurm("sinfo", "-h", "-N", "-o", "%N|%T|%E")
    rows = [line.split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
    return {name: (state, reason) for name, state, reason in rows} if done.returncode == 0 else {}


def wait_for_nodes(cluster: Cluster, nodes: Sequence[str], *, timeout_s: float = 90.0) -> None:
    """Wait until every node answers and takes jobs; say what is wrong with those that do not."""
    deadline = time.monotonic() + timeout_s
    nudge_at = time.monotonic() + NUDGE_EVERY_S
    while True:
        states = node_states(cluster)
        bad = [node for node in nodes if not _serving(cluster, node, states.get(node, ("", ""))[0])]
        if not bad:
            return
        dead = [node for node in bad if cluster.daemons.running(f"slurmd-{node}") is None]
        if dead or time.monotonic() > deadline:
            raise NotReady([_complaint(cluster, node, states.get(node, ("", ""))) for node in dead or bad])
        if time.monotonic() > nudge_at:
            _nudge(cluster, [node for node in bad if node in states], states)
            nudge_at += NUDGE_EVERY_S
        time.sleep(0.1)


def _nudge(cluster: Cluster, bad: Sequence[str], states: dict[str, tuple[str, str]]) -> None:
    """Make the controller ask nodes at once: lost ones it asks every few minutes, drained ones never."""
    if bad:
        cluster.slurm("scontrol", "update", f"nodename={','.join(bad)}", "state=resume")
    if any(not states[node][0].startswith(("down", "drain")) for node in bad):
        # After its own restart the controller waits up to SlurmdTimeout before it asks anybody.
        cluster.slurm("scontrol", "reconfigure")


def _serving(cluster: Cluster, node: str, state: str) -> bool:
    pid = cluster.daemons.running(f"slurmd-{node}")
    return pid is not None and state in SERVING and listens(pid, SLURMD_PORT)


def _complaint(cluster: Cluster, node: str, said: tuple[str, str]) -> Problem:
    state, reason = said
    what = f"is {state or 'unknown to the controller'}"
    what += "" if reason in ("", "none") else f" ({reason})"
    if cluster.daemons.running(f"slurmd-{node}") is None:
        what = "its slurmd does not run"
    elif not link_is_up(names_of(cluster.spec.state), node):
        what += ", its cable is pulled: heal it"
    return Problem(node, what, todo=cluster.daemons.tail(f"slurmd-{node}.log", f"slurmd-{node}.out"))
