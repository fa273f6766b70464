"""A fault matrix: each rank, phase and manner of failing on a real Slurm, and what the package says of it.

Run it as an ordinary user on the devcluster (the demo's eight ranks on four nodes):

    python benchmarks/faults.py                     # every row, half an hour or so
    python benchmarks/faults.py --only load:exit    # rows whose name holds the text

For each row it prints the seconds until the failure was named (of a death: from the end of the process; of a hang: from
the last sign of life), whether the right rank was named, how, and what was left on the nodes' /dev/shm.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = (sys.executable, "-m", "slurm_llm")
WHO = {"leader": 0, "beside the leader": 1, "elsewhere": 5}
WHEN = ("start", "mpi", "load", "serve")
HOW = ("exit:0", "exit:3", "signal:KILL", "signal:SEGV", "raise", "hang:stop", "hang:sleep", "hang:spin")
LIMITS = {"ready_s": 20, "stall_s": 8, "answer_s": 5, "probe_s": 3}
SPEC: dict[str, Any] = {
    "name": "faults",
    "engine": "rehearsal",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 2,
    "resources": {"nodes": 4, "time": "00:05:00"},
    "timeouts": LIMITS,
}
WAIT_S = 90


@dataclass(frozen=True)
class Row:
    """One fault: which rank, where on its way, in which manner."""

    who: str
    at: str
    kind: str

    @property
    def name(self) -> str:
        """The row's name."""
        return f"{self.who}:{self.at}:{self.kind}"

    @property
    def fault(self) -> str:
        """The fault as `--fault` takes it."""
        return f"rank={WHO[self.who]},at={self.at},kind={self.kind}"


def rows() -> Iterator[Row]:
    """Yield every row of the matrix."""
    for who, at, kind in itertools.product(WHO, WHEN, HOW):
        yield Row(who, at, kind)


def run(row: Row, folder: Path) -> tuple[float | None, bool, str]:
    """Let the fault happen; return seconds to the verdict, whether it names the rank, and the verdict's text."""
    spec = folder / "faults.yaml"
    spec.write_text(json.dumps({**SPEC, "log_root": str(folder / "logs")}))
    made = call("rehearse", str(spec), "--site", "devcluster", "--fault", row.fault, "--json")
    value = json.loads(made)
    job = Path(value["directory"]) / f"job-{value['job_id']}"
    if row.at == "serve" and wait_for(job / "endpoint.0.json", job / "result.0.json"):
        # The first request after the one that proves readiness sets it off; the probe asks by itself too.
        time.sleep(0.5)
    if not wait_for(job / "result.0.json"):
        call("cancel", str(job))
        return None, False, "no verdict"
    result = json.loads((job / "result.0.json").read_text())
    records = [
        json.loads(line)
        for path in (job / "attempt-0" / "journal").glob("*.jsonl")
        for line in path.read_text().splitlines()
        if line.startswith("{")
    ]
    cause = str(result["cause"])
    return seconds(row, records), f"rank {WHO[row.who]} " in cause, cause


def seconds(row: Row, records: list[dict[str, Any]]) -> float | None:
    """Return how long after the fault the head had its verdict."""
    verdicts = [item["t"] for item in records if item["kind"] == "state" and item["state"] == "FAILED"]
    if not verdicts:
        return None
    rank = WHO[row.who]
    kinds = ("ended",) if not row.kind.startswith("hang") else ("found", "loaded", "start")
    signs = [item.get("at", item["t"]) for item in records if item["kind"] in kinds and item.get("rank") == rank]
    if row.at == "serve" and row.kind.startswith("hang"):
        signs = [item["t"] for item in records if item["kind"] == "state" and item["state"] == "READY"]
    before = [moment for moment in signs if moment <= verdicts[0]]
    if not before:
        return None
    return verdicts[0] - (min(before) if kinds == ("ended",) else max(before))


def wait_for(*paths: Path) -> bool:
    """Wait until one of the files exists."""
    deadline = time.monotonic() + WAIT_S
    while not any(path.exists() for path in paths):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def call(*words: str) -> str:
    """Run a command of the package and return its output."""
    return subprocess.run((*PROGRAM, *words), check=False, capture_output=True, text=True).stdout


def main() -> None:
    """Run the rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only rows whose name holds this text")
    only = parser.parse_args().only
    good = total = 0
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix="faults ") as folder:
        for row in rows():
            if only not in row.name:
                continue
            after, named, cause = run(row, Path(folder))
            total += 1
            good += named
            told = "      —" if after is None else f"{after:6.1f}s"
            print(f"{'ok ' if named else 'NOT'} {told}  {row.name:36} {cause}", flush=True)
    print(f"{good} of {total} rows name the right rank")


if __name__ == "__main__":
    main()
