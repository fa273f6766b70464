"""`slurm-llm site`: what it prints for people and scripts, its exit codes, and that it loads only what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_llm.assets import sites_dir
from slurm_llm.cli import cli
from slurm_llm.cli.site import SITE_COMMANDS
from slurm_llm.sites.load import find_sites
from slurm_llm.yamlio import parse_document

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = """\
schema_version: 1
name: here
description: Two racks of eight-GPU nodes
verified: {state: run, date: 2026-11-01}
match: {env: {LAB_CLUSTER: here}}
launcher: {mpi: pmix}
sbatch_extra: [--mail-type=END]
partitions:
  big: {gpus_per_node: 8, slurm_partition: a, time: {max: "1-00:00:00"}}
  small: {gpus_per_node: 2, slurm_partition: b, launcher: {mpi: pmi2}}
"""


@dataclass
class Desk:
    """A user with profiles of their own and an admin's folder."""

    folder: Path

    def write(self, whose: str, name: str, text: str) -> Path:
        """Write a profile of the user's or the admin's."""
        path = self.folder / (".config/slurm_llm/sites" if whose == "user" else "admin") / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *words: str) -> Result:
        """Run `slurm-llm site`."""
        return CliRunner().invoke(cli, ["site", *words])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk with the profile `here` in the admin's folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_LLM_SITE_PATH", str(tmp_path / "admin"))
    for name in ("XDG_CONFIG_HOME", "SLURM_LLM_SITE", "LAB_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    desk = Desk(tmp_path)
    desk.write("admin", "here", HERE)
    return desk


def test_without_a_command_the_commands_are_shown(desk: Desk) -> None:
    """Each with a line of its own, in the order in which they are used."""
    found = desk.run().output
    assert [
        line.split()[0]
        for line in found.partition("Commands:")[2].splitlines()
        if line.startswith("  ") and line[2] != " "
    ] == list(SITE_COMMANDS)
    assert max(map(len, found.splitlines())) <= 80


def test_a_mistyped_command_is_named(desk: Desk) -> None:
    """With the nearest one, and exit code 2 as for every wrong usage."""
    found = desk.run("detekt")
    assert (found.exit_code, "no command 'detekt': did you mean 'detect'?" in found.stderr) == (2, True)


def test_list_has_a_line_for_each_site(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, folder, how far it was verified, description; a star for this machine; no base among them."""
    monkeypatch.setenv("LAB_CLUSTER", "here")
    desk.write("user", "generic", "python: /x\n")
    desk.write("user", "mine", HERE.replace("name: here", "name: mine").replace("LAB_CLUSTER: here", "X: y"))
    found = desk.run("list")
    assert (found.exit_code, found.stderr) == (0, "")
    lines = {line[1:].split()[0]: line for line in found.stdout.splitlines()}
    assert lines.keys() == {"name", "here", "mine", *find_sites({})}
    assert " ".join(lines["here"].split()) == "* here admin run 2026-11-01 Two racks of eight-GPU nodes"
    assert lines["generic"].split()[:2] == ["generic", "packaged+user"]
    assert lines["mine"].split()[:2] == ["mine", "user"]
    assert [line for line in lines.values() if line.startswith("*")] == [lines["here"]]


def test_list_as_json(desk: Desk) -> None:
    """One array, an object for each site, with the files that it is from."""
    overlay = desk.write("user", "here", "description: Mine\n")
    rows = {row["name"]: row for row in json.loads(desk.run("list", "--json").stdout)}
    assert rows["here"] == {
        "name": "here",
        "description": "Mine",
        "verified": {"state": "run", "date": "2026-11-01"},
        "folder": "admin",
        "path": str(desk.folder / "admin" / "here.yaml"),
        "overlay": str(overlay),
        "matches": False,
    }
    assert rows["devcluster"]["path"] == str(sites_dir() / "devcluster.yaml")


def test_a_file_of_another_ending_is_a_warning_of_list(desk: Desk) -> None:
    """It would be passed over in silence else."""
    path = desk.write("admin", "there", HERE).rename(desk.folder / "admin" / "there.yml")
    found = desk.run("list")
    todo = "this file is not read: names of profiles end in .yaml: rename it to there.yaml"
    assert (found.exit_code, found.stderr) == (0, f"warning: {path}: {todo}\n")
    assert "there" not in {line[1:].split()[0] for line in found.stdout.splitlines()}


def test_a_broken_profile_is_a_warning_of_list(desk: Desk) -> None:
    """The others are listed all the same, and so is its name."""
    desk.write("admin", "broken", "name: [\n")
    desk.write("admin", "odd", "description: 3\nverified: yes\nname: [a]\n")
    found = desk.run("list")
    assert found.exit_code == 0
    assert found.stderr.startswith(f"warning: {desk.folder}/admin/broken.yaml:2: not readable as YAML")
    assert "warning: " in found.stderr.splitlines()[-1]
    assert {"broken", "here", "odd"} <= {line[1:].split()[0] for line in found.stdout.splitlines()}


def test_show_is_a_profile_that_can_be_loaded(desk: Desk) -> None:
    """Values as YAML below the files that they are from; null and empty defaults only with --all."""
    user = desk.write("user", "here", "python: /mine\n")
    found = desk.run("show", "here")
    assert found.exit_code == 0
    head = [line for line in found.stdout.splitlines() if line.startswith("#")]
    assert head[:3] == ["# site here", f"# from {desk.folder}/admin/here.yaml", f"# from {user}"]
    value = parse_document(found.stdout, "shown").value
    assert (value["python"], value["slurm"]) == ("/mine", {"kill_wait_s": 30, "node_daemon": "slurmd"})
    assert "storage" in value
    assert "docs_url" not in value
    copy = desk.write("admin", "copy", found.stdout)
    assert desk.run("diff", "here", str(copy)).stderr == "no difference\n"
    everything = desk.run("show", "here", "--all").stdout
    assert "docs_url: null" in everything
    assert "--all" not in everything


def test_show_of_a_partition_is_what_a_job_there_finds(desk: Desk) -> None:
    """The partition's changes are laid over the site's, and the other partitions are gone."""
    value = parse_document(desk.run("show", "here:small").stdout, "shown").value
    assert isinstance(value["launcher"], dict)
    assert isinstance(value["partitions"], dict)
    assert value["launcher"]["mpi"] == "pmi2"
    assert list(value["partitions"]) == ["small"]
    found = desk.run("show", "here:tiny")
    assert (found.exit_code, found.stdout) == (3, "")
    assert found.stderr == "error: here:tiny: site here has no partition 'tiny': its partitions: big, small\n"


def test_show_origin_names_file_and_line_of_each_value(desk: Desk) -> None:
    """Packaged files by their name, the home as ~, defaults as such; a partition's line where it changes a value."""
    desk.write("user", "here", "sbatch_extra: {append: [--comment=x]}\n")
    lines = desk.run("show", "here", "--origin").stdout.splitlines()
    rows = {line.partition(" = ")[0]: " ".join(line.partition(" = ")[2].split()) for line in lines if " = " in line}
    assert rows["launcher.mpi"] == "pmix # ~/admin/here.yaml:6"
    assert rows["slurm.kill_wait_s"] == "30 # default"
    assert rows["sbatch_extra[0]"] == "--mail-type=END # ~/admin/here.yaml:7"
    assert rows["sbatch_extra[1]"] == "--comment=x # ~/.config/slurm_llm/sites/here.yaml:1"
    assert "docs_url" not in rows
    part = desk.run("show", "here:small", "--origin").stdout
    assert "launcher.mpi = pmi2                           # ~/admin/here.yaml:10\n" in part
    packaged = desk.run("show", "generic", "--origin").stdout
    assert "launcher.mpi = pmix                           # generic.yaml:" in packaged


def test_show_as_json_has_every_key(desk: Desk) -> None:
    """Also null ones; with --origin a list of values with the whole path of their file."""
    value = json.loads(desk.run("show", "here", "--json").stdout)
    assert (value["docs_url"], value["slurm"]["kill_wait_s"], value["sources"]) == (None, 30, [])
    rows = {row["key"]: row for row in json.loads(desk.run("show", "here", "--origin", "--json").stdout)}
    path = desk.folder / "admin" / "here.yaml"
    assert rows["launcher.mpi"] == {"key": "launcher.mpi", "value": "pmix", "origin": f"{path}:6"}
    assert rows["docs_url"] == {"key": "docs_url", "value": None, "origin": "default"}


def test_show_without_a_name_is_the_site_of_a_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """By variable or by what this machine is; a partition can be given all the same; a path may hold a colon."""
    monkeypatch.setenv("LAB_CLUSTER", "here")
    assert desk.run("show").stdout.startswith("# site here\n")
    assert desk.run("show", ":big").stdout.startswith("# site here, partition big\n")
    monkeypatch.setenv("SLURM_LLM_SITE", "generic")
    assert desk.run("show").stdout.startswith("# site generic\n")
    path = desk.write("admin", "a:b", HERE)
    assert desk.run("show", str(path)).stdout.startswith("# site here\n")
    assert desk.run("show", f"{path}:big").stdout.startswith("# site here, partition big\n")


@pytest.mark.parametrize("words", [("show", "heer"), ("diff", "here", "heer"), ("diff", "heer", "here")])
def test_an_unknown_name_is_told(desk: Desk, words: tuple[str, ...]) -> None:
    """As for a job, with the nearest one."""
    found = desk.run(*words)
    assert found.exit_code == 3
    assert found.stderr.startswith("error: heer: unknown site 'heer': did you mean 'here'?: known sites: here, ")
    assert found.stderr.endswith(" more: slurm-llm site list\n")


def test_detect_prints_the_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone on stdout, for scripts; a bad profile is a warning."""
    monkeypatch.setenv("LAB_CLUSTER", "here")
    desk.write("admin", "broken", "[\n")
    found = desk.run("detect")
    assert (found.exit_code, found.stdout) == (0, "here\n")
    assert "warning: " in found.stderr


def test_detect_fails_where_none_or_several_match(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3, and what to do."""
    found = desk.run("detect")
    assert (found.exit_code, found.stdout) == (3, "")
    assert "none matches this machine" in found.stderr
    monkeypatch.setenv("LAB_CLUSTER", "here")
    desk.write("admin", "there", "match: {env: {LAB_CLUSTER: h.*}}\n")
    found = desk.run("detect")
    assert (found.exit_code, "several match this machine: here, there: name one of them" in found.stderr) == (3, True)


def test_detect_explains(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry of every match with what was found, those that fit first; at most 80 columns."""
    monkeypatch.setenv("LAB_CLUSTER", "here")
    long = "a-very-long-name-of-a-login-node-\\d+\\.cluster\\.of\\.some\\.university\\.example\\.org"
    desk.write("admin", "other", f"match:\n  hostnames: ['{long}']\n  files: {{/nowhere/at/all: x}}\n")
    lines = desk.run("detect", "--explain").stdout.splitlines()
    assert lines[0].startswith("host names: ")
    assert lines[2:4] == ["here: matches", "  yes  variable LAB_CLUSTER is here, matches here"]
    assert "  no   file /nowhere/at/all is not there, wanted x" in lines
    assert any(line.startswith("no `match`: ") for line in lines)
    assert lines[-1] == "here"
    assert max(map(len, lines)) <= 80


def test_detect_as_json(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer, and why, as one object; the exit code says whether there is one."""
    found = desk.run("detect", "--json")
    assert (found.exit_code, json.loads(found.stdout)["site"]) == (3, None)
    monkeypatch.setenv("LAB_CLUSTER", "here")
    found = desk.run("detect", "--json")
    value = json.loads(found.stdout)
    assert (found.exit_code, value["site"], value["matches"], value["problems"]) == (0, "here", ["here"], [])
    profile = next(one for one in value["profiles"] if one["name"] == "here")
    assert profile["checks"] == [
        {"kind": "env", "subject": "LAB_CLUSTER", "pattern": "here", "found": "here", "matched": True}
    ]


def test_diff_shows_what_differs(desk: Desk) -> None:
    """A table of keys; long values have lines of their own; what is not set is told from null; at most 80 columns."""
    text = HERE.replace("pmix", "null").replace("name: here", "name: there").replace("[--mail-type=END]", "[]")
    desk.write("admin", "there", text + f"storage: {{models: /{'m' * 60}}}\n")
    found = desk.run("diff", "here", "there")
    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        "key           here               there",
        "launcher.mpi  pmix               null",
        "storage.models",
        "  - not set",
        f"  + /{'m' * 60}",
        "sbatch_extra  [--mail-type=END]  []",
    ]
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_diff_of_partitions(desk: Desk) -> None:
    """Two partitions of any site, under one name for both."""
    lines = [" ".join(line.split()) for line in desk.run("diff", "here:big", "here:small").stdout.splitlines()]
    assert lines == [
        "key here:big here:small",
        "partition.slurm_partition a b",
        "partition.gpus_per_node 8 2",
        "partition.time.max 1-00:00:00 not set",
        "launcher.mpi pmix pmi2",
    ]


def test_diff_as_json(desk: Desk) -> None:
    """Values as they are, with their origin; a key that one side does not have is null."""
    desk.write(
        "admin",
        "there",
        HERE.replace("name: here", "name: there").replace("launcher: {mpi: pmix}", "env: {set: {A: 1}}"),
    )
    rows = {row["key"]: row for row in json.loads(desk.run("diff", "here", "there", "--json").stdout)}
    path = desk.folder / "admin"
    assert rows["launcher.mpi"]["a"] == {"value": "pmix", "origin": f"{path}/here.yaml:6"}
    assert rows["launcher.mpi"]["b"] == {"value": None, "origin": "default"}
    assert rows["env.set.A"] == {"key": "env.set.A", "a": None, "b": {"value": 1, "origin": f"{path}/there.yaml:6"}}
    assert json.loads(desk.run("diff", "here", "here", "--json").stdout) == []


def test_schema_is_json(desk: Desk) -> None:
    """For editors."""
    assert json.loads(desk.run("schema").stdout)["title"] == "Site profile of slurm_llm"


@pytest.mark.parametrize("command", [name for name, (module, _) in SITE_COMMANDS.items() if module == "site"])
def test_help_of_each_command(desk: Desk, command: str) -> None:
    """It fits 80 columns."""
    found = desk.run(command, "--help")
    assert found.exit_code == 0
    assert max(map(len, found.stdout.splitlines())) <= 80


HEAVY = {"pydantic", "pydantic_core", "jinja2", "httpx", "rich", "ssl"}


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        ("--help", HEAVY | {"yaml", "slurm_llm.sites.find", "slurm_llm.cli.siteview"}),
        ("show --help", HEAVY | {"yaml", "slurm_llm.sites.find", "slurm_llm.cli.siteview"}),
        ("list", HEAVY | {"slurm_llm.sites.load", "slurm_llm.sites.diff", "slurm_llm.sites.jsonschema"}),
        ("detect --json", HEAVY | {"slurm_llm.sites.load", "slurm_llm.sites.diff", "slurm_llm.sites.jsonschema"}),
        ("schema", {"jinja2", "httpx", "rich", "ssl", "slurm_llm.sites.load", "slurm_llm.cli.siteview"}),
        ("show generic", {"jinja2", "httpx", "rich", "ssl", "slurm_llm.sites.diff", "slurm_llm.sites.jsonschema"}),
    ],
)
def test_a_command_loads_only_what_it_needs(words: str, unwanted: set[str]) -> None:
    """Listing and detecting validate nothing, help reads nothing, and no command loads another's modules."""
    program = (
        "import sys; from slurm_llm.cli import main\ntry: main(['site', *sys.argv[1:]])\nfinally: print(*sys.modules)"
    )
    command = [sys.executable, "-c", program, *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    loaded = set(done.stdout.split())
    assert "slurm_llm.cli.site" in loaded, done.stderr
    assert not unwanted & loaded
    assert not {"slurm_llm.cli.sitetools", "slurm_llm.cli.sitecheck"} & loaded
