"""The pairs for scontrol, whose `Key=value` text may hold blanks and `=` in values; nothing is run here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slurm_llm.errors import SlurmError
from slurm_llm.slurm.commands import NO_SUCH_JOB, failure
from slurm_llm.slurm.facts import JobFacts, build_facts
from slurm_llm.slurm.formats import JobId

if TYPE_CHECKING:
    from slurm_llm.process import Completed

# The keys that Slurm 20.11 to 26.05 prints for a job. A key is one only if it is known: names, comments and
# paths hold `=` and blanks as they like.
_KEY_NAMES = """
    JobId ArrayJobId ArrayTaskId HetJobId HetJobOffset HetJobIdSet JobName UserId GroupId MCS_label
    Priority Nice Account QOS WCKey JobState Reason Dependency FailedNode Requeue Restarts BatchFlag
    Reboot ExitCode DerivedExitCode RunTime TimeLimit TimeMin SubmitTime EligibleTime AccrueTime StartTime
    EndTime Deadline SuspendTime SecsPreSuspend LastSchedEval Scheduler PreemptEligibleTime PreemptTime
    Partition AllocNode:Sid ReqNodeList ExcNodeList NodeList SchedNodeList BatchHost StepMgrEnabled
    NumNodes NumCPUs NumTasks CPUs/Task ReqB:S:C:T TRES ReqTRES AllocTRES Socks/Node NtasksPerN:B:S:C
    CoreSpec MinCPUsNode MinMemoryNode MinMemoryCPU MinTmpDiskNode Features DelayBoot OverSubscribe
    Contiguous Licenses LicensesAlloc Network Command WorkDir Comment AdminComment SystemComment Extra
    StdErr StdIn StdOut BatchScript Power TresPerJob TresPerNode TresPerSocket TresPerTask TresBind
    TresFreq CpusPerTres MemPerTres GresEnforceBind KillOInInvalidDependent MailUser MailType Reservation
    JOB_GRES Nodes CPU_IDs Mem GRES Switches BurstBuffer BurstBufferState Cluster ClusterFeatures
    SiblingsActive SiblingsViable
"""
_KEYS = frozenset(_KEY_NAMES.split())
_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=", re.ASCII)
# A job's name may hold line ends, so a record ends where the next begins (a job array has one a task).
_RECORD = re.compile(r"^JobId=\d+ .*?(?=\n(?:JobId=\d+ |\Z)|\Z)", re.DOTALL | re.MULTILINE)
_AFTER_NAME = re.compile(r"\sUserId=\S*\(\d+\)\s+GroupId=")

_FIELDS = {
    "state": "JobState",
    "reason": "Reason",
    "exit_code": "ExitCode",
    "derived_exit_code": "DerivedExitCode",
    "restarts": "Restarts",
    "time_limit": "TimeLimit",
    "submit_time": "SubmitTime",
    "start_time": "StartTime",
    "end_time": "EndTime",
    "node_count": "NumNodes",
    "node_list": "NodeList",
    "batch_host": "BatchHost",
    "partition": "Partition",
    "name": "JobName",
    "stdout": "StdOut",
}


def scontrol_show_job_argv(job_id: JobId) -> tuple[str, ...]:
    """Ask the controller for one job, on one line; only the details hold DerivedExitCode, srun's failure."""
    clusters = () if job_id.cluster is None else (f"--clusters={job_id.cluster}",)
    return ("scontrol", *clusters, "--oneliner", "--details", "show", "job", str(job_id))


def parse_scontrol_job(completed: Completed, *, cluster: str | None = None) -> JobFacts | None:
    """Return the job, None when the controller does not know it (any more); raises SlurmError otherwise.

    scontrol's exit status is not trusted alone: an answer counts only with a job id in it.
    """
    said = completed.stdout + completed.stderr
    record = _RECORD.search(completed.stdout)
    if record is None:
        if NO_SUCH_JOB in said or (completed.returncode == 0 and "No jobs in the system" in said):
            return None
        raise failure(SlurmError, "scontrol got no answer about the job", completed)
    values = parse_key_values(record[0])
    fields = {ours: values.get(theirs, "") for ours, theirs in _FIELDS.items()}
    return build_facts("scontrol", {"job_id": _id_text(values), **fields}, cluster)


def parse_key_values(line: str) -> dict[str, str]:
    """Split one line of `scontrol --oneliner show job` at its known keys; the first of each key counts.

    JobName, the one free text before the state, ends where the user's and group's ids follow, so a name such
    as `x JobState=COMPLETED` is no state.
    """
    values: dict[str, str] = {}
    head, name_key, rest = line.partition(" JobName=")
    after_name = _AFTER_NAME.search(rest) if name_key else None
    if after_name:
        values["JobName"] = rest[: after_name.start()]
        _split_known(head, values)
        _split_known(rest[after_name.start() :], values)
    else:
        _split_known(line, values)
    return values


def scontrol_show_config_argv(*, clusters: str | None = None) -> tuple[str, ...]:
    """Ask for the controller's configuration."""
    return ("scontrol", *(() if clusters is None else (f"--clusters={clusters}",)), "show", "config")


def parse_scontrol_config(completed: Completed) -> dict[str, str]:
    """Return `Key = value` lines as a mapping, `(null)` as an empty text; raises SlurmError without any."""
    config: dict[str, str] = {}
    for line in completed.stdout.splitlines():
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[\w/:.-]+", key.strip()):
            config.setdefault(key.strip(), "" if value.strip() == "(null)" else value.strip())
    if completed.returncode != 0 or not config:
        raise failure(SlurmError, "scontrol got no configuration", completed)
    return config


def _split_known(text: str, values: dict[str, str]) -> None:
    matches = [match for match in _KEY.finditer(text) if match[1] in _KEYS]
    ends = [match.start() for match in matches[1:]] + [len(text)]
    for match, end in zip(matches, ends, strict=True):
        values.setdefault(match[1], text[match.end() : end].strip())


def _id_text(values: dict[str, str]) -> str:
    """Return the id as squeue shows it: array tasks by their array's id, components by their first job's."""
    if values.get("ArrayJobId") and values.get("ArrayTaskId"):
        task = values["ArrayTaskId"]
        return f"{values['ArrayJobId']}_{task if task.isdecimal() else f'[{task}]'}"
    if values.get("HetJobId") and values.get("HetJobOffset"):
        return f"{values['HetJobId']}+{values['HetJobOffset']}"
    return values["JobId"]
