"""Print time and memory of planning, rendering, status, health and logs at 64, 512 and 4096 ranks, and how they grow.

The run directories are synthetic; each command runs in a process of its own, as a user starts it, without a Slurm.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from synthetic import JOB_ID, RANKS_PER_NODE, Shape, make_run, site, spec

from slurm_llm.plan import build_plan
from slurm_llm.render import Target, render

RANKS = (64, 512, 4096)
COMMANDS = {
    "status": ("status",),
    "status --json": ("status", "--json"),
    "health": ("health",),
    "health --json": ("health", "--json"),
    "logs -n 100": ("logs", "-n", "100"),
    "diagnose": ("diagnose",),
}
# Peak memory of a child is only known to who waits for it.
WAITER = (
    "import os,resource,subprocess,sys,time;"
    "began=time.perf_counter();"
    "done=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL,stderr=subprocess.PIPE);"
    "took=time.perf_counter()-began;"
    "print(done.returncode,took,resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss/1024,done.stderr.decode()[-300:])"
)


@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and peak memory in MiB."""

    seconds: float
    mib: float


def plan_and_render(ranks: int, repeats: int) -> Cost:
    """Return what planning and rendering cost in this process, the best of `repeats`; its memory is not told apart."""
    times = []
    wanted, cluster = spec(ranks, RANKS_PER_NODE), site()
    for _ in range(repeats):
        began = time.perf_counter()
        render(build_plan(wanted, cluster), Target(Path("/runs/scale"), "/usr/bin/python3"))
        times.append(time.perf_counter() - began)
    return Cost(min(times), 0.0)


def command(arguments: tuple[str, ...], run: Path, repeats: int) -> Cost:
    """Return what one call of the program costs, the best of `repeats`.

    Raises:
        SystemExit: the command did not end as it should.
    """
    environ = {**os.environ, "PATH": "/nonexistent", "COLUMNS": "80"}
    costs = []
    for _ in range(repeats):
        argv = [sys.executable, "-c", WAITER, sys.executable, "-m", "slurm_llm", arguments[0], str(run), *arguments[1:]]
        done = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True)
        code, seconds, mib, *error = done.stdout.split(maxsplit=3)
        if code not in ("0", "8"):
            sys.exit(f"{' '.join(arguments)} ended with {code}: {' '.join(error)}")
        costs.append(Cost(float(seconds), float(mib)))
    return min(costs, key=lambda cost: cost.seconds)


def measure(shape: Shape, repeats: int) -> dict[str, Cost]:
    """Return the cost of every stage and command for a run of one shape."""
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), shape).root / f"job-{JOB_ID}"
        found = {"plan and render": plan_and_render(shape.ranks, repeats)}
        for title, arguments in COMMANDS.items():
            found[title] = command(arguments, run, repeats)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, default=60, help="samples of each node: one each 10 s (default: 60)")
    parser.add_argument("--log-bytes", type=int, default=20_000, help="size of each rank's log (default: 20000)")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    given = parser.parse_args()
    columns = [measure(Shape(ranks, given.samples, given.log_bytes), given.repeats) for ranks in given.ranks]
    print(f"{RANKS_PER_NODE} ranks a node, {given.samples} samples a node, {given.log_bytes} bytes a log")
    print(f"{'ranks':16}" + "".join(f"{ranks:>18}" for ranks in given.ranks) + "   growth")
    for title in columns[0]:
        costs = [column[title] for column in columns]
        cells = "".join(f"{cost.seconds:9.3f} s{_memory(cost):>7}" for cost in costs)
        growth = " ".join(f"×{after.seconds / before.seconds:.1f}" for before, after in pairwise(costs))
        print(f"{title:16}{cells}   {growth}")


def _memory(cost: Cost) -> str:
    return f"{cost.mib:4.0f} M" if cost.mib else ""


if __name__ == "__main__":
    main()
