"""The rules by which a cause is found, in the order of their evidence; the first that speaks decides. Pure.

A lost node (the head's record, srun, Slurm); the preflight; memory that Slurm or the kernel took back; a time limit or
a preemption in Slurm's own words; the engine process that ended first, or a model that failed without an end, as the
node agents saw it; a hang as the head saw it; the head's own reason; a stop that was asked for; a step that never
began; a run that goes on; Slurm's accounting; the job's result file; the logs alone.
"""

from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from . import blind, clues, fold, journal, known, reading
from .clues import Case, Finding


class SlurmWords(NamedTuple):
    """What Slurm says of the job: its state and reason, exit statuses and signals, and the states of bad nodes."""

    state: str
    reason: str
    exit_code: Optional[int]
    signal: Optional[int]
    derived_exit_code: Optional[int]
    bad_nodes: Dict[str, str]


class Material(NamedTuple):
    """All that is known of one attempt; `preflight` is its exit status, `codes` are those of the servers' sruns.

    `over` tells that nothing more will happen. `told` is the state and the cause in the job's own result file.
    `missing` says in words what is not there to look at.
    """

    facts: fold.RunFacts
    records: List[journal.Record]
    logs: List[reading.Log]
    entries: List[known.Entry]
    over: bool = True
    preflight: int = 0
    codes: Tuple[int, ...] = ()
    slurm: Optional[SlurmWords] = None
    told: Optional[Tuple[str, str]] = None
    missing: Tuple[str, ...] = ()


def judge(case: Case, material: Material) -> Finding:
    """Return the first cause."""
    rules: List[Callable[[Case, Material], Optional[Finding]]] = [
        _lost_node,
        _preflight,
        _client,
        _memory,
        _slurm_said,
        _head_saw,
        _first_end,
        _complaint,
        _stall,
        _head_failed,
        _stopped,
        _never_began,
        _going_well,
        _slurm_alone,
        _told,
        _logs_alone,
    ]
    return next(filter(None, (rule(case, material) for rule in rules)), None) or _unknown(material)


def _lost_node(case: Case, material: Material) -> Optional[Finding]:
    # A node that is lost once the run was asked to end is not why it ended.
    stop_at = min((float(item["t"]) for item in case.records if item["kind"] == "stop"), default=float("inf"))
    lost = (item for item in case.records if item["kind"] == "lost" and float(item["t"]) < stop_at)
    record = next(lost, None)
    said = case.first_match(("node-failure",), ("step", "agent", "slurm"))
    slurm = material.slurm
    node, why, at = "", "Slurm says node failure", None
    if record is not None:
        node, why, at = str(record["node"]), str(record.get("why", "")), float(record["t"])
    elif said is not None:
        node = clues.node_in(said.line)
    elif slurm is None or slurm.state != "NODE_FAIL":
        return None
    node = node or clues.any_of(slurm.bad_nodes if slurm else ())
    state = slurm.bad_nodes.get(node, "") if slurm else ""
    cause = "node %s was lost: %s%s" % (node or "?", why, " (now %s)" % state if state else "")
    ids = ("node-failure",)
    return Finding("FAILED", "node", cause, node=node or None, at=at, ids=ids, where=("step", "agent", "slurm"))


def _preflight(case: Case, material: Material) -> Optional[Finding]:
    if not material.preflight:
        return None
    complaints = clues.complaints(case)
    if not complaints and material.facts.stop_why is not None:
        # `scancel` ends the preflight like everything else.
        return None
    first = clues.explaining_in(case, ("preflight",))
    said = complaints[0] if complaints else first[0].line if first else clues.said_in(case, "preflight")
    cause = said if "preflight: " in said else "preflight: " + said
    rank, node = clues.rank_and_node(said)
    return Finding("FAILED", "preflight", cause, rank=rank, node=node, where=("preflight",))


def _client(case: Case, _material: Material) -> Optional[Finding]:
    """The client ended by itself while the server was well: the job ends with it."""
    own, facts = case.facts.client, case.facts
    if own is None or own.told or own.code is None or facts.state == "FAILED" or facts.first_end is not None:
        return None
    cause = fold.describe_client(own.code)
    if facts.stop_why != cause:
        return None
    if not own.code:
        return Finding("COMPLETED", "stop", cause)
    return Finding("FAILED", "client", cause, at=own.ended, phase="serving", where=("client",), seen=True)


