"""Shared memory for its owner's eyes alone: Triton's Python backend makes its regions readable for everybody.

Prompts and answers go through them (boost's shared_memory_object sets mode 0644 whatever the umask; seen on 2.51).
"""

import os
import stat
from typing import Iterable

from . import leftovers


def close(tag: str, mapped: Iterable[str] = ()) -> int:
    """Take the rights of others from the run's regions and from files in /dev/shm that it has `mapped`; return how many
    had some."""
    own = [os.path.join(leftovers.SHM, name) for name in leftovers.names(leftovers.SHM)]
    prefix = os.path.join(leftovers.SHM, leftovers.shm_prefix(tag))
    return sum(map(_close, {path for path in own if path.startswith(prefix)} | set(mapped)))


def _close(path: str) -> bool:
    """Take the rights of others from a plain file of this user; somebody else's link to one stays as it is."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        own = os.fstat(handle)
        if not stat.S_ISREG(own.st_mode) or own.st_uid != os.getuid() or not own.st_mode & 0o077:
            return False
        os.fchmod(handle, stat.S_IMODE(own.st_mode) & 0o700)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
