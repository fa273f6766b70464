"""Ends a job whose script is gone: what --no-kill leaves to the job when the script's own node is lost.

Slurm (22.05.8) keeps such a job RUNNING without script and steps until its time limit, and kills its steps just when
it gives up the node. So one agent, on another node, looks while Slurm still waits for that node.
"""

import json
import os
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from . import journal, nodes

SHORTEST_S, LONGEST_S = 2.0, 30.0
"""Between two looks. A tenth of SlurmdTimeout: Slurm pings three times in that, and gives up after the last."""
MISSED = ("NOT_RESPONDING", "DOWN")
HEIR = "1"
"""SLURM_NODEID of the agent that looks: the first one beside the script's node."""


class Will(NamedTuple):
    """The node of the job's script, and the attempt that runs."""

    script_host: str
    attempt_dir: str


def is_heir() -> bool:
    """Tell whether this agent is the one that looks."""
    return os.environ.get("SLURM_NODEID") == HEIR


def start(will: Will) -> None:
    """Look from now on, in a thread of its own."""
    threading.Thread(target=_watch, args=(will,), daemon=True).start()


def pause_s(timeout_s: float) -> float:
    """Return the seconds between two looks, given SlurmdTimeout."""
    return min(LONGEST_S, max(SHORTEST_S, timeout_s / 10.0))


def _watch(will: Will) -> None:
    pause, port = pause_s(nodes.slurmd_timeout_s()), nodes.slurmd_port()
    while not is_lost(will.script_host, port):
        time.sleep(pause)
    act(will)


def is_lost(host: str, port: int) -> bool:
    """Tell whether Slurm gets no answer from a node, and we none either."""
    state = nodes.slurm_says(host)
    return any(word in state for word in MISSED) and nodes.absence(host, port) != ""


def act(will: Will) -> None:
    """Write down what has happened and the attempt's result, then end the job.

    It is not requeued: Slurm has not given up the node yet (see `recover.wait_until_given_up`).
    """
    path = os.path.join(will.attempt_dir, "journal", "heir.jsonl")
    journal.append(path, journal.record("lost", node=will.script_host, why="it ran the job's script"))
    _conclude(will.attempt_dir)
    argv = ["scancel", os.environ.get("SLURM_JOB_ID", "")]
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        pass


def _conclude(attempt_dir: str) -> None:
    """Write the attempt's result, and tell it in the job's output, in place of the script."""
    job_dir = os.path.dirname(attempt_dir)
    run_dir, job = os.path.split(job_dir)
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(run_dir, "plan.json")) as stream:
            ranks = len(json.load(stream)["ranks"])
        output = os.path.join(run_dir, "slurm-%s.out" % job.rpartition("-")[2])
        with open(output, "ab") as told:
            argv = [sys.executable, "-I", here, "conclude", "--attempt", attempt_dir, "--ranks", str(ranks)]
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=told, stderr=told, timeout=60)
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        # The job is to end all the same.
        pass
