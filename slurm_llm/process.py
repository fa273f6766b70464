"""The only place that starts processes on a login node; it interprets nothing that they print."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

TIMEOUT_RC = 124
NOT_FOUND_RC = 127


@dataclass(frozen=True)
class Completed:
    """What a finished command left: both streams decoded as UTF-8, bad bytes replaced."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Anything that runs a command to its end; tests pass their own."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed: ...


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
    """Run `argv` without a shell and without stdin; a missing program is rc 127, a timeout rc 124.

    The command gets a session of its own, so that a timeout ends its children too.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Completed(tuple(argv), NOT_FOUND_RC, "", f"{argv[0]}: {error.strerror}")
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
            returncode = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err += f"{argv[0]}: no answer within {timeout_s:g} s".encode()
            returncode = TIMEOUT_RC
    return Completed(tuple(argv), returncode, out.decode(errors="replace"), err.decode(errors="replace"))
