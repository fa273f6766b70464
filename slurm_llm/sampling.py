"""A text of the form that a regular expression describes, for those that profiles hold; it knows no profile."""

from __future__ import annotations

import re

_CLASSES = {"d": "1", "w": "a", "s": " "}
_QUANTIFIER = re.compile(r"([*+?])\??|\{(\d+)(?:,\d*)?\}\??")


def sample(pattern: str) -> str | None:
    """Return a short text that matches the whole of `pattern`; None where none was found.

    Read are literals, groups, alternatives, sets, `.`, `\\d`, `\\w`, `\\s` and quantifiers. What comes of anything else
    (look-ahead, back references, sets that exclude) is tried like the rest: only a text that matches is returned.
    """
    try:
        text = _Reader(pattern).alternatives()
    except IndexError:
        return None
    return text if re.fullmatch(pattern, text) else None


class _Reader:
    """Reads a pattern from left to right and makes up the text on its way."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def alternatives(self) -> str:
        """Return the text of the first alternative of a group, and pass over the others."""
        first = self._sequence()
        while self._peek() == "|":
            self.at += 1
            self._sequence()
        return first

    def _sequence(self) -> str:
        text = ""
        while self._peek() not in ("", "|", ")"):
            text += self._atom() * self._times()
        return text

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self) -> str:
        self.at += 1
        return self.pattern[self.at - 1]

    def _atom(self) -> str:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return self._set()
        if character == "\\":
            return self._escaped()
        return {".": "a", "^": "", "$": ""}.get(character, character)

    def _group(self) -> str:
        if self.pattern.startswith("?:", self.at):
            self.at += 2
        text = self.alternatives()
        self._take()
        return text

    def _set(self) -> str:
        character = self._take()
        first = self._escaped() if character == "\\" else character
        # A closing bracket that comes first is one of the set.
        while self._take() != "]":
            pass
        return first

    def _escaped(self) -> str:
        character = self._take()
        return _CLASSES.get(character, character)

    def _times(self) -> int:
        match = _QUANTIFIER.match(self.pattern, self.at)
        if match is None:
            return 1
        self.at = match.end()
        return int(match[2]) if match[2] else int(match[1] != "?")
