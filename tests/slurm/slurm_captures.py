"""Reads captured answers of Slurm's commands: argv, exit status and both streams as they were, in JSON."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_llm.process import Completed

CAPTURES = Path(__file__).parent / "captures"


def load_capture(name: str) -> Completed:
    """Return the captured answer of that name."""
    raw = json.loads((CAPTURES / f"{name}.json").read_text(encoding="utf-8"))
    return Completed(tuple(raw["argv"]), raw["returncode"], raw["stdout"], raw["stderr"])


def answer(stdout: str = "", stderr: str = "", returncode: int = 0) -> Completed:
    """Return an answer that was never captured."""
    return Completed(("command",), returncode, stdout, stderr)
