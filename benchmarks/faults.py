"""A fault matrix: everything that can go wrong, on a real Slurm, and what the package says of it.

As an ordinary user on any cluster with the `devcluster` profile's shape (eight ranks on four nodes), or as root of a
devcluster, for its user, with the rows that need root (a node lost, a disk full):

    python benchmarks/faults.py                                    # every row that a user can run
    python benchmarks/faults.py --state DIR
    python benchmarks/faults.py --only load:exit --only 'node lost'  # rows whose name holds one of the texts
    python benchmarks/faults.py --json >rows.json

A row is right when the result's state, the diagnosis' kind, rank, node and words are those expected, within the seconds
expected, and nothing is left behind on the nodes. Seconds count to the head's verdict: of a death from the end of the
process, as its node's agent saw it; of a model that raises from Triton's own words in its log; of a hang from the last
sign of life of the rank, or, when it serves, from the request that brings it about; else from the action.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from faultlab import ACTIONS, WAIT_S, Job, Lab, full_shm, left_behind, mended, open_lab, small_disk, wait_for
from faultrows import SPEC, Row, rows

TOOK_OVER_S = 200
"""Slurm lets a requeued job wait two minutes."""
WORDS = re.compile(r"^[IEW](\d{4} \d\d:\d\d:\d\d\.\d+) [^\n]*(?:Failed to initialize|failed to load)", re.MULTILINE)
LIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")


@dataclass(frozen=True)
class Outcome:
    """What came of a row; `wrong` says what was not as expected."""

    name: str
    seconds: float | None
    state: str
    kind: str
    rank: int | None
    cause: str
    left: list[str]
    wrong: list[str]


def run(row: Row, lab: Lab) -> Outcome:
    """Let it happen, and compare."""
    with contextlib.ExitStack() as stack:
        root = lab.folder / "logs"
        if row.action == "fill disk":
            root = stack.enter_context(small_disk(lab))
        if row.action == "fill shm":
            stack.enter_context(full_shm(lab, lab.nodes()[2]))
        stack.enter_context(mended(lab, row.action))
        job = submit(row, lab, root)
        # Whatever becomes of this program, the job does not outlive it.
        stack.callback(lab.call, "scancel", str(job.id))
        began = begin(row, job)
        attempt = 1 if row.action == "requeue" else 0
        wait_for(lambda: job.result(attempt) or (attempt and job.endpoint(attempt)), TOOK_OVER_S if attempt else WAIT_S)
        outcome = judge(row, job, began, attempt)
        if outcome.state == "READY":
            lab.tool("cancel", str(job.folder))
        wait_for(lambda: job.slurm("JobState") not in LIVE, 20)
    wait_for(lambda: job.slurm("JobState") not in LIVE)
    left = wait_for_nothing(lab)
    wrong = outcome.wrong + ([f"left behind: {left}"] if left else [])
    return Outcome(**{**asdict(outcome), "left": left, "wrong": wrong})


def submit(row: Row, lab: Lab, root: Path) -> Job:
    """Submit the row's rehearsal."""
    spec = lab.folder / "faults.yaml"
    spec.write_text(json.dumps({**SPEC, **row.spec, "log_root": str(root)}))
    flags = [word for fault in row.faults for word in ("--fault", fault)]
    said = lab.tool("rehearse", str(spec), "--site", "devcluster", "--json", *flags)
    try:
        value = json.loads(said[said.index("{") : said.rindex("}") + 1])
    except ValueError:
        raise SystemExit(f"{row.name}: {said}") from None
    return Job(lab, int(value["job_id"]), Path(value["directory"]))


def begin(row: Row, job: Job) -> float:
    """Wait until the model serves where the row needs that, and bring the fault about; return when, epoch seconds."""
    if row.since == "request" or (row.since == "end" and ":serve:" in row.name) or row.action in ACTIONS:
        wait_for(lambda: job.endpoint() or job.result())
    began = time.time()
    if row.action in ACTIONS and job.result() is None:
        ACTIONS[row.action](job)
    elif ":serve:" in row.name and job.result() is None:
        # The first request after the one that proved readiness sets it off.
        threading.Thread(target=job.ask, daemon=True).start()
    return began


