"""Slurm's commands as pairs: one function builds the argv, one reads what came back; nothing is run here.

Every format is asked for explicitly, with a separator that no field but the last can hold. `scontrol.py` has
the pair for scontrol, whose text has no format option.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_llm.errors import SlurmError, SubmitError
from slurm_llm.slurm.facts import JobFacts, build_facts, split_records
from slurm_llm.slurm.formats import JobId, parse_job_id, parse_reported_time

if TYPE_CHECKING:
    from slurm_llm.process import Completed

SEPARATOR = "\x1f"  # ASCII's unit separator: in no node list, partition or reason; the job's name comes last
NO_SUCH_JOB = "Invalid job id specified"
NO_ACCOUNTING = "Slurm accounting storage is disabled"

_SQUEUE_FIELDS = {
    "job_id": "%i",
    "state": "%T",
    "reason": "%r",
    "time_left": "%L",
    "time_limit": "%l",
    "start_time": "%S",
    "submit_time": "%V",
    "node_count": "%D",
    "batch_host": "%B",
    "partition": "%P",
    "node_list": "%N",
    "name": "%j",
}
_SACCT_FIELDS = {
    "job_id": "JobID",
    "state": "State",
    "exit_code": "ExitCode",
    "derived_exit_code": "DerivedExitCode",
    "reason": "Reason",
    "submit_time": "Submit",
    "start_time": "Start",
    "end_time": "End",
    "time_limit": "Timelimit",
    "node_count": "NNodes",
    "node_list": "NodeList",
    "partition": "Partition",
    "name": "JobName",
}
_SINFO_FIELDS = {
    "name": "%P",
    "avail": "%a",
    "time_limit": "%l",
    "nodes": "%D",
    "cpus": "%c",
    "mem": "%m",
    "gres": "%G",
}


@dataclass(frozen=True)
class Submitted:
    """An accepted job; `warnings` are the other lines that sbatch printed, for the user to see."""

    job_id: JobId
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accounting:
    """What sacct knows; `enabled` is False on a cluster without accounting, which is no error."""

    enabled: bool
    jobs: dict[JobId, JobFacts]


@dataclass(frozen=True)
class PartitionFacts:
    """One kind of node in a partition; sizes are a node's, the smallest when sinfo shows `8+`.

    `time_limit_s` is None without a limit. `gres` is Slurm's text, for `parse_gpus`.
    """

    name: str
    is_default: bool
    is_up: bool
    time_limit_s: int | None
    nodes: int
    cpus: int
    mem_mib: int
    gres: str


def sbatch_argv(script: str, *, options: Sequence[str] = (), clusters: str | None = None) -> tuple[str, ...]:
    """Build the submission of a script; options go before it, so they win over its `#SBATCH` lines."""
    return ("sbatch", "--parsable", *_clusters(clusters), *options, script)


def parse_sbatch(completed: Completed) -> Submitted:
    """Read `jobid` or `jobid;cluster`; any other line is a warning. Raises SubmitError."""
    if completed.returncode != 0:
        raise failure(SubmitError, "sbatch refused the job", completed)
    found: list[str] = []
    others: list[str] = []
    for line in completed.stdout.splitlines():
        (found if re.fullmatch(r"\d+(;\S+)?", line.strip(), re.ASCII) else others).append(line)
    if not found:
        raise failure(SubmitError, "sbatch printed no job id, so whether there is a job is not known", completed)
    others += completed.stderr.splitlines()
    return Submitted(parse_job_id(found[-1]), tuple(line for line in others if line.strip()))


def squeue_argv(job_ids: Sequence[JobId], *, clusters: str | None = None) -> tuple[str, ...]:
    """Ask for many jobs at once, those that the controller still remembers included."""
    return (
        "squeue",
        "--noheader",
        "--states=all",
        *_clusters(clusters),
        f"--jobs={','.join(map(str, job_ids))}",
        "-o",
        SEPARATOR.join(_SQUEUE_FIELDS.values()),
    )


def parse_squeue(completed: Completed, *, cluster: str | None = None) -> dict[JobId, JobFacts]:
    """Return the jobs that the controller knows, perhaps none; raises SlurmError when it did not answer."""
    if completed.returncode != 0:
        if NO_SUCH_JOB in completed.stderr:
            return {}
        raise failure(SlurmError, "squeue got no answer about the jobs", completed)
    return _jobs("squeue", _SQUEUE_FIELDS, completed.stdout, cluster)


def sacct_argv(job_ids: Sequence[JobId], *, steps: bool = False, clusters: str | None = None) -> tuple[str, ...]:
    """Ask the accounting for many jobs at once; with `steps`, for their steps too."""
    return (
        "sacct",
        "--noheader",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
        *(() if steps else ("--allocations",)),
        *_clusters(clusters),
        f"--jobs={','.join(map(str, job_ids))}",
        f"--format={','.join(_SACCT_FIELDS.values())}",
    )


def parse_sacct(completed: Completed, *, cluster: str | None = None) -> Accounting:
    """Return what the accounting knows by job and step id; raises SlurmError when it did not answer.

    It is poorer than scontrol: of a job that timed out it has 0:0 where scontrol has 0:15, of a launch
    failure no reason, and a name's double quotes are back quotes (22.05.8).
    """
    if completed.returncode != 0:
        if NO_ACCOUNTING in completed.stderr + completed.stdout:
            return Accounting(False, {})
        raise failure(SlurmError, "sacct got no answer about the jobs", completed)
    return Accounting(True, _jobs("sacct", _SACCT_FIELDS, completed.stdout, cluster))


def scancel_argv(
    job_id: JobId,
    *,
    signal: str | None = None,
    batch: bool = False,
    full: bool = False,
    step: str | None = None,
) -> tuple[str, ...]:
    """Cancel a job or step, or signal it: its steps by default, the batch shell (`batch`), or both (`full`).

    `step` adds to the job id: `scancel -s TERM JOB.STEP` is what reaches a step's tasks.
    """
    target = str(job_id) if step is None else f"{job_id}.{step}"
    return (
        "scancel",
        *_clusters(job_id.cluster),
        *(("--batch",) if batch else ()),
        *(("--full",) if full else ()),
        *((f"--signal={signal}",) if signal else ()),
        target,
    )


def sinfo_argv(*, clusters: str | None = None) -> tuple[str, ...]:
    """Ask for the partitions, a line for each kind of node in them."""
    formats = SEPARATOR.join(_SINFO_FIELDS.values())
    return ("sinfo", "--noheader", "--exact", *_clusters(clusters), "-o", formats)


def parse_sinfo(completed: Completed) -> tuple[PartitionFacts, ...]:
    """Return the partitions in sinfo's order; lines that do not have its shape are passed over."""
    if completed.returncode != 0:
        raise failure(SlurmError, "sinfo got no answer about the partitions", completed)
    records = split_records(completed.stdout, tuple(_SINFO_FIELDS), SEPARATOR)
    return tuple(_partition(record) for record in records)


