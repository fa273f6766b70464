"""The matching of known errors: plain texts in expressions, entries that give way, a catalogue that is gone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.agent import known

ITEM: dict[str, Any] = {"kind": "fatal", "means": "m", "remedy": "r", "source": "a/b#1"}


@pytest.mark.parametrize(
    ("pattern", "needles"),
    [
        ("Bus error", ["Bus error"]),
        (r"srun: error: \S+: tasks? [\d,-]+: Out Of Memory", [": Out Of Memory"]),
        (r"exceeded memory limit \(\d+ ?> ?\d+\), (?:being killed|cancelling it)", ["exceeded memory limit ("]),
        ("no space|quota exceeded", ["no space", "quota exceeded"]),
        (r"(?:first thing|other one)\d+", ["first thing", "other one"]),
        ("colou?r of it", ["r of it"]),
        ("aaaa{0,3}bbbb", ["bbbb"]),
        ("wait+ing", ["wait"]),
        (r"\[[Ee]rror\]", ["rror]"]),
        (r"\*\*\* STEP", ["*** STEP"]),
        ("(?:maybe)?certain", ["certain"]),
        ("(?<!not )reached", ["reached"]),
        ("abc|long enough", []),
        (r"\d+ \w+", []),
        (".*", []),
    ],
)
def test_the_plain_text_in_a_pattern(pattern: str, needles: list[str]) -> None:
    """One of them stands in everything that the pattern matches; none where that cannot be said."""
    assert known.needles(pattern) == needles


@given(st.lists(st.sampled_from(["abcd", "x?", "(?:one1|two2)", "[0-9]+", r"\.", "y*", "(?:opt)?", "|"]), max_size=8))
def test_a_match_always_holds_a_needle(parts: list[str]) -> None:
    """Whatever the pattern: no line that it matches is passed over because a plain text is missing."""
    pattern = "".join(parts)
    needles = known.needles(pattern)
    texts = {"(?:one1|two2)": "two2", "[0-9]+": "7", r"\.": ".", "x?": "", "y*": "yy", "(?:opt)?": "", "|": ""}
    for alternative in "\n".join(parts).split("|"):
        line = "".join(texts.get(part, part) for part in alternative.strip("\n").split("\n"))
        if re.fullmatch(pattern, line) and needles:
            assert any(needle in line for needle in needles), (pattern, line, needles)


def test_a_more_general_entry_gives_way() -> None:
    """Of two that match a line, the one that names the other is meant."""
    items: list[dict[str, Any]] = [
        dict(ITEM, id="full", pattern="No space left"),
        dict(ITEM, id="shm", pattern="shm: No space left", also=["full"]),
        dict(ITEM, id="elsewhere", pattern="No space left", where=["step"]),
    ]
    catalogue = known.entries(items)
    assert [one.id for one in known.find(catalogue, "rank", "shm: No space left")] == ["shm"]
    assert [one.id for one in known.find(catalogue, "rank", "disk: No space left")] == ["full"]


def test_a_catalogue_that_is_gone(tmp_path: Path) -> None:
    """A run directory without one, or with half of one, still knows the words by which Slurm decides."""
    torn = tmp_path / "known_errors.json"
    assert {entry.id for entry in known.load(str(torn))} == set(known.SIGNS)
    torn.write_text('[{"id": "x"')
    assert {entry.id for entry in known.load(str(torn))} == set(known.SIGNS)
    torn.write_text(json.dumps([dict(ITEM, id="x", pattern="some words")]))
    assert [entry.id for entry in known.load(str(torn))] == ["x"]


def test_where_the_catalogue_lies() -> None:
    """Beside the agent's own files: a run directory is moved as a whole."""
    assert Path(known.beside_this_file()) == Path(known.__file__).parent / known.FILE
