"""The catalogue of known errors: each entry matches its lines and no others, names keys that exist, and is fast."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import click
import pytest

from slurm_llm.agent import known
from slurm_llm.cli import cli
from slurm_llm.errors import InputError
from slurm_llm.knownerrors import Entry, load_known_errors
from slurm_llm.schema import known_keys
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec

ITEMS = load_known_errors()
CATALOGUE = known.entries(ITEMS)
LEAST_ENTRIES = 60
MOST_S = 0.05
"""Of CPU time, for one pattern on all of the junk: a thousandth of what a catastrophic one would take."""


def _id(value: object) -> str:
    return str(value["id"]) if isinstance(value, dict) else str(value)


def _lines(item: Entry) -> list[str]:
    lines = item["lines"]
    assert isinstance(lines, list)
    return lines


def test_there_are_enough() -> None:
    """The size that was promised, and every kind of log is covered."""
    assert len(ITEMS) >= LEAST_ENTRIES
    assert {where for entry in CATALOGUE for where in entry.where} == set(known.WHERE)
    assert {entry.kind for entry in CATALOGUE} == {known.FATAL, known.EFFECT, known.WARNING, known.NOISE}


@pytest.mark.parametrize("item", ITEMS, ids=_id)
def test_an_entry_matches_its_own_lines(item: Entry) -> None:
    """Each example is found, also by the plain texts that are looked for before the expression is."""
    own = next(entry for entry in CATALOGUE if entry.id == item["id"])
    for line in _lines(item):
        assert re.search(own.pattern, line), line
        assert any(needle in line.encode() for needle in own.needles), (own.needles, line)
        assert own in known.find(CATALOGUE, own.where[0], line)


@pytest.mark.parametrize("item", ITEMS, ids=_id)
def test_no_other_entry_matches_its_lines(item: Entry) -> None:
    """Two explanations of one line would contradict each other; a more general entry is named in `also`."""
    own = next(entry for entry in CATALOGUE if entry.id == item["id"])
    others = [entry for entry in CATALOGUE if entry.id != own.id and set(entry.where) & set(own.where)]
    matching = {entry.id for line in _lines(item) for entry in others if re.search(entry.pattern, line)}
    assert matching <= set(own.also)
    general = {entry.id for line in _lines(item) for entry in CATALOGUE if re.search(entry.pattern, line)}
    assert set(own.also) <= general, "an entry in `also` matches no line"


JUNK = [
    *(letter * 2000 for letter in ("a", "0", " ", "(", "'", ":", "/", ".")),
    "error: " * 280,
    "ab " * 660,
    "slurmstepd: error: " * 100,
    "1: srun: error: n1: tasks 0" + ",1" * 900,
    "[" * 1000 + "]" * 1000,
    "E1130 14:27:05.305066 14619 server.cc:241] " + "x" * 1900,
]


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_no_pattern_is_catastrophic(entry: known.Entry) -> None:
    """Long lines of junk, and the beginning of what is looked for again and again, cost no more than reading them."""
    likely = [(text * (2000 // len(text)))[:2000] for text in known.needles(entry.pattern)]
    form = re.compile(entry.pattern)
    begun = time.process_time()
    for line in JUNK + likely:
        form.search(line)
    assert time.process_time() - begun < MOST_S


COMMAND = re.compile(r"`slurm-llm ([^`]+)`")
KEY = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)*)`")
FREE = {"engine_args", "env"}
"""Sections of a spec whose keys are the engine's, or the user's."""


def _exists(path: tuple[str, ...]) -> bool:
    """Tell whether a spec or a site profile has the key `path`."""
    if path[0] in FREE:
        return True
    for model in (JobSpec, SiteProfile):
        if all(path[at] in known_keys(model, path[:at]) or path[at] == "NAME" for at in range(len(path))):
            return True
    return False


@pytest.mark.parametrize("item", ITEMS, ids=_id)
def test_a_remedy_names_what_exists(item: Entry) -> None:
    """Keys in backticks are keys of the spec or of a site profile, commands are commands with their options."""
    remedy = str(item["remedy"])
    for name in KEY.findall(COMMAND.sub("", remedy)):
        if name not in ("what", "mapping", "submit") and not name.startswith("slurm"):
            assert _exists(tuple(name.split("."))), name
    for command in COMMAND.findall(remedy):
        _check_command(shlex.split(command))


def _check_command(words: list[str]) -> None:
    found: click.Command = cli
    while isinstance(found, click.Group):
        inner = found.get_command(click.Context(found), words[0])
        assert inner is not None, words
        found, words = inner, words[1:]
    options = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options, words


def test_slurms_decisive_words_are_those_of_the_catalogue() -> None:
    """What counts without the catalogue, in a run directory that has none, is what the catalogue says."""
    patterns = {entry.id: entry.pattern for entry in CATALOGUE}
    assert {name: patterns[name] for name in known.SIGNS} == known.SIGNS


def test_every_fault_of_a_catalogue_is_named(tmp_path: Path) -> None:
    """With its line, all at once: an admin may lay a catalogue of the site's own over ours."""
    path = tmp_path / "own.yaml"
    rest = "means: a, remedy: b"
    path.write_text(
        "entries:\n"
        f"  - {{id: Bad_Id, kind: deadly, pattern: 'disk (', {rest}, source: me, lines: [disk], wher: [rank]}}\n"
        f"  - {{id: twice, kind: fatal, pattern: disk full, {rest}, source: 'a/b#1', lines: [disk full]}}\n"
        "  - {id: twice, kind: fatal, pattern: 'x|disk', means: a, source: 'a/b#1', lines: [], also: [twicee],"
        " where: [moon]}\n"
    )
    with pytest.raises(InputError) as caught:
        load_known_errors(path)
    said = str(caught.value)
    for part in (
        "own.yaml:2: id 'Bad_Id'",
        "kind 'deadly'",
        "no regular expression",
        "source 'me'",
        "unknown key 'wher'",
        "own.yaml:4: 'remedy' is missing",
        "has no `lines`",
        "where 'moon'",
        "without four plain characters",
        "id 'twice' stands twice",
        "also 'twicee'",
    ):
        assert part in said, (part, said)


@pytest.mark.parametrize("text", ["entries: 3\n", "others: []\nentries: []\n"])
def test_a_file_that_is_no_catalogue(tmp_path: Path, text: str) -> None:
    """One key, with a list."""
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="entries"):
        load_known_errors(path)
