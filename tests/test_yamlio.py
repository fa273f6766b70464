"""YAML is read as YAML 1.2 reads it, every bad file is one sentence, and what is written is read back."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.errors import InputError, SpecError
from slurm_llm.yamlio import MAX_BYTES, Document, Tree, dump, load_document, parse_document, parse_scalar

NOBODY = 65534
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
NUMBERLIKE = st.from_regex(r"[-+]?[0-9.]{1,4}([eE:_xo][-+]?[0-9a-f]{0,3})?", fullmatch=True)
KEYS = TEXTS.filter(lambda key: key != "<<")
TREES = st.recursive(
    SCALARS | NUMBERLIKE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("04:00:00", "04:00:00"),
        ("1-00:00:00", "1-00:00:00"),
        ("no", "no"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("010", "010"),
        ("0x1f", "0x1f"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ('"12"', "12"),
        ("!!str 12", "12"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Tree) -> None:
    """A time, a date, `no` and an octal number stay text; numbers, booleans and null are themselves."""
    assert parse_document(f"key: {text}", "f").value == {"key": value}
    assert parse_scalar(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: the file is empty, or holds comments only: it must hold `key: value` lines: is this the right"),
        ("# a comment\n", "f.yaml: the file is empty, or holds comments only: it must hold `key: value` lines: is"),
        ("- a\n- b\n", "f.yaml: the file holds a list: it must hold `key: value` lines"),
        ("word\n", "f.yaml: the file holds a single value: it must hold `key: value` lines"),
        (
            "a: 1\nb: 2\na: 3\n",
            "f.yaml:3: not readable as YAML: key 'a' stands twice (first on line 1): remove one: correct this line",
        ),
        ("a:\n\tb: 2\n", "f.yaml:2: not readable as YAML: a tab: indent with spaces: correct this line"),
        (
            "a: 1\n---\nb: 2\n",
            "f.yaml:2: not readable as YAML: a second document begins here: only one is read: correct this line",
        ),
        ("a: b: c\n", "f.yaml:1: not readable as YAML: a second `: ` in one line: put the value in quotes: correct"),
        ("a: 1\n  b: 2\n", "f.yaml:2: not readable as YAML: indented differently from the lines around it: correct"),
        ("a:\n    b: 1\n  c: 2\n", "f.yaml:3: not readable as YAML: indented differently from the lines around it"),
        ("  a: 1\nb: 2\n", "f.yaml:2: not readable as YAML: indented differently from the lines around it"),
        ("a:\n  - x\n  b: 1\n", "f.yaml:3: not readable as YAML: a list and keys at the same depth"),
        ("a:\n  b: 1\n  - x\n", "f.yaml:3: not readable as YAML: a list and keys at the same depth"),
        ("a:1\nb: 2\n", "f.yaml:2: not readable as YAML: the line above is no `key: value`: a colon and a blank are"),
        ("a: 1\nword\nb: 2\n", "f.yaml:3: not readable as YAML: the line above is no `key: value`"),
        ('a: "\\d+"\n', "f.yaml:1: not readable as YAML: a backslash in double quotes: use single quotes, as '\\d+'"),
        ("a: 'x' y\n", "f.yaml:1: not readable as YAML: text after the end of a value: put the whole value in quotes"),
        ("a: @x\n", "f.yaml:1: not readable as YAML: a value that begins with a special character: put it in quotes"),
        ("a: [b\nc: 1\n", "f.yaml:2: not readable as YAML: a bracket that was opened above is not closed: correct it"),
        ('a: "b\nc: 1\n', "f.yaml:3: not readable as YAML: a quote that was opened above is not closed: correct it"),
        ("<<: {}\n", "f.yaml:1: not readable as YAML: merge keys (<<) are not supported: write the keys out"),
        ("1.5: a\n", "f.yaml:1: not readable as YAML: a key must be text"),
        ("? [a]\n: b\n", "f.yaml:1: not readable as YAML: a key must be text"),
        ("~: b\n", "f.yaml:1: not readable as YAML: a key must be text"),
        ("a: !!timestamp x\n", "f.yaml:1: not readable as YAML: the tag !!timestamp is not supported here"),
        ("a: !!bool maybe\n", "f.yaml:1: not readable as YAML: the tag !!bool is not supported here"),
        ("a: !!set {b}\n", "f.yaml:1: not readable as YAML: the tag !!set is not supported here"),
        ("a: !!python/object/apply:os.system [id]\n", "the tag !!python/object/apply:os.system is not supported"),
        ("a: " + "9" * 5000, "f.yaml:1: not readable as YAML: a number of more than 400 digits"),
        ("a: " + "[" * 20_000, "f.yaml: not readable as YAML: lists or mappings nested too deeply"),
        (
            "a: &a [*a]\n",
            "f.yaml: not readable as YAML: lists or mappings nested too deeply, or an alias inside itself",
        ),
        ("a: \x00\n", "f.yaml: not readable as YAML: a control character: is this the right file?"),
    ],
)
def test_a_bad_text_is_one_sentence(text: str, message: str) -> None:
    """Every text that is no mapping is refused with the file, the line where there is one, and what to do."""
    with pytest.raises(SpecError) as caught:
        parse_document(text, "f.yaml", SpecError)
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_aliases_cannot_grow_without_bound() -> None:
    """A small file whose aliases multiply to 9^9 values is refused, and quickly."""
    names = "abcdefghi"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in pairwise(names)]
    with pytest.raises(InputError, match="more than 100000 values"):
        parse_document("\n".join(lines), "f")


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"\xef\xbb\xbfname: a\n", {"name": "a"}),
        (b"name: a\r\nprologue: |\r\n  one\r\n  two\r\n", {"name": "a", "prologue": "one\ntwo\n"}),
        ("name: über\n".encode(), {"name": "über"}),
    ],
)
def test_what_editors_leave_in_files_is_read(tmp_path: Path, content: bytes, value: Tree) -> None:
    """A byte order mark, DOS line ends and UTF-8 are read."""
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    assert load_document(path).value == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\n" * (MAX_BYTES * 2), "the file has more than 1048576 bytes: at most 1 MiB: is this the right file?"),
        (b"name: \xff\xfe\n", "not UTF-8 text (byte 6): is this the right file?"),
        (b"\x7fELF\x02\x01\x00\x00", "not readable as YAML: a control character: is this the right file?"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """10 MB, a program and another encoding each get one sentence."""
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_document(path)
    assert str(caught.value) == f"{path}: {message}"


def test_paths_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A directory and a missing file each get the system's reason."""
    with pytest.raises(InputError, match="cannot be read: Is a directory: check the path"):
        load_document(tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file or directory: check the path"):
        load_document(tmp_path / "missing.yaml")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """A file without read permission gets the system's reason."""
    path = tmp_path / "spec.yaml"
    path.write_text("name: a\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)  # root reads everything
    try:
        with pytest.raises(InputError, match="cannot be read: Permission denied: check the path"):
            load_document(path)
    finally:
        os.seteuid(user)


def test_an_endless_device_is_no_trap() -> None:
    """A device without an end is read no further than the limit."""
    with pytest.raises(InputError, match="/dev/zero: the file has more than"):
        load_document(Path("/dev/zero"))


def test_every_key_has_its_line() -> None:
    """Nested keys and list items know their line; an unknown path falls back to its parent, then to the file."""
    document = parse_document("a: 1\nb:\n  c: 2\n  d:\n    - x\n    - y\n", "f")
    assert document.where(("a",)) == "f:1"
    assert document.where(("b", "c")) == "f:3"
    assert document.where(("b", "d", 1)) == "f:6"
    assert document.where(("b", "missing")) == "f:2"
    assert document.where(("missing",)) == "f"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("#1 model", "#1 model"),
        ("a: b: c", "a: b: c"),
        ("{nodes: 2}", {"nodes": 2}),
        ("[a", "[a"),
        ("[" * 5000, "[" * 5000),
        ("*x", "*x"),
        ("!!bool maybe", "!!bool maybe"),
        ("\udcff", "\udcff"),
    ],
)
def test_a_flag_that_is_no_yaml_is_its_text(text: str, value: Tree) -> None:
    """The value of a `--set` is YAML where it is YAML, else the text as given."""
    assert parse_scalar(text) == value


@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_what_is_written_is_read_back(value: dict[str, Tree]) -> None:
    """Reading inverts writing for every tree of plain values, texts that look like numbers included."""
    if value:
        assert parse_document(dump(value), "f").value == value


def test_a_value_that_occurs_twice_is_written_twice() -> None:
    """People read these files: no anchors."""
    shared = ["x"]
    assert dump({"a": shared, "b": shared}) == "a:\n- x\nb:\n- x\n"


def test_a_setting_is_named_instead_of_a_line() -> None:
    """What a flag gave is located by the flag."""
    assert Document("f", {"a": {"b": 1}}, {("a",): 4, ("a", "b"): 0}).where(("a", "b")) == "--set a.b"
