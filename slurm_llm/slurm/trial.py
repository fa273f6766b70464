"""The pairs that ask what Slurm would do with a job: `sbatch --test-only`, and the partitions' limits.

One function builds the argv, one reads what came back; nothing is run here, and no job is created.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_llm.slurm.formats import parse_reported_time
from slurm_llm.slurm.survey import parse_partitions

if TYPE_CHECKING:
    from slurm_llm.process import Completed

# As sbatch prints it since 17.11: before, without the partition.
_WOULD_START = re.compile(
    r"Job \d+ to start at (?P<start>\S+)(?: on cluster \S+)? using (?P<cpus>\d+) processors"
    r" on (?:nodes )?(?P<nodes>\S+)(?: in partition (?P<partition>\S+))?"
)
_PREEMPTS = re.compile(r"Preempts: (\S.*)")
_LOG_PREFIX = re.compile(r"^sbatch: (?:error: |fatal: )?")


@dataclass(frozen=True)
class Trial:
    """Slurm's answer to a trial submission; `said` is all that it printed, `preempts` the jobs that would have to go.

    `start` is local time as Slurm prints it; it and the nodes are empty when the job was refused, or nothing was said.
    """

    accepted: bool
    said: str
    start: str = ""
    nodes: str = ""
    partition: str = ""
    cpus: int = 0
    preempts: str = ""


@dataclass(frozen=True)
class PartitionLimits:
    """What `scontrol show partition` says beyond sinfo; None is no limit."""

    name: str
    max_nodes: int | None
    max_time_s: int | None
    nodes: int
    state: str


def trial_argv(script: str) -> tuple[str, ...]:
    """Ask whether and when a script's job would start; no job is created."""
    return ("sbatch", "--test-only", script)


def parse_trial(completed: Completed) -> Trial:
    """Read the answer by its exit status; a site's own sbatch may accept without Slurm's usual line."""
    text = "\n".join(part.strip() for part in (completed.stdout, completed.stderr) if part.strip())
    said = "\n".join(_LOG_PREFIX.sub("", line.strip()) for line in text.splitlines())
    if completed.returncode != 0:
        return Trial(False, said or f"exit status {completed.returncode} without a word")
    found, preempts = _WOULD_START.search(said), _PREEMPTS.search(said)
    if found is None:
        return Trial(True, said)
    return Trial(
        accepted=True,
        said=said,
        start=found["start"],
        nodes=found["nodes"],
        partition=found["partition"] or "",
        cpus=int(found["cpus"]),
        preempts=preempts[1].strip() if preempts else "",
    )


def parse_partition_limits(completed: Completed) -> dict[str, PartitionLimits]:
    """Return the partitions by name; raises SlurmError when the controller did not answer."""
    return {
        one.name: PartitionLimits(
            name=one.name,
            max_nodes=_count(one.get("MaxNodes")),
            max_time_s=_seconds(one.get("MaxTime")),
            nodes=_count(one.get("TotalNodes")) or 0,
            state=one.get("State"),
        )
        for one in parse_partitions(completed)
    }


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _seconds(text: str) -> int | None:
    try:
        return parse_reported_time(text)
    except ValueError:
        return None
