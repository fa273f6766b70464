"""Times at the beginning of lines, of every program, and times as a person writes them."""

from __future__ import annotations

import time

import pytest

from slurm_llm.observe.stamps import STAMPED, moment_of, stamp


def local(text: str) -> float:
    """Return seconds since the epoch of a local time."""
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


NEAR = local("2026-11-30 12:00:00")


@pytest.mark.parametrize(
    ("line", "expected", "part"),
    [
        ('I1130 10:44:26.957985 17287 a.cc:1] "x"', "2026-11-30 10:44:26", 0.957985),
        ("E0102 03:04:05.5 1 a.cc:1] x", "2026-01-02 03:04:05", 0.5),
        ("W1231 23:59:59.0 1 a.cc:1] x", "2025-12-31 23:59:59", 0.0),
        ("[rank3]:[E1130 10:44:26.5 ProcessGroupNCCL.cpp:629] x", "2026-11-30 10:44:26", 0.5),
        ("2026-11-30 10:44:26,123 INFO x", "2026-11-30 10:44:26", 0.123),
        ("2026-11-30T10:44:26.25 x", "2026-11-30 10:44:26", 0.25),
        ("[2026-11-30 10:44:26] x", "2026-11-30 10:44:26", 0.0),
        ("[11/30/2026-10:15:37] [TRT-LLM] [I] x", "2026-11-30 10:15:37", 0.0),
        ("INFO 11-30 10:15:37 x", "2026-11-30 10:15:37", 0.0),
        ("(EngineCore_0 pid=7) WARNING 11-30 10:15:37 [a.py:1] x", "2026-11-30 10:15:37", 0.0),
        ("slurm_llm: 10:44:55 READY", "2026-11-30 10:44:55", 0.0),
        ("slurm_llm: 23:59:59 READY", "2026-11-29 23:59:59", 0.0),
        ("slurmstepd: error: *** STEP 2.2 ON n CANCELLED AT 2026-11-30T10:59:53 ***", "2026-11-30 10:59:53", 0.0),
        ("0: slurmstepd-n: error: *** STEP 2.2 ON n CANCELLED AT 2026-11-30T10:59:53 ***", "2026-11-30 10:59:53", 0.0),
    ],
)
def test_times_of_every_kind(line: str, expected: str, part: float) -> None:
    """Each program's own form is read; a year that is missing is the file's, never ahead of the file."""
    found = stamp(line, NEAR)
    assert found is not None
    assert found == pytest.approx(local(expected) + part, abs=1e-3)
    assert STAMPED.match(line.encode()), "a look at bytes must not pass over what bears a time"


@pytest.mark.parametrize(
    "line", ["", "hello", "1130 10:44", "I9999 99:99:99.9 x", "2026-13-45 10:00:00", "[rank 3]", "INFO x"]
)
def test_lines_without_a_time(line: str) -> None:
    """What is no time is none."""
    assert stamp(line, NEAR) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NEAR - 90),
        ("10m", NEAR - 600),
        ("1h30m", NEAR - 5400),
        ("2d", NEAR - 172800),
        (" 0s ", NEAR),
        ("11:30", local("2026-11-30 11:30:00")),
        ("11:30:05", local("2026-11-30 11:30:05")),
        ("12:30", local("2026-11-29 12:30:00")),
        ("2026-11-28", local("2026-11-28 00:00:00")),
        ("2026-11-28 7:30", None),
        ("2026-11-28 07:30", local("2026-11-28 07:30:00")),
        ("2026-11-28T07:30:05.5", local("2026-11-28 07:30:05")),
        ("2026-11-28T07:30Z", 1795851000.0),
        ("2026-11-28T07:30:00+01:00", 1795847400.0),
        ("2026-11-28T07:30:00-0500", 1795869000.0),
        *((text, None) for text in ("", "10", "m", "yesterday", "25:00", "11:75", "2026-13-01", "2026-11-28Z", "-10m")),
    ],
)
def test_times_that_a_person_writes(text: str, expected: float | None) -> None:
    """An age, a clock time that has been, a date with or without a time and zone; nothing else is guessed at."""
    assert moment_of(text, NEAR) == expected
