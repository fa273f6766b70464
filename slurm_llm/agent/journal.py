"""Journals: append-only JSON lines, one writer a file, one write a record. Knows no record's meaning."""

import collections
import errno
import json
import os
import time
from typing import Any, Deque, Dict, Iterable, List, Optional

Record = Dict[str, Any]
FREQUENT, KEPT = b'"kind":"sample"', 100
"""Of records that are written every few seconds for as long as the job runs, and how many of a file are of interest."""
NO_RESTART = "no-restart"
"""The record of the job's script that says why nothing follows a failed attempt."""


def record(kind: str, **fields: Any) -> Record:
    """Return a record of `kind` with the wall-clock time in `t` (seconds since the epoch)."""
    return dict(fields, t=round(time.time(), 3), kind=kind)


def line(item: Record) -> bytes:
    """Return `item` as a line that starts with a newline, so that a torn predecessor costs only itself."""
    return b"\n" + json.dumps(item, separators=(",", ":"), sort_keys=True).encode()


def put(path: str, item: Record) -> None:
    """Append `item` to the journal at `path`.

    Raises:
        OSError: the file system refuses (full, stale, gone).
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        data = line(item)
        if os.write(handle, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def append(path: str, item: Record) -> bool:
    """Append `item` to the journal at `path`; False when the file system refuses."""
    try:
        put(path, item)
    except OSError:
        return False
    return True


def size(path: str) -> int:
    """Return the size of a file in bytes, 0 when it cannot be seen."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def parse(data: bytes) -> List[Record]:
    """Return the records in `data`; lines that are torn or not ours are left out."""
    return [item for item in map(parse_line, data.split(b"\n")) if item is not None]


def parse_line(text: bytes) -> Optional[Record]:
    """Return the record on one line, or None."""
    try:
        item = json.loads(text.decode("utf-8", "replace"))
    except ValueError:
        return None
    return item if isinstance(item, dict) and "kind" in item and "t" in item else None


def read(path: str) -> List[Record]:
    """Return the records of the journal at `path`; a missing or unreadable file has none."""
    try:
        with open(path, "rb") as stream:
            return parse(stream.read())
    except OSError:
        return []


def read_folder(folder: str) -> List[Record]:
    """Return the records of every journal below `folder`, in order of time; of frequent ones each file's last."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    except OSError:
        return []
    return in_order(item for name in names for item in _read_sparsely(os.path.join(folder, name)))


def _read_sparsely(path: str) -> List[Record]:
    """Return a journal's records without most of the frequent ones: there are tens of thousands after some days."""
    rows: List[bytes] = []
    frequent: Deque[bytes] = collections.deque(maxlen=KEPT)
    try:
        with open(path, "rb") as stream:
            for row in stream:
                (frequent if FREQUENT in row else rows).append(row)
    except OSError:
        return []
    return [item for item in map(parse_line, rows + list(frequent)) if item is not None]


def in_order(items: Iterable[Record]) -> List[Record]:
    """Return `items` sorted by time; equal times keep their order."""
    return sorted(items, key=lambda item: float(item["t"]))


def write_once(path: str, text: str) -> bool:
    """Write a file that must not exist yet, mode 0600, complete or not at all; False when it exists."""
    draft = "%s.%d.tmp" % (path, os.getpid())
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links: rename is still whole, only no longer refuses a second writer.
        os.rename(draft, path)
        return True
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    return True
