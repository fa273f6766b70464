"""Reading /proc: which processes belong to a rank, how one ended, what it holds. Decides nothing."""

import os
import signal
import socket
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

TAG = "LLMRUN_TAG"
RANK = "LLMRUN_RANK"
ROLE = "LLMRUN_ROLE"
NODE = "LLMRUN_NODE"
BLOCK = 1 << 16


class Found(NamedTuple):
    """A process that was started by rank.sh, directly or not; `group` is its process group."""

    pid: int
    group: int
    rank: int
    role: str
    name: str


def _read(path: str) -> bytes:
    """Return a file of /proc, empty when it cannot be read.

    Agents do this all the time, and `open` makes twice as many calls.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        found = data = os.read(handle, BLOCK)
        while data:
            data = os.read(handle, BLOCK)
            found += data
        return found
    except OSError:
        return b""
    finally:
        os.close(handle)


def environment(pid: int) -> Dict[str, str]:
    """Return the environment that `pid` was started with; empty when it is gone or another user's."""
    return _variables(_read("/proc/%d/environ" % pid))


def _variables(data: bytes) -> Dict[str, str]:
    pairs = (item.partition(b"=") for item in data.split(b"\0") if item)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def pids() -> Set[int]:
    """Return the ids of all processes."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def stat_fields(pid: int) -> List[str]:
    """Return /proc/PID/stat from field 3 (state) on, or nothing when the process is gone."""
    text = _read("/proc/%d/stat" % pid).decode("utf-8", "replace")
    return text.rpartition(")")[2].split()


def find(tag: str, node: str, candidates: Iterable[int]) -> List[Found]:
    """Return those of `candidates` that carry `tag`, a rank and this `node` in their environment.

    Several nodes can share one machine's process ids (a cluster made of namespaces, or of several slurmd).
    """
    found, mark = [], ("%s=%s" % (TAG, tag)).encode()
    for pid in candidates:
        data = _read("/proc/%d/environ" % pid)
        # Nearly all others are passed over here.
        if mark not in data:
            continue
        own = _variables(data)
        if own.get(TAG) != tag or own.get(NODE) != node or not own.get(RANK, "").isdigit():
            continue
        fields = stat_fields(pid)
        if not fields or fields[0] in "ZX":
            continue
        found.append(Found(pid, int(fields[2]), int(own[RANK]), own.get(ROLE, ""), name_of(pid)))
    return found


def name_of(pid: int) -> str:
    """Return the name that the kernel keeps, cut to 15 characters; empty when the process is gone."""
    return _read("/proc/%d/comm" % pid).decode("utf-8", "replace").strip()


def live_tags(candidates: Iterable[int]) -> Set[str]:
    """Return the tags of every run that has a process among `candidates`."""
    return {tag for tag in (environment(pid).get(TAG) for pid in candidates) if tag}


def alive(pid: int) -> bool:
    """Return whether `pid` runs; a zombie does not."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def age(pid: int) -> float:
    """Return seconds since `pid` was forked; 0 when it is gone. (The times of /proc/PID itself say something else.)"""
    fields = stat_fields(pid)
    uptime = _read("/proc/uptime").split()
    if len(fields) < 20 or not uptime:
        return 0.0
    return float(uptime[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def ended_how(pid: int) -> Optional[str]:
    """Return `exit N` or `signal NAME` of a zombie; None when its parent has already taken the status.

    Field 52 of /proc/PID/stat is the wait status, readable by the same user (proc(5)).
    """
    fields = stat_fields(pid)
    if len(fields) < 50 or fields[0] not in "ZX":
        return None
    return describe_status(int(fields[49]))


def describe_status(status: int) -> str:
    """Return a wait status as words."""
    number = status & 0x7F
    return "signal %s" % signal_name(number) if number else "exit %d" % (status >> 8)


def describe_exit_code(code: int) -> str:
    """Return a shell's exit code as words: above 128 it stands for a signal."""
    return "signal %s" % signal_name(code - 128) if 128 < code < 128 + 65 else "exit %d" % code


def signal_name(number: int) -> str:
    """Return SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def handles_term(pid: int) -> bool:
    """Return whether `pid` has a handler for SIGTERM.

    tritonserver sets it only after its models are loaded (triton-inference-server/server, src/main.cc): before that
    SIGTERM kills it, after that it shuts down.
    """
    for row in _read("/proc/%d/status" % pid).splitlines():
        if row.startswith(b"SigCgt:"):
            return bool(int(row.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def words(pid: int) -> List[str]:
    """Return the words of the command that `pid` was started as; none when it has gone."""
    found = _read("/proc/%d/cmdline" % pid).decode("utf-8", "replace").split("\0")
    # Each word ends in a zero byte, unless the process has written itself another title.
    return found if found[-1] else found[:-1]


def arguments(pid: int) -> Dict[str, str]:
    """Return the `--name=value` arguments of `pid`."""
    pairs = (word[2:].partition("=") for word in words(pid) if word.startswith("--") and "=" in word)
    return {name: value for name, _, value in pairs}


def completes_config(pid: int) -> bool:
    """Return whether `pid` is a Python stub that a tritonserver has started to complete a model's configuration only.

    Triton names each stub in its last argument but one: by the model for that purpose, by `MODEL_0` for an instance of
    it (measured on 2.51).
    """
    own = words(pid)
    if len(own) < 3 or not own[0].endswith("triton_python_backend_stub"):
        return False
    server = int((stat_fields(pid) or ["", "0"])[1])
    try:
        return own[-2] in os.listdir(arguments(server).get("model-repository", ""))
    except OSError:
        # The server's container has the folder elsewhere.
        return not own[-2].rpartition("_")[2].isdigit()


def tracks_resources(pid: int) -> bool:
    """Return whether `pid` is what Python's multiprocessing starts beside another process, to tidy up after it."""
    return b"from multiprocessing.resource_tracker import main" in _read("/proc/%d/cmdline" % pid)


def shared_files(pid: int) -> Set[str]:
    """Return the files in /dev/shm that `pid` has mapped."""
    files = set()
    for row in _read("/proc/%d/maps" % pid).splitlines():
        path = row[row.find(b"/") :] if b"/" in row else b""
        if path.startswith(b"/dev/shm/") and not path.endswith(b" (deleted)"):
            files.add(path.decode("utf-8", "replace"))
    return files


class Usage(NamedTuple):
    """What a process holds and has spent; all zero and `X` when it is gone."""

    rss_mib: float
    user_s: float
    system_s: float
    state: str


def usage(pid: int) -> Usage:
    """Return resident memory in MiB, CPU seconds in user and system mode, and the state's letter.

    proc(5): `stat` fields 24, 14, 15 and 3, of the whole process.
    """
    fields = stat_fields(pid)
    if len(fields) < 22:
        return Usage(0.0, 0.0, 0.0, "X")
    ticks = os.sysconf("SC_CLK_TCK")
    page_mib = os.sysconf("SC_PAGE_SIZE") / 1048576.0
    return Usage(int(fields[21]) * page_mib, int(fields[11]) / ticks, int(fields[12]) / ticks, fields[0])


MOST_THREADS = 16
"""Of a process with more threads only the main one is asked for its naps: each is a file to read."""


def naps(pid: int) -> int:
    """Return how often the threads have waited of their own will (`voluntary_ctxt_switches` in proc(5))."""
    folder = "/proc/%d/task" % pid
    try:
        threads = os.listdir(folder)
    except OSError:
        return 0
    paths = ["%s/%s/status" % (folder, name) for name in threads]
    return sum(map(_naps, paths if len(paths) <= MOST_THREADS else ["/proc/%d/status" % pid]))


def _naps(path: str) -> int:
    for row in _read(path).splitlines():
        if row.startswith(b"voluntary_ctxt_switches:"):
            return int(row.split()[1])
    return 0


def read_mib(pid: int) -> float:
    """Return how much a process has read by system calls, whatever from (`rchar` in proc(5)), in MiB."""
    for row in _read("/proc/%d/io" % pid).splitlines():
        if row.startswith(b"rchar:"):
            return int(row.split()[1]) / 1048576.0
    return 0.0


def node_name() -> str:
    """Return this node's name as Slurm knows it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def shm_free_mib() -> int:
    """Return free space of /dev/shm in MiB; 0 when there is none."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize // 1048576
