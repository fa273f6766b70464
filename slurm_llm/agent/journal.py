"""Journals: append-only JSON lines, one writer a file, one write a record. Knows no record's meaning."""

import errno
import json
import os
import time
from typing import Any, Dict, Iterable, List, Optional, Set

from . import safely

Record = Dict[str, Any]
ENDING, SAMPLES_ENDING = ".jsonl", ".samples.jsonl"
SAMPLE, KEPT = "sample", 100
"""Records that are written every few seconds for as long as the job runs, and how many of a node's are of interest."""
MOST_SAMPLES, LEAST_SAMPLES = 6000, 2
"""Samples that are read of all nodes together, and of each however many nodes there are."""
SAMPLE_BYTES = 4096
"""What a sample may be long: of a node with many ranks and GPUs."""
CALM_STATES = frozenset(("STARTING", "LOADING", "READY", "DEGRADED"))
TROUBLE = frozenset(("ended", "lost", "unwatched", "stall", "complaint", "finish", "stop", "term"))
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
        item = safely.loads(text.decode("utf-8", "replace"))
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


def samples_path(path: str) -> str:
    """Return the file with the samples of the node whose journal is at `path`."""
    return path[: -len(ENDING)] + SAMPLES_ENDING


def read_folder(folder: str, samples: int = KEPT) -> List[Record]:
    """Return the records of every journal below `folder`, in order of time; of samples each node's last ones."""
    names = _names(folder)
    nodes = sum(name.endswith(SAMPLES_ENDING) for name in names)
    count = min(samples, max(LEAST_SAMPLES, MOST_SAMPLES // max(1, nodes)))
    return in_order(item for name in names for item in _read_one(folder, name, count))


def read_briefly(folder: str) -> List[Record]:
    """Return what tells how each rank is: as `read_folder`, with the newest samples alone.

    The journals of single ranks are left out where the agent of their node has told the same: opening thousands of
    files takes seconds on a shared file system.
    """
    names = _names(folder)
    seldom = {name for name in names if name.startswith("sees-")}
    of_ranks = {name: int(name[5 : -len(ENDING)]) for name in names if _is_of_rank(name)}
    found = [
        item for name in names if name not in of_ranks and name not in seldom for item in _read_one(folder, name, 1)
    ]
    told = _told(found)
    return in_order(
        found + [item for name, rank in of_ranks.items() if rank not in told for item in _read_one(folder, name, 0)]
    )


def _is_of_rank(name: str) -> bool:
    return name.startswith("rank-") and name[5 : -len(ENDING)].isdigit()


def _told(records: List[Record]) -> Set[Any]:
    """Return the ranks whose own journals add nothing: seen from their start, and where any has ended, to their end."""
    begun = {item["rank"] for item in records if item["kind"] == "found" and item.get("started")}
    if any(item["kind"] in TROUBLE or item.get("state", "READY") not in CALM_STATES for item in records):
        begun &= {item["rank"] for item in records if item["kind"] == "ended" and item.get("main")}
    return begun


def _names(folder: str) -> List[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(ENDING))
    except OSError:
        return []


def _read_one(folder: str, name: str, samples: int) -> List[Record]:
    path = os.path.join(folder, name)
    return _read_end(path, samples) if name.endswith(SAMPLES_ENDING) else read(path)


def _read_end(path: str, count: int) -> List[Record]:
    """Return the last `count` records, as far as they lie in the file's last part: it grows for days."""
    try:
        with open(path, "rb") as stream:
            start = max(0, stream.seek(0, os.SEEK_END) - count * SAMPLE_BYTES)
            stream.seek(start)
            rows = stream.read().split(b"\n")
    except OSError:
        return []
    # The first row of a part may be half a record.
    rows = [row for row in (rows[1:] if start else rows) if row]
    return [item for item in map(parse_line, rows[-count:] if count else []) if item is not None]


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
