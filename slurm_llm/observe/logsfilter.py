"""Which lines of a block are wanted: level, expression, time. Looks through bytes, decodes only what may be wanted."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurm_llm.observe.logsblocks import Block, Data, Reader
from slurm_llm.observe.logslevels import DEBUG, INFO, bad_lines
from slurm_llm.observe.logslines import Clock, LogLine, assemble, record_around, time_at

MOST_LITERALS = 6
PIECE = 5
MOST_MISSES = 50
"""Places in a block that hold only a piece of a text, after which the whole text is looked for."""
_COMMON = frozenset(b"etaoinsrhldcum 0123456789")
_SPECIAL = re.compile(r"[\\\[\](){}.*+?^$|]")
# A bar's last state alone is shown; what carriage returns end is matched by `$` without them.
_SPECIAL_BYTES = re.compile(rb"[\x80-\xff\x1b\x00\x08\r]")
_LINE_ENDS = re.compile(rb"\n")
_CODED = re.compile(r"\\[xuUN0-9]")


@dataclass(frozen=True)
class Wanted:
    """What lines are wanted; all of it must hold. Times are seconds since the epoch."""

    level: int = DEBUG
    grep: re.Pattern[str] | None = None
    since: float | None = None
    until: float | None = None

    @property
    def by_content(self) -> bool:
        """Whether it takes a look into lines to know."""
        return self.level > DEBUG or self.grep is not None

    def keeps(self, line: LogLine) -> bool:
        """Return whether a line is wanted."""
        low, high = line.source.since, line.source.until
        return (
            line.level >= self.level
            and (self.since is None or line.at >= self.since)
            and (self.until is None or line.at <= self.until)
            and (low is None or line.at >= low)
            and (high is None or line.at < high)
            and (self.grep is None or self.grep.search(line.text) is not None)
        )


class Finder:
    """Finds wanted lines in blocks of any log; made once for a question."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, self.reader = wanted, Reader()
        grep = wanted.grep
        self._ignore_case = grep is not None and bool(grep.flags & re.IGNORECASE)
        self._literals = literals(grep.pattern, self._ignore_case) if grep is not None else ()
        self._pattern = bytes_pattern(grep) if grep is not None else None
        # Of what cannot be looked for in bytes every line is looked at.
        self._whole = wanted.level <= INFO and not self._literals and self._pattern is None

    def lines(self, block: Block, number: int, clock: Clock, most: int) -> tuple[list[LogLine], int]:
        """Return the wanted lines of a block, and how far it was read: to its end, unless `most` were found before.

        `number` is that of the block's source.
        """
        found: list[LogLine] = []
        done = 1
        for at in self._candidates(block):
            if at < done:
                continue
            start, end = (at, block.size) if self._whole else record_around(block, at, done)
            if start > done or clock.last is None:
                clock.last = time_at(block, start, clock)
            for line in assemble(block, start, end, number, clock):
                if len(found) >= most and line.head:
                    return found, line.order[1] - block.offset
                if self.wanted.keeps(line):
                    found.append(line)
            done = end
        return found, block.size

    def _candidates(self, block: Block) -> Iterable[int]:
        """Return, rising, where lines that may be wanted are."""
        if self._whole:
            return (1,)
        if self.wanted.level > INFO:
            return bad_lines(block.data, block.size, self.wanted.level)
        return self._by_text(block) if self._literals else self._by_pattern(block, 1)

    def _by_text(self, block: Block) -> Iterator[int]:
        data = block.data.lower() if self._ignore_case else block.data
        misses = 0
        for at in _occurrences(data, block.size, self._literals):
            if self._may_fit(block, at):
                yield at
            elif (misses := misses + 1) > MOST_MISSES:
                yield from self._by_pattern(block, at)
                return

    def _may_fit(self, block: Block, at: int) -> bool:
        if self._pattern is None:
            return True
        stop = block.data.find(b"\n", at, block.size)
        row = bytes(block.data[block.data.rfind(b"\n", 0, at) + 1 : block.size if stop < 0 else stop])
        return self._pattern.search(row) is not None or _SPECIAL_BYTES.search(row) is not None

    def _by_pattern(self, block: Block, at: int) -> Iterator[int]:
        """Yield the lines from `at` on that fit as bytes, and those that are shown otherwise than they are written."""
        if self._pattern is None:
            yield from (match.end() for match in _LINE_ENDS.finditer(block.data, at - 1, block.size))
            return
        special = [] if _is_plain(block) else [_SPECIAL_BYTES]
        rows = [_matches(block.data, at, block.size, pattern) for pattern in (self._pattern, *special)]
        yield from rows[0] if len(rows) == 1 else heapq.merge(*rows)


def _is_plain(block: Block) -> bool:
    """Return whether every line of a block is shown as it is written."""
    data = block.data if block.size == len(block.data) else block.data[: block.size]
    return data.isascii() and not any(byte in data for byte in (b"\r", b"\x1b", b"\0", b"\x08"))