def judge(row: Row, job: Job, began: float, attempt: int) -> Outcome:
    """Compare what is said with what is expected."""
    wanted, result = row.expected, job.result(attempt)
    if attempt and result is None and job.endpoint(attempt):
        result = {"state": "READY", "cause": "", "diagnosis": {}}
    if result is None:
        return Outcome(row.name, None, job.slurm("JobState"), "", None, "no result file", [], ["no verdict"])
    found: dict[str, Any] = result["diagnosis"]
    kind, rank, cause = str(found.get("kind", "")), found.get("rank"), str(result["cause"])
    told = cause + " ".join(str(one["line"]) for one in found.get("evidence", []))
    after = seconds(row, job, began, attempt)
    # Slurm takes a lost node out of the job; the job had all of them.
    node = None if wanted.node is None else job.lab.nodes()[wanted.node]
    wrong = [f"state {result['state']}, not {wanted.state}"] if result["state"] != wanted.state else []
    if wanted.kinds and kind not in wanted.kinds:
        wrong.append(f"kind {kind}, not {' or '.join(wanted.kinds)}")
    if wanted.rank is not None and rank != wanted.rank:
        wrong.append(f"rank {rank}, not {wanted.rank}")
    if node is not None and found.get("node") != node:
        wrong.append(f"node {found.get('node')}, not {node}")
    if wanted.words not in told:
        wrong.append(f"not a word of '{wanted.words}'")
    if wanted.within_s is not None and (after is None or after > wanted.within_s):
        wrong.append(f"{after if after is None else round(after, 1)} s, not {wanted.within_s:g} s")
    return Outcome(row.name, after, str(result["state"]), kind, rank, cause, [], wrong)


def seconds(row: Row, job: Job, began: float, attempt: int) -> float | None:
    """Return how long after the fault the head had its verdict."""
    records = job.records(attempt)
    verdict = next(
        (float(item["t"]) for item in records if item["kind"] == "state" and item["state"] == "FAILED"), None
    )
    if verdict is None:
        return None
    if row.since in ("action", "request"):
        return max(0.0, verdict - began)
    since = {"end": first_end, "words": first_words, "life": last_life}[row.since](row, job, attempt)
    return None if since is None or since > verdict else verdict - since


def first_end(_row: Row, job: Job, attempt: int) -> float | None:
    """Return when the process ended that is said to have ended first."""
    result = job.result(attempt) or {}
    return float(result["first"]["at"]) if result.get("first") else None


def first_words(row: Row, job: Job, attempt: int) -> float | None:
    """Return when Triton wrote into the rank's log that its model has failed."""
    text = (job.folder / f"attempt-{attempt}" / f"rank-{row.expected.rank}.log").read_text(errors="replace")
    found = re.search(
        r"^[IEW](\d{4} \d\d:\d\d:\d\d\.\d+) [^\n]*(?:Failed to initialize|failed to load)", text, re.MULTILINE
    )
    if found is None:
        return None
    moment = datetime.strptime(f"{datetime.now().year}{found.group(1)}", "%Y%m%d %H:%M:%S.%f")
    return moment.timestamp()


def last_life(row: Row, job: Job, attempt: int) -> float | None:
    """Return when the agents last saw something new of the rank."""
    kinds, rank = ("found", "loaded", "start"), row.expected.rank
    return max(
        (item["t"] for item in job.records(attempt) if item["kind"] in kinds and item.get("rank") == rank), default=None
    )


def wait_for_nothing(lab: Lab) -> list[str]:
    """Return what is left behind; a moment after a job's end nothing may be."""
    left = left_behind(lab)
    if left:
        time.sleep(2)
        left = left_behind(lab)
    return left


def show(outcome: Outcome) -> str:
    """Return one line of the table."""
    told = "     —" if outcome.seconds is None else f"{outcome.seconds:5.1f}s"
    rank = "—" if outcome.rank is None else outcome.rank
    left = "nothing" if not outcome.left else f"{len(outcome.left)} left"
    says = "; ".join(outcome.wrong) or outcome.cause
    word = "NOT" if outcome.wrong else "ok "
    return f"{word} {told}  {outcome.name:36} {outcome.kind:10} rank {rank!s:2} {left:8} {' '.join(says.split())[:240]}"


def main() -> None:
    """Run the rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="only rows whose name holds this text; repeatable")
    parser.add_argument("--state", type=Path, help="as root: the state directory of a devcluster that is up")
    parser.add_argument("--json", action="store_true", help="print one JSON list at the end, the table to stderr")
    given = parser.parse_args()
    outcomes = []
    with open_lab(given.state) as lab:
        for row in rows():
            if (given.only and not any(text in row.name for text in given.only)) or (row.root and given.state is None):
                continue
            outcomes.append(run(row, lab))
            print(show(outcomes[-1]), flush=True, file=sys.stderr if given.json else sys.stdout)
    right = sum(not one.wrong for one in outcomes)
    if given.json:
        print(json.dumps([asdict(one) for one in outcomes], indent=1))
    print(f"{right} of {len(outcomes)} rows are right", file=sys.stderr if given.json else sys.stdout)
    sys.exit(right < len(outcomes))


if __name__ == "__main__":
    main()
