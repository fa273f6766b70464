"""Background processes: started detached, recorded with start time, ended without hitting a recycled pid."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_llm.errors import NotReady, SetupError

# Every process that `up` starts carries its state directory in the environment: one that a killed `up` had no
# time to record is found by it.
MARK = "SLURM_LLM_DEVCLUSTER"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TAIL_LINES = 15
TCP_LISTEN = "0A"


@dataclass(frozen=True)
class Identity:
    """A process that cannot be confused with another one, not even after a reboot."""

    pid: int
    start: int
    boot: str


@dataclass(frozen=True)
class Daemon:
    """One background process of a cluster: a name that is also its record's and its output's."""

    name: str
    argv: tuple[str, ...]


class Daemons:
    """The recorded processes of one state directory."""

    def __init__(self, state: Path, pids: Path, log: Path) -> None:
        self.state = state
        self.pids = pids
        self.log = log

    def start(self, daemon: Daemon, extra_env: Mapping[str, str] | None = None) -> int:
        """Start `daemon` in a session of its own, output appended to its log; return its pid."""
        env = {"PATH": SEARCH_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", MARK: str(self.state)}
        # The shell goes away at once: the daemon is no child of ours and no zombie of a long-lived caller.
        script = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!'
        argv = ["/bin/sh", "-c", script, "sh", str(self.log / f"{daemon.name}.out"), *daemon.argv]
        shell = subprocess.run(
            argv,
            env={**env, **(extra_env or {})},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        pid = int(shell.stdout)
        identity = identify(pid)
        if identity is not None:
            self._file(daemon.name).write_text(json.dumps(asdict(identity)))
        return pid

    def running(self, name: str) -> int | None:
        """Return the pid of the recorded process if it lives."""
        identity = self._recorded(name)
        return identity.pid if identity is not None and identify(identity.pid) == identity else None

    def stop(self, name: str, *, grace_s: float = 10.0) -> None:
        """End a recorded process: TERM, KILL after `grace_s`; forget it."""
        identity = self._recorded(name)
        if identity is not None:
            end_processes([identity], grace_s=grace_s)
        self._file(name).unlink(missing_ok=True)

    def stop_all(self, *, grace_s: float = 5.0) -> None:
        """End every recorded process, and every one that only its mark betrays."""
        files = tuple(self.pids.glob("*.json")) if self.pids.is_dir() else ()
        recorded = [identity for path in files if (identity := self._recorded(path.stem)) is not None]
        end_processes({*recorded, *self.marked()}, grace_s=grace_s)
        for path in files:
            path.unlink(missing_ok=True)

    def marked(self) -> tuple[Identity, ...]:
        """Return every living process that inherited this state directory's mark."""
        mark = f"{MARK}={self.state}".encode()
        return tuple(found for pid in all_pids() if mark in _environment(pid) and (found := identify(pid)))

    def tail(self, *names: str) -> str:
        """Return the last lines of the first log among `names` that says something."""
        for name in names:
            path = self.log / name
            lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if path.is_file() else []
            if lines:
                return "\n".join((f"{path} ends with:", *lines))
        return ""

    def wait(self, name: str, ready: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
        """Wait until `ready`; a process that dies or is late is reported with the end of its log."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.running(name) is None:
                raise SetupError(f"{name}: ended while starting\n{self._last_words(name)}")
            if time.monotonic() > deadline:
                raise NotReady(f"{name}: not ready after {timeout_s:g} s\n{self._last_words(name)}")
            time.sleep(0.03)

    def _last_words(self, name: str) -> str:
        return self.tail(f"{name}.log", f"{name}.out")

    def _file(self, name: str) -> Path:
        return self.pids / f"{name}.json"

    def _recorded(self, name: str) -> Identity | None:
        try:
            return Identity(**json.loads(self._file(name).read_text()))
        except (OSError, ValueError, TypeError):
            return None


def identify(pid: int) -> Identity | None:
    """Return the identity of a living process; a zombie is not one."""
    try:
        # The name in parentheses may itself contain blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return Identity(pid, int(fields[19]), Path("/proc/sys/kernel/random/boot_id").read_text().strip())


def listens(pid: int, port: int) -> bool:
    """Tell whether somebody in the network of process `pid` listens on a TCP port.

    Read from /proc: a connection made for nothing but to try fills Slurm's logs with errors.
    """
    try:
        rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return False
    return any(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == TCP_LISTEN for row in rows)


def all_pids() -> tuple[int, ...]:
    """Return every process id of this machine."""
    return tuple(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def end_processes(identities: Iterable[Identity], *, grace_s: float) -> None:
    """Send TERM, wait at most `grace_s` in all, KILL and await those left; without grace KILL alone."""
    handles = [handle for identity in identities if (handle := _handle(identity)) is not None]
    try:
        left = _signal_and_wait(handles, signal.SIGTERM, grace_s) if grace_s > 0 else handles
        _signal_and_wait(left, signal.SIGKILL, 10.0)
    finally:
        for handle in handles:
            os.close(handle)


def _handle(identity: Identity) -> int | None:
    """Return a pidfd of exactly this process."""
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return None
    if identify(identity.pid) == identity:
        return handle
    os.close(handle)
    return None


def _signal_and_wait(handles: Sequence[int], number: signal.Signals, timeout_s: float) -> list[int]:
    """Signal all, wait for them together; return those that still live."""
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
    left = set(handles)
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    while left and (rest := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(rest * 1000):
            poll.unregister(handle)
            left.discard(handle)
    return sorted(left)


def _environment(pid: int) -> frozenset[bytes]:
    try:
        return frozenset(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()
