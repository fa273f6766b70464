"""What looks like a secret in a text or under a name; it returns places and kinds, and never the secret itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_KINDS: tuple[tuple[str, str], ...] = (
    ("a private key", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{16,}"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    ("a GitLab token", r"\bglpat-[A-Za-z0-9_-]{16,}"),
    ("an NVIDIA key", r"\bnvapi-[A-Za-z0-9_-]{16,}"),
    ("an API key", r"\bsk-[A-Za-z0-9_-]{20,}"),
    ("a Google key", r"\bAIza[A-Za-z0-9_-]{30,}"),
    ("a Slack token", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    ("an AWS key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a JSON web token", r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ("a bearer token", r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}"),
    ("an authorization header", r"(?i)\bauthorization:\s*basic\s+[A-Za-z0-9+/=]{8,}"),
    ("an authorization header", r"(?i)\bx-api-key:\s*[A-Za-z0-9._~+/-]{8,}"),
    ("a password in a URL", r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@'\"]+:(?![$<{*])[^\s/@'\"]+@"),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)

# `export HF_TOKEN=…`, `--comment=token=…`: a name up to `=`, then, only looked at, one word or a quoted text.
_ASSIGNMENT = re.compile(r"(?<![\w$-])-{0,2}([A-Za-z][A-Za-z0-9_-]*)=(?=(\"[^\"]*\"|'[^']*'|[^\s;,&|)}\"']+))")
# A key that was commented out: only names as variables have them, since prose has colons too.
_COMMENTED = re.compile(r"^\s*#[\s#-]*([A-Z][A-Z0-9_]*):\s+(\"[^\"]*\"|'[^']*'|\S+)\s*(?:#.*)?$")
_LAST_WORDS = frozenset(
    {
        *("token", "secret", "password", "passwd", "passphrase", "apikey", "credential", "credentials"),
        *("pgpassword", "pwd", "pass"),
    }
)
_BEFORE_KEY = frozenset(
    {"api", "access", "secret", "private", "auth", "account", "openai", "anthropic", "nvidia", "ngc"}
)
_PLACEHOLDER = re.compile(r"[$<{%*~/`.\\]|(?i:xxx|your|change|example)")
LEAST_LENGTH = 6
"""What is shorter is no secret."""

KIND_OF_NAMED = "a value that is to stay secret"


@dataclass(frozen=True)
class Secret:
    """What looks like a secret: its kind, and `span`, where it stands in the text that was searched."""

    kind: str
    span: tuple[int, int]


def find_secrets(line: str) -> Iterator[Secret]:
    """Yield what looks like a secret in one line of text: of a known form, or given to a name of a secret."""
    taken: list[tuple[int, int]] = []
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(line):
            taken.append(match.span())
            yield Secret(kind, match.span())
    for pattern in (_ASSIGNMENT, _COMMENTED):
        for match in pattern.finditer(line):
            start, end = match.span(2)
            overlaps = any(low < end and start < high for low, high in taken)
            if not overlaps and names_secret(match[1]) and is_secret_value(match[2]):
                taken.append((start, end))
                yield Secret(KIND_OF_NAMED, (start, end))


def names_secret(name: str) -> bool:
    """Tell whether `name` is one that secrets have: HF_TOKEN, db-password; not TOKENIZERS_PARALLELISM, TOKEN_FILE."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    # HF_TOKEN_2 is one more of them; PWD and OLDPWD are folders.
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    if not words or words == ["pwd"]:
        return False
    return words[-1] in _LAST_WORDS or (words[-1] == "key" and bool(_BEFORE_KEY & set(words[-2:-1])))


def is_secret_value(value: str) -> bool:
    """Tell whether `value` could be a secret: no reference, path or placeholder, and not too short."""
    bare = value.strip().strip("'\"")
    return len(bare) >= LEAST_LENGTH and not _PLACEHOLDER.match(bare)


def redacted(text: str) -> str:
    """Return `text` with everything in it that looks like a secret replaced by `(hidden)`."""
    for secret in sorted(find_secrets(text), key=lambda one: one.span, reverse=True):
        low, high = secret.span
        text = text[:low] + "(hidden)" + text[high:]
    return text
