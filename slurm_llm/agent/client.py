"""The client of an attempt: the spec's command on the first node, from the first answer to its end.

The head starts it, passes on what it prints, tells it to end, and learns how it ended; it judges nothing else.
"""

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from .fold import describe_client

SETTLE_S = 1.0
"""A client that fails because its server does may be seen to end before a rank of that is."""
DRAIN_S = 2.0
"""How long the last of its output may take once the client has ended."""
BLOCK = 1 << 16
PREFIX = b"client: "
"""Before each of its lines in the job's output."""
PR_SET_PDEATHSIG = 1
_LOG = re.compile(r"client\.(\d+)\.log\Z")

Note = Callable[..., None]


def variables(endpoint: Dict[str, Any], run_dir: str) -> Dict[str, str]:
    """Return what an endpoint file says in variables, as `slurm-llm endpoint --env` prints them."""
    instances: List[Dict[str, Any]] = endpoint["instances"]
    places = ([endpoint["balancer"]] if endpoint.get("balancer") else []) + instances
    first = places[0]
    found = {
        "SLURM_LLM_URL": first["url"],
        "SLURM_LLM_URLS": " ".join(one["url"] for one in places),
        "SLURM_LLM_GRPC": first["grpc"],
        "SLURM_LLM_METRICS": instances[0]["metrics"],
        "SLURM_LLM_MODEL": endpoint["model"],
        "SLURM_LLM_RUN": run_dir,
        "SLURM_LLM_JOB": endpoint["job_id"],
        "SLURM_LLM_OPENAI": first.get("openai"),
        "SLURM_LLM_KEY_FILE": first.get("key_file"),
        "SLURM_LLM_EXPORTER": endpoint.get("exporter"),
    }
    return {name: str(value) for name, value in found.items() if value or name == "SLURM_LLM_METRICS"}


class End(NamedTuple):
    """How a client ended: its exit status as a shell has it (128 + n by signal n), and whether it was told to."""

    code: int
    told: bool

    def describe(self) -> str:
        """Return one sentence."""
        return describe_client(self.code)


class Client:
    """The client of one attempt, where its plan has one; `close` is called whatever happens."""

    def __init__(self, plan: Dict[str, Any], run_dir: str, attempt_dir: str, note: Note) -> None:
        self.plan: Optional[Dict[str, Any]] = plan.get("client")
        self.run_dir, self.note = run_dir, note
        self.job_dir, name = os.path.split(attempt_dir)
        self.attempt = int(name.rpartition("-")[2])
        self.end: Optional[End] = None
        self.ended_at = 0.0
        self._child: "Optional[subprocess.Popen[bytes]]" = None
        self._copier: Optional[threading.Thread] = None
        self._kill_at: Optional[float] = None

    @property
    def log(self) -> str:
        """What it prints."""
        return os.path.join(self.job_dir, "client.%d.log" % self.attempt)

    def lacks(self) -> str:
        """Return why this attempt must not serve; empty when it may."""
        earlier = began_in(self.job_dir, self.attempt) if self.plan and not self.plan["restart"] else None
        return "" if earlier is None else "the client has begun in attempt %d, and client.restart is not set" % earlier

    def start(self, endpoint: Dict[str, Any]) -> str:
        """Start the client of a server that has become ready; return what went wrong."""
        if self.plan is None or self._child is not None:
            return ""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLMRUN_")}
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._child = subprocess.Popen(
                ["bash", os.path.join(self.run_dir, "client.sh")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(kept, **variables(endpoint, self.run_dir)),
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        except OSError as error:
            return "the client cannot be started: %s" % error
        self.note("client-start", pid=self._child.pid)
        self._copier = threading.Thread(target=_copy, args=(self._child.stdout, log), daemon=True)
        self._copier.start()
        return ""

    def look(self, now: float) -> None:
        """See whether it has ended, and kill it once its time to end is over; `now` is in time.monotonic()."""
        if self._child is None or self.end is not None:
            return
        status = self._child.poll()
        if status is not None:
            self._over(status if status >= 0 else 128 - status, now)
        elif self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)

    def news(self, now: float) -> Optional[End]:
        """Return how it ended by itself, once nothing else can have been the reason."""
        own = self.end
        settled = own is not None and not own.told and (own.code == 0 or now - self.ended_at >= SETTLE_S)
        return own if settled else None

    def tell(self) -> None:
        """Tell it to end, where it runs."""
        if self._child is not None and self.end is None and self._kill_at is None and self.plan is not None:
            self._kill_at = time.monotonic() + float(self.plan["grace_s"])
            self.note("client-told")
            self._signal(signal.SIGTERM)

    def leaving(self) -> bool:
        """Tell whether it was told to end and has not yet."""
        return self._child is not None and self.end is None and self._kill_at is not None

    def close(self) -> None:
        """End it, with force after its time."""
        self.tell()
        while self.leaving():
            self.look(time.monotonic())
            time.sleep(0.05)

    def _over(self, code: int, now: float) -> None:
        self.end, self.ended_at = End(code, self._kill_at is not None), now
        # What it has left in the background ends with it, and no longer holds its output open.
        self._signal(signal.SIGKILL)
        if self._copier is not None:
            self._copier.join(DRAIN_S)
        self.note("client-end", code=code, told=self.end.told)

    def _signal(self, number: int) -> None:
        try:
            if self._child is not None:
                os.killpg(self._child.pid, number)
        except OSError:
            pass


def began_in(job_dir: str, before: int) -> Optional[int]:
    """Return the last attempt before that number in which a client has begun; None when there was none."""
    try:
        found = [match for match in map(_LOG.match, os.listdir(job_dir)) if match]
    except OSError:
        found = []
    return max((number for number in (int(match.group(1)) for match in found) if number < before), default=None)


def _die_with(parent: int) -> Callable[[], None]:
    """Return what has the kernel end a child with its parent: a head that is killed leaves no client."""
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        # The head ignores these; a child that ignored TERM could not be told to end.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != parent:
            os._exit(143)

    return ask


def _copy(stream: Any, log: int) -> None:
    """Pass on what the client prints: as it is to its log, line by line to the job's output."""
    rest = b""
    while True:
        data = os.read(stream.fileno(), BLOCK)
        _write(log, data)
        *rows, rest = (rest + data).split(b"\n")
        if rest and (not data or len(rest) > BLOCK):
            rows, rest = rows + [rest], b""
        if rows:
            _write(1, b"".join(PREFIX + row + b"\n" for row in rows))
        if not data:
            os.close(log)
            stream.close()
            return


def _write(handle: int, data: bytes) -> None:
    """Write all of it, unless the disk is full: a client must not wait for that."""
    try:
        while data:
            data = data[os.write(handle, data) :]
    except OSError:
        pass
