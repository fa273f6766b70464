"""Copies of weights on this node's own disk: made once a node before the ranks start, shared by jobs, and removed.

Below the folder of copies each has a folder under its name, and beside that `<name>.json`, which is there once it is
complete, `<name>.lock`, `<name>.part` while it is made, and `<name>.use-<job>` for every job that reads it.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import stat
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional

from . import journal, processes
from .copying import Copy, File, Stopped, amount, as_rows, differs, from_rows, listing

TELL_S, LOOK_S = 5.0, 0.2
FOLDER = "llmstage"
"""Begins the name of the folder of copies."""
BOOT = "/proc/sys/kernel/random/boot_id"
SPARE_BYTES = 64 << 20
"""Kept free beside a copy: the ranks' own files lie there too."""
MARK, LOCK, PART, USE = ".json", ".lock", ".part", ".use-"
STOPPED = 143
_USE = re.compile(r"(.+)\.use-(\d+)\Z")


class Plan(NamedTuple):
    """The plan's `staging`; `folders` are pairs of source and target."""

    to: str
    folders: List[Dict[str, str]]
    exclude: List[str]
    streams: int
    keep: bool


def read_plan(run_dir: str) -> Plan:
    """Return what a run stages.

    Raises:
        OSError, ValueError, KeyError: the run directory has no such plan.
    """
    with open(os.path.join(run_dir, "plan.json"), encoding="utf-8") as stream:
        return Plan(**json.load(stream)["staging"])


class Fault(Exception):
    """Why this node cannot have its copies, in one sentence."""


class Stage:
    """The work of one node; `say` gets each record."""

    def __init__(self, plan: Plan, job_id: str, say: Any) -> None:
        self.plan, self.job_id, self.say = plan, job_id, say
        self.copy: Optional[Copy] = None
        self.stopped = self.waits = False
        self.before = 0
        self.total = 0

    def stop(self) -> None:
        """End it soon."""
        self.stopped = True
        if self.copy is not None:
            self.copy.stop()

    def run(self) -> None:
        """Make every copy that is not there, and tell how far it is.

        Raises:
            Fault: one cannot be made; Stopped: `stop` was called.
        """
        began = time.monotonic()
        _own_folder(self.plan.to)
        wanted = [(one, _listed(one["source"], self.plan.exclude)) for one in self.plan.folders]
        self.total = sum(own.size for _, files in wanted for own in files)
        threading.Thread(target=self._tell, daemon=True).start()
        reused = 0
        for one, files in wanted:
            reused += self._folder(one["source"], one["target"], files)
        took = round(time.monotonic() - began, 3)
        self.say("copied", bytes=self.total, reused=reused, seconds=took)

    def _tell(self) -> None:
        while not self.stopped:
            done = self.before + (self.copy.done if self.copy is not None else 0)
            self.say("copying", done=done, total=self.total, waits=self.waits)
            time.sleep(TELL_S)

    def _folder(self, source: str, target: str, files: List[File]) -> int:
        """Make one copy, or find it complete; return how many bytes were there."""
        size = sum(one.size for one in files)
        with _Lock(target, self):
            try:
                there = _complete(target, source, files)
                if not there:
                    self._make(source, target, files, size)
                elif self.plan.keep and not _kept(target):
                    self._mark(source, target, files)
                open(target + USE + self.job_id, "w").close()
            except OSError as error:
                raise Fault("%s: %s" % (error.filename or target, error.strerror or error)) from None
        self.before, self.copy = self.before + size, None
        return size if there else 0

    def _make(self, source: str, target: str, files: List[File], size: int) -> None:
        users = [job for job in _users(target) if job != self.job_id]
        if os.path.isdir(target) and users:
            raise Fault("%s is read by job %s, and is not what %s is now" % (target, ", ".join(users), source))
        for path in (target + MARK, target + PART, target):
            _remove(path)
        sweep(self.plan.to, {os.path.basename(one["target"]) for one in self.plan.folders})
        free = shutil.disk_usage(self.plan.to).free
        if size + SPARE_BYTES > free:
            raise Fault(
                "%s has %s free, the copy of %s needs %s%s"
                % (self.plan.to, amount(free), source, amount(size), _kept_words(self.plan.to))
            )
        self.copy = Copy(source, target + PART, files)
        if self.stopped:
            raise Stopped()
        try:
            self.copy.run(self.plan.streams)
            wrong = differs(target + PART, files)
            if wrong:
                raise Fault("%s is not complete in the copy of %s" % (wrong, source))
            os.rename(target + PART, target)
        except BaseException:
            _remove(target + PART)
            raise
        self._mark(source, target, files)

    def _mark(self, source: str, target: str, files: List[File]) -> None:
        mark = {"source": source, "keep": self.plan.keep, "made": round(time.time(), 3), "boot": _boot()}
        mark["files"] = as_rows(files)
        _remove(target + MARK)
        journal.write_once(target + MARK, json.dumps(mark))


