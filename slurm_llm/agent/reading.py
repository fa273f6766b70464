"""Bounded, streaming reads of logs: the known errors in them, and the lines that tell most. Decides no cause.

A log may have gigabytes, bars drawn with carriage returns, binary junk and lines of megabytes: no more than a budget of
bytes is read, a little of its beginning and the rest from its end.
"""

import bisect
import itertools
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from .known import NOISE, Entry, without_general

BLOCK_BYTES = 1 << 18
HEAD_BYTES = 1 << 16
MAX_LINE = 2000
"""Bytes of a line that are searched and shown."""
MANY = 1000
"""Further lines of one kind in one log are not counted."""
LAST_LINES = 8
TRACEBACK, CRASH, ERROR, PERHAPS, NOTHING = 4, 3, 2, 1, 0

Clock = Callable[[str, float], Optional[float]]


class Source(NamedTuple):
    """One log file: how it is called, what writes it, and whose it is."""

    path: str
    name: str
    where: str
    rank: Optional[int] = None


class Match(NamedTuple):
    """A known error in one log: its first line there, how many there are, and how far the last one is from the end.

    `before_end` is in bytes; `at` is seconds since the epoch, where lines bear a time that is known.
    """

    id: str
    kind: str
    name: str
    rank: Optional[int]
    line: str
    times: int
    before_end: int
    at: Optional[float]


class Log(NamedTuple):
    """What one log says.

    `telling` are lines that name trouble which is not known, best ones first; `exception` is the last line of its last
    traceback; `last` are its last lines; `size` and `read` are bytes.
    """

    source: Source
    size: int
    read: int
    matches: List[Match]
    telling: List[str]
    exception: Optional[str]
    last: List[str]


_CHAT = re.compile(rb"[IV]\d{4} \d\d:|[^\n]{0,100}?\b(?:INFO|DEBUG|TRACE)\b")
_OURS = b"slurm_llm: "
_CLIENT = b"client: "
_NEW_ATTEMPT = re.compile(rb"slurm_llm: job \S+ attempt \d+ on ")
_TROUBLE = tuple(
    word.encode()
    for word in (
        *("error", "errno", "exception", "fail", "abort", "kill", "fatal", "denied", "refus", "cannot", "can't"),
        *("signal", "assert", "timed out", "timeout", "what()", "oom", "nccl warn", "not found", "no such"),
        *("no available", "missing", "unable", "invalid", "unrecognised", "unrecognized", "corrupt", "crash", "panic"),
        "terminat",
    )
)
"""What lines of trouble hold, in small letters."""
_NOT_TELLING = re.compile(
    r"\s*[|+][-+ |=]|\s*<frozen |\W*$|-{10,}"  # tables, import machinery, rulers
    r"|[IV]\d{4} \d\d:\d\d:|\S{0,40} ?(?:INFO|DEBUG)\b"  # levels that no error has
    r"|\s*File \"|\s+(?:at|raise|return) |Traceback \(|\s*\^+|frame #\d|[#\d]+ +0x"  # stacks
    r"|During handling of|The above exception"
    r"|\s*[\"']?[\w.-]+[\"']?\s*[:=]\s*[\w.\"'-]{0,20},?$"  # one setting
)
_EXCEPTION = re.compile(
    r"(?:^|[\s\]])(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|SystemExit)(?::\s|:?$)"
)
_CRASH = re.compile(
    r"CUDA|NCCL WARN|cudaError|what\(\)|MPI_ERR|[Aa]ssert|[Ss]ignal|core dumped|terminate|[Oo]ut of memory|FATAL"
)
_ERROR = re.compile(r"^E\d{4} |\[(?:E|ERROR|FATAL|CRITICAL)\]|\b(?:ERROR|CRITICAL)\b|\berror:|^Error")


def printable(text: str) -> str:
    """Return `text` without characters that would steer a terminal, blanks shortened."""
    if not text.isprintable():
        text = "".join(one if one.isprintable() else " " for one in text)
    return re.sub(" {3,}", "  ", text).rstrip()


def worth(line: str) -> int:
    """Return how much a line tells of trouble."""
    if _NOT_TELLING.match(line):
        return NOTHING
    for value, form in ((TRACEBACK, _EXCEPTION), (CRASH, _CRASH), (ERROR, _ERROR)):
        if form.search(line):
            return value
    return PERHAPS


