"""Records of many logs in one order of time: from the newest back, or all from the oldest on. Memory stays flat.

A record is a line that begins something and those that follow it: a traceback is not torn apart. No file stays open,
and of each log little more is kept than one record.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from slurm_llm.observe.logsblocks import LARGEST, SMALLEST, Block, extents, file_size
from slurm_llm.observe.logsfilter import Finder
from slurm_llm.observe.logslevels import is_head
from slurm_llm.observe.logslines import Clock, LogLine, time_at
from slurm_llm.observe.logsources import LogSource

Record = list[LogLine]
SKEW_S = 120.0
"""How far the clocks of file server and nodes may differ, and threads' lines be out of order."""
WORTH_SEEKING = 1 << 22
"""Bytes of a file in which a time is looked for by halving."""
MEMORY = 1 << 24
"""Bytes of blocks and lines that may be kept of all logs together."""


class _Part:
    """The part of one log that is read: its bounds and what is known of its time."""

    def __init__(self, source: LogSource, number: int, end: int | None, finder: Finder) -> None:
        self.source, self.number, self.finder = source, number, finder
        self.reader = finder.reader
        self.changed = _changed(source)
        self.start, self.end = 0, file_size(source.path) if end is None else end
        self._extents: list[tuple[int, int]] | None = None

    def narrow(self) -> None:
        """Leave out what the wanted times leave out, as far as halving finds it."""
        wanted = self.finder.wanted
        if self.end < WORTH_SEEKING:
            return
        if wanted.until is not None:
            self.end = _seek(self, wanted.until + SKEW_S, later=True)
        if wanted.since is not None:
            self.start = _seek(self, wanted.since - SKEW_S, later=False)

    @property
    def extents(self) -> list[tuple[int, int]]:
        """What of the part holds data."""
        if self._extents is None:
            self._extents = extents(self.source.path, self.start, self.end)
        return self._extents

    def is_old(self) -> bool:
        """Return whether the file was last written before the wanted time."""
        since = self.finder.wanted.since
        return since is not None and self.changed + SKEW_S < since


def _changed(source: LogSource) -> float:
    try:
        return source.path.stat().st_mtime
    except OSError:
        return 0.0


