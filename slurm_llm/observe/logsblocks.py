"""Blocks of whole lines of a log, forwards or backwards, of bounded size, opened for a moment each.

Files may have holes, no line end for gigabytes, be cut or replaced meanwhile. Nothing here knows what a line means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

SMALLEST, LARGEST = 1024, 1 << 17
"""Bytes of a block; a longer line is cut."""
HEAD_ROWS, HEAD_BYTES = 200, 300
"""So many rows at an end of a block are looked at for one that begins something, and so much of each."""
MOST_EXTENTS = 10_000

IsHead = Callable[[bytes], bool]
Data = bytes | bytearray


@dataclass(frozen=True)
class Block:
    """Part of a file: `data[1:size]`, whole lines, of which the first one may begin before the part if it is very long.

    `data[0]` is a line end, so that every line follows one; `offset` is where that byte would be in the file. `data` is
    valid until the next block is read.
    """

    offset: int
    data: Data
    size: int

    @property
    def end(self) -> int:
        """Where the next part of the file begins."""
        return self.offset + self.size


class Reader:
    """Reads blocks of any files into one buffer; no more than one file is open at a time.

    A new buffer for each block would cost more than what is done with it: the system hands out its pages one by one.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(b"\n" * (LARGEST + 1))
        self._view = memoryview(self._buffer)
        self._path: Path | None = None
        self._handle = -1

    def close(self) -> None:
        """Close the file that is open."""
        if self._handle >= 0:
            os.close(self._handle)
        self._path, self._handle = None, -1

    def read(self, path: Path, start: int, end: int) -> Block:
        """Read the bytes of a file from `start` to `end`, as far as there are any."""
        # Not mmap: a file that is cut while it is mapped ends the process with SIGBUS.
        try:
            if path != self._path:
                self.close()
                self._handle, self._path = os.open(path, os.O_RDONLY | os.O_CLOEXEC), path
            count = os.preadv(self._handle, [self._view[1 : 1 + min(LARGEST, end - start)]], start)
        except OSError:
            count = 0
        return Block(start - 1, self._buffer, 1 + count)

    def forwards(self, path: Path, start: int, end: int, size: int, is_head: IsHead) -> Block | None:
        """Read the first block at `start`: up to a line that begins something, else whole lines, else as it comes."""
        block = self.read(path, start, min(end, start + size))
        if block.size <= 1:
            return None
        return block if block.end >= end else replace(block, size=_cut(block, is_head))

    def backwards(self, path: Path, start: int, end: int, size: int, is_head: IsHead) -> Block | None:
        """Read the last block before `end`, from the first line in it that begins something; else from a whole line."""
        begin = max(start, end - size)
        block = self.read(path, begin, end)
        if block.size <= 1:
            return None
        first = 0 if begin == start else _first_head(block, is_head)
        if first is None and size < LARGEST:
            return self.backwards(path, start, end, min(LARGEST, 4 * size), is_head)
        if first is None:
            # An unfinished last line does not make a whole block of a line that is longer than one.
            first = block.data.find(b"\n", 1, block.size - 1)
        return block if first <= 0 else _without(block, first)


def _without(block: Block, first: int) -> Block:
    """Return a block without what stands before the line end at `first`."""
    data = bytes(block.data[first : block.size])
    return Block(block.offset + first, data, len(data))


def _cut(block: Block, is_head: IsHead) -> int:
    """Return where the last line that begins something does; else where the last, unfinished one does."""
    data = block.data
    last = at = data.rfind(b"\n", 1, block.size) + 1
    if not last:
        return block.size
    for _ in range(HEAD_ROWS):
        # Only in the second half: what begins something can also go on for a whole block.
        if at <= block.size // 2:
            break
        if is_head(bytes(data[at : at + HEAD_BYTES])):
            return at
        at = data.rfind(b"\n", 0, at - 1) + 1
    return last


def _first_head(block: Block, is_head: IsHead) -> int | None:
    """Return the line end before the first whole line that begins something; None when none of the first ones does."""
    at = block.data.find(b"\n", 1, block.size)
    for _ in range(HEAD_ROWS):
        if not 0 < at < block.size - 1:
            return None
        if is_head(bytes(block.data[at + 1 : min(block.size, at + HEAD_BYTES)])):
            return at
        at = block.data.find(b"\n", at + 1, block.size)
    return None


def file_size(path: Path) -> int:
    """Return a file's size in bytes; 0 when it cannot be seen."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def extents(path: Path, start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of a file from `start` to `end` that hold data: all of it, unless it has large holes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        status = os.fstat(handle)
        end = min(end, status.st_size)
        if status.st_blocks * 512 + LARGEST > status.st_size:
            return [(start, end)] if start < end else []
        return list(_parts(handle, start, end))
    finally:
        os.close(handle)


def _parts(handle: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    for _ in range(MOST_EXTENTS):
        try:
            begin = os.lseek(handle, start, os.SEEK_DATA)
        except OSError:
            return
        if begin >= end:
            return
        start = min(end, os.lseek(handle, begin, os.SEEK_HOLE))
        yield begin, start


def read_part(path: Path, start: int, end: int) -> bytes:
    """Return the bytes from `start` to `end`, as far as there are any."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(handle, end - start, start)
    except OSError:
        return b""
    finally:
        os.close(handle)
