"""Hiding secrets in texts that are shown or handed on: what looks like one, and every further place where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_llm.rundir import RunPaths
from slurm_llm.sites.secrets import find_secrets, is_secret_value, names_secret

HIDDEN = "(hidden)"
LEAST_VALUE = 8
"""What is shorter may stand anywhere by chance."""


@dataclass
class Redactor:
    """Hides secrets, and every further place where a value stands that was seen to be one; counts them."""

    values: set[str] = field(default_factory=set)
    hidden: int = 0
    _in_key: bool = False

    def learn(self, environ: Mapping[str, str]) -> None:
        """Take the values of variables that are named like secrets."""
        self.values |= {value for name, value in environ.items() if names_secret(name) and len(value) >= LEAST_VALUE}

    def learn_keys(self, paths: RunPaths) -> None:
        """Take the keys of the run's endpoints, which Triton's words or a curl line might repeat."""
        for job in paths.jobs():
            for file in job.root.glob("key.*"):
                value = _text_of(file).partition(":")[2].strip()
                if len(value) >= LEAST_VALUE:
                    self.values.add(value)

    def learn_tree(self, value: object) -> None:
        """Take what a tree of JSON gives to names of secrets: of mappings, and of pairs of name and value."""
        for name, item in _pairs(value):
            if isinstance(item, str) and len(item) >= LEAST_VALUE and names_secret(name) and is_secret_value(item):
                self.values.add(item)
            self.learn_tree(item)

    def tree(self, value: object) -> object:
        """Return a tree of JSON with the secrets in its texts hidden; see `learn_tree`."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {name: self._named(name, item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._named("", item) for item in value]
        return value

    def _named(self, name: str, item: object) -> object:
        hides = isinstance(item, str) and names_secret(name) and is_secret_value(item)
        self.hidden += hides
        return HIDDEN if hides else self.tree(item)

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        self._in_key = False
        return "\n".join(self._line(line) for line in text.split("\n"))

    def _line(self, line: str) -> str:
        if self._in_key or _KEY_BEGINS.search(line):
            # A private key goes on until its end, line by line.
            self._in_key = _KEY_ENDS.search(line) is None
            self.hidden += 1
            return HIDDEN
        if not _SUSPECT.search(line) and not any(value in line for value in self.values):
            return line
        for low, high in self._spans(line):
            value = line[low:high].strip("'\"")
            if len(value) >= LEAST_VALUE and " " not in value:
                self.values.add(value)
            line = line[:low] + HIDDEN + line[high:]
            self.hidden += 1
        for value in self.values:
            self.hidden += line.count(value)
            line = line.replace(value, HIDDEN)
        return line

    @staticmethod
    def _spans(line: str) -> list[tuple[int, int]]:
        """Return where secrets stand, last ones first, none inside another."""
        pairs = [
            match for match in _PAIR.finditer(line) if names_secret(match["name"]) and is_secret_value(match["value"])
        ]
        forms = [match for form in _FORMS for match in form.finditer(line)]
        spans = [secret.span for secret in find_secrets(line)] + [match.span("value") for match in pairs + forms]
        found: list[tuple[int, int]] = []
        for low, high in sorted(set(spans), key=lambda span: (span[0], -span[1])):
            if not found or low >= found[-1][1]:
                found.append((low, high))
        return found[::-1]


_KEY_BEGINS = re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END (?:[A-Z0-9]+ )*PRIVATE KEY-----")
_SUSPECT = re.compile(
    r"(?i)token|secret|passw|passphrase|key|credential|bearer|basic |authorization|://[^\s/]{1,200}@"
    r"|hf_|gh[pousr]_|glpat-|nvapi-|sk-|AIza|xox|AKIA|ASIA|eyJ"
)
# JSON and YAML write `"name": "value"`, `name: value`.
_PAIR = re.compile(r"[\"']?(?P<name>[A-Za-z][\w-]{0,80})[\"']?\s{0,4}:\s{0,4}(?P<value>\"[^\"]*\"|'[^']*'|[^\s,}\]]+)")
_FORMS = (
    re.compile(r"(?i)\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|digest)\s+(?P<value>[\w+/=.-]{6,})"),
    re.compile(r"-restricted-\w+=[^:\s]{1,80}:[^=\s]{1,80}=(?P<value>[^\s\"']+)"),  # Triton's keys of APIs
)


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a tree holds, each with its name; a list of a text and another value is a pair of both."""
    if isinstance(value, dict):
        yield from ((str(name), item) for name, item in value.items())
    elif isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str):
            yield value[0], value[1]
        else:
            yield from (("", item) for item in value)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
