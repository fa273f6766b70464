"""Prometheus' text format, version 0.0.4: families of samples put together, and servers' pages taken in. Pure.

A page of another server is taken in whole or not at all, as Prometheus itself does: one line that is none would make it
refuse everything that stands beside it.
"""

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

OWN = "slurm_llm_"
"""Families that begin with this are ours; no server's page may have them."""
ADDED = ("rank", "node", "instance")
"""Labels that say whose a sample is; a server's own of that name becomes `exported_…`, as with Prometheus."""
MOST_KEPT = 50000
"""Beginnings of lines that are remembered: most pages have the same ones, again and again."""
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\[\\"n])*)"[ \t]*'
_ONE_LABEL = re.compile(_LABEL + r"(?:,|\Z)")
_VALUE = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[Ii]nf|[Nn]a[Nn])")
_SAMPLE = re.compile(r"(%s)(?:[ \t]*\{(.*)\}[ \t]*|[ \t]+)(%s(?:[ \t]+-?[0-9]+)?)" % (_NAME, _VALUE.pattern))
_TYPE = re.compile(r"#[ \t]+TYPE[ \t]+(%s)[ \t]+(counter|gauge|histogram|summary|untyped)" % _NAME)
_HELP = re.compile(r"#[ \t]+HELP[ \t]+(%s)(?:[ \t]+(.*))?" % _NAME)
_DECLARES = re.compile(r"#[ \t]+(?:HELP|TYPE)(?:[ \t]|\Z)")
_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


class Fault(Exception):
    """A page that is not in the format; its text says where."""


class _Series(NamedTuple):
    """The name of a sample, and its labels as they are written after ours: empty, or with a comma at their front."""

    name: str
    labels: str


class _Family:
    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.help = kind, text
        self.lines: List[str] = []


class Exposition:
    """A page that is put together: each family once, with its help, its kind and all its samples."""

    def __init__(self) -> None:
        self._families: Dict[str, _Family] = {}

    def family(self, name: str, kind: str, text: str) -> List[str]:
        """Return the list that the family's lines go into."""
        return self._families.setdefault(name, _Family(kind, escape(text, quotes=False))).lines

    def take_in(self, page: "Page", labels: str) -> None:
        """Add a server's page, each of its samples with `labels` in front of its own.

        Where two servers differ in a family's kind the first one's stands, and the other's samples are left out.
        """
        for name, found in page.families.items():
            family = self._families.setdefault(name, _Family(found.kind, found.help))
            family.help = family.help or found.help
            if family.kind == found.kind:
                family.lines += ["%s{%s%s} %s" % (own.name, labels, own.labels, value) for own, value in found.samples]

    def text(self) -> str:
        """Return the page."""
        rows: List[str] = []
        for name, family in self._families.items():
            if family.lines:
                rows += ["# HELP %s %s" % (name, family.help)] if family.help else []
                rows.append("# TYPE %s %s" % (name, family.kind))
                rows += family.lines
        return "\n".join(rows) + "\n"


class _Found:
    def __init__(self) -> None:
        self.kind, self.help = "untyped", ""
        self.samples: List[Tuple[_Series, str]] = []


class Page:
    """A server's page as it was read; families of ours are left out of it."""

    def __init__(self) -> None:
        self.families: Dict[str, _Found] = {}


class Reader:
    """Reads servers' pages; it remembers lines' beginnings, so that reading costs little from the second time on."""

    def __init__(self) -> None:
        self._known: Dict[str, _Series] = {}

    def read(self, body: bytes) -> Page:
        """Return the page in `body`.

        Raises:
            Fault: it is none; the text says which line is at fault.
        """
        try:
            rows = body.decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise Fault("byte %d is not UTF-8" % error.start) from None
        if len(self._known) > MOST_KEPT:
            self._known.clear()
        page, seen = _Reading(), set()
        for number, row in enumerate(rows, 1):
            row = row.strip(" \t\r")
            if not row:
                continue
            if row[0] == "#":
                if not page.declare(row):
                    raise Fault("line %d declares no family" % number)
                continue
            series, value = self._sample(row, number)
            if series in seen:
                raise Fault("line %d says a sample twice" % number)
            seen.add(series)
            page.add(series, value)
        if not seen:
            raise Fault("it has no sample")
        return page.page

    def _sample(self, row: str, number: int) -> Tuple[_Series, str]:
        begin, _, value = row.rpartition(" ")
        known = self._known.get(begin)
        if known is not None and _VALUE.fullmatch(value):
            return known, value
        found = _SAMPLE.fullmatch(row)
        labels = None if found is None else _relabelled(found.group(2) or "")
        if found is None or labels is None:
            raise Fault("line %d is no sample" % number)
        series = _Series(found.group(1), labels)
        if found.group(3) == value:
            self._known[begin] = series
        return series, found.group(3)


class _Reading:
    """A page while it is read: kinds and helps come before samples, and belong to names that may have endings."""

    def __init__(self) -> None:
        self.page = Page()
        self._declared: Dict[str, _Found] = {}
        self._of: Dict[str, Optional[_Found]] = {}

    def declare(self, row: str) -> bool:
        kind, text = _TYPE.fullmatch(row), _HELP.fullmatch(row)
        if kind is None and text is None:
            return _DECLARES.match(row) is None
        name = (kind or text).group(1)  # type: ignore[union-attr]
        found = self._declared.setdefault(name, _Found())
        if kind is not None:
            found.kind = kind.group(2)
        elif text is not None:
            found.help = text.group(2) or ""
        return True

    def add(self, series: _Series, value: str) -> None:
        if series.name not in self._of:
            self._of[series.name] = self._family(series.name)
        found = self._of[series.name]
        if found is not None:
            found.samples.append((series, value))

    def _family(self, name: str) -> Optional[_Found]:
        base = name
        for kind, ends in _PARTS.items():
            for end in ends:
                stem = name[: -len(end)]
                if name not in self._declared and name.endswith(end) and stem in self._declared:
                    base = stem if self._declared[stem].kind == kind else base
        if base.startswith(OWN):
            return None
        return self.page.families.setdefault(base, self._declared.setdefault(base, _Found()))


def _relabelled(text: str) -> Optional[str]:
    """Return a sample's labels as they are written after ours; None when they are none."""
    names, written, at = set(), [], 0
    while text[at:].strip(" \t"):
        label = _ONE_LABEL.match(text, at)
        if label is None:
            return None
        name, at = label.group(1), label.end()
        name = "exported_" + name if name in ADDED else name
        names.add(name)
        written.append(',%s="%s"' % (name, label.group(2)))
    return "".join(written) if len(names) == len(written) else None


def escape(text: str, quotes: bool = True) -> str:
    """Return a text as it stands in a label's value, or without `quotes` in a HELP line."""
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quotes else plain


def labelled(pairs: Sequence[Tuple[str, object]]) -> str:
    """Return labels as they stand between braces."""
    return ",".join('%s="%s"' % (name, escape(str(value))) for name, value in pairs)
