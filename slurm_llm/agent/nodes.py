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
from typing import Dict, List, NamedTuple, Optional

SILENT_S = 6.0
"""Three beats: from then on a node is looked at."""
DEAD_S = 60.0
"""Silence that counts by itself."""
LOOK_S = 2.0
CONNECT_S = 2.0
SLURMD_PORT = 6818
SLURMD_TIMEOUT_S = 300.0
GONE = ("DOWN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT")


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


class Nodes:
    """What is known of each node; looking at a silent one runs aside, so that nothing waits for it."""

    def __init__(self) -> None:
        self.last: Dict[str, float] = {}
        self.port = 0
        self.looked: Dict[str, float] = {}
        self.gone: List[Lost] = []

    def heard(self, node: str, now: float) -> None:
        """Note that a node's agent has spoken."""
        self.last[node] = now

    def forget(self, node: str) -> None:
        """Note that a node's agent has left in order."""
        self.last.pop(node, None)

    def lost(self, now: float) -> Optional[Lost]:
        """Return the first node that is gone, when there is one; looks at silent ones."""
        for node, heard in list(self.last.items()):
            silent = now - heard
            if silent >= DEAD_S:
                return Lost(node, silent, "its agent is silent for %d s" % silent)
            if silent >= SILENT_S and now - self.looked.get(node, 0.0) >= LOOK_S:
                self.looked[node] = now
                threading.Thread(target=self._look, args=(node, silent), daemon=True).start()
        return self.gone[0] if self.gone else None

    def _look(self, node: str, silent: float) -> None:
        state = slurm_says(node)
        self.port = self.port or slurmd_port()
        why = "Slurm says %s" % state if any(word in state for word in GONE) else absence(node, self.port)
        if why and node in self.last and time.monotonic() - self.last[node] >= SILENT_S:
            self.gone.append(Lost(node, silent, why))

    def silent(self, now: float) -> Optional[Lost]:
        """Return the node whose agent is silent for longest, when one is; more must say that it is gone."""
        found = [Lost(node, now - heard, "its agent is silent") for node, heard in self.last.items()]
        found = [one for one in found if one.silent_s >= SILENT_S]
        return max(found, key=lambda one: one.silent_s) if found else None
