"""A document becomes a model, or every fault of it is told at once with file, line, what is allowed and what to do."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field

from slurm_llm.errors import InputError
from slurm_llm.schema import Section, apply_settings, dotted, known_keys, validate
from slurm_llm.yamlio import Document, parse_document


def _short(value: str) -> str:
    if len(value) > 3:
        raise ValueError("must be short")
    return value


class Leaf(Section):
    """A part with one of every kind of value."""

    count: Annotated[int, Field(ge=1, le=9)] = 1
    word: Annotated[str, AfterValidator(_short)] | None = None
    flag: bool = False
    kind: Literal["red", "green"] = "red"
    mixed: dict[str, str | int | float | bool] = {}  # noqa: RUF012
    names: Annotated[tuple[str, ...], Field(strict=False)] = ()


class Root(Section):
    """A model with parts, a map of parts and a value that must be there."""

    name: Annotated[str, Field(min_length=1)]
    leaf: Leaf = Leaf()
    other: Leaf | None = None
    many: dict[str, Leaf] = {}  # noqa: RUF012


def _read(text: str, *settings: str) -> Root:
    return validate(Root, apply_settings(parse_document(text, "f.yaml"), settings, InputError), InputError)


def _faults(text: str, *settings: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        _read(text, *settings)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("count: '4'", "f.yaml:3: leaf.count: must be a whole number (found: '4'): write it without quotes"),
        ("count: four", "f.yaml:3: leaf.count: must be a whole number (found: 'four'): correct the value"),
        ("count: 1.5", "f.yaml:3: leaf.count: must be a whole number (found: 1.5): correct the value"),
        ("count: 2.0", "f.yaml:3: leaf.count: must be a whole number (found: 2.0): correct the value"),
        ("count: true", "f.yaml:3: leaf.count: must be a whole number (found: true): correct the value"),
        ("count: [1]", "f.yaml:3: leaf.count: must be a whole number (found: a list): correct the value"),
        ("count: 0", "f.yaml:3: leaf.count: must be at least 1 (found: 0): correct the value"),
        ("count: 10", "f.yaml:3: leaf.count: must be at most 9 (found: 10): correct the value"),
        ("count: null", "f.yaml:3: leaf.count: must be a whole number (found: nothing): give a value, or remove"),
        ("word: 7", "f.yaml:3: leaf.word: must be text (found: 7): put it in quotes"),
        ("word: long", "f.yaml:3: leaf.word: must be short (found: 'long'): correct the value"),
        ("word: " + "x" * 500, "f.yaml:3: leaf.word: must be short (found: '" + "x" * 79 + "…): correct the value"),
        ("flag: 'maybe'", "f.yaml:3: leaf.flag: must be true or false (found: 'maybe'): correct the value"),
        ("flag: yes", "f.yaml:3: leaf.flag: must be true or false (found: 'yes'): write true"),
        ("flag: Off", "f.yaml:3: leaf.flag: must be true or false (found: 'Off'): write false"),
        ("word: [a]", "f.yaml:3: leaf.word: must be text (found: a list): write one text"),
        ("flag: 1", "f.yaml:3: leaf.flag: must be true or false (found: 1): correct the value"),
        ("kind: gren", "f.yaml:3: leaf.kind: must be one of 'red' or 'green' (found: 'gren'): did you mean 'green'?"),
        (
            "mixed: {a: [1]}",
            "f.yaml:3: leaf.mixed.a: must be text or a whole number or a number or true or false (found: a list)",
        ),
        ("names: x", "f.yaml:3: leaf.names: must be a list (found: 'x'): write it as [value]"),
        ("names: [a, 2]", "f.yaml:3: leaf.names[1]: must be text (found: 2): put it in quotes"),
        (
            "cuont: 1",
            "f.yaml:3: unknown key 'leaf.cuont': known here: count, flag, kind, mixed, names, word: "
            "did you mean 'count'?",
        ),
        ("zzz: 1", "f.yaml:3: unknown key 'leaf.zzz': known here: count, flag, kind, mixed, names, word: remove it"),
    ],
)
def test_each_fault_is_told_in_our_words(line: str, message: str) -> None:
    """A fault names the line, the key, what it must be, what was found, and what to do."""
    (fault,) = _faults(f"name: a\nleaf:\n  {line}\n")
    assert fault.startswith(message)


def test_all_faults_are_told_at_once() -> None:
    """Faults of several parts, a missing value and unknown keys come in one error, each with its own line."""
    text = "leaf: 3\nother:\n  count: x\nmany:\n  a: {kind: blue}\n  b: {count: 0, cout: 2}\nlaef: {}\n"
    assert _faults(text) == [
        "f.yaml: 'name' is missing: add it",
        "f.yaml:1: leaf: must be a mapping of `key: value` lines (found: 3): correct the value",
        "f.yaml:3: other.count: must be a whole number (found: 'x'): correct the value",
        "f.yaml:5: many.a.kind: must be one of 'red' or 'green' (found: 'blue'): correct the value",
        "f.yaml:6: many.b.count: must be at least 1 (found: 0): correct the value",
        "f.yaml:6: unknown key 'many.b.cout': known here: count, flag, kind, mixed, names, word: did you mean 'count'?",
        "f.yaml:7: unknown key 'laef': known here: leaf, many, name, other: did you mean 'leaf'?",
    ]


def test_an_empty_text_is_told() -> None:
    """A text that must not be empty says so."""
    assert _faults("name: ''\n") == ["f.yaml:1: name: must not be empty (found: ''): correct the value"]


def test_settings_lie_over_the_file_and_keep_their_origin() -> None:
    """A `--set` replaces or adds a value at any depth, and a fault in it names the flag."""
    root = _read("name: a\nleaf: {count: 2, word: x}\n", "leaf.count=3", "many.new.flag=true", "name=b=c")
    assert (root.name, root.leaf.count, root.leaf.word, root.many["new"].flag) == ("b=c", 3, "x", True)
    faults = _faults("name: a\nleaf: {count: 2}\n", "leaf.count=x", "many.a.cuont=1")
    assert faults[0] == "--set leaf.count: leaf.count: must be a whole number (found: 'x'): correct the value"
    assert faults[1].startswith("--set many.a.cuont: unknown key 'many.a.cuont'")


def test_a_part_that_a_setting_makes_is_the_settings() -> None:
    """A misspelt section stands in no file: the flag is named, and a section of the file keeps its own line."""
    (fault,) = _faults("name: a\nleaf: {count: 2}\n", "laef.count=1")
    assert fault.startswith("--set laef.count: unknown key 'laef'")
    faults = _faults("name: a\nlaef:\n  count: 2\n", "laef.word=x", "many.a.b.c=1")
    assert {one.partition(": ")[0] for one in faults} == {"f.yaml:2", "--set many.a.b.c"}


def test_a_model_may_know_what_to_do() -> None:
    """What it says takes the place of the general words, where it says something."""
    document = parse_document("name: a\nleaf: {count: x, kind: gren}\n", "f.yaml")
    with pytest.raises(InputError) as caught:
        validate(Root, document, InputError, lambda path, items: "count it" if path[-1] == "count" else None)
    assert [problem.todo for problem in caught.value.problems] == ["count it", "did you mean 'green'?"]


def test_a_setting_replaces_a_whole_part() -> None:
    """A mapping given by a flag takes the place of the file's, whose lines are forgotten."""
    faults = _faults("name: a\nleaf: {word: x}\n", "leaf={count: 0}")
    assert faults == ["--set leaf: leaf.count: must be at least 1 (found: 0): correct the value"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("name", "--set name: not of the form key=value: a.b.c=value"),
        ("=x", "--set =x: not of the form key=value: a.b.c=value"),
        ("a..b=x", "--set a..b=x: not of the form key=value: a.b.c=value"),
        ("name.x=1", "--set name.x=1: 'name.x' goes through a value that is no mapping"),
    ],
)
def test_a_bad_setting_is_told(setting: str, message: str) -> None:
    """A flag of another form, or one that goes through a plain value, is refused."""
    assert _faults("name: a\n", setting, "zzz=1")[0].startswith(message)


