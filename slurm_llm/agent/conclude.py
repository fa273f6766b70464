"""The end of an attempt: one result file that says what happened, and the exit status that agrees with it."""

import json
import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

from . import fold, journal

TAIL_LINES = 8
TAIL_BYTES = 32768
LINE_LENGTH = 300
_NOISE = re.compile(r"\s*[|+][-+ |]|\s*<frozen |\W*$")
"""Triton prints its settings as tables of very long lines; Python its own import machinery."""
_LOST_NODE = re.compile(r"srun: error: Node failure on ([A-Za-z0-9._-]+)")
_TROUBLE = re.compile(r"\b\w*(error|exception|traceback|failed|killed|abort|out of memory)\b", re.IGNORECASE)


def tail(path: str, lines: int = TAIL_LINES) -> List[str]:
    """Return the most telling lines near the end of a log: the last ones, and before them those that name an error.

    The log is read from its end, carriage returns are taken as line ends.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            data = stream.read()
    except OSError:
        return []
    rows = data.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    shown = [printable(row)[:LINE_LENGTH] for row in rows if row.strip() and not _NOISE.match(row)]
    last = shown[-lines:]
    if len(shown) > lines and not any(map(_TROUBLE.search, last)):
        trouble = [row for row in shown[:-lines] if _TROUBLE.search(row)][-lines // 2 :]
        last = trouble + last[len(trouble) :]
    return last


def printable(text: str) -> str:
    """Return `text` without characters that would steer a terminal."""
    return re.sub(" {3,}", "  ", "".join(one if one.isprintable() else " " for one in text)).rstrip()


def lost_node(attempt_dir: str) -> Optional[str]:
    """Return the node that Slurm gave up: it then ends the job like a cancelled one, and only srun names the node."""
    names = sorted(name for name in os.listdir(attempt_dir) if name.endswith(".log") and not name.startswith("rank-"))
    for name in names:
        for row in tail(os.path.join(attempt_dir, name), 200):
            match = _LOST_NODE.search(row)
            if match:
                return match.group(1)
    return None


def decide(facts: fold.RunFacts, lost: Optional[str], preflight: List[str], codes: List[int]) -> Tuple[str, str]:
    """Return the final state and its cause."""
    if lost is not None:
        return "FAILED", "node %s was lost: Slurm says node failure" % lost
    if preflight:
        said = preflight[0]
        return "FAILED", said if "preflight: " in said else "preflight: " + said
    if facts.first_end is not None:
        return "FAILED", fold.describe(facts.first_end)
    if facts.stop_why == "time limit":
        return "TIMED_OUT", "the time limit was near"
    if facts.stop_why is not None:
        return ("COMPLETED" if facts.ready_at else "CANCELLED"), "stopped on request"
    if facts.state == "FAILED":
        return "FAILED", facts.reason
    return "FAILED", "the server's step ended by itself (srun exit status %s)" % ", ".join(map(str, codes))


def result(attempt_dir: str, ranks: int, codes: List[int], preflight_code: int) -> Dict[str, Any]:
    """Fold the attempt's journals into the value of its result file."""
    records = journal.read_folder(os.path.join(attempt_dir, "journal"))
    facts = fold.fold(records, ranks)
    failed = []
    if preflight_code:
        rows = tail(os.path.join(attempt_dir, "preflight.log"), 50)
        failed = [row for row in rows if "preflight: " in row] or rows or ["preflight failed"]
    lost = lost_node(attempt_dir)
    state, cause = decide(facts, lost, failed, codes)
    first = facts.first_end if state == "FAILED" and lost is None else None
    log: List[str] = []
    if state == "FAILED":
        name = "rank-%d.log" % first.rank if first else "step-0.log"
        log = tail(os.path.join(attempt_dir, name))
    good = state in ("COMPLETED", "CANCELLED") or (state == "TIMED_OUT" and facts.ready_at is not None)
    return {
        "state": state,
        "cause": cause,
        "exit_code": 0 if good else 1,
        "lost_node": lost,
        "first": None if first is None else first._asdict(),
        "log": log,
        "preflight": failed,
        "srun": codes,
        "began": facts.began,
        "ready": facts.ready_at,
        "ended": round(time.time(), 3),
        "ranks_ended": {str(own.rank): own.how for own in facts.ranks.values() if own.how},
    }


def main(attempt_dir: str, ranks: int, codes: List[int], preflight_code: int) -> int:
    """Write the attempt's result file, tell it in the job's output, and return the job's exit status."""
    value = result(attempt_dir, ranks, codes, preflight_code)
    job_dir, name = os.path.split(attempt_dir)
    path = os.path.join(job_dir, "result.%s.json" % name.rpartition("-")[2])
    try:
        journal.write_once(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        print("slurm_llm: cannot write %s: %s" % (path, error))
    print("slurm_llm: %s: %s" % (value["state"], value["cause"]))
    for row in [*value["preflight"][1:], *value["log"]]:
        print("slurm_llm:   | %s" % row)
    return int(value["exit_code"])
