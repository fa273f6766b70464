"""Prometheus' text format, read strictly: families of samples out of a metrics page. Knows no family and no run.

Format 0.0.4 as Prometheus documents it (docs/instrumenting/exposition_formats). A line that is none is an error, not
something to skip: a half page would be shown as if counters were missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_llm.errors import Problem, RequestFailed

KINDS = ("counter", "gauge", "histogram", "summary", "untyped")
SHOWN_FAULTS = 5
SHOWN_LINE = 100
Labels = tuple[tuple[str, str], ...]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[ \t]*{0}[a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"{0}(?:[^"\\]|\\[\\"n])*)"[ \t]*'
_VALUE = r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[Ii]nf|[Nn][Aa][Nn])"
_ONE_LABEL = re.compile(_LABEL.format("("))
_LABELS = rf"\{{((?:{_LABEL.format('(?:')}(?:,|(?=\}})))*)[ \t]*\}}"
_SAMPLE = re.compile(rf"({_NAME})(?:[ \t]*{_LABELS}[ \t]*|[ \t]+)({_VALUE})(?:[ \t]+-?\d+)?", re.ASCII)
_TYPE = re.compile(rf"#[ \t]+TYPE[ \t]+({_NAME})[ \t]+({'|'.join(KINDS)})")
_HELP = re.compile(rf"#[ \t]+HELP[ \t]+({_NAME})(?:[ \t]+(.*))?", re.DOTALL)
_DECLARES = re.compile(r"#[ \t]+(?:HELP|TYPE)(?:[ \t]|\Z)")
_ESCAPE = re.compile(r"\\(.)")
_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


@dataclass(frozen=True)
class Sample:
    """One value; `labels` are sorted by name. Of a histogram `name` has `_bucket`, `_sum` or `_count` at its end."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Family:
    """All samples of one name with its kind (one of KINDS) and what the page says of it."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


def parse_metrics(text: str) -> list[Family]:
    """Return the families of a metrics page in its order; one without a sample is left out.

    Raises:
        RequestFailed: each line that is none of the format, that says a sample twice, or a name's kind anew.
    """
    page = _Page()
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip(" \t\r")
        if bare and not page.take(bare):
            page.faults.append(Problem(f"line {number}", page.why, bare[:SHOWN_LINE]))
    if page.faults:
        more = len(page.faults) - SHOWN_FAULTS
        rest = [Problem("", f"and {more} more")] if more > 0 else []
        raise RequestFailed([*page.faults[:SHOWN_FAULTS], *rest])
    return [
        Family(name, page.kinds.get(name, "untyped"), page.helps.get(name, ""), tuple(samples))
        for name, samples in page.samples.items()
    ]


class _Page:
    """What was read of a page so far."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.samples: dict[str, list[Sample]] = {}
        self.seen: set[tuple[str, Labels]] = set()
        self.faults: list[Problem] = []
        self.why = ""

    def take(self, line: str) -> bool:
        """Read one line that is not blank; False with `why` when it cannot be."""
        if line.startswith("#"):
            return self._declaration(line)
        found = _SAMPLE.fullmatch(line)
        if found is None:
            self.why = "is no line of Prometheus' text format"
            return False
        name, labels, value = found.groups()
        sample = Sample(name, _labels(labels or ""), float(value))
        key = (name, sample.labels)
        if key in self.seen or len(dict(sample.labels)) < len(sample.labels):
            self.why = "says a sample, or one of its labels, twice"
            return False
        self.seen.add(key)
        self.samples.setdefault(self._family(name), []).append(sample)
        return True

    def _declaration(self, line: str) -> bool:
        kind, help_text = _TYPE.fullmatch(line), _HELP.fullmatch(line)
        if kind is not None:
            if self.kinds.setdefault(kind[1], kind[2]) == kind[2]:
                return True
            self.why = f"was a {self.kinds[kind[1]]} before"
            return False
        if help_text is not None:
            self.helps.setdefault(help_text[1], _plain(help_text[2] or ""))
            return True
        self.why = "says no kind that there is"
        return _DECLARES.match(line) is None

    def _family(self, name: str) -> str:
        """Return the family whose part this is: only what was declared as one has parts."""
        if name in self.kinds:
            return name
        bases = ((name.removesuffix(end), kind) for kind, ends in _PARTS.items() for end in ends if name.endswith(end))
        return next((base for base, kind in bases if self.kinds.get(base) == kind), name)


def _labels(text: str) -> Labels:
    pairs: Iterable[tuple[str, str]] = _ONE_LABEL.findall(text)
    return tuple(sorted((name, _plain(value)) for name, value in pairs))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
