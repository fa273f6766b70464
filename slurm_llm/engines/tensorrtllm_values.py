"""What a value of the engine path's templates may be, and the text that fills the template; it knows no parameter."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Read = Callable[[object], str | None]

TRUE = ("true", "True", "TRUE", "1")
FALSE = ("false", "False", "FALSE", "0")
"""The spellings that the backend takes (inflight_batcher_llm/src/model_state.cc)."""

MOST = 2**31 - 1
"""The backend reads most whole numbers as signed 32-bit ones."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_BROKEN = re.compile(r'["\\\x00-\x1f\x7f]')
_INT = r"\s*\d{1,10}\s*"
_INTS = re.compile(rf"{_INT}(?:,{_INT})*\Z", re.ASCII)
_SETS = re.compile(rf"{_INT}(?:[,;]{_INT})*\Z", re.ASCII)
_TREE = re.compile(rf"\s*\{{{_INT}(?:,{_INT})*\}}\s*(?:,\s*\{{{_INT}(?:,{_INT})*\}}\s*)*\Z", re.ASCII)


@dataclass(frozen=True)
class Kind:
    """A kind of value: `read` returns the text for the template, or None where the value is not `allowed`."""

    allowed: str
    read: Read


def whole(low: int, high: int = MOST) -> Kind:
    """Return the kind of the whole numbers from `low` to `high`."""

    def read(value: object) -> str | None:
        number = _whole(value)
        return None if number is None or not low <= number <= high else str(number)

    return Kind(f"a whole number from {low}" + ("" if high >= MOST else f" to {high}"), read)


def number(low: float, high: float, *, above: bool = False) -> Kind:
    """Return the kind of the numbers from `low` (not itself with `above`) to `high`."""

    def read(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return repr(value) if low <= value <= high and not (above and value == low) else None

    return Kind(f"a number {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}", read)


def choice(*words: str) -> Kind:
    """Return the kind of these words."""
    return Kind(", ".join(words), lambda value: value if isinstance(value, str) and value in words else None)


def boolean() -> Kind:
    """Return the kind of true and false, in every spelling that the backend takes."""

    def read(value: object) -> str | None:
        if isinstance(value, bool):
            return "true" if value else "false"
        text = str(value) if isinstance(value, str | int) else ""
        return "true" if text in TRUE else "false" if text in FALSE else None

    return Kind("true or false", read)


def path() -> Kind:
    """Return the kind of absolute paths that can stand in a config.pbtxt, which NVIDIA's script quotes nowhere."""

    def read(value: object) -> str | None:
        if not isinstance(value, str) or not value.startswith("/") or _BROKEN.search(value):
            return None
        return value

    return Kind("an absolute path, as the ranks see it, without quotation mark or backslash", read)


def name() -> Kind:
    """Return the kind of a Triton model's name."""
    allowed = "letters, digits, '.', '_' and '-', a letter or digit first"
    return Kind(allowed, lambda value: value if isinstance(value, str) and _NAME.match(value) else None)


def ints() -> Kind:
    """Return the kind of one or more whole numbers: 4096, [4096, 256] or "4096,256"."""

    def read(value: object) -> str | None:
        if isinstance(value, str):
            return ",".join(value.replace(" ", "").split(",")) if _INTS.match(value) else None
        numbers = _wholes(value if isinstance(value, list) else [value])
        return None if not numbers else ",".join(map(str, numbers))

    return Kind("whole numbers: 4096, [4096, 256] or '4096,256'", read)


def id_sets() -> Kind:
    """Return the kind of ids for each instance: [0, 1], [[0, 1], [2, 3]] or "0,1;2,3"."""

    def read(value: object) -> str | None:
        sets = _sets(value)
        return None if sets is None else ";".join(",".join(map(str, ids)) for ids in sets)

    return Kind("ids for each instance: [0, 1], [[0, 1], [2, 3]] or '0,1;2,3'", read)


def tree() -> Kind:
    """Return the kind of a tree of choices: [[0, 0, 0], [0, 1]] or "{0, 0, 0}, {0, 1}"."""

    def read(value: object) -> str | None:
        if isinstance(value, str):
            return value.strip() if _TREE.match(value) else None
        rows = [_wholes(row) if isinstance(row, list) else None for row in value] if isinstance(value, list) else []
        if not rows or not all(rows):
            return None
        return ", ".join("{" + ", ".join(map(str, row or ())) + "}" for row in rows)

    return Kind("a tree of choices: [[0, 0, 0], [0, 1]] or '{0, 0, 0}, {0, 1}'", read)


def split_ids(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the sets of a text that `id_sets` made: "0,1;2,3" → ((0, 1), (2, 3))."""
    return tuple(tuple(int(each) for each in ids.split(",")) for ids in text.split(";"))


def _sets(value: object) -> list[list[int]] | None:
    if isinstance(value, str):
        if not _SETS.match(value):
            return None
        value = [[int(each) for each in part.split(",")] for part in value.split(";")]
    if not isinstance(value, list) or not value:
        return None
    rows = value if isinstance(value[0], list) else [value]
    sets = [_wholes(row) if isinstance(row, list) else None for row in rows]
    # A GPU or a rank is in a set once.
    return [ids for ids in sets if ids] if all(ids and len(set(ids)) == len(ids) for ids in sets) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _wholes(values: Sequence[object]) -> list[int] | None:
    numbers = [found for each in values if (found := _whole(each)) is not None and 0 <= found <= MOST]
    return numbers if len(numbers) == len(values) else None
