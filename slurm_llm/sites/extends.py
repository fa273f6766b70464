"""From a profile's name to the layers that it is made of: what it extends, what the user lays over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.errors import InputError, Problem, SiteError, did_you_mean
from slurm_llm.sites.find import ENDING, IDENTITY, PATH_VARIABLE, Library, ProfileFile, known_names, read_head
from slurm_llm.sites.merge import Layer, merge_layers
from slurm_llm.yamlio import Document, Tree


@dataclass(frozen=True)
class Chain:
    """A profile's layers, the lowest first, and every fault in how they refer to each other."""

    layers: tuple[Layer, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Identity:
    """What a profile says of itself: the keys of IDENTITY, and where they stand; and what is wrong with its files.

    `overlay` is the user's file that is laid over `file`.
    """

    name: str
    file: ProfileFile
    overlay: ProfileFile | None
    document: Document
    problems: tuple[Problem, ...] = ()

    @property
    def value(self) -> Mapping[str, Tree]:
        """The keys, unchecked."""
        return self.document.value

    @property
    def is_base(self) -> bool:
        """Whether it is only to be extended."""
        return self.value.get("base") is True


def chain_of(library: Library, file: ProfileFile, *, follow: bool = True) -> Chain:
    """Return the layers of the profile at `file`; without `follow`, only those of its own name."""
    builder = _Builder(library, follow)
    builder.add(file, own=True)
    return Chain(tuple(builder.layers.values()), tuple(builder.problems))


class _Builder:
    def __init__(self, library: Library, follow: bool) -> None:
        self.library = library
        self.follow = follow
        self.layers: dict[Path, Layer] = {}
        self.problems: list[Problem] = []
        self._open: list[ProfileFile] = []

    def add(self, file: ProfileFile, *, own: bool) -> None:
        """Add what `file` is built on, then itself; `own` files have the profile's name and hand on what it is."""
        if file.path in self.layers:
            # It stays where it is lowest, or it would undo what was built on it.
            return
        try:
            document = self.library.document(file)
            over = self.library.is_overlay(file)
        except InputError as error:
            self.problems += error.problems
            return
        self._check(file, document)
        parents = self._parents(document)
        if over and file.name not in parents:
            parents = [file.name, *parents]
        self._open.append(file)
        for parent in parents:
            self._add_parent(file, document, parent, own)
        self._open.pop()
        self.layers[file.path] = Layer(document if own else _nameless(document), over)

    def _add_parent(self, file: ProfileFile, document: Document, parent: str, own: bool) -> None:
        same = parent == file.name
        if not same and not self.follow:
            return
        target = self.library.below(file) if same else self.library.first(parent)
        where = document.where(("extends",))
        if target is None:
            self.problems.append(_unknown(where, file, parent, self.library))
        elif target in self._open:
            circle = " → ".join((*(other.name for other in self._open[self._open.index(target) :]), parent))
            what = f"extends: '{parent}' is itself built on this profile: {circle}"
            self.problems.append(Problem(where, what, todo="remove one of them"))
        else:
            self.add(target, own=own and same)

    def _parents(self, document: Document) -> list[str]:
        value = document.value.get("extends")
        names = [value] if isinstance(value, str) else [] if value is None else value
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return [str(name) for name in names]
        self._wrong(document, "extends", "must be a profile's name, or a list of names")
        return []

    def _check(self, file: ProfileFile, document: Document) -> None:
        name, version = document.value.get("name", file.name), document.value.get("schema_version", 1)
        if file.kind != "path" and name != file.name:
            what = f"name: must be '{file.name}', as the file is called (found: {name!r})"
            self.problems.append(Problem(document.where(("name",)), what, todo="correct it, or rename the file"))
        if version != 1 and self._open:
            self._wrong(document, "schema_version", f"must be 1 (found: {version!r})")
        if not isinstance(document.value.get("standalone", False), bool):
            self._wrong(document, "standalone", "must be true or false")

    def _wrong(self, document: Document, key: str, what: str) -> None:
        self.problems.append(Problem(document.where((key,)), f"{key}: {what}", todo="correct the value"))


def _nameless(document: Document) -> Document:
    return replace(document, value={key: value for key, value in document.value.items() if key not in IDENTITY})


def _unknown(where: str, file: ProfileFile, name: str, library: Library) -> Problem:
    if name == file.name:
        what = f"extends: there is no other profile '{name}' further down the folders"
        return Problem(where, what, todo="remove it")
    known = _with_bases_first(library)
    beside = file.path.parent / f"{name}{ENDING}"
    if beside.is_file():
        hint = f"{beside} is beside this file, but only the folders of profiles are looked in"
        todo = f"put it into one of them, or name its folder in {PATH_VARIABLE}"
    else:
        hint = did_you_mean(name, known)
        todo = "" if hint else "correct the name"
    what = f"extends: there is no profile '{name}'" + (f": {hint}" if hint else "")
    return Problem(where, what, f"known: {known_names(known)}", todo)


def _with_bases_first(library: Library) -> dict[str, Path]:
    names = sorted(library.files, key=lambda name: (not name.startswith("base-"), name))
    return {name: library.files[name][0].path for name in names}


def laid_over_nothing(library: Library, file: ProfileFile) -> Problem | None:
    """Return the problem of a user's file that only changes a profile, and has the name of none."""
    document = library.document(file)
    is_whole = {"schema_version", "name", "partitions", "extends"} & document.value.keys()
    if file.kind != "user" or is_whole or library.below(file) is not None:
        return None
    hint = did_you_mean(file.name, [name for name in library.files if name != file.name])
    what = f"there is no profile '{file.name}' that this could be laid over" + (f": {hint}" if hint else "")
    whole = "a profile of its own has schema_version, name and partitions"
    return Problem(str(file.path), what, whole, "give the file the name of a profile")


def identities(environ: Mapping[str, str]) -> tuple[list[Identity], list[Problem]]:
    """Return what every profile that can be named says of itself, sorted by name, and the faults of the folders.

    Reads only the heads of files, and validates nothing.
    """
    library = Library(environ, read_head)
    found = [_identity(library, name, files) for name, files in sorted(library.files.items())]
    return found, library.problems


def _identity(library: Library, name: str, files: list[ProfileFile]) -> Identity:
    top = files[0]
    try:
        main = library.main(name) or files[-1]
        chain = chain_of(library, top, follow=False)
        merged = merge_layers(chain.layers, str(main.path))
    except SiteError as error:
        return Identity(name, top, None, Document(str(top.path), {}), error.problems)
    overlay = top if main != top else None
    return Identity(name, main, overlay, merged.document, (*chain.problems, *merged.problems))


def base_refused(where: str, name: str, known: Mapping[str, Path]) -> Problem:
    """Return the problem of a base that is asked for as a site."""
    what = f"'{name}' is a base, which other profiles are built on, and no cluster"
    return Problem(where, what, f"known sites: {known_names(known)}", "or write a profile that extends it")