def test_settings_do_not_change_the_document() -> None:
    """The document that was read stays as it was."""
    document = parse_document("name: a\nleaf: {count: 2}\n", "f.yaml")
    apply_settings(document, ["leaf.count=3", "leaf.word=x"], InputError)
    assert document.value == {"name": "a", "leaf": {"count": 2}}


def test_a_null_part_can_be_set_into() -> None:
    """A key that stands empty in the file takes settings below it."""
    assert _read("name: a\nleaf:\n", "leaf.count=3").leaf.count == 3


@pytest.mark.parametrize(
    ("path", "text"),
    [((), ""), (("a",), "a"), (("a", "b", 0, "c"), "a.b[0].c")],
)
def test_paths_are_written_as_people_write_them(path: tuple[str | int, ...], text: str) -> None:
    """Keys are joined by dots, list places stand in brackets."""
    assert dotted(path) == text


def test_known_keys_go_through_maps_lists_and_optional_parts() -> None:
    """The keys at a path are those of the model there; a path that is none of ours has none."""
    leaf = {"count", "word", "flag", "kind", "mixed", "names"}
    assert known_keys(Root, ()) == {"name", "leaf", "other", "many"}
    assert known_keys(Root, ("other",)) == known_keys(Root, ("many", "any")) == leaf
    assert known_keys(Root, ("name", "x")) == set()


def test_a_python_mapping_has_no_lines() -> None:
    """Faults of a value that came from no file name its source alone."""
    with pytest.raises(InputError, match=r"^spec: name: must be text \(found: 1\): put it in quotes$"):
        validate(Root, Document("spec", {"name": 1}), InputError)
