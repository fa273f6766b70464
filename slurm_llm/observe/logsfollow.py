"""Lines that come: logs that grow, appear, are cut or replaced, read in small pieces; nothing is shown in halves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from slurm_llm.observe.logsblocks import Block, read_part
from slurm_llm.observe.logslines import Clock, LogLine, assemble
from slurm_llm.observe.logsources import LogSource
from slurm_llm.observe.text import BLOCK_BYTES, whole_characters

MAX_PENDING = 65536
"""Bytes of an unfinished line that are held back; a longer one is shown in parts."""
IDLE_ROUNDS = 4
"""Looks after which an unfinished line, such as a prompt or a bar that stands still, is shown."""
FORGET_ROUNDS = 60
"""Looks after which a log of an earlier attempt that has not grown is looked at no more."""
ROUND_BYTES, PIECE_BYTES = 1 << 23, 4096
"""What is read of all logs in one look, and of each at least."""


class _Tail:
    """One log that is followed: how far it was read, and its unfinished line."""

    def __init__(self, source: LogSource, number: int, offset: int, grep: re.Pattern[str] | None) -> None:
        self.source, self.number, self.offset = source, number, offset
        self.idle = 0
        self._node: tuple[int, int] | None = None
        self._rest = b""
        self._clock = Clock(source, 0.0, grep=grep)

    def lines(self, share: int, final: bool) -> list[LogLine]:
        """Return the lines that were finished since the last look; with `final` the unfinished one too."""
        data = self._more(share)
        self.idle = 0 if data else self.idle + 1
        if not data and not final and (not self._rest or self.idle < IDLE_ROUNDS):
            return []
        pending = self._rest + data
        end = pending.rfind(b"\n") + 1
        if final:
            end = len(pending)
        elif len(pending) - end > MAX_PENDING or self.idle >= IDLE_ROUNDS:
            end = whole_characters(pending)
        self._rest = pending[end:]
        at = self.offset - len(pending)
        return list(assemble(Block(at, pending, len(pending)), 0, end, self.number, self._clock))

    def move(self, source: LogSource) -> None:
        """Take the log as that of a further attempt."""
        self.source = self._clock.source = source

    def _more(self, share: int) -> bytes:
        try:
            status = self.source.path.stat()
        except FileNotFoundError:
            # What comes at its place is another file, and may get the same number.
            self.offset, self._rest = 0, b""
            return b""
        except OSError:
            return b""
        node = (status.st_dev, status.st_ino)
        if status.st_size < self.offset or (self._node is not None and node != self._node):
            self.offset, self._rest = 0, b""
        self._node = node
        if status.st_size == self.offset:
            return b""
        data = read_part(self.source.path, self.offset, min(status.st_size, self.offset + share))
        self.offset += len(data)
        self._clock.near = status.st_mtime
        return data


def follow(
    sources: Callable[[], list[LogSource]],
    ends: dict[Path, int],
    is_over: Callable[[], bool],
    pause: Callable[[float], None],
    grep: re.Pattern[str] | None = None,
) -> Iterator[list[LogLine]]:
    """Yield the lines of each look, in order of time, until `is_over` and nothing is left to read.

    `sources` is asked again each time, so that logs which appear later are followed from their beginning: those of a
    further attempt, or of a job that takes over. Those of earlier ones are followed until they no longer grow. `ends`
    says how far each log is known; of a line that is too long the part is shown in which `grep` is found. The pause
    grows with the number of logs: they may lie on a shared file system.
    """
    tails: dict[Path, _Tail] = {}
    while True:
        over = is_over()
        current = sources()
        _take_up(tails, current, ends, grep)
        share = max(PIECE_BYTES, min(BLOCK_BYTES, ROUND_BYTES // max(1, len(tails))))
        found = sorted(line for tail in tails.values() for line in tail.lines(share, False))
        grows = any(not tail.idle for tail in tails.values())
        _forget(tails, {source.path for source in current})
        if found or not over:
            yield found
        if over and not grows:
            yield sorted(line for tail in tails.values() for line in tail.lines(share, True))
            return
        if not grows:
            pause(max(0.5, len(tails) / 1000))


def _take_up(
    tails: dict[Path, _Tail], current: list[LogSource], ends: dict[Path, int], grep: re.Pattern[str] | None
) -> None:
    for known in current:
        # What comes from now on is of the newest attempt, whatever time it bears.
        source = replace(known, since=None, until=None)
        tail = tails.get(source.path)
        if tail is None:
            tails[source.path] = _Tail(source, len(tails), ends.get(source.path, 0), grep)
        elif tail.source != source:
            tail.move(source)


def _forget(tails: dict[Path, _Tail], current: set[Path]) -> None:
    for path in [path for path, tail in tails.items() if tail.idle > FORGET_ROUNDS and path not in current]:
        del tails[path]
