"""`site lint` and `site init` as commands: exit codes, JSON, what is written and what is never overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_llm.cli import cli
from slurm_llm.yamlio import load_document

GOOD = """
schema_version: 1
name: here
verified: {state: documentation, date: "2026-11-01"}
sources: [https://example.org]
partitions: {gpu: {gpus_per_node: 4, cpus: {per_node: 32}}}
launcher: {mpi: pmix}
"""
ANSWERS = {
    "scontrol": """case "$*" in
*partition*) echo "PartitionName=gpu Default=YES DefaultTime=01:00:00 MaxTime=1-00:00:00 State=UP" ;;
*config*) printf 'ClusterName = Example\\nSLURM_VERSION = 23.11.4\\nSelectType = select/cons_tres\\n' ;;
*) echo "NodeName=n1 Arch=x86_64" ;;
esac""",
    "sinfo": "printf 'gpu\\037idle\\0372\\03764\\037512000\\0372\\03732\\0371\\037n[1-2]\\037gpu:4\\037(null)\\n'",
    "srun": 'case "$*" in *mpi*) echo pmix ;; *) echo "      --container-image=IMAGE" ;; esac',
    "sacctmgr": "echo 'Slurm accounting storage is disabled' >&2; exit 1",
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home and working folder, with a Slurm of small programs on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in ANSWERS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "SLURM_LLM_SITE", "SLURM_LLM_SITE_PATH", "SCRATCH", "PSCRATCH", "WORK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(*argv: str) -> Result:
    return CliRunner().invoke(cli, ["site", *argv])


def test_lint_tells_every_finding_of_every_file(desk: Path) -> None:
    """A file that is no YAML does not hide the next one; the last line counts."""
    (desk / "here.yaml").write_text(GOOD)
    (desk / "bad.yaml").write_text("a: [\n")
    (desk / "worse.yaml").write_text(GOOD.replace("4", "four").replace("name: here", "name: worse") + "nonsense: 1\n")
    done = _run("lint", "here.yaml")
    assert (done.exit_code, done.stdout) == (0, "1 file: 0 errors, 0 warnings\n")
    done = _run("lint", "bad.yaml", "worse.yaml", "here.yaml", "none.yaml")
    assert done.exit_code == 3
    lines = done.stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:-1]] == [
        "[unreadable]",
        "[wrong-value]",
        "[unknown-key]",
        "[unreadable]",
    ]
    assert lines[1].startswith("worse.yaml:6: error: partitions.gpu.gpus_per_node: must be a whole number")
    assert lines[-1] == "4 files: 4 errors, 0 warnings"


def test_warnings_are_errors_only_when_they_are_to_be(desk: Path) -> None:
    """Without --strict a warning is told, and the exit status stays 0."""
    (desk / "here.yaml").write_text(GOOD.replace("mpi: pmix", "step: {}"))
    done = _run("lint", "here.yaml")
    assert (done.exit_code, "several-nodes-without-mpi" in done.stdout) == (0, True)
    assert _run("lint", "--strict", "here.yaml").exit_code == 3
    (desk / "here.yaml").write_text(GOOD)
    assert _run("lint", "--strict", "here.yaml").exit_code == 0


def test_lint_as_json(desk: Path) -> None:
    """One object; a finding has its file and line apart."""
    (desk / "here.yaml").write_text(GOOD + "storage: {logs: /tmp/x}\n")
    done = _run("lint", "--json", "here.yaml")
    value = json.loads(done.stdout)
    assert (done.exit_code, value["files"]) == (3, ["here.yaml"])
    (finding,) = value["findings"]
    assert (finding["severity"], finding["rule"]) == ("error", "logs-on-one-node")
    assert (finding["file"], finding["line"]) == ("here.yaml", 8)
    assert set(finding) == {"severity", "rule", "file", "line", "what", "allowed", "todo"}


def test_a_users_file_over_a_packaged_profile_lacks_nothing(desk: Path) -> None:
    """What is laid over another profile is linted with it, under the name that was given."""
    own = desk / ".config/slurm_llm/sites/generic.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("network: {ports: 100-200}\n")
    done = _run("lint", str(own))
    assert f"{own}:1: error: network.ports 100-200 begins below 1024" in done.stdout
    assert "1 file: 1 error," in done.stdout


def test_init_writes_a_profile_that_lints(desk: Path) -> None:
    """Into the user's own folder, under the cluster's name; the next commands are said; nothing is overwritten."""
    done = _run("init")
    path = desk / ".config/slurm_llm/sites/example.yaml"
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"wrote {path}"
    assert "slurm-llm site check example" in done.stdout
    text = path.read_text()
    assert "Not told by `sacctmgr show assoc`" in text
    value = load_document(path).value
    assert (value["name"], value["container"]) == ("example", {"runtime": "pyxis"})
    assert _run("lint", str(path)).exit_code == 0
    assert "example" in _run("list").stdout
    again = _run("init")
    assert again.exit_code == 3
    assert "this file exists" in again.stderr
    assert path.read_text() == text


def test_init_writes_where_it_is_told(desk: Path) -> None:
    """A file of its own name, or standard output; a name that another profile has stands alone."""
    assert _run("init", "--out", "mine.yaml").exit_code == 0
    assert load_document(desk / "mine.yaml").value["name"] == "mine"
    done = _run("init", "--out", "-", "--name", "generic")
    assert "standalone: true" in done.stdout
    assert done.stdout.endswith("\n")
    assert not (desk / ".config").exists()
    done = _run("init", "--name", "../x")
    assert (done.exit_code, "cannot be the name of a profile" in done.stderr) == (3, True)


def test_init_warns_of_a_file_that_no_name_finds(desk: Path) -> None:
    """A profile is found by its file's name: another one inside is written, and warned of."""
    done = _run("init", "--name", "mycluster", "--out", "draft.yaml")
    what = "--name is mycluster, and --out is called draft.yaml: in a folder of profiles the file must be called "
    assert (done.exit_code, done.stderr) == (0, f"warning: {what}mycluster.yaml\n")
    assert load_document(desk / "draft.yaml").value["name"] == "mycluster"
    assert _run("init", "--name", "same", "--out", "same.yaml").stderr == ""


