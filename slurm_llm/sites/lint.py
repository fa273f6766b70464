"""Every finding about a site's profile in one run: faults against the schema, broken rules, secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from slurm_llm.errors import Problem, SiteError
from slurm_llm.sites import (
    lintrules_container,
    lintrules_environment,
    lintrules_network,
    lintrules_options,
    lintrules_profile,
    lintrules_queues,
    lintrules_scripts,
    lintrules_sizes,
)
from slurm_llm.sites.find import Library
from slurm_llm.sites.lintfiles import never_found, read_profile
from slurm_llm.sites.lintrules import Rule, Severity, View, joined_labels
from slurm_llm.sites.lintrules_schema import Fault, Leftover, find_faults
from slurm_llm.sites.load import resolve_site
from slurm_llm.sites.secrets import KIND_OF_NAMED, LEAST_LENGTH, find_secrets, is_secret_value, names_secret, redacted
from slurm_llm.yamlio import Document, Key, Tree, parse_document

RULES: tuple[Rule, ...] = (
    *lintrules_profile.RULES,
    *lintrules_queues.RULES,
    *lintrules_sizes.RULES,
    *lintrules_options.RULES,
    *lintrules_environment.RULES,
    *lintrules_network.RULES,
    *lintrules_container.RULES,
    *lintrules_scripts.RULES,
)
"""Every rule beyond the schema's own that needs no more than the profile; callers bring those that do as `more`."""

UNREADABLE, NOT_FOUND, NOT_MERGED, SECRET = "unreadable", "not-found-by-name", "not-mergeable", "secret"

_FOUND = re.compile(r" \(found: .*\)\Z", re.DOTALL)
_SECRET_TODO = "take it out, renew it, and read it from a file with mode 600 or from the submitting environment"


