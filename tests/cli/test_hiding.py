"""Secrets of a site's profile: jobs get them, and no command shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_llm.yamlio import Tree, dump
from tests.cli.test_cli import Desk

TOKEN = "hf_" + "a1B2c3D4" * 3
PASSWORD, ADDRESS, KEY = "correct-horse", "battery-staple", "wandb-key-of-ours"
SITE: dict[str, Tree] = {
    "schema_version": 1,
    "name": "leaky",
    "partitions": {"gpu": {"gpus_per_node": 4, "cpus": {"per_node": 32}}},
    "launcher": {"mpi": "pmix"},
    "network": {"internet": "proxy", "proxy": {"https": f"http://me:{ADDRESS}@proxy:3128"}},
    "env": {"set": {"HF_TOKEN": TOKEN, "DB_PASSWORD": PASSWORD, "NCCL_DEBUG": "WARN"}},
    "prologue": f"export WANDB_API_KEY={KEY}",
}
SHOWING = [
    *(["site", "show", "leaky.yaml"], ["site", "show", "leaky.yaml", "--json"], ["site", "lint", "leaky.yaml"]),
    *(["site", "show", "leaky.yaml", "--origin"], ["site", "show", "leaky.yaml", "--origin", "--json"]),
    *(["plan", "demo.yaml", "--site", "leaky.yaml"], ["plan", "demo.yaml", "--site", "leaky.yaml", "--json"]),
    *(["validate", "demo.yaml", "--site", "leaky.yaml"], ["submit", "demo.yaml", "--site", "leaky.yaml", "--dry-run"]),
    ["submit", "demo.yaml", "--site", "leaky.yaml", "--dry-run", "--json"],
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory with a profile that holds secrets."""
    made = Desk(tmp_path, monkeypatch)
    (made.folder / "leaky.yaml").write_text(dump(SITE))
    made.spec.write_text("name: demo\nengine: rehearsal\n")
    return made


@pytest.mark.parametrize("words", SHOWING, ids=" ".join)
def test_no_command_shows_them(desk: Desk, words: list[str]) -> None:
    """What is not secret stays, and JSON stays JSON."""
    done = desk.run(*words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    shown = done.stdout + done.stderr
    assert not [secret for secret in (TOKEN, PASSWORD, ADDRESS, KEY) if secret in shown]
    if "--json" in words:
        json.loads(done.stdout)
    if words[1] == "show":
        assert "(hidden)" in shown
        assert "WARN" in shown


def test_jobs_get_them(desk: Desk) -> None:
    """The files that are submitted are whole, and their owner's alone."""
    done = desk.run("submit", "demo.yaml", "--site", "leaky.yaml", "--json")
    script = Path(json.loads(done.stdout)["directory"]) / "job.sub"
    assert all(secret in script.read_text() for secret in (TOKEN, PASSWORD, KEY))
    assert script.stat().st_mode & 0o077 == 0


def test_a_plan_without_secrets_is_shown_as_it_is_written(desk: Desk) -> None:
    """`--dry-run` says exactly what would be written."""
    dry = desk.run("submit", "demo.yaml", "--site", "devcluster", "--dry-run", "--json")
    files = json.loads(dry.stdout)["files"]
    made = json.loads(desk.run("submit", "demo.yaml", "--site", "devcluster", "--json").stdout)["directory"]
    assert files["rank.sh"] == (Path(made) / "rank.sh").read_text()
