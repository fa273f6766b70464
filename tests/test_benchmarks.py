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


def test_planning_at_scale_runs() -> None:
    """It plans thousands of ranks on a site that it makes up itself."""
    argv = [sys.executable, str(FOLDER / "plan_scale.py"), "--repeats", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("planning and rendering 4096 ranks") == 2