def mpi_list_argv() -> tuple[str, ...]:
    """Ask which MPI types srun has."""
    return ("srun", "--mpi=list")


def parse_mpi_list(completed: Completed) -> tuple[str, ...]:
    """Return the MPI types of `srun: pmix_v3` lines (to 21.08) or of the list that 22.05 began.

    Naming a type does not mean that it works: `--mpi=pmix` also needs the unversioned libpmix.so on the node.
    """
    if completed.returncode != 0:
        raise failure(SlurmError, "srun did not list its MPI types", completed)
    types: list[str] = []
    for line in (completed.stdout + "\n" + completed.stderr).splitlines():
        bare = line.removeprefix("srun:").strip()
        _, marker, versions = bare.partition("versions available:")
        for word in versions.split(",") if marker else [bare]:
            if re.fullmatch(r"\w+", word.strip()) and word.strip() not in types:
                types.append(word.strip())
    return tuple(types)


def _clusters(clusters: str | None) -> tuple[str, ...]:
    return () if clusters is None else (f"--clusters={clusters}",)


def _jobs(source: str, fields: dict[str, str], text: str, cluster: str | None) -> dict[JobId, JobFacts]:
    """Build the facts of each line; of several about one job the first counts, a line without an id none."""
    jobs: dict[JobId, JobFacts] = {}
    for record in split_records(text, tuple(fields), SEPARATOR):
        try:
            facts = build_facts(source, record, cluster)
        except ValueError:
            continue
        jobs.setdefault(facts.job_id, facts)
    return jobs


def _partition(record: dict[str, str]) -> PartitionFacts:
    name = record["name"].strip()
    try:
        limit = parse_reported_time(record["time_limit"])
    except ValueError:
        limit = None
    gres = record["gres"].strip()
    return PartitionFacts(
        name=name.removesuffix("*"),
        is_default=name.endswith("*"),
        is_up=record["avail"].strip() == "up",
        time_limit_s=limit,
        nodes=_number(record["nodes"]),
        cpus=_number(record["cpus"]),
        mem_mib=_number(record["mem"]),
        gres="" if gres == "(null)" else gres,
    )


def _number(text: str) -> int:
    """Read `8` and `8+`; anything else is 0."""
    digits = text.strip().rstrip("+")
    return int(digits) if digits.isdecimal() else 0


def failure(kind: type[SlurmError], message: str, completed: Completed) -> SlurmError:
    """Build the error of a command that was run, with all that it left."""
    return kind(
        message,
        completed.argv,
        returncode=completed.returncode,
        stdout=completed.stdout,
        stderr=completed.stderr,
    )
