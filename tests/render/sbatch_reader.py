"""Reads `#SBATCH` lines as Slurm does (src/sbatch/opt.c, get_argument, 22.05): quotes group, a backslash escapes."""

from __future__ import annotations

BUFFER = 8192
"""Slurm copies an option into a buffer of this size without a check (BUFSIZ)."""


def _words(line: str) -> list[str]:
    words: list[str] = []
    at = 0
    while at < len(line):
        while at < len(line) and line[at].isspace():
            at += 1
        if at == len(line) or line[at] == "#":
            break
        assert line[at] != ":", f"sbatch: Unexpected `:` [{line}]"
        word, quote, escaped = "", "", False
        while at < len(line) and (quote or not line[at].isspace()):
            character = line[at]
            at += 1
            if escaped:
                word, escaped = word + character, False
            elif character == "\\":
                escaped = True
            elif quote and character == quote:
                quote = ""
            elif not quote and character in "\"'":
                quote = character
            else:
                word += character
        assert not quote, f"sbatch: unmatched quote [{line}]"
        assert len(word.encode()) < BUFFER
        words.append(word)
    return words


def read_options(script: str) -> list[str]:
    """Return the options that sbatch takes from `script`: it stops at the first line that is no comment."""
    lines = script.split("\n")
    assert lines[0].startswith("#!"), "sbatch: This does not look like a batch script"
    options: list[str] = []
    for line in lines[1:]:
        if line.startswith("#SBATCH"):
            options += _words(line[len("#SBATCH") :])
        elif line.strip() and not line.startswith("#"):
            break
    return options
