"""Detection: which profile fits a machine, why the others do not, and that a bad profile breaks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.errors import SiteError
from slurm_llm.sites.detect import Facts, detect, detected_site, explain, facts_of_this_machine, read_file
from slurm_llm.yamlio import Tree

FILES = {"/etc/FZJ/systemname": "jupiter\n", "/empty": "", "/many": "a\nb\n"}
HERE = Facts(("lab7", "lab7.example.org"), {}, lambda path: None)
"""A machine that no packaged profile knows."""

FACTS = Facts(("login1", "login1.hpc.example.org"), {"NERSC_HOST": "perlmutter", "EMPTY": ""}, FILES.get)


@pytest.mark.parametrize(
    ("match", "matched"),
    [
        (None, False),
        ({}, False),
        ({"hostnames": []}, False),
        ({"hostnames": ["login\\d"]}, True),
        ({"hostnames": ["login\\d\\.hpc\\..*"]}, True),
        ({"hostnames": ["login"]}, False),
        ({"hostnames": [".*\\.hpc"]}, False),
        ({"hostnames": ["x", "login1"]}, True),
        ({"env": {"NERSC_HOST": "perl.*"}}, True),
        ({"env": {"NERSC_HOST": "perl"}}, False),
        ({"env": {"ABSENT": ".*"}}, False),
        ({"env": {"EMPTY": ""}}, True),
        ({"env": {"ABSENT": "x", "NERSC_HOST": "perlmutter"}}, True),
        ({"files": {"/etc/FZJ/systemname": "jupiter"}}, True),
        ({"files": {"/etc/FZJ/systemname": "jupiter\\s*"}}, True),
        ({"files": {"/etc/FZJ/systemname": "juwels"}}, False),
        ({"files": {"/absent": ".*"}}, False),
        ({"files": {"/absent": ".*", "/empty": ".*"}}, True),
        ({"files": {"/many": "a.*b"}}, True),
        ({"hostnames": ["login1"], "env": {"NERSC_HOST": "perlmutter"}}, True),
        ({"hostnames": ["login1"], "env": {"NERSC_HOST": "other"}}, False),
        ({"hostnames": ["other"], "env": {"NERSC_HOST": "perlmutter"}}, False),
        ({"hostnames": ["login1"], "env": {}}, True),
        ({"hostnames": ["login1"], "env": ["NERSC_HOST"]}, False),
        ({"hostnames": ["(", "login1"]}, True),
        ({"hostnames": ["("]}, False),
        ({"hostnames": [1]}, False),
        ({"hostnames": "login1"}, False),
        ("login1", False),
    ],
)
def test_every_kind_must_match_and_any_entry_of_it_does(match: Tree, matched: bool) -> None:
    """Expressions match the whole of a name, a value, a file's text; what is not there matches nothing."""
    assert explain(match, FACTS).matched is matched


@pytest.mark.parametrize(
    ("match", "fault"),
    [
        ("x", (("match",), "must be a mapping")),
        ({"hostnames": "x"}, (("match", "hostnames"), "must be a list")),
        ({"env": ["x"]}, (("match", "env"), "must be a mapping")),
        ({"hostnames": ["a", 1]}, (("match", "hostnames", 1), "must be text (found: 1)")),
        ({"env": {"A": "("}}, (("match", "env", "A"), "not a regular expression: missing ), unterminated subpattern")),
    ],
)
def test_an_entry_of_a_wrong_form_is_told(match: Tree, fault: tuple[tuple[str | int, ...], str]) -> None:
    """With its key; it never matches."""
    (found,) = explain(match, FACTS).faults
    assert found.key == fault[0]
    assert found.what.startswith(fault[1])


