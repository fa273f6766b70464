"""Copying the files of a folder with several streams: what there is, how far it is, and whether it is complete."""

import fnmatch
import os
import stat
import threading
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

PIECE = 1 << 30
"""Bytes of a file that one stream copies at a time: several streams share a large file."""
BLOCK = 16 << 20


UNABLE = frozenset((1, 18, 22, 38, 95))
"""EPERM, EXDEV, EINVAL, ENOSYS, EOPNOTSUPP: this way is not possible between these files."""


class File(NamedTuple):
    """One file below a folder: its path there, bytes, and when it was changed, in ns since the epoch."""

    path: str
    size: int
    mtime: int


class Stopped(Exception):
    """Somebody asked for the end."""


def listing(folder: str, exclude: Sequence[str]) -> List[File]:
    """Return the files of a folder in order of their paths; links count as what they lead to.

    A pattern of `exclude` fits a file's path, its name, or a folder above it.

    Raises:
        OSError: the folder, or something in it, cannot be read.
    """
    found = []
    for path in _walk(folder, "", exclude, set()):
        status = os.stat(os.path.join(folder, path))
        if stat.S_ISREG(status.st_mode):
            found.append(File(path, status.st_size, status.st_mtime_ns))
    return sorted(found)


def _walk(folder: str, below: str, exclude: Sequence[str], above: Set[str]) -> Iterator[str]:
    real = os.path.realpath(os.path.join(folder, below))
    if real in above:
        # A link to a folder above it.
        return
    for entry in sorted(os.listdir(real)):
        path = os.path.join(below, entry)
        if any(
            fnmatch.fnmatchcase(path, one.rstrip("/")) or fnmatch.fnmatchcase(entry, one.rstrip("/")) for one in exclude
        ):
            continue
        if os.path.isdir(os.path.join(folder, path)):
            for inner in _walk(folder, path, exclude, above | {real}):
                yield inner
        else:
            yield path


class Copy:
    """A copy under way, from `source` to `target`; `done` counts bytes, `stop` ends it."""

    def __init__(self, source: str, target: str, files: Sequence[File]) -> None:
        self.source, self.target, self.files = source, target, files
        self.total = sum(one.size for one in files)
        self.done = 0
        self.stopping = False
        self.fault: Optional[Exception] = None
        self._lock = threading.Lock()
        self._pieces: "List[Tuple[File, int]]" = []

    def stop(self) -> None:
        """Let every stream end soon."""
        self.stopping = True

    def run(self, streams: int) -> None:
        """Copy all files.

        Raises:
            OSError: one cannot be read or written; Stopped: `stop` was called.
        """
        for one in self.files:
            place = os.path.join(self.target, one.path)
            if not os.path.isdir(os.path.dirname(place)):
                os.makedirs(os.path.dirname(place), 0o700)
            with open(place, "wb") as made:
                made.truncate(one.size)
        self._pieces = [(one, at) for one in self.files for at in range(0, one.size, PIECE)][::-1]
        threads = [threading.Thread(target=self._stream, daemon=True) for _ in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.fault is not None:
            raise self.fault
        if self.stopping:
            raise Stopped()

    def _stream(self) -> None:
        while not self.stopping and self.fault is None:
            with self._lock:
                if not self._pieces:
                    return
                one, at = self._pieces.pop()
            try:
                self._piece(one, at, min(PIECE, one.size - at))
            except OSError as error:
                error.filename = error.filename or os.path.join(self.source, one.path)
                self.fault = error

    def _piece(self, one: File, at: int, left: int) -> None:
        places = (os.path.join(folder, one.path) for folder in (self.source, self.target))
        with open(next(places), "rb", 0) as source, open(next(places), "r+b", 0) as target:
            source.seek(at)
            target.seek(at)
            while left and not self.stopping:
                moved = move(source.fileno(), target.fileno(), min(BLOCK, left))
                if not moved:
                    raise OSError(5, "it has become shorter while it was copied", os.path.join(self.source, one.path))
                left -= moved
                with self._lock:
                    self.done += moved


_Mover = Callable[[int, int, int], int]


def _movers() -> List[_Mover]:
    """Return the ways to copy without passing through this process, where this Python and kernel have them."""
    found: List[_Mover] = []
    ranged: Any = getattr(os, "copy_file_range", None)
    if ranged is not None:
        found.append(lambda source, target, size: int(ranged(source, target, size)))
    found.append(lambda source, target, size: os.sendfile(target, source, None, size))
    return found


_WAYS = _movers()


def move(source: int, target: int, size: int) -> int:
    """Copy up to `size` bytes between two open files at their positions; return how many, 0 at the end.

    Raises:
        OSError: it cannot be read or written.
    """
    for way in list(_WAYS):
        moved = _tried(way, source, target, size)
        if moved is not None:
            return moved
    return _by_hand(source, target, size)


def _tried(way: _Mover, source: int, target: int, size: int) -> Optional[int]:
    try:
        return way(source, target, size)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        if way in _WAYS:
            _WAYS.remove(way)
        return None


def _by_hand(source: int, target: int, size: int) -> int:
    data = os.read(source, size)
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return len(data)


def differs(folder: str, files: Sequence[File]) -> str:
    """Return the first file of a copy that is not as it should be; empty when all are there in their sizes."""
    return next((one.path for one in files if _size(os.path.join(folder, one.path)) != one.size), "")


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1


def amount(size: float) -> str:
    """Return a number of bytes in MB or GB."""
    return "%.1f GB" % (size / 1e9) if size >= 1e9 else "%.1f MB" % (size / 1e6)


def as_rows(files: Sequence[File]) -> List[Any]:
    """Return a listing as JSON values."""
    return [list(one) for one in files]


def from_rows(value: Any) -> List[File]:
    """Return what `as_rows` has made."""
    return [File(str(path), int(size), int(mtime)) for path, size, mtime in value]
