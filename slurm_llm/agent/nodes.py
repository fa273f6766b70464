"""Whether nodes still live: their agents' beats, and, when one is silent, its network and Slurm's word.

A busy node that is slow to answer is not a dead one: silence alone counts only after a long time.
"""

import errno
import os
import re
import socket
import subprocess
import threading
import time
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Set

SILENT_S = 6.0
"""Three beats: from then on a node is looked at."""
DEAD_S = 60.0
"""Silence that counts by itself."""
LOOK_S = 2.0
CONNECT_S = 2.0
ANSWER_S = 5.0
"""How long a slurmd has to end a connection that says nothing; one that stands still never does."""
ALONE_LOOK_S = 30.0
"""Between two looks at a node whose agent has ended."""
SLURMD_PORT = 6818
SLURMD_TIMEOUT_S = 300.0
PAUSE_S = 3.0
"""A head that does not look for so long has stood still itself: stopped with its job, or by a file system."""
MOST_LOOKS = 8
"""Looks at the same time: each asks slurmctld."""
GONE = frozenset(("DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"))
"""Parts of a state (scontrol(1)); of FAIL, POWER_DOWN and REBOOT_REQUESTED a node's jobs are to end first."""


MUTE = "NOT_RESPONDING"
"""Slurm's word for a node that has missed one of its pings: no proof while slurmd answers us."""
_TASK_ENDED = re.compile(r"^srun: error: ([\w.-]+): task \d+: (.+)$", re.MULTILINE)


class Lost(NamedTuple):
    """A node that is gone, since when it is silent, and how that is known."""

    node: str
    silent_s: float
    why: str


def absence(host: str, port: int, timeout_s: float = CONNECT_S) -> str:
    """Return what shows that a node is gone, empty while its slurmd takes connections.

    srun itself connects to that port from this host, so no firewall is between. slurmd logs a line for a connection
    that says nothing: only silent nodes are tried.
    """
    try:
        with socket.create_connection((host, port), timeout_s):
            return ""
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return "neither its agent nor its slurmd answers"
        return "it does not answer on the network"


def answers(host: str, port: int, timeout_s: float = ANSWER_S) -> bool:
    """Tell whether a slurmd is at work: it ends a connection whose other side has nothing to say.

    The kernel takes connections for one that stands still, too (Slurm 22.05.8: 0.01 s, and never when it is stopped).
    """
    try:
        with socket.create_connection((host, port), timeout_s) as made:
            made.shutdown(socket.SHUT_WR)
            made.settimeout(timeout_s)
            made.recv(1)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True


def ended_tasks(log: str) -> Dict[str, str]:
    """Return of which nodes the agents' srun says that its task has ended, and how: `Killed`."""
    try:
        with open(log, encoding="utf-8", errors="replace") as stream:
            return dict(_TASK_ENDED.findall(stream.read(1 << 20)))
    except OSError:
        return {}


def slurmd_port() -> int:
    """Return the port of the nodes' slurmd (`scontrol show config`), Slurm's default without an answer."""
    for row in scontrol("show", "config").splitlines():
        name, _, value = row.partition("=")
        if name.strip() == "SlurmdPort" and value.strip().isdigit():
            return int(value)
    return SLURMD_PORT


def slurmd_timeout_s() -> float:
    """Return how long Slurm waits for a silent node (`SlurmdTimeout`), its default without an answer."""
    found = re.search(r"^SlurmdTimeout\s*=\s*(\d+)", scontrol("show", "config"), re.MULTILINE)
    return float(found.group(1)) if found else SLURMD_TIMEOUT_S


def slurm_says(node: str) -> str:
    """Return the node's state in Slurm's words, empty without an answer."""
    words = scontrol("--oneliner", "show", "node", node).split()
    return next((word[len("State=") :] for word in words if word.startswith("State=")), "")


def is_gone(state: str, words: FrozenSet[str] = GONE) -> bool:
    """Tell whether a state is that of a node which runs no jobs, such as `DOWN*+DRAIN`."""
    return any(word.rstrip("*~#!%$@^-") in words for word in state.split("+"))


def scontrol(*words: str) -> str:
    """Return what scontrol prints, empty without an answer."""
    argv = ["scontrol"] + list(words)
    env = dict(os.environ, SLURM_TIME_FORMAT="standard", LC_ALL="C")
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def lack_of_room(plan: Dict[str, Any], hello: Dict[str, Any]) -> str:
    """Return what a node lacks in /dev/shm for its ranks, given what its agent said first; empty when nothing."""
    ranks = int(plan["allocation"]["ranks_per_node"])
    need = plan["dev_shm_mib"] * ranks
    free = hello.get("shm_free_mib", need)
    what = "/dev/shm of node %s has %d MiB free, %d ranks need %d MiB"
    return what % (hello["node"], free, ranks, need) if free < need else ""


