"""Every job of one user that is in the queue or runs, in one question to squeue: its argv, and its answer read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_llm.errors import SlurmError
from slurm_llm.slurm.commands import SEPARATOR, failure

if TYPE_CHECKING:
    from slurm_llm.process import Completed


@dataclass(frozen=True)
class Queued:
    """A job that is not over: its number, and the script that it was submitted with, arguments and all."""

    number: int
    command: str


def user_queue_argv(user: str, *, clusters: str | None = None) -> tuple[str, ...]:
    """Ask for a user's jobs in every state that is no end, hidden partitions included."""
    options = () if clusters is None else (f"--clusters={clusters}",)
    return ("squeue", "--noheader", "--all", *options, f"--user={user}", "-o", SEPARATOR.join(("%A", "%o")))


def parse_user_queue(completed: Completed) -> tuple[Queued, ...]:
    """Return the jobs, perhaps none.

    Raises:
        SlurmError: squeue got no answer.
    """
    if completed.returncode != 0:
        raise failure(SlurmError, "squeue got no answer about your jobs", completed)
    rows = (line.partition(SEPARATOR) for line in completed.stdout.splitlines())
    # With --clusters a line names the cluster.
    return tuple(Queued(int(number), command) for number, _, command in rows if number.strip().isdecimal())