def test_lint_judges_images_by_their_runtimes_grammar(desk: Path) -> None:
    """The image, every alias and the mounts, each with its line and the form to write."""
    rules = "container:\n  runtime: pyxis\n  image: nvcr.io/x/y:1\n  images:\n    a: /images/x.sif\n  mounts: [data]\n"
    (desk / "here.yaml").write_text(GOOD + rules)
    done = _run("lint", "here.yaml")
    lines = [line.rpartition(" [") for line in done.stdout.splitlines()]
    assert [(head.split(": ")[0], rule) for head, _, rule in lines[:-1]] == [
        ("here.yaml:10", "image-not-taken]"),
        ("here.yaml:12", "image-not-taken]"),
        ("here.yaml:13", "mount-not-taken]"),
    ]
    assert lines[0][0].endswith(": write nvcr.io#x/y:1")


def test_lint_of_a_name_names_the_file(desk: Path) -> None:
    """`site lint` takes files, unlike the other commands."""
    (desk / "here.yaml").write_text(GOOD)
    done = _run("lint", "here")
    told = "here: error: there is no such file, and files are checked, not names: did you mean here.yaml? [unreadable]"
    assert (done.exit_code, done.stdout.splitlines()[0]) == (3, told)


def test_init_without_slurm_says_so(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is written where there is no cluster."""
    monkeypatch.setenv("PATH", "/nonexistent")
    done = _run("init")
    assert (done.exit_code, "scontrol" in done.stderr) == (5, True)
    assert not (desk / ".config").exists()
