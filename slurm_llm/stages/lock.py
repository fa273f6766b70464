"""One maker at a time for one product, over all nodes that share its file system."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PAUSE_S = 1.0
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


@contextmanager
def held(path: Path, told: Callable[[str], None], pause: Callable[[float], None]) -> Iterator[None]:
    """Hold the lock file at `path`; wait for another holder, whom the first wait tells of.

    The kernel, or the NFS server, lets a lock go with its holder, so that none is ever stale. Where the file system has
    no locks this goes on without: a product is written under a name of its own and renamed, so that nothing breaks and
    only the work may be done twice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    # Another user of the project must be able to lock it too, whatever our umask; the owner alone may change it.
    with suppress(OSError):
        os.fchmod(descriptor, 0o666)
    try:
        _take(descriptor, told, pause)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _holder().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, told: Callable[[str], None], pause: Callable[[float], None]) -> None:
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                told(f"this file system has no locks ({error.strerror}): going on without")
                return
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if not waited:
            who = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "somebody"
            told(f"waiting for {who}, who makes the same")
            waited = True
        pause(PAUSE_S)


def _holder() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    return f"user {os.getuid()} on {os.uname().nodename}, " + (f"job {job}" if job else f"process {os.getpid()}")