def _memory(case: Case, material: Material) -> Optional[Finding]:
    """Memory that Slurm or the kernel took back; then everything dies at once, and who went first is chance."""
    end = case.facts.first_end
    if end is None and case.facts.state != "FAILED" and not _says(material, "OUT_OF_MEMORY"):
        return None
    limit = case.first_match(("slurm-memory-limit",), ("step", "slurm", "agent"))
    killed = case.first_match(("slurm-oom-kill", "srun-out-of-memory"), ("step", "slurm", "agent"))
    said = limit or killed
    counted = clues.killed_for_memory(case)
    if said is None and counted is None and not _says(material, "OUT_OF_MEMORY"):
        return None
    node = clues.speaking_node(case, said.line, said.name) if said is not None else None
    where = ("step", "slurm", "agent")
    if end is not None and limit is None and (counted is not None or node in (None, end.node)):
        return _killed(case, end, counted)
    what = clues.sizes(limit.line) if limit is not None else "more memory than the job may use there"
    cause = "the ranks on node %s used %s: the step was killed" % (node or "?", what)
    rank, at = clues.largest_rank(case, node), None if end is None else end.at
    cause += "" if rank is None else "; rank %d seems to have held most of it" % rank
    return Finding("FAILED", "memory", cause, rank, node, at, "" if end is None else end.phase, where=where)


def _killed(case: Case, end: fold.FirstEnd, counted: Optional[int]) -> Finding:
    """The kernel chose a process; where it takes a whole group of them at once, the largest rank was meant."""
    rank = end.rank if counted is None else counted
    largest = clues.heaviest_rank(case, case.facts.ranks[rank].node)
    cause = fold.describe(end) + ": the node's share of memory for this job was used up"
    if largest is not None and largest != rank:
        rank = largest
    if rank != end.rank:
        cause += "; rank %d held most of it" % rank if rank == largest else " by rank %d" % rank
    node, where = case.facts.ranks[rank].node, ("rank", "step", "slurm", "agent")
    return Finding("FAILED", "memory", cause, rank, node, end.at, end.phase, end.how, where=where)


def _says(material: Material, state: str) -> bool:
    return material.slurm is not None and material.slurm.state == state


def _slurm_said(case: Case, _material: Material) -> Optional[Finding]:
    """A time limit or a preemption: what dies of it dies of nothing else."""
    where = ("step", "agent", "slurm")
    for name, state, kind in (("time-limit", "TIMED_OUT", "time"), ("preempted", "PREEMPTED", "preempted")):
        said = case.first_match((name,), where)
        if said is not None:
            return Finding(state, kind, _ENDS[{"time": "TIMEOUT"}.get(kind, "PREEMPTED")][2], ids=(name,), where=where)
    return None


def _head_saw(case: Case, _material: Material) -> Optional[Finding]:
    """What the head saw of a node before anything ended; what ended after its verdict did so because of that."""
    record = next((item for item in case.records if item.get("state") == "FAILED" and "why" in item), None)
    end = case.facts.first_end
    if record is None or (end is not None and end.at < float(record["t"])):
        return None
    cause = str(record.get("reason", ""))
    return Finding("FAILED", str(record["why"]), cause, record.get("rank"), record.get("node"), float(record["t"]))


