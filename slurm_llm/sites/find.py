"""Which profile files there are, in which folders, and what stands at the head of each; validates nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurm_llm.assets import sites_dir
from slurm_llm.errors import Problem, SiteError, did_you_mean
from slurm_llm.yamlio import Document, load_document, parse_document, read_text

PATH_VARIABLE = "SLURM_LLM_SITE_PATH"
SYSTEM_FOLDER = Path("/etc/slurm_llm/sites")
ENDING, OTHER_ENDING = ENDINGS = (".yaml", ".yml")
"""Endings of profiles that are given by path; in a folder of profiles only the first one counts."""
MOST_NAMED = 10
"""Names of profiles that a message lists."""

FolderKind = Literal["user", "admin", "system", "packaged"]
FileKind = Literal["user", "admin", "system", "packaged", "path"]

IDENTITY = frozenset(
    {
        *("schema_version", "name", "description", "docs_url", "contact", "sources", "verified", "match"),
        *("base", "standalone", "extends"),
    }
)
"""Keys that say what a profile is: one of another name does not inherit them."""

_TOP_KEY = re.compile(r"([A-Za-z_]+):(?:\s|\Z)")


def split_target(text: str | None) -> tuple[str | None, str | None]:
    """Return site and partition of `[NAME][:PARTITION]`; a path may stand for the name, and hold colons itself."""
    if not text or Path(text).is_file():
        return text or None, None
    name, colon, partition = text.rpartition(":")
    return (name or None, partition or None) if colon and "/" not in partition else (text, None)


@dataclass(frozen=True)
class Folder:
    """A folder of profiles, and whose it is."""

    kind: FolderKind
    path: Path


@dataclass(frozen=True)
class ProfileFile:
    """One profile's file; `kind` is its folder's, or `path` of a file that was named itself."""

    name: str
    path: Path
    kind: FileKind


def site_folders(environ: Mapping[str, str], system: Path = SYSTEM_FOLDER) -> list[Folder]:
    """Return the folders that hold profiles, the first one winning.

    The user's own (`~/.config/slurm_llm/sites`), the admin's ($SLURM_LLM_SITE_PATH, `:` between folders), the
    machine's (/etc/slurm_llm/sites), the packaged ones.
    """
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    admin = [Folder("admin", Path(part)) for part in environ.get(PATH_VARIABLE, "").split(":") if part]
    own = Folder("user", config / "slurm_llm" / "sites")
    return [own, *admin, Folder("system", system), Folder("packaged", sites_dir())]


class Library:
    """The profiles that can be named. Each file is read when it is asked for, and once.

    `read` is how: `load_document`, or `read_head` where only what a profile is matters.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        read: Callable[[Path], Document] | None = None,
        *,
        system: Path = SYSTEM_FOLDER,
    ) -> None:
        self.problems: list[Problem] = []
        """Folders that exist and cannot be read, and files in them that are no profiles by their ending."""
        self.files: dict[str, list[ProfileFile]] = {}
        """Name → its files, the first folder's first."""
        self._read = read or _load
        self._documents: dict[Path, Document] = {}
        for folder in dict.fromkeys(site_folders(environ, system)):
            for path in self._profiles(folder.path):
                self.files.setdefault(path.stem, []).append(ProfileFile(path.stem, path, folder.kind))

    def _profiles(self, folder: Path) -> list[Path]:
        try:
            paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            what = f"this folder of profiles cannot be read: {error.strerror}"
            self.problems.append(Problem(str(folder), what, todo="its profiles are left out"))
            return []
        self.problems += [not_found_by_name(path) for path in paths if path.suffix == OTHER_ENDING]
        return [path for path in paths if path.suffix == ENDING]

    def document(self, file: ProfileFile) -> Document:
        """Return what stands in `file`.

        Raises:
            SiteError: unreadable, or not a YAML mapping.
        """
        if file.path not in self._documents:
            self._documents[file.path] = self._read(file.path)
        return self._documents[file.path]

    def first(self, name: str) -> ProfileFile | None:
        """Return the file that `name` stands for: the first folder's."""
        return next(iter(self.files.get(name, ())), None)

    def below(self, file: ProfileFile) -> ProfileFile | None:
        """Return the next file of the same name further down the folders; the first for a file in none of them."""
        files = self.files.get(file.name, [])
        places = [index for index, other in enumerate(files) if _same(other.path, file.path)]
        return next(iter(files[places[-1] + 1 :] if places else files), None)

    def is_overlay(self, file: ProfileFile) -> bool:
        """Whether `file` is a user's that is laid over the profile of the same name, and stands for none itself."""
        if file.kind != "user" or self.below(file) is None:
            return False
        return self.document(file).value.get("standalone") is not True

    def main(self, name: str) -> ProfileFile | None:
        """Return the file that is the profile `name`: the first one that is not only laid over another."""
        return next((file for file in self.files.get(name, ()) if not self.is_overlay(file)), None)


def not_found_by_name(path: Path) -> Problem:
    """Return the problem of a file in a folder of profiles whose ending is another one."""
    what = f"this file is not read: names of profiles end in {ENDING}"
    return Problem(str(path), what, todo=f"rename it to {path.stem}{ENDING}")


def _load(path: Path) -> Document:
    return load_document(path, SiteError)


def _same(one: Path, other: Path) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def read_head(path: Path) -> Document:
    """Return the part of the profile at `path` that says what it is (IDENTITY), without reading the rest as YAML.

    Raises:
        SiteError: unreadable, or not a YAML mapping.
    """
    text = read_text(path, SiteError)
    try:
        return parse_document(head_of(text), str(path), SiteError)
    except SiteError:
        # It has no such part, or a form that cannot be cut; a fault is told of the whole file.
        return parse_document(text, str(path), SiteError)


def head_of(text: str) -> str:
    """Return a profile's text with every line emptied that belongs to no key of IDENTITY; lines keep their numbers.

    A text with anything but plain keys at the left edge is returned whole.
    """
    lines, keep = [], False
    for line in text.split("\n"):
        if line[:1] not in ("", " ", "#", "\r"):
            key = _TOP_KEY.match(line)
            if key is None:
                return text
            keep = key[1] in IDENTITY
        lines.append(line if keep else "")
    return "\n".join(lines)


def known_names(files: Mapping[str, Path]) -> str:
    """Return names for a message, those of no packaged profile first, and how many there are beside them."""
    packaged = sites_dir()
    names = sorted(files, key=lambda name: files[name].parent == packaged)
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more: slurm-llm site list" if more > 0 else "")


def unknown_site(where: str, name: str, known: Mapping[str, Path]) -> Problem:
    """Return the problem of a name that no profile has; a file of that name may lie in the current folder."""
    here = next((f"./{name}{end}" for end in ENDINGS if Path(f"{name}{end}").is_file()), None)
    hint = f"{here} is here: give this path" if here else did_you_mean(name, known)
    what = f"unknown site '{name}'" + (f": {hint}" if hint else "")
    return Problem(where, what, f"known sites: {known_names(known)}", "" if hint else "or give the path of a profile")
