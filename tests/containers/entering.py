"""A fake runtime on PATH, and the rendered enter.sh started as a task of a step would be."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm.containers.runtimes import RUNTIMES
from tests.containers.rendered import make_plan, render_plan

FAKE = """#!/bin/bash
printf '%s\\0' "$@" >"$RECORD/words"
env -0 >"$RECORD/environment"
((${RUN_LAST:-0} == 0)) || exec "${@: -RUN_LAST}"
"""
"""Writes down what it is given and, asked to, runs its last RUN_LAST words."""

BATCH = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "3", "PMIX_RANK": "3", "LLMRUN_TAG": "7.0"}
ODD = 'it\'s "a" = b\n$HOME `id` \\ ${x} \\" é'
RANK = ("bash", "/runs/rank.sh", "0", "0")


@dataclass(frozen=True)
class Entered:
    """How enter.sh ended and what the fake runtime was given; empty when it was not started."""

    code: int
    said: str
    out: str
    words: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Place:
    """Folders that are neither below /tmp nor /dev, which runtimes show unasked."""

    root: Path

    @property
    def run(self) -> Path:
        """A run directory with a space and an equals sign."""
        return self.root / "my runs" / "run=1"

    def folder(self, name: str) -> Path:
        """Make a folder."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def enter(
        self,
        runtime: str,
        image: str | None = None,
        /,
        *,
        env: Mapping[str, str] | None = None,
        command: tuple[str, ...] = RANK,
        run_last: int = 0,
        **given: Any,
    ) -> Entered:
        """Render a run of `runtime` and start its enter.sh as a task of a step would."""
        given.setdefault("storage", {"local": str(self.folder("local"))})
        plan = make_plan(runtime, image, **given)
        texts = render_plan(plan, self.run)
        for name in set(texts) & {"enter.sh", "enter.rc"}:
            (self.run / name).write_text(texts[name])
        bin_dir, record = self.folder("bin"), self.folder("record")
        (bin_dir / RUNTIMES[runtime].program).write_text(FAKE)
        (bin_dir / RUNTIMES[runtime].program).chmod(0o755)
        for name in ("words", "environment"):
            (record / name).unlink(missing_ok=True)
        own = {"PATH": f"{bin_dir}:/usr/bin:/bin", "RECORD": str(record), "RUN_LAST": str(run_last), "USER": "u"}
        done = subprocess.run(
            ["bash", str(self.run / "enter.sh"), *command],
            env={**own, **BATCH, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        return Entered(done.returncode, done.stderr, done.stdout, *self._recorded(record))

    def _recorded(self, record: Path) -> tuple[list[str], dict[str, str]]:
        if not (record / "words").exists():
            return [], {}
        words = (record / "words").read_text().split("\0")[:-1]
        pairs = ((record / "environment").read_text().split("\0"))[:-1]
        return words, dict(pair.split("=", 1) for pair in pairs)
