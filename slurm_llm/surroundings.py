"""What a use case takes from outside: environment, working directory, clock, randomness and process runner."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.errors import InputError, Problem
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


def expand(text: str, environ: Mapping[str, str], where: str) -> str:
    """Replace `~` at the beginning and `$NAME`; `where` is the field that holds `text`, for messages.

    Slurm and most programs expand neither in file names.

    Raises:
        InputError: a variable that is not set.
    """
    if text == "~" or text.startswith("~/"):
        text = environ.get("HOME", "~") + text[1:]
    parts = text.split("$")
    result = parts[0]
    for part in parts[1:]:
        name = part[1 : part.find("}")] if part.startswith("{") and "}" in part else _name_at(part)
        if not name:
            what = f"'{text}' holds a $ that names no variable"
            raise InputError(Problem(where, what, "$NAME or ${NAME}; nothing else is expanded"))
        if name not in environ:
            raise InputError(Problem(where, f"'{text}' uses ${name}, which is not set", todo=f"export {name}"))
        result += environ[name] + part[len(name) + (2 if part.startswith("{") else 0) :]
    return result


def _name_at(text: str) -> str:
    end = 0
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return text[:end]
