"""Letting a fault happen to this rank's own processes, without a word about it: others must find out by themselves."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .faults import Fault, parse_faults
from .world import RehearsalError, wait_until

RANK_VARIABLES = ("LLMRUN_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
"""Where a process reads its rank before MPI: rank.sh's counts over all replicas, the others over the instance."""

TAG_VARIABLE = "LLMRUN_TAG"

MPI_WAIT_S = 2.0
"""How long a rank stays away before it fails outside MPI_Init: the others are inside by then."""

PROBES = 1
"""Requests before anybody is told that the job serves: the generation that proves it."""

_STEP_MIB, _STEP_S = 64, 0.05
_WRONG = "a tensor has the wrong shape: expected (32, 8), found (32, 7)"
_NO_MEMORY = f"cannot allocate {_STEP_MIB << 20} bytes"
# Triton's stub takes no notice of these.
_IGNORED = {signal.SIGTERM, signal.SIGINT}


def own_rank(environ: Mapping[str, str]) -> int:
    """Return the rank that this process was started as, 0 when nobody says."""
    found = (environ[name] for name in RANK_VARIABLES if environ.get(name, "").isdigit())
    return int(next(found, "0"))


def own_attempt(environ: Mapping[str, str]) -> int:
    """Return which start of the server in its job this process belongs to, 0 when nobody says."""
    # rank.sh's mark is the job's id, a dot and the attempt.
    last = environ.get(TAG_VARIABLE, "").rpartition(".")[2]
    return int(last) if last.isdigit() else 0


class Strikes:
    """The faults of this rank; told how far the rank is, it lets happen what is due, which is mostly nothing."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = tuple(faults)
        self._on_request = [fault for fault in self._faults if fault.at == "serve" and fault.after_s is None]
        self._timed = [fault for fault in self._faults if fault.after_s is not None]
        self._requests = 0
        self._hang = ""
        self._error = ""
        self._slow_s = 0.0
        self._port: socket.socket | None = None

    def reach(self, place: str) -> None:
        """Stand at `place` of the start; raises RehearsalError when the rank is to fail there."""
        for fault in self._faults:
            if fault.at == place:
                if place == "mpi":
                    time.sleep(MPI_WAIT_S)
                self._begin(fault)
                self._suffer()
                self._slow_s = 0.0

    def loaded(self, *, leader: bool) -> None:
        """Every rank is loaded: clocks of faults that come by themselves start."""
        for fault in self._timed:
            timer = threading.Timer(fault.after_s or 0.0, self._begin_late, (fault, leader))
            timer.daemon = True
            timer.start()

    def leader_takes_request(self) -> None:
        """A request is there, on the thread that brings it; raises RehearsalError when the rank is to refuse it."""
        self._count(1)
        if self._error:
            raise RehearsalError(self._error)

    def leader_steps(self) -> None:
        """The leader's engine is about to make a step."""
        if self._hang or self._slow_s:
            self._suffer(raising=False)

    def worker_waits(self, called: Callable[[], bool]) -> None:
        """Wait until `called`, unless a fault comes by itself meanwhile; return at once when none can."""
        if self._timed:
            wait_until(lambda: called() or bool(self._hang or self._error))
            if not called():
                self._suffer()

    def worker_steps(self, started: int) -> None:
        """A worker is about to make a step that starts that many requests."""
        if self._faults:
            self._count(started)
            self._suffer()

    def _count(self, requests: int) -> None:
        self._requests += requests
        if self._requests > PROBES:
            due, self._on_request = self._on_request, []
            for fault in due:
                self._begin(fault)

    def _begin_late(self, fault: Fault, leader: bool) -> None:
        self._begin(fault)
        if leader and self._hang == "spin":
            # A leader that is idle looks for no fault: its next step hangs, and meanwhile something must spin. Two
            # that spin would take turns, which looks like waiting.
            self._hang = "sleep"
            _spin()

    def _begin(self, fault: Fault) -> None:
        """Let it happen to the process; what happens to its thread or to its steps is left for `_suffer`."""
        if fault.kind == "exit":
            _exit(int(fault.argument))
        elif fault.kind == "signal":
            _send(fault.who, signal.Signals[f"SIG{fault.argument}"])
        elif fault.kind == "hang" and fault.argument == "stop":
            _send(fault.who, signal.SIGSTOP)
        elif fault.kind == "hang":
            self._hang = fault.argument
        elif fault.kind == "slow":
            self._slow_s = float(fault.argument)
        elif fault.kind == "noport":
            self._port = _take_port(http_port(_words(server_pid())))
        elif fault.kind == "oom":
            _exhaust(int(fault.argument))
            self._error = _NO_MEMORY
        else:
            self._error = _WRONG

    def _suffer(self, *, raising: bool = True) -> None:
        if self._hang == "spin":
            _spin()
        elif self._hang:
            threading.Event().wait()
        if self._error and raising:
            raise RehearsalError(self._error)
        if self._slow_s:
            time.sleep(self._slow_s)


def strikes_of(text: str, environ: Mapping[str, str]) -> Strikes:
    """Return what `text`, as `join_faults` writes it, has for the rank that this process is.

    Raises:
        RehearsalError: it does not read as faults.
    """
    if not text:
        return Strikes()
    try:
        faults = parse_faults(text)
    except ValueError as error:
        raise RehearsalError(str(error)) from error
    rank, attempt = own_rank(environ), own_attempt(environ)
    return Strikes(fault for fault in faults if fault.rank == rank and fault.is_due(attempt))


def _spin() -> None:
    while True:
        pass


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _send(who: str, number: signal.Signals) -> None:
    if who == "server":
        os.kill(server_pid(), number)
        return
    if number in _IGNORED:
        # signal.signal is for Python's main thread only.
        ctypes.CDLL(None).signal(int(number), None)
    # To this thread, as a fault of its own would come.
    signal.pthread_kill(threading.get_ident(), number)


def _exhaust(mib: int) -> None:
    """Take memory and touch it, step by step, until somebody kills this process, there is no more, or `mib` is had."""
    with contextlib.suppress(OSError):
        # Where nothing but the node bounds the job, the kernel is to choose this process and not a neighbour.
        Path("/proc/self/oom_score_adj").write_text("1000")
    blocks = []
    with contextlib.suppress(MemoryError):
        for _ in range(0, mib, _STEP_MIB):
            blocks.append(bytearray(b"\1") * (_STEP_MIB << 20))
            time.sleep(_STEP_S)


def server_pid() -> int:
    """Return the tritonserver above this process; a shell may stand between.

    Raises:
        RehearsalError: there is none.
    """
    pid = os.getppid()
    while pid > 1:
        if Path((_words(pid) or [""])[0]).name == "tritonserver":
            return pid
        # The name before the state may hold anything, also a bracket.
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise RehearsalError("no tritonserver is above this process")


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]


def http_port(words: list[str]) -> int:
    """Return the port that a tritonserver's command line gives to HTTP, Triton's own default without one."""
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--http-port":
            return int(value if equals else words[index + 1])
    return 8000


def _take_port(port: int) -> socket.socket | None:
    """Hold a port without listening, as a connection of somebody else's that began there would."""
    taken = socket.socket()
    try:
        taken.bind(("", port))
    except OSError:
        # It is somebody else's already, which comes to the same.
        return None
    return taken
