"""What a use case takes from outside: environment, working directory, clock, randomness and process runner."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.process import Runner
from slurm_llm.process import run as run_process
from slurm_llm.slurm.client import SlurmClient


@dataclass(frozen=True)
class Surroundings:
    """The outside world of one call; tests pass a runner and a clock of their own."""

    environ: Mapping[str, str]
    cwd: Path
    runner: Runner = run_process

    @staticmethod
    def of_this_process() -> Surroundings:
        """Return the real surroundings."""
        return Surroundings(dict(os.environ), Path.cwd())

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that only grow, for deadlines."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def run_id(self) -> str:
        """Return a new run id; ids sort by time."""
        # Imported here: it brings OpenSSL, and `status` draws no ids.
        import secrets

        return time.strftime("%Y%m%d-%H%M%S", time.localtime(self.now())) + "-" + secrets.token_hex(2)

    def slurm(self) -> SlurmClient:
        """Return Slurm as this user sees it."""
        return SlurmClient(self.runner, self.environ)
