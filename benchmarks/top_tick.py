"""Print what a look of `top` costs at 64, 1024 and 4096 ranks: the first, one without news, one with a sample a node.

The run directories are synthetic, Slurm is a program that answers at once, servers are left out. Times are those of the
processor, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from synthetic import JOB_ID, RANKS_PER_NODE, Shape, make_run, node_name

from slurm_llm.agent import journal
from slurm_llm.cli.toppages import Pages
from slurm_llm.cli.topview import View, draw
from slurm_llm.cli.topwatch import Watcher
from slurm_llm.process import Completed
from slurm_llm.rundir import RunPaths
from slurm_llm.runs import FoundRun
from slurm_llm.slurm.commands import SEPARATOR
from slurm_llm.surroundings import Surroundings

RANKS = (64, 1024, 4096)


def running(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
    """Answer as squeue does of a job that runs."""
    times = ("1:00:00", "2:00:00", "2026-01-01T00:00:01", "2026-01-01T00:00:00")
    row = SEPARATOR.join((str(JOB_ID), "RUNNING", "None", *times, "4", "node1", "all", "node1", "scale"))
    return Completed(tuple(argv), 0, row + "\n", "")


def timed(work: Callable[[], object], repeats: int = 1) -> float:
    """Return the median of the milliseconds of CPU that some work takes."""
    took = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        took.append(1000 * (time.process_time() - began))
    return statistics.median(took)


def add_samples(paths: RunPaths, nodes: int, ranks: int) -> None:
    """Have every node write a sample."""
    folder = paths.job(JOB_ID).attempt(0).journal
    for index in range(nodes):
        own = range(index * RANKS_PER_NODE, min(ranks, (index + 1) * RANKS_PER_NODE))
        held = {str(rank): {"cpu_s": 1.0, "rss_mib": 900.0, "gpu_mib": 70000} for rank in own}
        gpus = {str(gpu): [70000, 98] for gpu in range(RANKS_PER_NODE)}
        item = journal.record(journal.SAMPLE, node=node_name(index), ranks=held, gpus=gpus, shm_free_mib=4093)
        journal.put(journal.samples_path(str(folder / f"{node_name(index)}.jsonl")), item)


def measure(ranks: int, repeats: int, size: tuple[int, int]) -> str:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        paths = make_run(Path(folder), Shape(ranks, log_bytes=0))
        paths.job(JOB_ID).endpoint(0).unlink()
        around = Surroundings({}, Path(folder), running)
        watcher = Watcher(FoundRun(paths, paths.job(JOB_ID), pinned=True), around, Pages())
        first = timed(watcher.look)
        quiet = timed(watcher.look, repeats)
        nodes = -(-ranks // RANKS_PER_NODE)
        news = []
        for _ in range(repeats):
            add_samples(paths, nodes, ranks)
            news.append(timed(watcher.look))
        snapshot = watcher.look()
        view = View(time.time(), keys=True, every_s=2.0)
        picture = timed(lambda: draw(snapshot, *size, view), repeats)
    cells = "".join(f"{value:11.1f} ms" for value in (first, quiet, statistics.median(news), picture))
    return f"{ranks:>6}{cells}{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:9.0f} MiB"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--size", default="80x24", help="columns and lines of the picture (default: 80x24)")
    given = parser.parse_args()
    columns, _, lines = given.size.partition("x")
    print(" ranks    first look       no news    new samples       picture    peak memory")
    for ranks in given.ranks:
        print(measure(ranks, given.repeats, (int(columns), int(lines))))


if __name__ == "__main__":
    main()
