"""Profiles, their detection and their differences as text and JSON; values in, text out."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from slurm_llm.assets import sites_dir
from slurm_llm.cli.text import table
from slurm_llm.observe.text import clean
from slurm_llm.sites.view import Leaf, tree_of, value_text
from slurm_llm.yamlio import Tree, dump

if TYPE_CHECKING:
    from slurm_llm.sites.detect import Candidate, Check, Detection, Facts
    from slurm_llm.sites.diff import Row
    from slurm_llm.sites.extends import Identity
    from slurm_llm.sites.load import Site

VALUE_COLUMN = 44
MOST_SHOWN = 60
_STATES = {"documentation": "docs", "run": "run"}
_KINDS = {"hostnames": "host name", "env": "variable", "files": "file"}


def listed(one: Identity, matches: bool) -> dict[str, object]:
    """Return what `list` says of a profile; values that are no text are left out, as nothing is validated."""
    verified = one.value.get("verified")
    state, date = (verified.get("state"), verified.get("date")) if isinstance(verified, dict) else (None, None)
    return {
        "name": one.name,
        "description": _text(one.value.get("description")),
        "verified": {"state": state, "date": date} if isinstance(state, str) and isinstance(date, str) else None,
        "folder": one.file.kind,
        "path": str(one.file.path),
        "overlay": str(one.overlay.path) if one.overlay else None,
        "matches": matches,
    }


def listed_text(rows: Sequence[dict[str, object]], columns: int, cut: bool) -> str:
    """Return the table that `list` prints; `cut` shortens descriptions to `columns`."""
    head = ["", "name", "folder", "verified", "description"]
    body = [[*_listed_cells(row), clean(str(row["description"]))] for row in rows]
    lines = table([head, *body])
    return "\n".join(lines if not cut else [_cut(line, columns) for line in lines])


def _listed_cells(row: dict[str, object]) -> list[str]:
    verified = row["verified"]
    seen = "-"
    if isinstance(verified, dict):
        seen = f"{_STATES.get(verified['state'], verified['state'])} {verified['date']}"
    folder = f"{row['folder']}+user" if row["overlay"] else str(row["folder"])
    return ["*" if row["matches"] else "", clean(str(row["name"])), folder, clean(seen)]


def shown_text(site: Site, partition: str | None, rows: Iterable[Leaf], everything: bool) -> str:
    """Return a profile as YAML that can be loaded, below comments that say what it is merged from."""
    note = [] if everything else ["keys that are not shown are null or empty: --all shows them"]
    return _head(site, partition, note) + dump(tree_of(rows))


def origin_text(site: Site, partition: str | None, rows: Iterable[Leaf]) -> str:
    """Return a line for each value: `key = value  # file:line`."""
    lines = []
    for leaf in rows:
        value = f"{leaf.name} = {value_text(leaf.value)}"
        lines.append(f"{value:<{VALUE_COLUMN}}  # {_short(leaf.origin) if leaf.origin else 'default'}\n")
    return _head(site, partition, ["a file without a folder is a packaged one"]) + "".join(lines)


def _head(site: Site, partition: str | None, notes: Iterable[str]) -> str:
    whose = f"site {site.profile.name}" + (f", partition {partition}" if partition else "")
    files = dict.fromkeys(site.document.sources.values())
    lines = [whose, *(f"from {source}" for source in files), *notes]
    return "".join(f"# {clean(line)}\n" for line in lines)


def _short(origin: str) -> str:
    """Return `file:line` with the packaged folder left out and the home as `~`."""
    packaged, home = f"{sites_dir()}/", os.environ.get("HOME", "")
    if origin.startswith(packaged):
        return origin.removeprefix(packaged)
    return f"~{origin.removeprefix(home)}" if len(home) > 1 and origin.startswith(f"{home}/") else origin


def explained_text(detection: Detection, facts: Facts) -> str:
    """Return every profile that has a `match`, those that fit first, with each of its entries."""
    lines = [f"host names: {', '.join(facts.hostnames)}"]
    for one in sorted(detection.candidates, key=lambda one: not one.explanation.matched):
        lines += ["", f"{one.identity.name}: " + ("matches" if one.explanation.matched else "no")]
        lines += [line for check in one.explanation.checks for line in _checked(check)]
    silent = {one.name for one in detection.sites} - {one.identity.name for one in detection.candidates}
    if silent:
        lines += ["", *textwrap.wrap(f"no `match`: {', '.join(sorted(silent))}", 79)]
    return "\n".join((*lines, ""))


def _checked(check: Check) -> list[str]:
    subject = f" {check.subject}" if check.subject else ""
    found = "not there" if check.found is None else value_text(check.found[:MOST_SHOWN])
    if not check.subject:
        found = ""
    what = f"{_KINDS[check.kind]}{subject}" + (f" is {found}" if found else "")
    sign = "yes" if check.matched else "no"
    text = f"{what}, {'matches' if check.matched else 'wanted'} {check.pattern}"
    return textwrap.wrap(
        clean(text), 79, initial_indent=f"  {sign:<5}", subsequent_indent=" " * 9, break_on_hyphens=False
    )


def detection_json(detection: Detection, facts: Facts) -> dict[str, object]:
    """Return what `detect` says as one JSON object; `site` is null unless exactly one profile matches."""
    matches = detection.matches
    return {
        "site": matches[0] if len(matches) == 1 else None,
        "matches": list(matches),
        "hostnames": list(facts.hostnames),
        "profiles": [_candidate_json(one) for one in detection.candidates],
        "problems": [str(problem) for problem in detection.problems],
    }


def _candidate_json(one: Candidate) -> dict[str, object]:
    checks = [vars(check) for check in one.explanation.checks]
    return {"name": one.identity.name, "matched": one.explanation.matched, "checks": checks}


def diff_text(rows: Sequence[Row], first: str, second: str, columns: int) -> str:
    """Return a table of the keys that differ; a row that is too long for it has a line for each side."""
    cells = [(row.key, _side(row.first), _side(row.second)) for row in rows]
    key_width = max({len(key) for key, _, _ in cells}, key=lambda size: len(_fitting(cells, size, columns)))
    fitting = _fitting(cells, key_width, columns)
    lines = iter(table([("key", first, second), *fitting]))
    shown = [next(lines)]
    for row in cells:
        shown += [next(lines)] if row in fitting else _long(row, columns)
    return "\n".join(shown)


def _fitting(cells: Sequence[tuple[str, str, str]], key_width: int, columns: int) -> list[tuple[str, str, str]]:
    side = max(1, (columns - key_width - 4) // 2)
    return [row for row in cells if len(row[0]) <= key_width and max(len(row[1]), len(row[2])) <= side]


def _long(row: Sequence[str], columns: int) -> list[str]:
    lines = [row[0]]
    for sign, text in zip("-+", row[1:], strict=True):
        lines += textwrap.wrap(
            text,
            columns,
            initial_indent=f"  {sign} ",
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    return lines


def _side(leaf: Leaf | None) -> str:
    if leaf is None or leaf.is_silent:
        return "not set"
    text = clean(value_text(leaf.value))
    return text if leaf.origin else f"default {text}"


def diff_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return the rows as JSON values; the origin of a default is `default`, that of a missing key null."""
    return [{"key": row.key, "a": _side_json(row.first), "b": _side_json(row.second)} for row in rows]


def _side_json(leaf: Leaf | None) -> dict[str, object] | None:
    return None if leaf is None else {"value": leaf.value, "origin": leaf.origin or "default"}


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: columns - 1] + "…"


def _text(value: Tree) -> str:
    return value if isinstance(value, str) else ""
