"""Orders to the agents' step, as signals by Slurm: one that could not be delivered is given again."""

import subprocess
import threading
import time
from typing import Callable, Dict, List

AGAIN_S = 5.0
HELLO_S = 10.0
"""How long an order waits for agents that have not said hello."""
LIMIT_S = 30
"""For one scancel: where a node is lost it waits for that one, the others have got the signal long before."""


class Steps:
    """The agents' steps of a job on so many nodes, as their agents have named them."""

    def __init__(self, job: str, nodes: int) -> None:
        self._job, self._nodes = job, nodes
        self._hellos: Dict[str, str] = {}
        self._troubles: List[str] = []

    def greet(self, node: str, step: str) -> None:
        """Take in that a node's agent lives, and of which step it is."""
        self._hellos[node] = step

    def give(self, name: str, waited_s: float) -> bool:
        """Send the signal `name` aside; False while it has to wait, `waited_s` seconds after the attempt's begin.

        An agent that has not said hello may have no handler yet and would die of the signal: wait for all, a while.
        """
        if not self._hellos or (len(self._hellos) < self._nodes and waited_s < HELLO_S):
            return False
        for step in set(self._hellos.values()):
            given = ("%s.%s" % (self._job, step), name, self._troubles.append)
            threading.Thread(target=deliver, args=given, daemon=True).start()
        return True

    def troubles(self) -> List[str]:
        """Return what has newly been in the way of an order."""
        return [self._troubles.pop(0) for _ in range(len(self._troubles))]


def deliver(step: str, name: str, tell: Callable[[str], None]) -> None:
    """Send the signal `name` to all tasks of `step` (JOB.STEP); `tell` once what is in the way, and go on trying.

    Slurm's controller may be away for minutes. An agent that gets the same order twice does nothing new.
    """
    told = False
    while True:
        wrong = _send(step, name)
        if not wrong:
            return
        if not told:
            told = True
            tell("the node agents cannot be told to stop, tried again: %s" % wrong)
        time.sleep(AGAIN_S)


def _send(step: str, name: str) -> str:
    """Return what went wrong; empty when nothing did."""
    argv = ["scancel", "--signal=%s" % name, step]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = " ".join(done.stdout.decode("utf-8", "replace").split())
    return said or "scancel: exit status %d" % done.returncode if done.returncode else ""