def _own_folder(path: str) -> None:
    try:
        if not os.path.isdir(path):
            os.makedirs(path, 0o700)
    except OSError as error:
        raise Fault("%s cannot be made: %s" % (path, error.strerror)) from None
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Fault("%s is somebody else's: set staging.to" % path)


def _listed(source: str, exclude: List[str]) -> List[File]:
    try:
        files = listing(source, exclude)
    except OSError as error:
        raise Fault("%s cannot be read: %s" % (error.filename or source, error.strerror)) from None
    if not files:
        raise Fault("%s holds no file to copy" % source)
    return files


class _Lock:
    """The lock of one copy among the jobs of a node; the kernel gives it up with the process."""

    def __init__(self, target: str, stage: Stage) -> None:
        self.target, self.stage = target, stage
        self.handle = -1

    def __enter__(self) -> "_Lock":
        while not self._take():
            # Another job makes this copy.
            self.stage.waits = True
            if self.stage.stopped:
                raise Stopped()
            time.sleep(LOOK_S)
        self.stage.waits = False
        return self

    def _take(self) -> bool:
        self.handle = os.open(self.target + LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if _flock(self.handle) and _is_still(self.handle, self.target + LOCK):
            return True
        os.close(self.handle)
        return False

    def __exit__(self, *_args: Any) -> None:
        os.close(self.handle)


def _flock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(handle: int, path: str) -> bool:
    """Tell whether a file that was opened is the one of that name: who held the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _complete(target: str, source: str, files: List[File]) -> bool:
    """Tell whether a copy is there of what the source is now."""
    mark = _mark_of(target + MARK)
    # What a disk has not written when its machine goes is lost, whatever the sizes say.
    same = mark.get("source") == source and mark.get("boot") == _boot() and from_rows(mark.get("files", ())) == files
    return same and not differs(target, files)


def _boot() -> str:
    """Return what names the run of this machine's kernel."""
    try:
        with open(BOOT) as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _users(target: str) -> List[str]:
    """Return the jobs that read a copy: those with a mark of their own and a process on this node."""
    folder, name = os.path.split(target)
    live = None
    found = []
    for entry in _names(folder):
        match = _USE.match(entry)
        if match is None or match.group(1) != name:
            continue
        if live is None:
            live = {tag.partition(".")[0] for tag in processes.live_tags(processes.pids())}
        if match.group(2) in live:
            found.append(match.group(2))
        else:
            _remove(os.path.join(folder, entry))
    return found


def unstage(plan: Plan, job_id: str) -> None:
    """Let go of a job's copies, and remove those that nobody keeps or reads."""
    for one in plan.folders:
        _remove(one["target"] + USE + job_id)
    sweep(plan.to, set())


def sweep(folder: str, spared: Any) -> None:
    """Remove copies below `folder` that nobody keeps or reads, except those of the names in `spared`."""
    for name in {entry[: -len(LOCK)] for entry in _names(folder) if entry.endswith(LOCK)} - set(spared):
        target = os.path.join(folder, name)
        handle = os.open(target + LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        # One whose lock is held is being made, or removed.
        if _flock(handle) and not _users(target) and not _kept(target):
            for path in (target + MARK, target + PART, target, target + LOCK):
                _remove(path)
        os.close(handle)
    try:
        if os.path.basename(folder).startswith(FOLDER):
            os.rmdir(folder)
    except OSError:
        # Others are there.
        pass


def _kept(target: str) -> bool:
    return bool(_mark_of(target + MARK).get("keep"))


def _mark_of(path: str) -> Dict[str, Any]:
    """Return what is written down of a copy that is complete; nothing of another."""
    try:
        with open(path, encoding="utf-8") as stream:
            found: Dict[str, Any] = json.load(stream)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _kept_words(folder: str) -> str:
    """Return what copies that are kept there take, where there are any."""
    marks = (os.path.join(folder, entry) for entry in _names(folder) if entry.endswith(MARK))
    size = sum(one.size for path in marks for one in from_rows(_mark_of(path).get("files", ())))
    return "; copies that are kept there take %s" % amount(size) if size else ""


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    except OSError:
        pass


def main(run_dir: str) -> int:
    """Make this node's copies; return 0, or 1 when it cannot have them, or 143 when it was told to end."""
    os.umask(0o077)
    node = processes.node_name()

    def say(kind: str, **fields: Any) -> None:
        try:
            os.write(1, journal.line(journal.record(kind, node=node, **fields)) + b"\n")
        except OSError:
            # The head is gone, and this step goes too.
            pass

    stage = Stage(read_plan(run_dir), os.environ.get("SLURM_JOB_ID", "0"), say)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stage.stop())
    try:
        stage.run()
    except Stopped:
        return STOPPED
    except Fault as fault:
        say("copy-failed", text="node %s: %s" % (node, fault))
        return 1
    return 0


def remove(run_dir: str) -> int:
    """Let go of this node's copies at the end of a job."""
    unstage(read_plan(run_dir), os.environ.get("SLURM_JOB_ID", "0"))
    return 0