class _Needle:
    """A text that is looked for in one block."""

    def __init__(self, text: bytes) -> None:
        # CPython finds up to five bytes three times as fast as more.
        self._text, self._skip = text, _rarest(text)
        self._piece = text[self._skip : self._skip + PIECE]
        self._misses = 0

    def find(self, data: Data, at: int, size: int) -> int:
        """Return where the text is next; -1 when it is not there any more."""
        if len(self._text) <= PIECE:
            return data.find(self._text, at, size)
        place = at
        while self._misses < MOST_MISSES:
            place = data.find(self._piece, place, size)
            if place < 0:
                return -1
            if place - self._skip >= at and data.startswith(self._text, place - self._skip, size):
                return place - self._skip
            place, self._misses = place + 1, self._misses + 1
        return data.find(self._text, max(at, place - self._skip), size)


def _rarest(text: bytes) -> int:
    """Return where in `text` that piece of it begins which other texts hold least often."""
    costs = [1 if byte in _COMMON else 0 for byte in text]
    return min(range(max(1, len(text) - PIECE + 1)), key=lambda at: (sum(costs[at : at + PIECE]), -at))


def _occurrences(data: Data, size: int, wanted: tuple[bytes, ...]) -> Iterator[int]:
    """Yield where each line that holds one of `wanted` does so."""
    needles = [_Needle(text) for text in wanted]
    places = [needle.find(data, 1, size) for needle in needles]
    while found := [place for place in places if place >= 0]:
        first = min(found)
        yield first
        end = data.find(b"\n", first, size)
        if end < 0:
            return
        places = [
            needle.find(data, end, size) if 0 <= place < end else place
            for needle, place in zip(needles, places, strict=True)
        ]


def _matches(data: Data, at: int, size: int, pattern: re.Pattern[bytes]) -> Iterator[int]:
    while (match := pattern.search(data, at, size)) is not None:
        yield match.start()
        end = data.find(b"\n", match.start(), size)
        if end < 0:
            return
        at = end + 1


def bytes_pattern(pattern: re.Pattern[str]) -> re.Pattern[bytes] | None:
    """Return an expression that finds the same in lines of plain ASCII; None where there is none.

    In whole blocks it may find more, across lines.
    """
    if "\\A" in pattern.pattern or "\\Z" in pattern.pattern:
        # They mean a line's ends, and would be a block's.
        return None
    try:
        return re.compile(pattern.pattern.encode(), (pattern.flags & re.IGNORECASE) | re.MULTILINE)
    except (re.error, UnicodeEncodeError):
        return None


def literals(pattern: str, ignore_case: bool) -> tuple[bytes, ...]:
    """Return texts of which every line that fits `pattern` holds one; none when there are no such texts.

    A text is found many times faster than an expression.
    """
    if "(?" in pattern or _CODED.search(pattern):
        return ()
    found = [_longest(branch) for branch in _branches(pattern)]
    if ignore_case:
        # What is no ASCII has other small letters in bytes.
        found = [text.lower() if text.isascii() else "" for text in found]
    good = all(len(text) > 1 for text in found) and len(found) <= MOST_LITERALS
    return tuple(text.encode("utf-8", "replace") for text in found) if good else ()


def _branches(pattern: str) -> list[str]:
    """Return the alternatives of an expression, with each group and class in it put as a single blank class `[]`."""
    flat, depth, at = [""], 0, 0
    while at < len(pattern):
        one = pattern[at]
        step = 2 if one == "\\" else 1
        if one == "[":
            step, one = _class_end(pattern, at) - at, "[]"
        if one == "(":
            depth += 1
        elif one == ")":
            depth -= 1
            flat[-1] += "[]" if not depth else ""
        elif not depth and one == "|":
            flat.append("")
        elif not depth:
            flat[-1] += one if one == "[]" else pattern[at : at + step]
        at += step
    return flat


def _class_end(pattern: str, at: int) -> int:
    """Return where the class that begins at `at` ends."""
    end = at + 1
    end += pattern[end : end + 1] == "^"
    # A bracket that comes first is one of the class.
    end += pattern[end : end + 1] == "]"
    while end < len(pattern) and pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return min(len(pattern), end + 1)


def _longest(branch: str) -> str:
    """Return the longest text that a branch without groups must hold."""
    best, run, at = "", "", 0
    while at < len(branch):
        one = branch[at]
        if one == "\\" and not branch[at + 1 : at + 2].isalnum():
            run, at = run + branch[at + 1 : at + 2], at + 2
            continue
        if not _SPECIAL.match(one):
            run, at = run + one, at + 1
            continue
        # What may be there not at all, or as often as it says, ends before its last letter.
        run = run[:-1] if one in "*?{" else run
        best, run = max(best, run, key=len), ""
        at += 2 if one in "\\[" else branch.find("}", at) + 1 - at if one == "{" and "}" in branch[at:] else 1
    return max(best, run, key=len)