class Nodes:
    """What is known of each node; looking at a silent one runs aside, so that nothing waits for it."""

    def __init__(self, agents_log: str = "") -> None:
        self.agents_log = agents_log
        self.answering: Set[str] = set()
        self.alone: Dict[str, Lost] = {}
        """Nodes whose agents have ended, while they live on."""
        self.untold: List[Lost] = []
        self.last: Dict[str, float] = {}
        self.port = 0
        self.looked: Dict[str, float] = {}
        self.looking: Set[str] = set()
        self.gone: List[Lost] = []
        self.awake_at: Optional[float] = None

    def heard(self, node: str, now: float) -> None:
        """Note that a node's agent has spoken."""
        self.last[node] = now
        self.answering.discard(node)
        self.alone.pop(node, None)

    def forget(self, node: str) -> None:
        """Note that a node's agent has left in order."""
        self.last.pop(node, None)

    def stood_still_s(self, now: float) -> float:
        """Return for how long nobody has called this, 0 when that is usual; no node was silent meanwhile."""
        gap = 0.0 if self.awake_at is None else now - self.awake_at
        self.awake_at = now
        if gap < PAUSE_S:
            return 0.0
        self.last = {node: min(now, heard + gap) for node, heard in self.last.items()}
        return gap

    def lost(self, now: float) -> Optional[Lost]:
        """Return the first node that is gone, when there is one; looks at silent ones."""
        for node, heard in list(self.last.items()):
            silent = now - heard
            if silent >= DEAD_S and node not in self.answering:
                return Lost(node, silent, "its agent is silent for %d s" % silent)
            if silent >= DEAD_S:
                self._leave_alone(node, silent, "")
            pause = ALONE_LOOK_S if node in self.alone else LOOK_S
            due = node not in self.looking and now - self.looked.get(node, 0.0) >= pause
            if silent >= SILENT_S and due and len(self.looking) < MOST_LOOKS:
                self.looked[node] = now
                self.looking.add(node)
                threading.Thread(target=self._look, args=(node, silent), daemon=True).start()
        return self.gone[0] if self.gone else None

    def _look(self, node: str, silent: float) -> None:
        state = slurm_says(node)
        self.port = self.port or slurmd_port()
        why = "Slurm says %s" % state if is_gone(state, GONE - {MUTE}) else absence(node, self.port)
        if why and is_gone(state):
            why = "Slurm says %s" % state
        if not why:
            self._look_closer(node, silent)
        if why and node in self.last and time.monotonic() - self.last[node] >= SILENT_S:
            self.gone.append(Lost(node, silent, why))
        self.looking.discard(node)

    def _look_closer(self, node: str, silent: float) -> None:
        """Find out whether only the agent has ended: slurmd is at work, and srun may have seen the agent's end."""
        if not answers(node, self.port):
            self.answering.discard(node)
            return
        how = ended_tasks(self.agents_log).get(node, "")
        if node in self.last and time.monotonic() - self.last[node] >= SILENT_S:
            self.answering.add(node)
            if how:
                self._leave_alone(node, silent, how)

    def _leave_alone(self, node: str, silent: float, how: str) -> None:
        if node not in self.alone:
            said = "node %s is watched no more: its agent has ended (%s)%s"
            answers = "; the node answers" if node in self.answering else ""
            self.alone[node] = Lost(node, silent, said % (node, how or "killed?", answers))
            self.untold.append(self.alone[node])

    def gone_alone(self, now: Optional[float] = None) -> List[Lost]:
        """Return the nodes that have newly lost their agents alone; with `now`, by srun's word alone."""
        ended = {} if now is None else ended_tasks(self.agents_log)
        for node in set(ended) & set(self.last):
            self._leave_alone(node, (now or 0.0) - self.last[node], ended[node])
        told, self.untold = self.untold, []
        return told

    def silent(self, now: float) -> Optional[Lost]:
        """Return the node whose agent is silent for longest, when one is; more must say that it is gone."""
        found = [Lost(node, now - heard, "its agent is silent") for node, heard in self.last.items()]
        found = [one for one in found if one.silent_s >= SILENT_S and one.node not in self.answering]
        return max(found, key=lambda one: one.silent_s) if found else None