def read_log(source: Source, catalogue: List[Entry], budget: int, clock: Optional[Clock] = None) -> Optional[Log]:
    """Read at most `budget` bytes of a log; None when there is none, or it cannot be read.

    `clock` returns the time that a line begins with, given the file's own.
    """
    try:
        with open(source.path, "rb") as stream:
            status = os.fstat(stream.fileno())
            reading = _Reading(source, catalogue, status.st_size)
            if clock is not None:
                reading.clock, reading.changed = clock, status.st_mtime
            for start, end in _windows(status.st_size, budget):
                for at, block in _blocks(stream, start, end):
                    reading.take(at, block)
    except OSError:
        return None
    return reading.result()


class Budget(NamedTuple):
    """Bytes that may be read: of the log that matters most and of each that is no rank's, of all others together."""

    own: int
    others: int


_SPECIAL = {"agents.log": "agent", "preflight.log": "preflight", "staging.log": "staging"}


def sources(attempt_dir: str) -> List[Source]:
    """Return every log of an attempt and of its job, ranks last, in order of their numbers."""
    run_dir, job = os.path.split(os.path.dirname(attempt_dir))
    found = [output_of(run_dir, job.rpartition("-")[2])]
    try:
        names = [name for name in os.listdir(attempt_dir) if name.endswith(".log")]
    except OSError:
        names = []
    client = "client.%s.log" % attempt_dir.rpartition("-")[2]
    if os.path.exists(os.path.join(run_dir, job, client)):
        found.append(Source(os.path.join(run_dir, job, client), client, "client"))
    for name in names:
        number = name[: -len(".log")].rpartition("-")[2]
        rank = int(number) if name.startswith("rank-") and number.isdigit() else None
        where = "rank" if rank is not None else _SPECIAL.get(name, "step")
        found.append(Source(os.path.join(attempt_dir, name), name, where, rank))
    return sorted(found, key=lambda one: (one.rank is not None, one.rank or 0, one.name))


def output_of(run_dir: str, job_id: str) -> Source:
    """Return the job's own output."""
    name = "slurm-%s.out" % job_id
    return Source(os.path.join(run_dir, name), name, "slurm")


