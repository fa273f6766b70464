"""Lines of a run's logs, merged by time: the last ones, and those that come. Memory does not grow with the files.

It prints nothing, and decides neither which run nor when a run has ended.
"""

from __future__ import annotations

import codecs
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from slurm_llm.observe.facts import Evidence
from slurm_llm.observe.stamps import stamp
from slurm_llm.observe.text import BLOCK_BYTES, clean, last_lines, split_lines

OTHERS = ("srun", "job", "agents", "preflight")
MAX_PENDING = 65536
"""Bytes of an unfinished line that are held back; a longer one is printed in parts."""
IDLE_TICKS = 4


@dataclass(frozen=True)
class LogSource:
    """One log file; `rank` is None for those that no rank writes."""

    label: str
    path: Path
    rank: int | None = None


@dataclass(frozen=True, order=True)
class LogLine:
    """One line, ready to print; lines sort by time, then by source and place."""

    at: float
    order: tuple[int, int]
    source: LogSource = field(compare=False)
    text: str = field(compare=False)


def log_sources(
    evidence: Evidence, ranks: Collection[int] | None = None, others: Iterable[str] = OTHERS
) -> list[LogSource]:
    """Return the logs of the newest attempt: those of `ranks` (all when None), then the named other ones."""
    attempt, job = evidence.attempt, evidence.job
    if attempt is None:
        return [LogSource("job", evidence.paths.output(job.job_id))] if job and "job" in others else []
    sources = [
        LogSource(f"rank {place.rank}", attempt.rank_log(place.rank), place.rank)
        for place in evidence.layout.ranks
        if ranks is None or place.rank in ranks
    ]
    instances = range(evidence.layout.instances)
    files = {
        "srun": [attempt.step_log(index) for index in instances],
        "job": [evidence.paths.output(job.job_id)] if job else [],
        "agents": [attempt.root / "agents.log"],
        "preflight": [attempt.root / "preflight.log"],
    }
    return sources + [LogSource(name, path) for name in others for path in files[name]]


def last_merged(sources: Iterable[LogSource], lines: int) -> tuple[list[LogLine], dict[Path, int]]:
    """Return the last `lines` lines of all sources together, in order of time, and where each file ended."""
    kept: list[LogLine] = []
    ends: dict[Path, int] = {}
    for place, source in enumerate(sources):
        rows, ends[source.path] = last_lines(source.path, lines)
        found = _dated(source, place, rows)
        if len(kept) >= lines and lines and found and found[-1] < kept[0]:
            continue
        kept = heapq.nlargest(lines, [*kept, *found])[::-1]
    return kept, ends


def _dated(source: LogSource, place: int, rows: list[str]) -> list[LogLine]:
    """Give each row a time: its own, else its predecessor's, never an earlier one; before the first, the first's."""
    near = _mtime(source.path)
    stamps = [stamp(row, near) for row in rows]
    at = next((moment for moment in stamps if moment is not None), near)
    found = []
    for index, (row, own) in enumerate(zip(rows, stamps, strict=True)):
        at = max(at, own) if own is not None else at
        found.append(LogLine(at, (place, index), source, clean(row)))
    return found


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class _Tail:
    """One file that is followed: its offset, its decoder and its unfinished line."""

    def __init__(self, source: LogSource, offset: int) -> None:
        self.source = source
        self.offset = offset
        self.at = 0.0
        self._idle = 0
        self._new_decoder()

    def _new_decoder(self) -> None:
        # It holds back a character whose last bytes have not been written yet.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def read(self, final: bool) -> list[str]:
        """Return the lines that were finished since the last call; with `final` the unfinished one too."""
        data = self._read_more()
        self._rest += self._decoder.decode(data, final)
        self._idle = 0 if data else self._idle + 1
        text, self._rest = self._rest, ""
        # A carriage return at the end may be the first half of a line end.
        held = "\r" if text.endswith("\r") and not final else ""
        *rows, last = split_lines(text[: len(text) - len(held)])
        # A prompt or a progress bar without a line end is shown once nothing follows it for a while.
        if last and (final or len(last) > MAX_PENDING or self._idle == IDLE_TICKS):
            rows.append(last)
        else:
            self._rest = last
        self._rest += held
        return [row for row in rows if row.strip()]

    def _read_more(self) -> bytes:
        try:
            with self.source.path.open("rb") as stream:
                size = stream.seek(0, 2)
                if size < self.offset:
                    self.offset = 0
                    self._new_decoder()
                if size == self.offset:
                    return b""
                stream.seek(self.offset)
                data = stream.read(BLOCK_BYTES)
        except OSError:
            return b""
        self.offset += len(data)
        return data

    def dated(self, rows: list[str], numbers: Iterator[int]) -> list[LogLine]:
        """Give each row a time, as `_dated` does, from the last one that was given."""
        near = _mtime(self.source.path)
        found = []
        for row in rows:
            own = stamp(row, near)
            self.at = max(self.at, own) if own is not None else self.at or near
            found.append(LogLine(self.at, (next(numbers), 0), self.source, clean(row)))
        return found


def follow(
    sources: Callable[[], list[LogSource]],
    ends: dict[Path, int],
    is_over: Callable[[], bool],
    pause: Callable[[float], None],
) -> Iterator[list[LogLine]]:
    """Yield the lines that come, in batches in order of time, until `is_over` and nothing is left to read.

    `sources` is asked again each round, so that logs which appear later (a further attempt) are followed from their
    beginning. The pause between rounds grows with the number of files: they may lie on a shared file system.
    """
    tails: dict[Path, _Tail] = {}
    numbers = count()
    while True:
        over = is_over()
        for source in sources():
            if source.path not in tails:
                tails[source.path] = _Tail(source, ends.get(source.path, 0))
        found: list[LogLine] = []
        for tail in tails.values():
            found += tail.dated(tail.read(False), numbers)
        if found:
            yield sorted(found)
        elif over:
            yield sorted(line for tail in tails.values() for line in tail.dated(tail.read(True), numbers))
            return
        else:
            pause(max(0.5, len(tails) / 1000))