def _seek(part: _Part, moment: float, later: bool) -> int:
    """Return an offset near the first line of `moment` or later: a little behind it with `later`, else before it."""
    low, high = part.start, part.end
    clock = Clock(part.source, part.changed)
    while high - low > LARGEST:
        middle = (low + high) // 2
        block = part.reader.read(part.source.path, middle, min(high, middle + LARGEST // 4))
        clock.last = None
        at = time_at(block, max(1, block.data.find(b"\n", 1, block.size) + 1), clock)
        # Where no line bears a time more is read rather than less.
        if (at is None and later) or (at is not None and at < moment):
            low = middle
        else:
            high = middle
    return high if later else low


class _Backwards(_Part):
    """One log, read from its end."""

    def __init__(self, source: LogSource, number: int, end: int | None, finder: Finder, share: int) -> None:
        super().__init__(source, number, end, finder)
        self.lines: list[LogLine] = []
        self.most, self.size = _most(share), SMALLEST
        self.ceiling = self.changed
        self.narrowed = False

    def previous(self) -> Record:
        """Return the newest record that has not been returned; an empty one when there is no more."""
        while not self.lines and self._read():
            pass
        if not self.lines:
            return []
        at = len(self.lines) - 1
        while at and not _begins(self.lines[at - 1], self.lines[at]):
            at -= 1
        self.lines, record = self.lines[:at], self.lines[at:]
        return record

    def _read(self) -> bool:
        if not self.narrowed:
            self.narrow()
            self.narrowed = True
        if not self.extents:
            return False
        start, end = self.extents[-1]
        block = self.reader.backwards(self.source.path, start, end, self.size, is_head)
        if block is None:
            self.extents.pop()
            return True
        self.size = min(LARGEST, 4 * self.size)
        clock = Clock(self.source, self.changed, self.ceiling, grep=self.finder.wanted.grep)
        self.lines, _ = self.finder.lines(block, self.number, clock, block.size)
        begun = self._begin(block, clock)
        self.ceiling = self.ceiling if begun is None else begun
        end = self._keep_few(block)
        self.extents[-1] = (start, end)
        if end <= start:
            self.extents.pop()
        if end == block.offset + 1 and begun is not None and self._is_before(begun):
            self.extents.clear()
        return True

    def _keep_few(self, block: Block) -> int:
        """Keep the last lines of a block if it has too many, and return before where to read next."""
        first = len(self.lines) - self.most
        while first > 0 and not self.lines[first].head:
            first -= 1
        if first <= 0:
            return max(0, block.offset + 1)
        self.lines = self.lines[first:]
        at = self.lines[0].order[1]
        self.ceiling = self.lines[0].at
        # What is read again each time must not be much more than what is kept.
        self.size = max(SMALLEST, 2 * (block.end - at))
        return at

    def _begin(self, block: Block, clock: Clock) -> float | None:
        """Return the time of a block's first line, where it can be known."""
        clock.last = None
        return time_at(block, 1, clock)

    def _is_before(self, at: float) -> bool:
        """Return whether nothing before a line of that time is wanted."""
        since = self.finder.wanted.since
        return since is not None and at < since - SKEW_S


def newest_first(sources: Sequence[LogSource], finder: Finder, ends: dict[Path, int] | None = None) -> Iterator[Record]:
    """Yield records from the newest back; a log is opened only once nothing newer can be in the others.

    `ends` bounds how far logs are read, by their size when left out.
    """
    share = MEMORY // max(1, len(sources))
    heap: list[tuple[float, int, _Backwards, Record]] = []
    for number, source in enumerate(sources):
        part = _Backwards(source, number, None if ends is None else ends.get(source.path, 0), finder, share)
        if part.end and not part.is_old():
            heap.append((-part.changed - SKEW_S, -number, part, []))
    heapq.heapify(heap)
    while heap:
        _, order, part, record = heapq.heappop(heap)
        if record:
            yield record
        if following := part.previous():
            heapq.heappush(heap, (-following[0].at, order, part, following))


def oldest_first(sources: Sequence[LogSource], finder: Finder, ends: dict[Path, int] | None = None) -> Iterator[Record]:
    """Yield all records from the oldest on; `ends` as for `newest_first`."""
    share = MEMORY // max(1, len(sources))
    parts = (
        _Part(source, number, None if ends is None else ends.get(source.path, 0), finder)
        for number, source in enumerate(sources)
    )
    return heapq.merge(*(_forwards(part, share) for part in parts if not part.is_old()), key=lambda record: record[0])


def _forwards(part: _Part, share: int) -> Iterator[Record]:
    """Yield the records of one log; of what is found in a block no more than `share` bytes are kept at a time."""
    part.narrow()
    clock = Clock(part.source, part.changed, grep=part.finder.wanted.grep)
    most, size = _most(share), LARGEST
    for start, end in part.extents:
        at = start
        while (block := part.reader.forwards(part.source.path, at, end, size, is_head)) is not None:
            lines, done = part.finder.lines(block, part.number, clock, most)
            at = block.offset + max(1, done)
            # Where much is found, what is kept is little, and what is read again too.
            size = min(LARGEST, 2 * size) if done == block.size else max(SMALLEST, 2 * done)
            yield from records(lines)
            if at >= end:
                break


def _begins(before: LogLine, line: LogLine) -> bool:
    return line.head or line.at != before.at or line.source is not before.source


def _most(share: int) -> int:
    """Return how many lines of a log may be kept at a time, given its share of memory in bytes."""
    return max(8, share // 1000)


def records(lines: Iterable[LogLine]) -> Iterator[Record]:
    """Yield lines as records."""
    record: Record = []
    for line in lines:
        if record and _begins(record[-1], line):
            yield record
            record = []
        record.append(line)
    if record:
        yield record
