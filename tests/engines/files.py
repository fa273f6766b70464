"""Model files of the tests, in memory."""

from __future__ import annotations

from collections.abc import Mapping


class Files:
    """A `Look` at `files`, path → text; `sizes` are those of files that are not spelled out."""

    def __init__(self, files: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> None:
        self._files = dict(files)
        self._sizes = {**{path: len(text) for path, text in files.items()}, **(sizes or {})}

    def folder(self, model: str) -> str | None:
        """Return `model` itself when something lies in it."""
        return model if self.names(model) else None

    def missing(self, path: str) -> bool:
        """Return whether there is neither a file nor a folder at `path`."""
        return path not in self._sizes and not self.names(path)

    def text(self, path: str) -> str | None:
        """Return a file's text."""
        return self._files.get(path)

    def names(self, path: str) -> tuple[str, ...] | None:
        """Return what lies in a folder."""
        start = path.rstrip("/") + "/"
        found = {one[len(start) :].partition("/")[0] for one in self._sizes if one.startswith(start)}
        return tuple(sorted(found)) or None

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes."""
        return self._sizes.get(path)
