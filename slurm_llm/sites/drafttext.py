"""Lines of a drafted profile: keys with values in YAML, and behind each where it was read or what was guessed."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

from slurm_llm.yamlio import Tree, dump

WIDTH = 118
COLUMN = 46
INDENT = "  "
_TIME = re.compile(r"(?:\d+-)?\d+(?::\d+)+\Z")


def read(command: str, what: str) -> str:
    """Return the note of a value that a command told."""
    return f"{command}: {what}"


def guessed(why: str) -> str:
    """Return the note of a value that no command told."""
    return f"guessed: {why}; check"


@dataclass
class Draft:
    """A profile's text while it is written."""

    lines: list[str] = field(default_factory=list)

    def key(self, level: int, name: str, note: str = "", value: Tree = None) -> None:
        """Add `name:`, with a value on the same line where it has one, and its note behind it."""
        text = f"{INDENT * level}{_flow_text(name)}:" + ("" if value is None else f" {_flow(value)}")
        self._noted(level, text, note)

    def remark(self, level: int, text: str) -> None:
        """Add comment lines of their own."""
        indent = f"{INDENT * level}# "
        self.lines += textwrap.wrap(
            _one_line(text), WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )

    def blank(self) -> None:
        """Add an empty line."""
        if self.lines and self.lines[-1]:
            self.lines.append("")

    def text(self) -> str:
        """Return the whole text."""
        return "\n".join(self.lines).rstrip("\n") + "\n"

    def _noted(self, level: int, text: str, note: str) -> None:
        line = f"{text:<{COLUMN}}  # {_one_line(note)}" if note else text
        if len(line) > WIDTH:
            # Too long for one line: the note stands above what it is about.
            self.remark(level, note)
            line = text
        self.lines.append(line)


def _one_line(text: str) -> str:
    """Return `text` without line breaks and control characters: what a cluster says goes into comments."""
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def _flow(value: Tree) -> str:
    """Return a value on one line; mappings and lists in brackets."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow_text(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _flow_text(value) if isinstance(value, str) else dump([value])[2:].strip()


def _flow_text(text: str) -> str:
    """Return text as YAML writes it, in quotes where it would mean something else in brackets or alone.

    Times are in quotes, all of them: older YAML reads some as numbers.
    """
    if _TIME.match(text):
        return f'"{text}"'
    plain = dump([text])[2:].strip()
    in_brackets = plain == text and not set(",[]{}") & set(text)
    return plain if plain != text or in_brackets else "'" + text.replace("'", "''") + "'"
