"""Which profile fits this machine, and why; reads the heads of profiles and validates nothing."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurm_llm.errors import Problem, SiteError
from slurm_llm.sites.extends import Identity, identities
from slurm_llm.sites.find import known_names
from slurm_llm.yamlio import Key, Tree, dotted

SITE_VARIABLE = "SLURM_LLM_SITE"
MOST_BYTES = 65536
FQDN_TIMEOUT_S = 1.0

Kind = Literal["env", "files", "hostnames"]
KINDS: tuple[Kind, ...] = ("env", "files", "hostnames")


@dataclass(frozen=True)
class Facts:
    """What a machine is known by: its names (short and full), its environment, and the text of a file, or None."""

    hostnames: tuple[str, ...]
    environ: Mapping[str, str]
    read_file: Callable[[str], str | None]


@dataclass(frozen=True)
class Check:
    """One entry of a profile's `match` against the facts; `found` is what the expression was held against."""

    kind: Kind
    subject: str
    pattern: str
    found: str | None
    matched: bool


@dataclass(frozen=True)
class Fault:
    """An entry of `match` that cannot be held against anything."""

    key: Key
    what: str


@dataclass(frozen=True)
class Explanation:
    """Every entry of a profile's `match`, the kinds that it has, and its faults."""

    given: frozenset[Kind] = frozenset()
    checks: tuple[Check, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def matched(self) -> bool:
        """Whether the profile fits: of each kind that is given some entry does."""
        return bool(self.given) and self.given == {check.kind for check in self.checks if check.matched}


@dataclass(frozen=True)
class Candidate:
    """A profile that has a `match`, and how it fared."""

    identity: Identity
    explanation: Explanation


@dataclass(frozen=True)
class Detection:
    """Every site, those among them that say what they match, and the faults that were met."""

    sites: tuple[Identity, ...]
    candidates: tuple[Candidate, ...]
    problems: tuple[Problem, ...]

    @property
    def matches(self) -> tuple[str, ...]:
        """The names of the profiles that fit this machine."""
        return tuple(one.identity.name for one in self.candidates if one.explanation.matched)


def explain(match: Tree, facts: Facts) -> Explanation:
    """Hold a profile's `match` against `facts`: every kind that is given must match, any entry of it does.

    Regular expressions match the whole of a host name, of a variable's value, and of a file's text without the
    white space around it, in which `.` is any character.
    """
    if not isinstance(match, dict):
        return Explanation(faults=() if match is None else (Fault(("match",), "must be a mapping"),))
    checks: list[Check] = []
    faults: list[Fault] = []
    for kind, key, subject, pattern in _entries(match, faults):
        expression = _compiled(pattern, key, faults)
        values = _values(kind, subject, facts)
        matched = expression is not None and any(map(expression.fullmatch, values))
        checks.append(Check(kind, subject, str(pattern), ", ".join(values) if values else None, matched))
    return Explanation(frozenset(kind for kind in KINDS if match.get(kind)), tuple(checks), tuple(faults))


def _entries(match: Mapping[str, Tree], faults: list[Fault]) -> Iterator[tuple[Kind, Key, str, Tree]]:
    """Yield the kind, key, subject and expression of each entry."""
    for kind in KINDS:
        value, wanted = match.get(kind), list if kind == "hostnames" else dict
        if isinstance(value, dict) and wanted is dict:
            for name, pattern in value.items():
                yield kind, ("match", kind, name), name, pattern
        elif isinstance(value, list) and wanted is list:
            for index, pattern in enumerate(value):
                yield kind, ("match", kind, index), "", pattern
        elif value is not None:
            faults.append(Fault(("match", kind), "must be a list" if wanted is list else "must be a mapping"))


def _compiled(pattern: Tree, key: Key, faults: list[Fault]) -> re.Pattern[str] | None:
    if not isinstance(pattern, str):
        faults.append(Fault(key, f"must be text (found: {pattern})"))
        return None
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        faults.append(Fault(key, f"not a regular expression: {error}"))
        return None


def _values(kind: Kind, subject: str, facts: Facts) -> tuple[str, ...]:
    """Return the texts that an entry is held against: none for a variable or a file that is not there."""
    if kind == "hostnames":
        return facts.hostnames
    value = facts.environ.get(subject) if kind == "env" else facts.read_file(subject)
    return () if value is None else (value.strip() if kind == "files" else value,)


def detect(environ: Mapping[str, str], facts: Facts | None = None) -> Detection:
    """Hold every profile's `match` against this machine; what is wrong with a profile is told and breaks nothing."""
    facts = facts or facts_of_this_machine(environ)
    found, problems = identities(environ)
    candidates = []
    for one in found:
        problems += one.problems
        explanation = explain(one.value.get("match"), facts)
        problems += [_problem(one, fault) for fault in explanation.faults]
        if explanation.checks and not one.is_base:
            candidates.append(Candidate(one, explanation))
    sites = tuple(one for one in found if not one.is_base)
    return Detection(sites, tuple(candidates), tuple(problems))


def _problem(identity: Identity, fault: Fault) -> Problem:
    what = f"{dotted(fault.key)}: {fault.what}"
    return Problem(identity.document.where(fault.key), what, todo="correct the value")


def detected_site(detection: Detection, asked: str = "--site") -> str:
    """Return the name of the one profile that fits this machine; `asked` is the flag that could name one, if any.

    Raises:
        SiteError: none fits, or several do; the faults that were met are told with it.
    """
    matches = detection.matches
    if len(matches) == 1:
        return matches[0]
    known = "known sites: " + known_names({one.name: one.file.path for one in detection.sites})
    if matches:
        what = f"no site given, and several match this machine: {', '.join(matches)}"
        todo = f"add {asked} NAME" if asked else "name one of them"
        raise SiteError((Problem(asked, what, todo=todo), *detection.problems))
    what = "no site given, and none matches this machine"
    todo = f"{f'add {asked} NAME' if asked else 'name one'}, or set {SITE_VARIABLE}"
    raise SiteError((Problem(asked, what, todo, known), *detection.problems))


def facts_of_this_machine(environ: Mapping[str, str]) -> Facts:
    """Return what this machine is known by."""
    name = os.uname().nodename
    full = name if "." in name else _full_name(name)
    return Facts(tuple(dict.fromkeys((name.partition(".")[0], name, full))), environ, read_file)


def _full_name(name: str) -> str:
    """Return the machine's full name, or `name` where the resolver takes too long."""
    found = [name]
    thread = threading.Thread(target=lambda: found.append(socket.getfqdn(name)), daemon=True)
    thread.start()
    thread.join(FQDN_TIMEOUT_S)
    return found[-1]


def read_file(path: str) -> str | None:
    """Return the beginning of a file's text, an empty text for a folder, None for what is not there or not readable."""
    place = Path(path)
    try:
        if place.is_dir():
            return ""
        if not place.is_file():
            return None
        with place.open("rb") as stream:
            return stream.read(MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
