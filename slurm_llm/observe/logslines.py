"""Lines of a log with time and level: what a row says itself, else what its predecessor in the file said. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from slurm_llm.observe.logsblocks import Block, Data
from slurm_llm.observe.logslevels import INFO, LEVEL_BYTES, is_head, level_of
from slurm_llm.observe.logsources import LogSource
from slurm_llm.observe.stamps import AHEAD_S, CLOCK_AHEAD_S, STAMPED, stamp
from slurm_llm.observe.text import MAX_LINE, last_state, without_controls

MOST_ROWS = 200
"""Lines that go with the one that they follow; what is longer is no traceback any more."""
DAY_S = 86400
_ATTEMPT = re.compile(r"slurm_llm: job \S+ attempt (\d{1,6}) on ")
"""The first line of an attempt in the job's own output: the only one there that bears no time and tells one."""
_FIRST_STAMP = re.compile(rb"\n(?=" + STAMPED.pattern + rb")")
STAMP_BYTES = 300
"""So much of a line is looked at for its time."""


@dataclass(frozen=True, order=True)
class LogLine:
    """One line, ready to print; lines sort by time (seconds since the epoch), then by source and place in its file.

    `head` tells whether the line begins something; those that follow it without a time are about the same.
    """

    at: float
    order: tuple[int, int]
    source: LogSource = field(compare=False)
    text: str = field(compare=False)
    level: int = field(default=INFO, compare=False)
    head: bool = field(default=True, compare=False)


class Clock:
    """Times and levels of one log, read in the order of its lines (`ceiling` None), or in blocks from its end.

    `near` is when the file was last written, `grep` what is looked for in its lines.
    """

    def __init__(
        self,
        source: LogSource,
        near: float,
        ceiling: float | None = None,
        *,
        grep: re.Pattern[str] | None = None,
    ) -> None:
        self.source, self.near, self.ceiling, self.grep = source, near, ceiling, grep
        self.last: float | None = None
        self.level = INFO

    def own(self, text: str) -> float | None:
        """Return the time that a line bears, by this machine's clock; None where it bears none that can be."""
        if match := _ATTEMPT.match(text):
            source, number = self.source, int(match[1])
            return source.began if number == source.attempt else source.until if number > source.attempt else None
        ahead = self.source.ahead_s
        found = stamp(text, self.near + ahead, self._about() + ahead)
        if found is None or found > self.near + ahead + AHEAD_S:
            return None
        return found - ahead

    def _about(self) -> float:
        """Return a time of the day that `stamp` takes, of the many that a clock time could mean."""
        if self.ceiling is not None:
            return min(self.near, self.ceiling)
        begun = self.last if self.last is not None else self.source.began
        return self.near if begun is None else min(self.near, begun + DAY_S - 2 * CLOCK_AHEAD_S)

    def move(self, own: float | None) -> float:
        """Return the time of a line that bears `own`: never before its predecessor's."""
        if own is not None and (self.last is None or own > self.last):
            self.last = own
        elif self.last is None:
            self.last = self.near if self.ceiling is None else min(self.near, self.ceiling)
        return self.last


def record_around(block: Block, at: int, floor: int) -> tuple[int, int]:
    """Return from where to where the line at `at` and what belongs to it reaches, not before `floor`."""
    data, size = block.data, block.size
    start = data.rfind(b"\n", 0, at) + 1
    for _ in range(MOST_ROWS):
        if start <= floor or is_head(_row(data, start, size)):
            break
        start = data.rfind(b"\n", 0, start - 1) + 1
    end = _after(block, at)
    for _ in range(MOST_ROWS):
        if end >= size or is_head(_row(data, end, size)):
            break
        end = _after(block, end)
    return max(floor, start), end


def _after(block: Block, at: int) -> int:
    stop = block.data.find(b"\n", at, block.size)
    return block.size if stop < 0 else stop + 1


def _row(data: Data, start: int, size: int) -> bytes:
    """Return the beginning of a row; where it goes on, the next ones stand behind it."""
    return bytes(data[start : min(size, start + STAMP_BYTES)])


def time_at(block: Block, at: int, clock: Clock) -> float | None:
    """Return the time of the line at `at`: its own, its nearest predecessor's, or where none has any its successor's.

    Where no line around bears one, what the clock knew goes on.
    """
    data, start = block.data, at
    for _ in range(MOST_ROWS):
        row = _row(data, start, block.size)
        if STAMPED.match(row) and (own := _time_of(row, clock)) is not None:
            return own
        if start <= 1:
            break
        start = data.rfind(b"\n", 0, start - 1) + 1
    if clock.last is None and (match := _FIRST_STAMP.search(data, at, block.size)) is not None:
        return _time_of(_row(data, match.end(), block.size), clock)
    return clock.last


def _time_of(row: bytes, clock: Clock) -> float | None:
    return clock.own(without_controls(row.partition(b"\n")[0].decode("utf-8", "replace")))


def assemble(block: Block, start: int, end: int, number: int, clock: Clock) -> Iterator[LogLine]:
    """Yield the lines of a part of a block, as a terminal would still show them; blank ones are left out.

    `number` is that of the source. Of a line that is too long the part is shown in which the clock's `grep` is found.
    """
    data = block.data
    while start < end:
        stop = data.find(b"\n", start, end)
        stop = end if stop < 0 else stop
        raw = bytes(data[start:stop])
        seen = last_state(raw)
        text = without_controls(seen.decode("utf-8", "replace")) if seen.strip() else ""
        if text.strip():
            own, level, head = clock.own(text[:STAMP_BYTES]), level_of(seen[:LEVEL_BYTES]), is_head(seen[:STAMP_BYTES])
            # A bar is no part of an error, also where one has just been told.
            clock.level = INFO if head or seen is not raw else clock.level
            clock.level = clock.level if level is None else level
            yield LogLine(
                clock.move(own), (number, block.offset + start), clock.source, _cut(text, clock.grep), clock.level, head
            )
        start = stop + 1


def _cut(text: str, grep: re.Pattern[str] | None) -> str:
    """Return a line of no more than MAX_LINE characters, the first ones, or those around what is looked for."""
    if len(text) <= MAX_LINE:
        return text
    match = grep.search(text) if grep is not None else None
    if match is None or match.end() <= MAX_LINE:
        return text[:MAX_LINE] + "…"
    begin = max(0, match.start() - MAX_LINE // 4)
    return "…" + text[begin : begin + MAX_LINE] + "…" * (begin + MAX_LINE < len(text))
