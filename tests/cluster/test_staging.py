"""`staging` on a real Slurm: each node gets its copy before the ranks start, and loses it with the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Spec, User, wait_for

pytestmark = pytest.mark.cluster

COPY = (
    'cd "$(echo /tmp/llmstage-*/weights-????????)" && find . -type f -printf "%P %s\\n" | sort; touch "$OLDPWD/seen"; '
)

SLOW = """\
#!/bin/bash
if [[ " $* " == *" stage "* ]]; then
    trap "exit 143" TERM
    while :; do sleep 0.2; done
fi
exec python3 "$@"
"""


def staged(user: User, **more: Any) -> Spec:
    """Two nodes with a rank each, whose model's folder has a file behind a link."""
    source = user.folder / "weights"
    if not source.exists():
        (source / "original").mkdir(parents=True)
        (user.folder / "blob").write_bytes(b"b" * 3_000_000)
        (source / "model.safetensors").symlink_to(user.folder / "blob")
        (source / "config.json").write_text("{}")
        (source / "original" / "model.pth").write_bytes(b"p" * 1000)
    staging = {"exclude": ["original"], **more.pop("staging", {})}
    resources = {"nodes": 2, "gpus_per_node": 1, "time": "00:05:00"}
    spec = {"name": "staged", "engine": "rehearsal", "tensor_parallel_size": 2, "resources": resources}
    return {**spec, "model": str(source), "staging": staging, **more}


def copies(user: User) -> list[str]:
    """Return what is in folders of copies, on every node."""
    found = []
    for node in user.cluster.nodes:
        rows = user.cluster.on_node(node, "bash", "-c", "ls -d /tmp/llmstage-*/* 2>/dev/null").stdout.split()
        found += [f"{node}:{row}" for row in rows]
    return found


def test_copies_are_made_kept_found_again_and_removed(user: User) -> None:
    """The first job keeps them, the second finds them; once the source is another they are made anew, and go."""
    first = user.submit(staged(user, staging={"keep": True}, client={"command": ["bash", "-c", COPY]}))
    result = first.wait_ended()
    assert result["state"] == "COMPLETED", first.output()
    assert (first.job / "client.0.log").read_text() == "config.json 2\nmodel.safetensors 3000000\n"
    assert "staging: 3.0 MB on each of 2 nodes in " in first.output()
    assert result["phases"]["stage_s"] > 0
    assert len([row for row in copies(user) if row.endswith(".json")]) == 2
    again = user.submit(staged(user, client={"command": ["true"]}))
    assert again.wait_ended()["state"] == "COMPLETED"
    assert ", there already on 2" in again.output()
    (user.folder / "weights" / "config.json").write_text('{"new": 1}')
    last = user.submit(staged(user, client={"command": ["bash", "-c", COPY]}))
    assert last.wait_ended()["state"] == "COMPLETED"
    assert (last.job / "client.0.log").read_text().startswith("config.json 10\n")
    assert copies(user) == []


def test_a_node_without_room_is_named(user: User) -> None:
    """Before anything is copied, with both figures; no rank is started, and status says what to do."""
    spec = staged(user)
    with (user.folder / "blob").open("r+b") as stream:
        stream.truncate(8_000_000_000_000)
    run = user.submit(spec)
    result = run.wait_ended()
    assert (result["state"], result["diagnosis"]["kind"]) == ("FAILED", "staging")
    node = result["diagnosis"]["node"]
    assert result["cause"].startswith(f"node {node}: /tmp/llmstage-")
    assert "needs 8000.0 GB" in result["cause"]
    assert not list(run.attempt.glob("rank-*.log"))
    status = json.loads(run.cli("status", "--json").stdout)
    assert "staging.to" in " ".join(status["remedies"])
    assert copies(user) == []


def test_cancel_ends_a_copy_under_way(user: User) -> None:
    """Nothing half is left, and the run says that it was told to stop."""
    run = user.submit({**staged(user), "site": {"python": str(slow_python(user))}})
    wait_for("staging", lambda: any(item["kind"] == "staging" for item in run.records()), 30)
    run.cli("cancel")
    assert run.wait_ended()["state"] == "CANCELLED"
    assert copies(user) == []


def slow_python(user: User) -> Path:
    """Return a Python that never comes to copy anything."""
    path = user.folder / "python"
    path.write_text(SLOW)
    path.chmod(0o755)
    return path
