"""Locking the GPUs' clocks of a node for a job, and giving them back; a failure is a warning, never more."""

import subprocess
import threading
from typing import Callable, List

LIMIT_S = 20
SHOWN = 200


def run(options: List[str]) -> str:
    """Run `sudo -n nvidia-smi` with `options` and return what went wrong; empty when nothing did."""
    argv = ["sudo", "-n", "nvidia-smi"] + options
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "%s: %s" % (" ".join(argv), error)
    if not done.returncode:
        return ""
    said = " ".join(done.stdout.decode("utf-8", "replace").split())
    return "%s: exit status %d: %s" % (" ".join(argv), done.returncode, said[:SHOWN])


def lock(clocks: str) -> str:
    """Lock the clocks to `LOWEST,HIGHEST` (or one number) in MHz, as NVIDIA's page for the backend does by hand."""
    return run(["-lgc", clocks])


def reset() -> str:
    """Give the clocks back to the driver."""
    return run(["-rgc"])


def lock_aside(clocks: str, tell: Callable[[str], None]) -> threading.Thread:
    """Lock the clocks in a thread of its own, since a driver may take seconds, and `tell` what went wrong."""

    def work() -> None:
        tell(lock(clocks))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
