"""Print time and memory of `logs` beside grep over the same files: sizes in MiB, 64 by default, are given as arguments.

The logs are synthetic: lines as Triton, vLLM and a loading bar write them, in every MiB an error with its traceback.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from synthetic import JOB_ID, Shape, make_run

ERRORS = r"^[EF][0-9]{4} |ERROR|CRITICAL|FATAL|\[E\]|Traceback|NCCL WARN|[A-Za-z]*(Error|Exception):|error: "
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "--grep TEXT": (("--grep", "CUDA error"), ("-F", "CUDA error")),
    "--grep A|B": (("--grep", "tim(ed )?out|refused"), ("-E", "tim(ed )?out|refused")),
    "-i --grep TEXT": (("-i", "--grep", "cuda error"), ("-i", "cuda error")),
    "--grep CLASSES": (("--grep", "[0-9]{7,} ms"), ("-E", "[0-9]{7,} ms")),
    "--level error": (("--level", "error"), ("-E", ERRORS)),
    "-n 100": (("-n", "100"), ()),
    "-n 5 --level error": (("-n", "5", "--level", "error"), ()),
}
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/engine/model.py", line 123, in execute\n    return self._step(batch)\n'
    "RuntimeError: CUDA error: an illegal memory access was encountered\n"
)
# Peak memory of a child is only known to who waits for it.
WAITER = (
    "import resource,subprocess,sys,time;"
    "out=open(sys.argv[1],'wb');"
    "began=time.perf_counter();"
    "done=subprocess.run(sys.argv[2:],stdout=out,stderr=subprocess.PIPE);"
    "took=time.perf_counter()-began;"
    "used=resource.getrusage(resource.RUSAGE_CHILDREN);"
    "print(done.returncode,took,used.ru_utime+used.ru_stime,used.ru_maxrss/1024,done.stderr.decode()[-300:])"
)


@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and of CPU, peak memory in MiB, and lines that were printed."""

    seconds: float
    cpu_s: float
    mib: float
    lines: int


def write_log(path: Path, rank: int, size: int, began: float) -> None:
    """Write a rank's log of about `size` bytes."""
    number, written = 0, 0
    with path.open("w", encoding="utf-8") as stream:
        while written < size:
            clock = time.localtime(began + number * 60)
            forms = (time.strftime(form, clock) for form in ("%m%d %H:%M", "%m-%d %H:%M"))
            text = "".join(_minute(rank, number, *forms))
            stream.write(text)
            written += len(text)
            number += 1


def _minute(rank: int, number: int, glog: str, vllm: str) -> list[str]:
    """Return some lines of one minute: about a MiB, with one error in it."""
    rows = []
    for index in range(7600):
        clock = f"{index * 60 // 7600:02}.{index % 1000:03}"
        if index % 4 == 3:
            rows.append(f"INFO {vllm}:{clock} [metrics.py:414] Avg generation throughput: {index % 977}.3 tokens/s\n")
        elif index % 500 == 250:
            rows.append("".join(f"\rLoading shards: {part:3}%" for part in range(0, 101, 10)) + "\n")
        else:
            what = f"request {number * 7600 + index} of the batch took {index % 313} ms on GPU {rank % 8}"
            rows.append(f'I{glog}:{clock}000 {4000 + rank} model_lifecycle.cc:472] "{what}, in flight {index % 64}"\n')
    rows.append(f'E{glog}:59.999000 {4000 + rank} model.cc:99] "the model failed"\n{TRACEBACK}')
    return rows


def measure(argv: list[str], out: Path, repeats: int) -> Cost:
    """Return what one command costs, the best of `repeats`.

    Raises:
        SystemExit: the command failed.
    """
    costs = []
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "1"}
    for _ in range(repeats):
        waiter = [sys.executable, "-c", WAITER, str(out), *argv]
        done = subprocess.run(waiter, capture_output=True, text=True, env=environ, check=True)
        code, seconds, cpu_s, mib, *error = done.stdout.split(maxsplit=4)
        if code not in ("0", "1"):
            sys.exit(f"{' '.join(argv)} ended with {code}: {' '.join(error)}")
        with out.open("rb") as stream:
            costs.append(Cost(float(seconds), float(cpu_s), float(mib), sum(1 for _ in stream)))
    return min(costs, key=lambda cost: cost.seconds)


def compare(run: Path, logs: Path, out: Path, repeats: int) -> None:
    """Print a row for each case."""
    print(f"{'':20}{'logs':>9}{'CPU':>8}{'MiB':>6}{'lines':>9}{'grep':>9}{'CPU':>8}{'ratio':>7}{'CPU':>7}")
    for name, (ours, grep) in CASES.items():
        own = measure([sys.executable, "-m", "slurm_llm", "logs", str(run), *ours], out, repeats)
        row = f"{name:20}{own.seconds:8.2f}s{own.cpu_s:7.2f}s{own.mib:6.0f}{own.lines:9}"
        if grep:
            other = measure(["grep", "-rn", *grep, str(logs)], out, repeats)
            row += f"{other.seconds:8.2f}s{other.cpu_s:7.2f}s"
            row += f"{own.seconds / other.seconds:7.1f}{own.cpu_s / max(0.01, other.cpu_s):7.1f}"
        print(row, flush=True)


def main() -> None:
    """Write logs of each size, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mib", nargs="*", type=int, default=[64], help="size of all logs together; 4096 takes minutes")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--below", type=Path, help="folder for the files; they are removed afterwards")
    asked = parser.parse_args()
    for mib in asked.mib:
        with tempfile.TemporaryDirectory(dir=asked.below) as folder:
            paths = make_run(Path(folder), Shape(asked.ranks, samples=1, log_bytes=0))
            attempt = paths.job(JOB_ID).attempt(0)
            for rank in range(asked.ranks):
                write_log(attempt.rank_log(rank), rank, (mib << 20) // asked.ranks, time.time() - 86400)
            print(f"\n{mib} MiB in {asked.ranks} logs")
            compare(paths.root, attempt.root, Path(folder) / "out", asked.repeats)


if __name__ == "__main__":
    main()
