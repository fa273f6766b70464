"""Lines of a run's logs, merged by time: the last ones, all that are wanted, and those that come.

Memory does not grow with the files. It prints nothing, and decides neither which run nor when a run has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.observe import logsfollow
from slurm_llm.observe.logsblocks import file_size, read_part
from slurm_llm.observe.logsfilter import Finder, Wanted
from slurm_llm.observe.logsfold import Folded, Folding, rank_list
from slurm_llm.observe.logslevels import LEVELS, NAMES
from slurm_llm.observe.logslines import LogLine
from slurm_llm.observe.logsmerge import Record, newest_first, oldest_first, records
from slurm_llm.observe.logsources import OTHERS, Choice, LogSource, log_sources
from slurm_llm.observe.text import BLOCK_BYTES

__all__ = [
    "LEVELS",
    "NAMES",
    "OTHERS",
    "Choice",
    "Folded",
    "Folding",
    "LogLine",
    "LogSource",
    "Wanted",
    "every",
    "followed",
    "last",
    "last_merged",
    "log_sources",
    "rank_list",
    "whole_ends",
]
MOST_RAW = 40_000
"""Lines that are read at most for the last few, where nearly all of them fold."""
FEW_BYTES = 2048
HOLD_S = 1.0
"""How long a line that comes waits for the same one of other ranks."""


@dataclass(frozen=True)
class Following:
    """What a follower takes from outside: the logs now, whether the run is over, waiting, and a clock."""

    sources: Callable[[], list[LogSource]]
    is_over: Callable[[], bool]
    pause: Callable[[float], None]
    monotonic: Callable[[], float]


def whole_ends(sources: Iterable[LogSource]) -> dict[Path, int]:
    """Return where the last whole line of each log ends: what follows it is not finished yet."""
    ends = {}
    for source in sources:
        size = file_size(source.path)
        start, newline = size, -1
        for span in (FEW_BYTES, BLOCK_BYTES):
            if newline < 0:
                start = max(0, size - span)
                newline = read_part(source.path, start, size).rfind(b"\n")
        ends[source.path] = size if newline < 0 and start else start + newline + 1
    return ends


def last(
    sources: Sequence[LogSource],
    wanted: Wanted,
    count: int,
    folding: Folding | None = None,
    ends: dict[Path, int] | None = None,
) -> list[Folded]:
    """Return the last `count` wanted lines of all logs together, in order of time, after folding.

    `folding` is used up by it. Where thousands of ranks say all the same there can be fewer lines.
    """
    if not count:
        return []
    finder = Finder(wanted)
    try:
        kept = _newest(newest_first(sources, finder, ends), count, folding)
    finally:
        finder.reader.close()
    kept.sort(key=lambda one: (one.first, one.lines[0].order))
    return _cut(kept, count)


def _newest(found: Iterator[Record], count: int, folding: Folding | None) -> list[Folded]:
    """Take as many records, newest first, as hold `count` lines after folding."""
    kept: list[Folded] = []
    lines = raw = 0
    for record in found:
        ready = [_alone(record)] if folding is None else list(folding.push(record))
        kept += ready
        lines += sum(len(one.lines) for one in ready)
        raw += len(record)
        if lines >= count or (folding is not None and raw >= MOST_RAW):
            break
    if folding is not None and lines < count:
        kept += folding.rest()
    return kept


def last_merged(sources: Sequence[LogSource], lines: int) -> list[LogLine]:
    """Return the last `lines` lines of all logs together, in order of time."""
    return [line for one in last(sources, Wanted(), lines) for line in one.lines]


def every(
    sources: Sequence[LogSource], wanted: Wanted, folding: Folding | None = None, ends: dict[Path, int] | None = None
) -> Iterator[Folded]:
    """Yield all wanted lines of all logs together, in order of time."""
    finder = Finder(wanted)
    try:
        yield from _fold(oldest_first(sources, finder, ends), folding)
    finally:
        finder.reader.close()


def followed(
    following: Following, wanted: Wanted, folding: Folding | None, ends: dict[Path, int]
) -> Iterator[list[Folded]]:
    """Yield the wanted lines that come, in batches in order of time, until the run is over."""
    batches = logsfollow.follow(following.sources, ends, following.is_over, following.pause, wanted.grep)
    for batch in batches:
        now = following.monotonic()
        found = list(records(filter(wanted.keeps, batch)))
        if folding is None:
            yield [_alone(record) for record in found]
        else:
            ready = [one for record in found for one in folding.push(record, now)]
            yield [*ready, *folding.ripe(now - HOLD_S)]
    if folding is not None:
        yield list(folding.rest())


def _fold(found: Iterable[Record], folding: Folding | None) -> Iterator[Folded]:
    if folding is None:
        yield from map(_alone, found)
        return
    for record in found:
        yield from folding.push(record)
    yield from folding.rest()


def _alone(record: Record) -> Folded:
    rank = record[0].source.rank
    return Folded(record, set() if rank is None else {rank}, first=record[0].at)


def _cut(kept: list[Folded], count: int) -> list[Folded]:
    """Return what holds the last `count` lines; of a record in which they begin its end."""
    found: list[Folded] = []
    for one in reversed(kept):
        if count <= 0:
            break
        found.append(one if len(one.lines) <= count else replace(one, lines=one.lines[-count:]))
        count -= len(one.lines)
    return found[::-1]