def read_logs(
    wanted: List[Source],
    catalogue: List[Entry],
    first: Optional[int],
    *,
    budget: Budget,
    deadline: float = float("inf"),
    clock: Optional[Clock] = None,
) -> Tuple[List[Log], List[str]]:
    """Read logs, that of rank `first` before those of other ranks; say in words which there was no time for.

    `deadline` is in time.monotonic().
    """
    share = max(HEAD_BYTES, budget.others // max(1, len(wanted)))
    logs, late = [], []
    for one in sorted(wanted, key=lambda one: (one.rank is not None, one.rank != first)):
        if time.monotonic() > deadline:
            late.append(one.name)
            continue
        log = read_log(one, catalogue, budget.own if one.rank in (None, first) else share, clock)
        if log is not None:
            logs.append(log)
    return logs, (["not read for want of time: %s" % ", ".join(late)] if late else [])


def _windows(size: int, budget: int) -> List[Tuple[int, int]]:
    if size <= budget:
        return [(0, size)]
    head = min(HEAD_BYTES, budget // 4)
    return [(0, head), (size - (budget - head), size)]


def _blocks(stream: Any, start: int, end: int) -> Iterator[Tuple[int, bytes]]:
    """Yield the offset behind each block, and the block: whole lines, except that a very long one is cut."""
    stream.seek(start)
    at, rest = start, b""
    while at < end:
        data = stream.read(min(BLOCK_BYTES, end - at))
        if not data:
            break
        at += len(data)
        rest += data
        cut = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if at >= end or (not cut and len(rest) > BLOCK_BYTES):
            cut = len(rest)
        block, rest = rest[:cut], rest[cut:]
        if block:
            yield at - len(rest), block
    if rest:
        yield at, rest


class _Found:
    """What is kept of one entry in one log."""

    def __init__(self, line: str, at: Optional[float]) -> None:
        self.line, self.at, self.times, self.end = line, at, 0, 0


class _Reading:
    """One pass over a log."""

    def __init__(self, source: Source, catalogue: List[Entry], size: int) -> None:
        self.source, self.size = source, size
        self.catalogue = [entry for entry in catalogue if source.where in entry.where]
        self.clock: Optional[Clock] = None
        self.changed = 0.0
        self.read = 0
        self.found: Dict[str, _Found] = {}
        self.telling: Dict[int, List[str]] = {TRACEBACK: [], CRASH: [], ERROR: [], PERHAPS: []}
        self.shapes: Set[str] = set()
        self.exception: Optional[str] = None
        self.last: List[bytes] = []

    def take(self, end: int, block: bytes) -> None:
        """Take in whole lines, of which the last one ends at `end`."""
        self.read += len(block)
        start = end - len(block)
        text = block.replace(b"\r", b"\n")
        rows = text.split(b"\n")
        ends = list(itertools.accumulate(len(row) + 1 for row in rows))
        self._keep_last(rows)
        troubled = _troubled(text, ends)
        wanted = [at for at, row in enumerate(rows) if row and (at in troubled or not _CHAT.match(row)) and row.strip()]
        # A plain text is looked for in a hundredth of the time of an expression, and in a whole block at once.
        text = b"\n".join(rows[at][:MAX_LINE] for at in wanted)
        likely = _near(self.catalogue, text)
        for at in wanted:
            self._look(rows[at][:MAX_LINE], min(start + ends[at], end), at in troubled, likely)

    def _keep_last(self, rows: List[bytes]) -> None:
        most, kept = 4 * LAST_LINES, []  # type: int, List[bytes]
        for row in reversed(rows):
            if row.strip():
                kept.append(row[:MAX_LINE])
            if len(kept) == most:
                break
        self.last = (self.last + kept[::-1])[-most:]

    def _look(self, row: bytes, end: int, troubled: bool, likely: List[Entry]) -> None:
        if self.source.where == "slurm" and row.startswith(_CLIENT):
            # What a client prints says nothing of the server, and stands in a log of its own.
            return
        near = _near(likely, row)
        if self.source.where == "slurm" and row.startswith(_OURS):
            # The job's output repeats lines of the logs, and holds those of all attempts.
            if _NEW_ATTEMPT.match(row):
                self._forget()
            near = [one for one in near if one.pattern.startswith("slurm_llm: ")]
            troubled = False
        if not near and not troubled:
            return
        line = row.decode("utf-8", "replace")
        matching = without_general([one for one in near if re.search(one.pattern, line)])
        for entry in matching:
            self._note(entry, line, end)
        if troubled and not matching:
            self._tell(line)

    def _forget(self) -> None:
        self.found.clear()
        self.shapes.clear()
        for kept in self.telling.values():
            del kept[:]

    def _note(self, entry: Entry, line: str, end: int) -> None:
        found = self.found.get(entry.id)
        if found is None:
            at = self.clock(line, self.changed) if self.clock else None
            found = self.found[entry.id] = _Found(printable(line), at)
        found.times = min(MANY, found.times + 1)
        found.end = end

    def _tell(self, line: str) -> None:
        value = worth(line)
        shape = re.sub(r"[\d\W]+", "", line)[-200:]
        if not value or shape in self.shapes:
            return
        if len(self.shapes) < MANY:
            self.shapes.add(shape)
        if value == TRACEBACK:
            self.exception = printable(line)
        kept = self.telling[value]
        # The first ones stay, and the newest: a log can begin with errors that mattered to nobody.
        if len(kept) >= LAST_LINES:
            del kept[LAST_LINES // 2]
        kept.append(printable(line))

    def result(self) -> Log:
        """Return what was seen."""
        kinds = {entry.id: entry.kind for entry in self.catalogue}
        own = self.source
        matches = [
            Match(name, kinds[name], own.name, own.rank, one.line, one.times, max(0, self.size - one.end), one.at)
            for name, one in self.found.items()
        ]
        telling = [line for value in (TRACEBACK, CRASH, ERROR, PERHAPS) for line in self.telling[value]]
        return Log(own, self.size, self.read, matches, telling, self.exception, self._last_lines())

    def _last_lines(self) -> List[str]:
        noise = [entry for entry in self.catalogue if entry.kind == NOISE]
        found = []  # type: List[str]
        for row in reversed(self.last):
            if len(found) < LAST_LINES and not _is_noise(row, noise):
                found.append(printable(row.decode("utf-8", "replace")))
        return found[::-1]


def _is_noise(row: bytes, noise: List[Entry]) -> bool:
    line = row.decode("utf-8", "replace")
    return _TABLE.match(line) is not None or any(re.search(one.pattern, line) for one in _near(noise, row))


def _near(entries: List[Entry], text: bytes) -> List[Entry]:
    """Return the entries that may match in `text`."""
    return [one for one in entries if not one.needles or any(needle in text for needle in one.needles)]


def _troubled(text: bytes, ends: List[int]) -> Set[int]:
    """Return the numbers of the lines that hold a word of trouble, given where each line ends.

    One expression for all words, without regard to case, takes ten times as long.
    """
    found, small = set(), text.lower()  # type: Set[int], bytes
    for word in _TROUBLE:
        at = small.find(word)
        while at >= 0:
            line = bisect.bisect_right(ends, at)
            if at + len(word) - (ends[line - 1] if line else 0) <= MAX_LINE:
                found.add(line)
            at = small.find(word, ends[line])
    return found


_TABLE = re.compile(r"\s*[|+][-+ |]|\s*<frozen |\W*$")
