"""Orders to the agents' step, as signals by Slurm: one that could not be delivered is given again."""

import subprocess
import time
from typing import Callable

AGAIN_S = 5.0
LIMIT_S = 30
"""For one scancel: where a node is lost it waits for that one, the others have got the signal long before."""


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
