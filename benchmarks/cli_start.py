"""Print how long the command line takes to start, beside bare Python and, as ratios, beside other launchers' --help.

    python benchmarks/cli_start.py --install DIR       makes a Python environment there with peers of PyPI
    python benchmarks/cli_start.py --beside PROGRAM    any program that knows --help; may be repeated

The programs take turns, each in a process of its own, so that what else the machine does meets all of them alike.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from statistics import median

from synthetic import JOB_ID, Shape, make_run

PEERS = ("vec-inf", "clserve")
"""Launchers of LLM servers on Slurm that PyPI has, whose command is called as they are."""

Argv = list[str]


def installed(folder: Path) -> list[Path]:
    """Return the peers' programs below `folder`, installed there first where they are missing."""
    programs = [folder / "bin" / name for name in PEERS]
    if not all(program.exists() for program in programs):
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *PEERS], check=True)
    return programs


def once(argv: Argv) -> float:
    """Return the seconds of one call.

    Raises:
        SystemExit: it failed.
    """
    # No Slurm: what is measured is our own start, and how a run directory is read.
    environ = {**os.environ, "PATH": "/nonexistent"}
    began = time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed: {done.stderr.decode(errors='replace')[-300:]}")
    return took


def measure(programs: dict[str, Argv], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each program's calls, by turns; a first call of each fills caches and does not count."""
    for argv in programs.values():
        once(argv)
    found: dict[str, list[float]] = {title: [] for title in programs}
    for _ in range(repeats):
        for title, argv in programs.items():
            found[title].append(once(argv))
    return found


def main() -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--install", type=Path, metavar="DIR")
    parser.add_argument("--beside", type=Path, action="append", default=[], metavar="PROGRAM")
    given = parser.parse_args()
    peers = [*given.beside, *(installed(given.install.absolute()) if given.install else [])]
    ours = [sys.executable, "-m", "slurm_llm"]
    with tempfile.TemporaryDirectory() as folder:
        run = str(make_run(Path(folder), Shape(8, samples=6)).root / f"job-{JOB_ID}")
        programs: dict[str, Argv] = {
            "python -c pass": [sys.executable, "-c", "pass"],
            **{f"slurm-llm {name}": [*ours, *words] for name, words in own_calls(run).items()},
            **{f"{peer.name} --help": [str(peer), "--help"] for peer in peers},
        }
        found = measure(programs, given.repeats)
    own = median(found["slurm-llm --help"])
    print(f"{'median of ' + str(given.repeats) + ' calls':28} {'ms':>6} {'least':>6} {'most':>6}   by slurm-llm --help")
    for title, times in found.items():
        middle = median(times)
        least, most = min(times) * 1000, max(times) * 1000
        print(f"{title:28} {middle * 1000:6.0f} {least:6.0f} {most:6.0f}   × {middle / own:.2f}")


def own_calls(run: str) -> dict[str, list[str]]:
    """Return the calls that must start at once, by what they are called."""
    return {
        "--help": ["--help"],
        "status": ["status", run],
        "health": ["health", run],
        "logs": ["logs", run],
        "endpoint": ["endpoint", run],
    }


if __name__ == "__main__":
    main()
