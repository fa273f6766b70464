"""The key of an attempt: the header that inference needs, in a file that the job's script wrote for its owner alone.

The value is only ever read: it goes into no record, message or command line.
"""

import os
from typing import Dict


def path_of(attempt_dir: str) -> str:
    """Return where the key of the attempt lies, if it has one."""
    job_dir, name = os.path.split(attempt_dir.rstrip("/"))
    return os.path.join(job_dir, "key." + name.rpartition("-")[2])


def read(path: str) -> Dict[str, str]:
    """Return the header that the file of a key holds.

    Raises:
        OSError: it cannot be read; ValueError: it is no text.
    """
    with open(path, encoding="ascii") as stream:
        name, _, value = stream.read().partition(":")
    return {name.strip(): value.strip()}


def headers(attempt_dir: str) -> Dict[str, str]:
    """Return the headers that a request for inference needs; empty where there is no key.

    Raises:
        OSError: there is a key that cannot be read.
    """
    try:
        return read(path_of(attempt_dir))
    except FileNotFoundError:
        return {}
