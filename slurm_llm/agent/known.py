"""The catalogue of known errors, and which entries match a line. Reads no log and decides no cause."""

import json
import os
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

FATAL, EFFECT, WARNING, NOISE = "fatal", "effect", "warning", "noise"
WHERE = ("rank", "step", "agent", "slurm", "preflight")
FILE = "known_errors.json"

LEAST_NEEDLE = 4


class Entry(NamedTuple):
    """One known error; one of `needles` stands in every line that `pattern` matches (none: unknown)."""

    id: str
    kind: str
    where: Tuple[str, ...]
    pattern: str
    needles: Tuple[bytes, ...]
    means: str
    remedy: str
    source: str
    also: Tuple[str, ...]
    weak: bool


class Known(NamedTuple):
    """A known error as a diagnosis tells of it: what it means, what to do, a source, where it stands, how often."""

    id: str
    means: str
    remedy: str
    source: str
    where: str
    times: int


SIGNS = {
    "node-failure": r"srun: error: Node failure on \S+|DUE TO NODE FAILURE",
    "slurm-memory-limit": r"exceeded memory limit \(\d+ ?> ?\d+\), (?:being killed|cancelling it)",
    "slurm-oom-kill": r"Detected \d+ oom[-_]kill(?: event|\b)[^\n]{0,20} in (?:StepId|step)",
    "srun-out-of-memory": r"srun: error: \S+: tasks? [\d,-]+: Out Of Memory",
    "time-limit": r"DUE TO TIME LIMIT",
    "preempted": r"DUE TO PREEMPTION",
}
"""Words of Slurm that decide a cause by themselves, as the catalogue has them: they count without it too."""


def load(path: str) -> List[Entry]:
    """Return the entries in a JSON file; bare ones of Slurm's decisive words when it is missing or not readable."""
    try:
        with open(path, encoding="utf-8") as stream:
            return entries(json.load(stream))
    except (OSError, ValueError, KeyError, TypeError):
        bare = {"kind": FATAL, "where": WHERE[1:], "means": "", "remedy": "", "source": ""}
        return entries(dict(bare, id=name, pattern=pattern) for name, pattern in SIGNS.items())


def beside_this_file() -> str:
    """Return where a run directory keeps the catalogue."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), FILE)


def entries(items: Iterable[Dict[str, Any]]) -> List[Entry]:
    """Return the entries that mappings of the catalogue describe."""
    return [
        Entry(
            id=item["id"],
            kind=item["kind"],
            where=tuple(item.get("where") or WHERE),
            pattern=item["pattern"],
            needles=tuple(one.encode() for one in needles(item["pattern"])),
            means=item["means"],
            remedy=item["remedy"],
            source=item["source"],
            also=tuple(item.get("also") or ()),
            weak=bool(item.get("weak")),
        )
        for item in items
    ]


_LITERAL_ESCAPES = re.compile(r"[^A-Za-z0-9]")


def needles(pattern: str) -> List[str]:
    """Return texts of which one stands in everything that `pattern` matches; none where there is no such text.

    Looking for a plain text in a block of a log costs a hundredth of what a regular expression costs.
    """
    found = []
    for one in _alternatives(pattern):
        texts = _needles_of(one)
        if not texts:
            return []
        found += texts
    return found


def _needles_of(alternative: str) -> List[str]:
    runs, groups = _runs(alternative)
    best = max(runs, key=len)
    if len(best) >= LEAST_NEEDLE:
        return [best]
    return next(filter(None, map(needles, groups)), [])


def _alternatives(pattern: str) -> List[str]:
    """Split at each `|` that stands in no group and no class."""
    parts, start, at = [], 0, 0
    while at < len(pattern):
        if pattern[at] == "|":
            parts.append(pattern[start:at])
            start = at + 1
        at = _after_atom(pattern, at)
    return parts + [pattern[start:]]


def _after_atom(pattern: str, at: int) -> int:
    """Return where the escape, class, group or character at `at` ends."""
    if pattern[at] == "\\":
        return at + 2
    if pattern[at] == "[":
        end = at + 2 if pattern[at + 1] in "^]" else at + 1
        while pattern[end] != "]":
            end += 2 if pattern[end] == "\\" else 1
        return end + 1
    if pattern[at] == "(":
        end = at + 1
        while pattern[end] != ")":
            end = _after_atom(pattern, end)
        return end + 1
    return at + 1


def _runs(alternative: str) -> Tuple[List[str], List[str]]:
    """Return the plain texts of a pattern without `|`, and the insides of its groups that must match."""
    runs, groups, at = [""], [], 0
    while at < len(alternative):
        end = _after_atom(alternative, at)
        atom, after = alternative[at:end], alternative[end : end + 1]
        optional = after in ("?", "*") or alternative[end : end + 2] == "{0"
        plain = atom[-1] if _is_plain(atom) else ""
        if plain and not optional:
            runs[-1] += plain
        elif atom.startswith("(?:") and not optional:
            groups.append(atom[3:-1])
        if not plain or after in ("?", "*", "+", "{"):
            runs.append("")
        at = end
        if after in ("?", "*", "+"):
            at += 1
        elif after == "{":
            at = alternative.index("}", end) + 1
    return runs, groups


def _is_plain(atom: str) -> bool:
    if atom[0] == "\\":
        return _LITERAL_ESCAPES.match(atom[1]) is not None
    return len(atom) == 1 and atom not in ".^$"


def find(catalogue: List[Entry], where: str, line: str) -> List[Entry]:
    """Return the entries that match one line of a log of the kind `where`, without those that give way to another."""
    found = [entry for entry in catalogue if where in entry.where and re.search(entry.pattern, line)]
    return without_general(found)


def without_general(found: List[Entry]) -> List[Entry]:
    """Return entries that match one line, without the more general ones."""
    general = {name for entry in found for name in entry.also}
    return [entry for entry in found if entry.id not in general]
