"""When a job may start, in Slurm's own words: dependencies on other jobs, and a moment. Checked and joined, no more."""

from __future__ import annotations

import re

_JOB = r"\d{1,10}(?:_(?:\d{1,10}|\*))?"
_LATER = rf"after:{_JOB}(?:\+\d{{1,7}})?(?::{_JOB}(?:\+\d{{1,7}})?)*"
_ENDED = rf"(?:afterany|afterok|afternotok|aftercorr|afterburstbuffer):{_JOB}(?::{_JOB})*"
_ONE = re.compile(rf"(?:{_LATER}|{_ENDED}|singleton)\Z", re.ASCII)
_MOMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:+/. -]{0,39}\Z", re.ASCII)

ALLOWED = "TYPE:JOB[:JOB…] with after, afterany, afterok, afternotok, aftercorr or afterburstbuffer, or singleton"


def check_dependency(text: str) -> str:
    """Return `text` when it is a dependency as sbatch(1) has it: all of several (`,`) or any of them (`?`).

    Raises:
        ValueError: it is none.
    """
    if "," in text and "?" in text:
        raise ValueError("either all (,) or any (?) of several, not both")
    for part in re.split("[,?]", text):
        if not _ONE.match(part):
            raise ValueError(f"'{part}' is no dependency: {ALLOWED}")
    return text


def check_moment(text: str) -> str:
    """Return `text` when it may be a moment for sbatch's `--begin`, which has many forms; sbatch itself knows them all.

    Raises:
        ValueError: it can be none.
    """
    if not _MOMENT.match(text):
        raise ValueError("must be a time, as 16:00, now+1hour or 2026-12-24T08:00")
    return text


def joined(options: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Return both lists of options as one, with one dependency on all that both name.

    Raises:
        ValueError: one of several that are joined by `?` cannot be one of all.
    """
    name = "--dependency="
    texts = [option.removeprefix(name) for option in (*options, *more) if option.startswith(name)]
    if len(texts) > 1 and any("?" in text for text in texts):
        raise ValueError("a dependency on any of several (?) cannot be joined with that on the stages before it")
    rest = [option for option in (*options, *more) if not option.startswith(name)]
    return (*((name + ",".join(texts),) if texts else ()), *dict.fromkeys(rest))