def test_an_explanation_says_what_was_found() -> None:
    """Each entry with its expression and what it was held against."""
    match: Tree = {
        "hostnames": ["x"],
        "env": {"NERSC_HOST": "x", "ABSENT": "y"},
        "files": {"/etc/FZJ/systemname": "jup.*"},
    }
    found = [
        (check.kind, check.subject, check.pattern, check.found, check.matched) for check in explain(match, FACTS).checks
    ]
    assert found == [
        ("env", "NERSC_HOST", "x", "perlmutter", False),
        ("env", "ABSENT", "y", None, False),
        ("files", "/etc/FZJ/systemname", "jup.*", "jupiter", True),
        ("hostnames", "", "x", "login1, login1.hpc.example.org", False),
    ]


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a user's and an admin's folder."""
    for folder in ("user/slurm_llm/sites", "admin"):
        (tmp_path / folder).mkdir(parents=True)
    return {"XDG_CONFIG_HOME": str(tmp_path / "user"), "SLURM_LLM_SITE_PATH": str(tmp_path / "admin")}


def test_one_profile_fits(tmp_path: Path, environ: dict[str, str]) -> None:
    """Its name is the answer; neither it nor any other profile is validated for that."""
    _write(tmp_path / "admin", "here", "zzz: 1\nlauncher: 3\nmatch: {hostnames: [lab7]}\n")
    detection = detect(environ, HERE)
    assert (detection.matches, detection.problems) == (("here",), ())
    assert detected_site(detection) == "here"


def test_a_users_file_changes_what_its_profile_matches(tmp_path: Path, environ: dict[str, str]) -> None:
    """It is laid over the match as over all else: an own login node is added."""
    _write(tmp_path / "admin", "here", "match: {hostnames: [x]}\n")
    _write(tmp_path / "user/slurm_llm/sites", "here", "match: {hostnames: {append: [lab7]}}\n")
    assert detect(environ, HERE).matches == ("here",)


def test_a_profile_does_not_match_by_its_base(tmp_path: Path, environ: dict[str, str]) -> None:
    """What another profile matches is not inherited, and a base itself is never the answer."""
    _write(tmp_path / "admin", "base-x", "base: true\nmatch: {hostnames: [lab7]}\n")
    _write(tmp_path / "admin", "here", "extends: base-x\n")
    assert detect(environ, HERE).matches == ()


def test_bad_profiles_are_told_and_break_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    """Broken YAML, an unreadable file, a wrong expression: the right profile is found all the same."""
    _write(tmp_path / "admin", "broken", "match: [\n")
    (tmp_path / "admin" / "gone.yaml").symlink_to(tmp_path / "nowhere")
    _write(tmp_path / "admin", "wrong", "name: wrong\nmatch:\n  env:\n    A: '('\n")
    _write(tmp_path / "admin", "zhere", "match: {hostnames: [lab7]}\n")
    detection = detect(environ, HERE)
    assert detected_site(detection) == "zhere"
    found = [str(problem).removeprefix(f"{tmp_path}/admin/") for problem in detection.problems]
    assert [text.partition(": ")[0] for text in found] == ["broken.yaml:2", "gone.yaml", "wrong.yaml:4"]
    assert found[2].startswith("wrong.yaml:4: match.env.A: not a regular expression: ")


@pytest.mark.parametrize(
    ("matching", "message"),
    [
        ((), "--site: no site given, and none matches this machine: add --site NAME, or set SLURM_LLM_SITE: known"),
        (("a", "b"), "--site: no site given, and several match this machine: a, b: add --site NAME"),
    ],
)
def test_none_or_several_is_an_error(
    tmp_path: Path, environ: dict[str, str], matching: tuple[str, ...], message: str
) -> None:
    """It says which, and what is wrong with profiles that could not be looked at."""
    for name in matching:
        _write(tmp_path / "admin", name, "match: {hostnames: [lab7]}\n")
    _write(tmp_path / "admin", "broken", "match: [\n")
    with pytest.raises(SiteError) as caught:
        detected_site(detect(environ, HERE))
    assert str(caught.value.problems[0]).startswith(message)
    assert "broken.yaml" in str(caught.value.problems[1])


@pytest.mark.parametrize(
    ("matching", "message"),
    [
        ((), "no site given, and none matches this machine: name one, or set SLURM_LLM_SITE: known sites: "),
        (("a", "b"), "no site given, and several match this machine: a, b: name one of them"),
    ],
)
def test_a_command_without_the_flag_does_not_name_it(
    tmp_path: Path, environ: dict[str, str], matching: tuple[str, ...], message: str
) -> None:
    """Commands that take a site as a word of its own have no --site."""
    for name in matching:
        _write(tmp_path / "admin", name, "match: {hostnames: [lab7]}\n")
    with pytest.raises(SiteError) as caught:
        detected_site(detect(environ, HERE), asked="")
    assert str(caught.value.problems[0]).startswith(message)


def test_no_packaged_profile_matches_an_unknown_machine() -> None:
    """Their expressions are right, and none is so wide that it takes a stranger for its own."""
    detection = detect({}, HERE)
    assert (detection.matches, detection.problems) == ((), ())
    assert len(detection.candidates) > 3


def test_the_facts_of_this_machine() -> None:
    """Its names, each once, its environment, and files."""
    facts = facts_of_this_machine({"A": "b"})
    assert "." not in facts.hostnames[0]
    assert len(set(facts.hostnames)) == len(facts.hostnames)
    assert (facts.environ["A"], facts.read_file("/nowhere/at/all")) == ("b", None)


def test_files_are_read_with_care(tmp_path: Path) -> None:
    """A folder is an empty text; what is not there, a device or a name that no file can have is none."""
    (tmp_path / "f").write_bytes(b"x\xff" * 100_000)
    text = read_file(str(tmp_path / "f"))
    assert text is not None
    assert (len(text), text[:2]) == (65536, "x\N{REPLACEMENT CHARACTER}")
    assert read_file(str(tmp_path)) == ""
    assert [read_file(path) for path in ("/dev/zero", str(tmp_path / "none"), "a\0b")] == [None, None, None]
