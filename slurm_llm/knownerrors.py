"""The packaged catalogue of known errors as plain values, checked; the agent and `diagnose` match with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from slurm_llm.agent.known import EFFECT, FATAL, NOISE, WARNING, WHERE, needles
from slurm_llm.assets import templates_dir
from slurm_llm.errors import InputError, Problem, did_you_mean
from slurm_llm.yamlio import Document, Tree, load_document

FILE = "known_errors.yaml"
KINDS = (FATAL, EFFECT, WARNING, NOISE)
TEXTS = ("id", "kind", "pattern", "means", "remedy", "source")
LISTS = ("where", "lines", "also")
WEAK = "weak"
KEYS = (*TEXTS, *LISTS, WEAK)

Entry: TypeAlias = dict[str, str | list[str] | bool]

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SOURCE = re.compile(r"https://\S+|[A-Za-z0-9._-]+/[A-Za-z0-9._-]+#\d+")


def load_known_errors(path: Path | None = None) -> list[Entry]:
    """Return the entries of the catalogue, those of the package unless `path` names another one.

    Each has `id`, `kind`, `where`, `pattern`, `means`, `remedy`, `source`, `lines`, `also` and `weak`, as JSON values.

    Raises:
        InputError: every fault of the file.
    """
    return [dict(entry) for entry in (_packaged() if path is None else _checked(path))]


@cache
def _packaged() -> tuple[Entry, ...]:
    return _checked(templates_dir() / FILE)


def _checked(path: Path) -> tuple[Entry, ...]:
    document = load_document(path)
    listed = document.value.get("entries")
    if not isinstance(listed, list) or set(document.value) != {"entries"}:
        raise InputError(Problem(document.source, "must have one key, `entries`, with a list"))
    problems = [problem for index, value in enumerate(listed) for problem in _problems(document, index, value)]
    problems += _unknown_names(document, listed)
    if problems:
        raise InputError(problems)
    return tuple(_entry(value) for value in listed if isinstance(value, dict))


def _entry(value: Mapping[str, Tree]) -> Entry:
    texts: Entry = {name: str(value[name]) for name in TEXTS}
    lists: Entry = {name: [str(item) for item in _list(value.get(name))] for name in LISTS}
    return {**texts, **lists, "where": lists["where"] or list(WHERE), WEAK: value.get(WEAK) is True}


def _list(value: Tree) -> list[Tree]:
    return value if isinstance(value, list) else []


def _problems(document: Document, index: int, value: Tree) -> Iterator[Problem]:
    where = document.where(("entries", index))
    if not isinstance(value, dict):
        yield Problem(where, "is no mapping")
        return
    for name in value:
        if name not in KEYS:
            hint = did_you_mean(name, KEYS)
            yield Problem(document.where(("entries", index, name)), f"unknown key '{name}'", hint)
    for name in TEXTS:
        if not isinstance(value.get(name), str) or not value[name]:
            yield Problem(where, f"'{name}' is missing, or no text")
    for name in LISTS:
        if name in value and not all(isinstance(item, str) for item in _list(value[name]) or [None]):
            yield Problem(where, f"'{name}' must be a list of texts")
    if not isinstance(value.get(WEAK, True), bool):
        yield Problem(where, f"'{WEAK}' must be true or false")
    if not _list(value.get("lines")):
        yield Problem(where, "has no `lines` that it must match")
    yield from _wrong_values(where, {name: str(value.get(name) or "") for name in TEXTS}, value)


def _wrong_values(where: str, texts: Mapping[str, str], value: Mapping[str, Tree]) -> Iterator[Problem]:
    if texts["id"] and not _ID.fullmatch(texts["id"]):
        yield Problem(where, f"id '{texts['id']}'", "lower case, digits and single dashes")
    if texts["kind"] and texts["kind"] not in KINDS:
        yield Problem(where, f"kind '{texts['kind']}'", ", ".join(KINDS))
    if texts["source"] and not _SOURCE.fullmatch(texts["source"]):
        yield Problem(where, f"source '{texts['source']}'", "a URL, or owner/repository#number")
    for name in _list(value.get("where")):
        if name not in WHERE:
            yield Problem(where, f"where '{name}'", ", ".join(WHERE))
    try:
        re.compile(texts["pattern"])
    except re.error as error:
        yield Problem(where, f"pattern is no regular expression: {error}")
        return
    if texts["pattern"] and not needles(texts["pattern"]):
        yield Problem(where, "pattern has an alternative without four plain characters in a row", todo="add some")


def _unknown_names(document: Document, listed: list[Tree]) -> Iterator[Problem]:
    """Yield ids that stand twice, and names in `also` that are none."""
    seen: set[str] = set()
    for index, value in enumerate(listed):
        own = str(value.get("id")) if isinstance(value, dict) else ""
        if own in seen:
            yield Problem(document.where(("entries", index)), f"id '{own}' stands twice")
        seen.add(own)
    for index, value in enumerate(listed):
        for name in _list(value.get("also")) if isinstance(value, dict) else []:
            if name not in seen:
                todo = did_you_mean(str(name), seen)
                yield Problem(document.where(("entries", index)), f"also '{name}' is the id of no entry", todo=todo)