def _first_end(case: Case, material: Material) -> Optional[Finding]:
    end = case.facts.first_end
    record = next((item for item in case.records if item["kind"] == "stall"), None)
    if end is None or (record is not None and float(record["t"]) < end.at):
        return None
    complaint = _complaint(case, material)
    if complaint is not None and complaint.at is not None and complaint.at < end.at:
        return complaint
    if clues.all_at_once(case, end):
        cause = "the server's step was ended at once: all ranks by %s, while %s" % (end.how, end.phase)
        return Finding("FAILED", "step", cause, at=end.at, phase=end.phase, where=("step",))
    cause, how = fold.describe(end), end.how
    if blind.unseen(case.records, end.at, end.node):
        cause = fold.first_words(case.facts, case.records)
        return Finding("FAILED", "agent", cause, at=end.at, phase=end.phase, where=("rank", "step", "agent"))
    culprit = clues.culprit_behind(case, end.rank)
    if culprit is not None:
        node = case.facts.ranks[culprit].node
        cause = "rank %d on node %s failed; it was awaited by others, and %s" % (culprit, node, cause)
        return Finding("FAILED", "raise", cause, culprit, node, end.at, end.phase, how, where=("rank",))
    alike = clues.alike(case, end.rank)
    if alike > 1:
        cause += "; the logs of %d of %d ranks say the same" % (alike, len(case.facts.ranks))
    # What a server says of its stub's end adds nothing.
    kind, seen = _kind(how, case.log_of(end.rank)), end.name.startswith("triton_python_b")
    return Finding("FAILED", kind, cause, end.rank, end.node, end.at, end.phase, how, where=("rank",), seen=seen)


def _complaint(case: Case, _material: Material) -> Optional[Finding]:
    """A model that failed in a rank of which no process has ended: the node agent heard Triton say so."""
    record = next((item for item in case.records if item["kind"] == "complaint"), None)
    if record is None:
        return None
    rank, phase = int(record["rank"]), "serving" if case.facts.ready_at is not None else "loading"
    cause = fold.describe_complaint(record)
    return Finding("FAILED", "raise", cause, rank, record.get("node"), float(record["t"]), phase, where=("rank",))


def _kind(how: Optional[str], log: Optional[reading.Log]) -> str:
    if how is None:
        return "raise" if log is not None and log.exception else "unseen"
    if how.startswith("signal"):
        return "signal"
    return "exit0" if how == "exit 0" else "raise" if log is not None and log.exception else "exit"


def _stall(case: Case, _material: Material) -> Optional[Finding]:
    record = next((item for item in case.records if item["kind"] == "stall"), None)
    if record is None:
        return None
    what = str(record.get("what", "the run hangs"))
    rank = record.get("rank")
    node = case.facts.ranks[rank].node if isinstance(rank, int) and rank in case.facts.ranks else None
    kind = "raise" if record.get("refused") else "not-ready" if what.startswith("not ready within") else "hang"
    phase = "serving" if case.facts.ready_at is not None else "loading"
    if not clues.anybody_began(case):
        said = clues.said_in(case, "step")
        what += "; the step's own words: %s" % said if said else ""
        return Finding("FAILED", "launch", what, at=float(record["t"]), phase=phase, where=("step", "agent", "slurm"))
    return Finding("FAILED", kind, what, rank, node, float(record["t"]), phase, where=("rank", "step"))


def _head_failed(case: Case, material: Material) -> Optional[Finding]:
    facts = case.facts
    if facts.state != "FAILED":
        return None
    launched = _never_began(case, material)
    if launched is not None:
        return launched
    last = next((item for item in reversed(case.records) if item.get("state") == "FAILED"), None)
    at = None if last is None else float(last["t"])
    cause = facts.reason or "the head gave no reason"
    if "agents' step" not in cause:
        kind = "not-ready" if "not ready" in cause else "failed"
        return Finding("FAILED", kind, cause, at=at, where=("step", "rank", "agent"))
    if material.over and material.told is None and not any(item["kind"] == "finish" for item in case.records):
        cause += "; the job's script was gone too, and has left no result"
    return Finding("FAILED", "agents", cause, at=at, where=("agent", "slurm", "step"))


def _stopped(case: Case, _material: Material) -> Optional[Finding]:
    facts = case.facts
    if facts.stop_why is None:
        return None
    served = facts.ready_at is not None
    successor = next((item["job"] for item in reversed(case.records) if item["kind"] == "successor"), None)
    then = "" if successor is None else "; job %s is to take over" % successor
    if any(item["kind"] == "preempted" for item in case.records):
        state, kind = ("PREEMPTED", "preempted") if successor is None else ("COMPLETED", "stop")
        return Finding(state, kind, "Slurm took the nodes for another job" + then)
    cut = "" if facts.client is None else "; the client had not ended"
    if facts.stop_why == "time limit":
        return Finding("TIMED_OUT", "stop" if served else "time", "the time limit was near" + then + cut)
    if facts.stop_why not in ("asked", "stop"):
        return Finding("COMPLETED", "stop", facts.stop_why)
    return Finding("COMPLETED" if served and not cut else "CANCELLED", "stop", "stopped on request" + cut)


