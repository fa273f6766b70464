"""Why Slurm says a job waits or ended: its reason code as a sentence, and who clears it; nothing is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Clears(str, Enum):
    """Who ends the wait."""

    ITSELF = "itself"  # it waits its turn
    OTHERS = "others"  # other jobs, an administrator or a repair must come first
    USER = "user"  # the user holds the key: release, or correct the request
    NEVER = "never"  # the request can never start as it is


@dataclass(frozen=True)
class Reason:
    """A reason code, what it means in one sentence, who clears it, what Slurm added to it."""

    code: str
    text: str
    clears: Clears
    detail: str = ""


_EXACT: dict[str, tuple[Clears, str]] = {
    "None": (Clears.ITSELF, "Slurm has not looked at the job yet, or gives no reason."),
    "Resources": (Clears.ITSELF, "The job is next and waits for nodes, GPUs, CPUs or memory to become free."),
    "Priority": (Clears.ITSELF, "Jobs of higher priority come first in this partition."),
    "BeginTime": (Clears.ITSELF, "The job's earliest start time has not come yet (a requeue sets one too)."),
    "Prolog": (Clears.ITSELF, "Slurm's prolog is still running for this job."),
    "Cleaning": (Clears.ITSELF, "The job was requeued and its previous attempt is still being cleaned up."),
    "SchedDefer": (Clears.ITSELF, "The scheduler put immediate starts off and will look at the job later."),
    "Licenses": (Clears.ITSELF, "The job waits for a licence that others use."),
    "Dependency": (Clears.ITSELF, "The job waits for another job that it depends on."),
    "JobArrayTaskLimit": (Clears.ITSELF, "The array's own limit of tasks that run at once is reached."),
    "BurstBufferResources": (Clears.ITSELF, "The job waits for burst buffer space."),
    "BurstBufferStageIn": (Clears.ITSELF, "Data is being staged into the burst buffer."),
    "FedJobLock": (Clears.ITSELF, "The clusters of the federation are agreeing on where the job starts."),
    "PowerNotAvail": (Clears.OTHERS, "The power cap leaves too little for this job."),
    "PowerReserved": (Clears.OTHERS, "The power that this job needs is reserved."),
    "Reservation": (Clears.ITSELF, "The job waits for its reservation to begin."),
    "ReservationDeleted": (Clears.USER, "The job's reservation was deleted: change or drop `--reservation`."),
    "ReservationInvalid": (
        Clears.USER,
        "The job's reservation is not valid: change or drop `--reservation`.",
    ),
    "ReqNodeNotAvail": (
        Clears.OTHERS,
        "A node that the job needs is down, drained or reserved, perhaps for maintenance during the job.",
    ),
    "NodeDown": (Clears.OTHERS, "A node of the job is down."),
    "FrontEndDown": (Clears.OTHERS, "No front end node can run the job."),
    "PartitionDown": (Clears.OTHERS, "The partition is down: an administrator must bring it up."),
    "PartitionInactive": (Clears.OTHERS, "The partition is inactive: an administrator must open it."),
    "PartitionConfig": (Clears.NEVER, "The partition's configuration does not allow this request."),
    "PartitionNodeLimit": (
        Clears.NEVER,
        "The job asks for more nodes than the partition has or allows (or has up): it may never start.",
    ),
    "PartitionTimeLimit": (Clears.NEVER, "The job's time limit is above the partition's: ask for less time."),
    "BadConstraints": (Clears.NEVER, "No node can satisfy the job's constraints and sizes together."),
    "Constraints": (Clears.NEVER, "No node can satisfy the job's constraints and sizes together."),
    "MaxMemPerLimit": (Clears.NEVER, "The job asks for more memory per CPU or node than is allowed."),
    "DependencyNeverSatisfied": (Clears.NEVER, "The job that this one depends on ended the wrong way."),
    "JobHeldUser": (Clears.USER, "The job is held by its owner: `scontrol release` lets it go."),
    "JobHeldAdmin": (Clears.OTHERS, "The job is held by an administrator, who must release it."),
    "JobHoldMaxRequeue": (Clears.USER, "The job was requeued too often and is held: find out why it fails."),
    "LaunchFailedRequeuedHeld": (
        Clears.USER,
        "The job could not be launched on its nodes and is held: `scontrol release` tries again.",
    ),
    "InvalidAccount": (Clears.USER, "The job's account is not valid here: correct `--account`."),
    "InvalidQOS": (Clears.USER, "The job's QOS is not valid here: correct `--qos`."),
    "AccountNotAllowed": (Clears.USER, "The job's account may not use this partition."),
    "QOSNotAllowed": (Clears.USER, "The job's QOS may not use this partition."),
    "QOSUsageThreshold": (Clears.OTHERS, "The QOS's usage threshold is passed."),
    "AccountingPolicy": (Clears.OTHERS, "A limit of the accounting policy is reached."),
    "AssociationJobLimit": (Clears.OTHERS, "The account has as many jobs as it may have."),
    "AssociationResourceLimit": (Clears.OTHERS, "The account uses as much as it may use."),
    "AssociationTimeLimit": (Clears.OTHERS, "The account's time is used up."),
    "QOSJobLimit": (Clears.OTHERS, "The QOS has as many jobs as it may have."),
    "QOSResourceLimit": (Clears.OTHERS, "The QOS uses as much as it may use."),
    "QOSTimeLimit": (Clears.OTHERS, "The QOS's time is used up."),
    "BurstBufferOperation": (Clears.USER, "An operation on the burst buffer failed."),
    "DeadLine": (Clears.NEVER, "The job's deadline cannot be met any more."),
    "InactiveLimit": (Clears.NEVER, "The job was inactive for too long."),
    "JobLaunchFailure": (
        Clears.NEVER,
        "The job could not be launched: no output directory, or the node could not start the script.",
    ),
    "NonZeroExitCode": (Clears.NEVER, "The job's script ended with a status other than 0."),
    "RaisedSignal": (Clears.NEVER, "The job ended by a signal."),
    "TimeLimit": (Clears.NEVER, "The job ran into its time limit."),
    "OutOfMemory": (Clears.NEVER, "The job used more memory than it had asked for."),
    "SystemFailure": (Clears.NEVER, "Slurm itself failed for this job."),
}

# Slurm has some 150 codes of accounting limits: whose limit, then which; the first pattern that fits counts.
_FAMILIES: tuple[tuple[str, Clears, str], ...] = (
    (
        r"(Assoc|QOS)Max.*(PerJob|PerNode)(Limit)?",
        Clears.NEVER,
        "This one job is above what the {whose} allows a job: ask for less.",
    ),
    (
        r"(Assoc|QOS)Min.*",
        Clears.NEVER,
        "The job asks for less than the {whose} demands: ask for more, or use another QOS.",
    ),
    (
        r"(Assoc|QOS)Grp.*Minutes.*",
        Clears.OTHERS,
        "The {whose} has used up its minutes of this resource: they must be granted anew or decay.",
    ),
    (
        r"(Assoc|QOS)Grp.*",
        Clears.OTHERS,
        "The jobs of the {whose} are at their common limit: others must end first; alone above it, never.",
    ),
    (
        r"(Assoc|QOS)?Max.*(PerUser|PerAccount|JobsLimit|SubmitJobLimit)(Limit)?",
        Clears.OTHERS,
        "A limit for each user or account of the {whose} is reached: earlier jobs must end first.",
    ),
)
_WHOSE = {"Assoc": "account", "QOS": "QOS", None: "QOS"}

# Free texts that squeue and scontrol show where a code is expected, lower case and without `_`.
_FREE_TEXTS = (
    ("launch failed requeued held", "LaunchFailedRequeuedHeld"),
    ("user env retrieval failed requeued held", "LaunchFailedRequeuedHeld"),
    ("job requeued in held state", "JobHeldUser"),
    ("nodes required for job are down", "ReqNodeNotAvail"),
)


def explain_reason(text: str) -> Reason:
    """Explain `Priority`, `(ReqNodeNotAvail, UnavailableNodes:n[1-2])`, `launch_failed_requeued_held`.

    A code that no release up to 26.05 had is passed on with a sentence that says so, and never an error.
    """
    bare = text.strip()
    if bare.startswith("(") and bare.endswith(")"):
        bare = bare[1:-1].strip()
    lowered = bare.replace("_", " ").lower()
    for start, code in _FREE_TEXTS:
        if lowered.startswith(start):
            clears, sentence = _EXACT[code]
            return Reason(code, sentence, clears, bare)
    code, _, detail = bare.partition(",")
    code, detail = code.strip() or "None", detail.strip()
    if code in ("null", "N/A"):
        code = "None"
    clears, sentence = _EXACT.get(code) or _explain_family(code)
    return Reason(code, sentence, clears, detail)


def _explain_family(code: str) -> tuple[Clears, str]:
    for pattern, clears, sentence in _FAMILIES:
        match = re.fullmatch(pattern, code)
        if match:
            return clears, sentence.format(whose=_WHOSE.get(match[1], "QOS"))
    return Clears.OTHERS, f"Slurm gives the reason '{code}', which this release does not know."