@dataclass(frozen=True)
class Finding:
    """One finding: `file` and `line` (None for the whole file), what is wrong, what is allowed, what to do."""

    severity: Severity
    rule: str
    file: str
    line: int | None
    what: str
    allowed: str
    todo: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = (place, self.severity, self.what, self.allowed, self.todo)
        return ": ".join(part for part in parts if part) + f" [{self.rule}]"

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the finding as plain data for JSON."""
        return asdict(self)


def lint_file(path: Path, environ: Mapping[str, str], today: date, more: Sequence[Rule] = ()) -> list[Finding]:
    """Return every finding about the profile at `path`, merged with what it extends; only this reads files.

    `more` are rules that are tried beside RULES.
    """
    try:
        text = read_profile(path, environ)
    except SiteError as error:
        return _told(UNREADABLE, error.problems)
    try:
        document = parse_document(text, str(path), SiteError)
    except SiteError as error:
        return [*_told(UNREADABLE, error.problems), *lint_secrets(text, str(path))]
    passed_over = never_found(path, environ)
    found = [] if passed_over is None else [_finding("warning", NOT_FOUND, passed_over)]
    found += _merged(path, document, environ, today, (*RULES, *more))
    return [*found, *lint_secrets(text, str(path), document)]


def _merged(
    path: Path, document: Document, environ: Mapping[str, str], today: date, rules: Sequence[Rule]
) -> list[Finding]:
    name = _name_of(path, environ)
    try:
        found = resolve_site(name or (str(path) if "/" in str(path) else f"./{path}"), environ)
    except SiteError as error:
        return [*_told(NOT_MERGED, error.problems), *lint_document(document, today=today, whole=False, rules=rules)]
    problems = (*found.problems, *found.merged.problems)
    # The loader tells it where a file's name matters: when the file is found by its name.
    stem = None if name else path.stem
    merged, whole = found.merged, not found.problems
    own = lint_document(merged.document, today=today, stem=stem, whole=whole, shared=merged.defaults, rules=rules)
    return [_as_given(finding, path) for finding in (*_told(NOT_MERGED, problems), *own)]


def lint_document(
    document: Document,
    *,
    today: date,
    stem: str | None = None,
    whole: bool = True,
    shared: frozenset[str] = frozenset(),
    rules: Sequence[Rule] = RULES,
) -> list[Finding]:
    """Return every finding about the profile that `document` holds, in the order of its lines.

    `document` is what is left when bases and overrides are merged; with `whole` false it lacks its bases, so what is
    missing is not told. `stem` is the file's name without ending, `shared` the places of partition_defaults, `rules`
    what is tried beside the schema.
    """
    left = find_faults(document)
    hidden = frozenset(_secret_paths(document.value, ()))
    faults = [fault for fault in left.faults.values() if _counts(fault, document, whole)]
    findings = [_of_fault(fault, hidden, shared) for fault in faults]
    if left.profile is not None:
        common = frozenset(path for path, origin in left.origins.items() if document.where(origin) in shared)
        view = View(left.profile, left.tree, today, stem, frozenset(left.out | left.stand_ins), common)
        tried = [rule for rule in rules if whole or not rule.needs_all]
        findings += _of_rules(tried, view, left, document, _values(document.value, hidden))
    return sorted(dict.fromkeys(findings), key=_place)


def lint_secrets(text: str, source: str, document: Document | None = None) -> list[Finding]:
    """Return what looks like a secret in a file: in its text, comments too, and in the values of `document`.

    `document` is what the text says, None where it is not readable as YAML.
    """
    lines = [*enumerate(text.splitlines(), 1)]
    found = {number: secret.kind for number, line in lines for secret in find_secrets(line)}
    near = {} if document is None else _keys_by_line(document)
    findings = [_of_secret(source, number, kind, near) for number, kind in found.items()]
    if document is not None:
        for path in _secret_paths(document.value, ()):
            line = document.lines.get(path)
            if line not in found and not _is_within(document, path, found):
                findings.append(_of_secret(source, line, KIND_OF_NAMED, near))
    return sorted(dict.fromkeys(findings), key=_place)


def _told(rule: str, problems: Iterable[Problem]) -> list[Finding]:
    return [_finding("error", rule, problem) for problem in problems]


def _counts(fault: Fault, document: Document, whole: bool) -> bool:
    is_missing = fault.rule == "missing-key"
    only_a_base = document.value.get("base") is True and fault.path == ("partitions",)
    return not is_missing or (whole and not only_a_base)


def _of_fault(fault: Fault, hidden: frozenset[Key], shared: frozenset[str]) -> Finding:
    problem, what, todo = fault.problem, fault.problem.what, fault.problem.todo
    if any(path[: len(fault.path)] == fault.path or fault.path[: len(path)] == path for path in hidden):
        # Both may show the value.
        what, todo = _FOUND.sub("", what), ""
    if problem.where in shared and len(fault.path) > 2:
        # What stands there is in every partition: it is told once, by the name that it has in the file.
        what = what.replace(f"partitions.{fault.path[1]}.", "partition_defaults.", 1)
    return _finding("error", fault.rule, Problem(problem.where, what, problem.allowed, todo))


def _of_rules(
    rules: Iterable[Rule], view: View, left: Leftover, document: Document, secrets: Iterable[str]
) -> Iterator[Finding]:
    def where(path: Key) -> str:
        return document.where(left.origin(path))

    for rule in rules:
        for path, what, todo in joined_labels(rule.check(view), where):
            yield _finding(rule.severity, rule.name, Problem(where(path), _hide(what, secrets), "", todo))


def _finding(severity: Severity, rule: str, problem: Problem) -> Finding:
    file, _, line = problem.where.rpartition(":")
    has_line = bool(file) and line.isdecimal()
    return Finding(
        severity,
        rule,
        file if has_line else problem.where,
        int(line) if has_line else None,
        redacted(problem.what),
        redacted(problem.allowed),
        redacted(problem.todo) or "correct this line",
    )


def _of_secret(source: str, line: int | None, kind: str, near: Mapping[int, str]) -> Finding:
    above = [number for number in near if line is not None and number <= line]
    key = f", near '{near[max(above)]}'" if above else ""
    return Finding("error", SECRET, source, line, f"what looks like {kind}{key}", "", _SECRET_TODO)


def _secret_paths(value: Tree, path: Key) -> Iterator[Key]:
    """Yield the paths of values that look like secrets or have a secret's name."""
    if isinstance(value, dict):
        for key, item in value.items():
            named = names_secret(key) and isinstance(item, str | int) and is_secret_value(str(item))
            if named or next(find_secrets(key), None):
                yield (*path, key)
            else:
                yield from _secret_paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _secret_paths(item, (*path, index))
    elif isinstance(value, str) and any(next(find_secrets(line), None) for line in value.splitlines()):
        yield path


def _keys_by_line(document: Document) -> dict[int, str]:
    """Return the deepest key that begins on each line, list items aside; a secret key's own name is not told."""
    names: dict[int, str] = {}
    for path, line in document.lines.items():
        steps = [str(step) for step in path if isinstance(step, str)]
        names[line] = redacted(".".join(steps))
    return names


def _is_within(document: Document, path: Key, found: Iterable[int]) -> bool:
    """Tell whether a value's text holds one of the lines `found`: it ends where the next key begins."""
    start = document.lines.get(path)
    if start is None:
        return False
    after = min((line for line in document.lines.values() if line > start), default=None)
    return any(start <= line and (after is None or line < after) for line in found)


def _values(value: Tree, paths: Iterable[Key]) -> list[str]:
    found: list[str] = []
    for path in paths:
        at: Any = value
        for step in path:
            at = at[step]
        found.append(str(at))
    return found


def _hide(text: str, values: Iterable[str]) -> str:
    for value in values:
        # A short text stands everywhere; it is no secret either.
        if len(value) >= LEAST_LENGTH:
            text = text.replace(value, "(hidden)")
    return text


def _name_of(path: Path, environ: Mapping[str, str]) -> str | None:
    """Return the name of the profile that the file at `path` is the first of, None where it must be given by path."""
    file = Library(environ).first(path.stem)
    return file.name if file is not None and file.path.resolve() == path.resolve() else None


def _as_given(finding: Finding, path: Path) -> Finding:
    """Return the finding with the file's name as the caller wrote it."""
    return replace(finding, file=str(path)) if Path(finding.file).resolve() == path.resolve() else finding


def _place(finding: Finding) -> tuple[str, int, str]:
    return (finding.file, finding.line or 0, finding.severity)
