"""Writing texts for their owner's eyes alone, whatever the umask; it knows nothing of what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from slurm_llm.errors import Problem, SetupError

FOLDER_MODE, FILE_MODE, SCRIPT_MODE = 0o700, 0o600, 0o700


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write name → text below `folder`, which is made where it is not there; only its owner can read any of it.

    Raises:
        OSError: the file system refuses.
    """
    for name, text in texts.items():
        path = folder / name
        make_folder(path.parent)
        _write(path, os.O_TRUNC, text)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, each for its owner alone.

    Raises:
        OSError: the file system refuses.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def write_new(path: Path, text: str) -> None:
    """Write a file that must not be there yet.

    Raises:
        FileExistsError: it is; OSError: the file system refuses.
    """
    _write(path, os.O_EXCL, text)


def open_new(path: Path) -> BinaryIO:
    """Open a file that must not be there yet, to write bytes to.

    Raises:
        FileExistsError: it is; OSError: the file system refuses.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; what was written there takes its place at the end, or is removed."""
    draft = path.with_name(f".{path.name[:40]}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """Let an error of the file system name the file that the user asked for, not the draft of it.

    Raises:
        SetupError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise SetupError(Problem(str(path), f"cannot be written: {error.strerror}")) from None


def _write(path: Path, how: int, text: str) -> None:
    # The mode counts from the first byte on: the file is never open to others while it is written.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, FILE_MODE)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