def _never_began(case: Case, material: Material) -> Optional[Finding]:
    """A server step that no rank of has begun: srun or the container runtime refused."""
    if clues.anybody_began(case) or not any(material.codes):
        return None
    first = clues.explaining_in(case, ("step",))
    said = first[0].line if first else clues.said_in(case, "step")
    cause = "no rank was started%s" % (": " + said if said else "")
    return Finding("FAILED", "launch", cause, where=("step", "agent", "slurm"))


_ENDS = {
    "TIMEOUT": ("TIMED_OUT", "time", "Slurm ended the job at its time limit"),
    "DEADLINE": ("TIMED_OUT", "time", "Slurm ended the job at its deadline"),
    "PREEMPTED": ("PREEMPTED", "preempted", "Slurm took the nodes for another job"),
    "CANCELLED": ("CANCELLED", "stop", "the job was cancelled"),
    "BOOT_FAIL": ("FAILED", "node", "a node could not be booted"),
    "LAUNCH_FAILED": ("FAILED", "launch", "Slurm could not launch the job"),
}


def _slurm_alone(case: Case, material: Material) -> Optional[Finding]:
    slurm = material.slurm
    if slurm is None or not material.over:
        return None
    state, kind, cause = _ENDS.get(slurm.state, ("", "", ""))
    if state:
        phase = "serving" if case.facts.ready_at is not None else ""
        return Finding(state, kind, cause + clues.in_brackets(slurm.reason), phase=phase, where=("slurm", "step"))
    if slurm.state != "FAILED" or clues.explaining_in(case, known.WHERE) or not case.records:
        return None
    said = "status %s" % (slurm.derived_exit_code or slurm.exit_code or 0)
    return Finding("FAILED", "unknown", "Slurm says FAILED, %s%s" % (said, clues.in_brackets(slurm.reason)))


def _going_well(case: Case, material: Material) -> Optional[Finding]:
    facts = case.facts
    if material.over or not case.records:
        return None
    if facts.state == "DEGRADED":
        return Finding("DEGRADED", "unknown", facts.reason, where=("rank", "step"))
    rank = clues.complaining_rank(case)
    if rank is not None and facts.ready_at is None:
        node = case.facts.ranks[rank].node
        cause = "rank %d on node %s names an error in its log, and the run goes on" % (rank, node or "?")
        return Finding(facts.state, "raise", cause, rank, node, phase="loading", where=("rank",))
    return Finding(facts.state, "none", "nothing is wrong that is known of")


def _told(_case: Case, material: Material) -> Optional[Finding]:
    if material.told is None:
        return None
    state, cause = material.told
    return Finding(state, "failed" if state == "FAILED" else "stop", cause, where=("rank", "step"))


def _logs_alone(case: Case, material: Material) -> Optional[Finding]:
    """Without journals the earliest known error counts, by the times that lines bear, else a rank's before srun's."""
    found = clues.explaining_in(case, known.WHERE)
    if not found or not (material.over or not case.records):
        return None
    first = min(found, key=lambda match: (match.at is None, match.at or 0.0))
    node = case.facts.ranks[first.rank].node if first.rank in case.facts.ranks else None
    whose = "rank %d" % first.rank if first.rank is not None else first.name
    cause = "%s is the first that names an error: %s" % (whose, first.line)
    return Finding("FAILED", "unknown", cause, first.rank, node, first.at, ids=(first.id,), where=known.WHERE)


def _unknown(material: Material) -> Finding:
    if material.codes:
        codes = ", ".join(map(str, material.codes))
        cause = "the server's step ended by itself (srun exit status %s)" % codes
    else:
        cause = "nothing that was left says why"
    state = "FAILED" if material.over else "UNKNOWN"
    return Finding(state, "unknown", cause, where=("step", "rank", "slurm"))
