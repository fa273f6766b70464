"""Lines of log files: bounded reads from the end, made safe to print. Knows no run and no log's meaning."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_llm.agent.safely import strip

BLOCK_BYTES = 65536
MAX_LINE = 4000
"""Characters of a line that are shown; one line of a log can be a whole core dump."""


def without_controls(text: str) -> str:
    """Return one line without escape sequences and control characters (a tab stays)."""
    return text if text.isascii() and text.isprintable() else strip(text)


def clean(text: str) -> str:
    """Return one line without escape sequences and control characters (a tab stays), cut to MAX_LINE."""
    bare = without_controls(text)
    return bare if len(bare) <= MAX_LINE else bare[:MAX_LINE] + "…"


def split_lines(text: str) -> list[str]:
    """Return the lines of `text`: a carriage return ends one too, as progress bars write it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def last_state(row: bytes) -> bytes:
    """Return what a terminal would still show of a row that carriage returns have written over: its last state."""
    if b"\r" not in row:
        return row
    return next((part for part in reversed(row.split(b"\r")) if part.strip()), b"")


def whole_characters(data: bytes) -> int:
    """Return how many bytes of `data` are whole UTF-8 characters: its end may be the first half of one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if size > back else len(data)
    return len(data)


def read_end(path: Path, limit: int) -> bytes:
    """Return at most the last `limit` bytes of a file, from the start of a character; nothing when unreadable."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - limit))
            data = stream.read(limit)
    except OSError:
        return b""
    skip = 0
    while size > limit and skip < min(3, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last `count` lines that are not blank, not yet cleaned, and the offset of the file's end.

    Reads backwards in growing pieces, never more than 4 KiB a wanted line (and 1 MiB), so that neither a log of many
    gigabytes nor one without a line end costs more.
    """
    most = max(1 << 20, count * 4096)
    limit = BLOCK_BYTES
    while True:
        data = read_end(path, limit)
        rows = [row for row in split_lines(data.decode("utf-8", "replace")) if row.strip()]
        whole = len(data) < limit - 3
        if whole or len(rows) > count or limit >= most:
            break
        limit *= 4
    # The first row of a part that begins somewhere inside the file may be half a line.
    rows = rows if whole or len(rows) <= 1 else rows[1:]
    return (rows[-count:] if count else []), _size(path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
