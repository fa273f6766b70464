"""A reader of protobuf's text format, as far as config.pbtxt goes: it stops at whatever would end a string early."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TOKEN = re.compile(r'\s+|#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<word>[\w.+-]+)|(?P<mark>[{}\[\]:,])')


def read_pbtxt(text: str) -> list[tuple[str, Any]]:
    """Return names and values of a message in order; strings as text, messages as such lists, the rest as words."""
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, text[at : at + 40]
        at = match.end()
        if match.lastgroup is not None:
            tokens.append((match.lastgroup, match[match.lastgroup]))
    rest = iter([*tokens, ("mark", "}")])
    return _message(rest)


def _message(tokens: Iterator[tuple[str, str]]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for kind, name in tokens:
        if (kind, name) == ("mark", "}"):
            return found
        if (kind, name) == ("mark", ","):
            continue
        assert kind == "word", name
        after = next(tokens)
        found.append((name, _value(next(tokens) if after == ("mark", ":") else after, tokens)))
    raise AssertionError("a brace is not closed")


def _value(token: tuple[str, str], tokens: Iterator[tuple[str, str]]) -> Any:
    kind, text = token
    if token == ("mark", "{"):
        return _message(tokens)
    if token == ("mark", "["):
        items: list[Any] = []
        for inner in tokens:
            if inner == ("mark", "]"):
                return items
            if inner != ("mark", ","):
                items.append(_value(inner, tokens))
    assert kind != "mark", text
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if kind == "text" else text
