"""Whether nodes still live: their agents' beats, and, when one is silent, its network and Slurm's word.

A busy node that is slow to answer is not a dead one: silence alone counts only after a long time.
"""

import errno
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
UNUSED_PORT = 1
"""Nothing listens there: a living kernel refuses the connection."""
GONE = ("DOWN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT")


class Lost(NamedTuple):
    """A node that is gone, since when it is silent, and how that is known."""

    node: str
    silent_s: float
    why: str


def reachable(host: str, timeout_s: float = CONNECT_S) -> Optional[bool]:
    """Return whether the kernel of `host` answers; None when its name cannot be looked up."""
    try:
        with socket.create_connection((host, UNUSED_PORT), timeout_s):
            return True
    except socket.gaierror:
        return None
    except OSError as error:
        return error.errno == errno.ECONNREFUSED


def slurm_says(node: str) -> str:
    """Return the node's state in Slurm's words, empty without an answer."""
    argv = ["scontrol", "--oneliner", "show", "node", node]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = done.stdout.decode("utf-8", "replace").split()
    return next((word[len("State=") :] for word in words if word.startswith("State=")), "")


class Nodes:
    """What is known of each node; looking at a silent one runs aside, so that nothing waits for it."""

    def __init__(self) -> None:
        self.last: Dict[str, float] = {}
        self.answered: Dict[str, bool] = {}
        self.looked: Dict[str, float] = {}
        self.gone: List[Lost] = []

    def heard(self, node: str, now: float) -> None:
        """Note that a node's agent has spoken."""
        if node not in self.last:
            # Where a firewall drops connections to a living node, their failing says nothing later.
            threading.Thread(target=self._greet, args=(node,), daemon=True).start()
        self.last[node] = now

    def _greet(self, node: str) -> None:
        self.answered[node] = bool(reachable(node))

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
        if any(word in state for word in GONE):
            self.gone.append(Lost(node, silent, "Slurm says %s" % state))
        elif self.answered.get(node) and reachable(node) is False and self._still_silent(node):
            self.gone.append(Lost(node, silent, "it does not answer on the network"))

    def _still_silent(self, node: str) -> bool:
        return node in self.last and time.monotonic() - self.last[node] >= SILENT_S
