"""The end of an attempt: one result file that says what happened, and the exit status that agrees with it."""

import json
import os
import textwrap
import time
from typing import Any, Dict, Iterator, List, Optional

from . import causes, diagnose, fold, journal, known, phases, reading

TAIL_LINES = 8
TELLING_LINES = 3
LINE_LENGTH = 300
WIDTH = 100
TOLD = 143
"""The exit status of a job whose client was told to end (SIGTERM) and said that all was well."""
BUDGET = reading.Budget(own=4 << 20, others=8 << 20)
READ_S = 6.0
"""How long logs may be read: a job that ends has little time, and a shared file system can be slow."""


def tail(log: Optional[reading.Log], lines: int = TAIL_LINES) -> List[str]:
    """Return the last lines of a log, and before them those that tell most, when they are not among the last."""
    if log is None:
        return []
    telling = [match.line for match in log.matches if match.kind == known.FATAL] + log.telling
    told = [line for line in dict.fromkeys(telling) if line not in log.last][:TELLING_LINES]
    kept = log.last[max(0, len(log.last) + len(told) - lines) :]
    return [line[:LINE_LENGTH] for line in told + kept]


def result(attempt_dir: str, ranks: int, codes: List[int], preflight_code: int) -> Dict[str, Any]:
    """Fold the attempt's journals and logs into the value of its result file."""
    records = journal.read_folder(os.path.join(attempt_dir, "journal"))
    facts = fold.fold(records, ranks)
    facts = facts._replace(phases=_with_queue(facts, attempt_dir))
    first = facts.first_end
    entries = known.load(known.beside_this_file())
    own = first.rank if first else next((item.get("rank") for item in records if item["kind"] == "stall"), None)
    deadline = time.monotonic() + READ_S
    logs, unread = reading.read_logs(reading.sources(attempt_dir), entries, own, budget=BUDGET, deadline=deadline)
    material = diagnose.Material(
        facts, records, logs, entries, preflight=preflight_code, codes=tuple(codes), missing=tuple(unread)
    )
    return _value(material, diagnose.diagnose(material))


def _with_queue(facts: fold.RunFacts, attempt_dir: str) -> phases.Phases:
    """Return the phases with the time in the queue, where it is known: a guest in an allocation has waited in none."""
    job_dir, name = os.path.split(attempt_dir)
    try:
        with open(os.path.join(job_dir, "job.json"), encoding="utf-8") as stream:
            job = json.load(stream)
        submitted = float(job["time"]) if job["by"] not in ("sbatch", "allocation") else None
        return phases.queued(facts.phases, submitted, facts.began, int(name.rpartition("-")[2]))
    except (OSError, ValueError, KeyError, TypeError):
        return facts.phases


def _value(material: diagnose.Material, found: diagnose.Diagnosis) -> Dict[str, Any]:
    facts = material.facts
    failed = found.state == "FAILED"
    first = facts.first_end if failed and found.kind not in ("node", "preflight") else None
    if first is not None and found.kind == "memory" and found.rank not in (None, first.rank):
        # All die at once then, and the first one to be seen is any of them.
        first = fold.end_of(material.records, found.rank)
    preflight = [log for log in material.logs if log.source.where == "preflight"]
    return {
        "state": found.state,
        "cause": found.cause,
        "exit_code": _exit_code(found, facts),
        "lost_node": found.node if found.kind == "node" else None,
        "first": None if first is None else first._asdict(),
        "log": tail(_told_log(material, found)) if failed and found.kind != "preflight" else [],
        "preflight": _said(preflight[0]) if found.kind == "preflight" and preflight else [],
        "srun": list(material.codes),
        "began": facts.began,
        "ready": facts.ready_at,
        "ended": round(time.time(), 3),
        "ranks_ended": {str(own.rank): own.how for own in facts.ranks.values() if own.how},
        "phases": phases.as_json(facts.phases),
        "diagnosis": diagnose.as_json(found),
    }


def _exit_code(found: diagnose.Diagnosis, facts: fold.RunFacts) -> int:
    """Return the job's exit status: that of its client, where it has one that came to run."""
    own = facts.client
    if own is not None and found.kind == "client":
        return own.code or 1
    if own is not None and found.state in ("CANCELLED", "TIMED_OUT", "PREEMPTED"):
        return own.code or TOLD
    good = found.state in ("COMPLETED", "CANCELLED") or (found.state == "TIMED_OUT" and facts.ready_at is not None)
    return 0 if good else 1


def _told_log(material: diagnose.Material, found: diagnose.Diagnosis) -> Optional[reading.Log]:
    """Return the log to show: that of the rank that is named, else the server step's."""
    where = "client" if found.kind == "client" else "step"
    for log in material.logs:
        if log.source.rank == found.rank if found.rank is not None else log.source.where == where:
            return log
    return None


def _said(log: reading.Log) -> List[str]:
    lines = list(dict.fromkeys([match.line for match in log.matches if match.kind == known.FATAL] + log.telling))
    complaints = [line for line in lines + log.last if "preflight: " in line]
    return [line[:LINE_LENGTH] for line in list(dict.fromkeys(complaints)) or lines or log.last]


def told(value: Dict[str, Any], job_id: str) -> Iterator[str]:
    """Yield the lines that the job's output ends with."""
    found = value["diagnosis"]
    yield "%s: %s" % (value["state"], value["cause"])
    remedies = [causes.filled(text, job_id, found["rank"]) for text in found["remedies"]]
    for label, text in [("why", found["means"])] + [("do", text) for text in remedies]:
        for index, row in enumerate(textwrap.wrap(text, WIDTH)):
            yield "  %-4s %s" % (label if not index else "", row)
    for own in found["evidence"]:
        yield "  | %s: %s" % (own["where"], own["line"])
    if not any(own["where"].endswith(".log") for own in found["evidence"]):
        for row in value["preflight"][1:] + value["log"]:
            yield "  | %s" % row


def main(attempt_dir: str, ranks: int, codes: List[int], preflight_code: int) -> int:
    """Write the attempt's result file, tell it in the job's output, and return the job's exit status."""
    value = result(attempt_dir, ranks, codes, preflight_code)
    job_dir, name = os.path.split(attempt_dir)
    path = os.path.join(job_dir, "result.%s.json" % name.rpartition("-")[2])
    try:
        journal.write_once(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        print("slurm_llm: cannot write %s: %s" % (path, error))
    for row in told(value, os.path.basename(job_dir).rpartition("-")[2]):
        print("slurm_llm: %s" % row)
    return int(value["exit_code"])
