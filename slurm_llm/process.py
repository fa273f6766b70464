"""The only place that starts processes on a login node; it interprets nothing that they print."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

TIMEOUT_RC = 124
NOT_FOUND_RC = 127
PR_SET_PDEATHSIG = 1
LAST_GRACE_S = 10.0
"""Seconds between TERM and KILL for a command that is given up."""


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


def run_logged(argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> int:
    """Run `argv` to its end with both streams appended to `log`, and return its status, 128 + N for a signal N.

    Without a shell, without stdin, in a session of its own. Whatever interrupts the wait (a signal whose handler
    raises) ends the command with its children first.
    """
    with log.open("ab") as stream:
        try:
            process = subprocess.Popen(
                list(argv),
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            stream.write(f"{argv[0]}: {error.strerror}\n".encode())
            return NOT_FOUND_RC
    try:
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    return status if status >= 0 else 128 - status


def start_piped(argv: Sequence[str], *, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own, so that Ctrl-C is not its business, with a pipe to each of its streams.

    Raises:
        OSError: there is no such program.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(
        list(argv), env=dict(env), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0
    )


def start_logged(argv: Sequence[str], log: Path, *, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own with both streams appended to `log`; when this process dies it gets TERM.

    Raises:
        OSError: there is no such program, or the log cannot be written.
    """
    # Imported here: no other command needs it.
    import ctypes

    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(TIMEOUT_RC)

    with log.open("ab") as stream:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def become(argv: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
    """Become the program `argv`: it has this process's terminal, and its exit status is this one's.

    Raises:
        OSError: there is no such program.
    """
    os.execvpe(argv[0], list(argv), dict(env))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that leads its own session: TERM, then KILL."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(LAST_GRACE_S)
        # What the command itself has left behind goes too.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
