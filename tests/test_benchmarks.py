"""Benchmarks are run by hand, so nothing else would notice that one no longer starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
PROGRAMS = sorted(path for path in FOLDER.rglob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_it_starts(program: Path) -> None:
    """Its modules are there and its options are read."""
    done = subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_scale_runs() -> None:
    """It makes run directories, and asks every command that looks at one."""
    argv = [sys.executable, str(FOLDER / "scale.py"), "--repeats", "1", "--ranks", "8", "64", "--samples", "3"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    titles = {line[:16].strip() for line in done.stdout.splitlines()}
    assert titles >= {"plan and render", "status", "health", "logs -n 100", "diagnose"}


def test_the_start_of_commands_is_measured_beside_others() -> None:
    """Another program that knows --help stands in for a peer."""
    argv = [sys.executable, str(FOLDER / "cli_start.py"), "--repeats", "1", "--beside", sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{Path(sys.executable).name} --help" in done.stdout and "slurm-llm status" in done.stdout
