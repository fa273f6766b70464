"""Reading a model's files on the machine where a job is submitted, by the names that its ranks will use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

MOST_TEXT = 16 << 20
"""Bytes of a text file that are read."""


class ModelFiles:
    """Files of models and engines; `mounts` are (target, source) of the job's container, in any order.

    What is not there or cannot be read is None; a container without a mount hides a path from this machine.
    """

    def __init__(self, environ: Mapping[str, str], cwd: Path, mounts: Iterable[tuple[str, str]] | None = None) -> None:
        self._environ = environ
        self._cwd = cwd
        # The longest target is the one that counts.
        self._mounts = None if mounts is None else sorted(mounts, key=lambda pair: -len(pair[0]))

    def folder(self, model: str) -> str | None:
        """Return the folder of `model`: a path, or a Hugging Face id whose snapshot lies in the user's cache."""
        if self.names(model) is not None:
            return model
        if model.startswith(("/", ".", "~", "$")) or model.count("/") > 1:
            return None
        snapshots = self._hub() / ("models--" + model.replace("/", "--")) / "snapshots"
        try:
            found = sorted(snapshots.iterdir(), key=lambda path: path.stat().st_mtime)
        except OSError:
            return None
        return str(found[-1]) if found else None

    def text(self, path: str) -> str | None:
        """Return the start of a text file, at most 16 MiB."""
        place = self._place(path)
        try:
            if place is None or not place.is_file():
                return None
            with place.open("rb") as stream:
                return stream.read(MOST_TEXT).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> tuple[str, ...] | None:
        """Return the sorted names in a folder."""
        place = self._place(path)
        try:
            return None if place is None else tuple(sorted(one.name for one in place.iterdir()))
        except (OSError, ValueError):
            return None

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes."""
        place = self._place(path)
        try:
            return None if place is None else place.stat().st_size
        except (OSError, ValueError):
            return None

    def missing(self, path: str) -> bool:
        """Return whether `path` is surely not there: its parent folder is, and can be read."""
        place = self._place(path)
        try:
            return place is not None and place.name not in {one.name for one in place.parent.iterdir()}
        except (OSError, ValueError):
            return False

    def _place(self, path: str) -> Path | None:
        """Return where `path` of the ranks lies here; None where a container has its own files there."""
        home = self._environ.get("HOME", "~")
        given = os.path.normpath(self._cwd / (home + path[1:] if path.startswith("~/") else path))
        if self._mounts is None:
            return Path(given)
        for target, source in self._mounts:
            start = target.rstrip("/")
            if given == start or given.startswith(start + "/"):
                return Path(source + given[len(start) :])
        # The cache is mounted where it lies.
        return Path(given) if Path(given).is_relative_to(self._hub()) else None

    def _hub(self) -> Path:
        environ = self._environ
        home = environ.get("HF_HOME") or environ.get("HOME", "/nonexistent") + "/.cache/huggingface"
        return Path(environ.get("HF_HUB_CACHE") or home + "/hub")
