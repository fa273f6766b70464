"""`site check --rehearse` on a real cluster: all is well and nothing stays but the archive, or who failed is named."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.process import Completed
from tests.cluster.background import background
from tests.cluster.conftest import User, wait_for
from tests.cluster.test_site_check import ENV, PARTITION

pytestmark = pytest.mark.cluster


def write_site(user: User, gpus: int) -> str:
    """Write a profile whose nodes have so many GPUs, with a secret, and return its path."""
    profile = {
        "schema_version": 1,
        "name": "own",
        "slurm": {"version": "22.05.8", "kill_wait_s": 10},
        "launcher": {"mpi": "pmix"},
        "network": {"internet": "none"},
        "env": {"set": {**ENV["set"], "MY_TOKEN": "${MY_TOKEN:-tell-nobody-1}"}},
        "partitions": {"own": {**PARTITION, "gpus_per_node": gpus}},
    }
    return str(user.write_spec(profile, "own.yaml"))


def rehearse(user: User, gpus: int, *argv: str) -> tuple[Completed, dict[str, Any], dict[str, str]]:
    """Check such a profile; return also what is in the archive, name → text."""
    done = user.cli("site", "check", write_site(user, gpus), "--rehearse", "--json", *argv, check=False)
    value = json.loads(done.stdout)
    assert Path(value["archive"]).parent == user.folder
    with tarfile.open(value["archive"]) as archive:
        texts = {}
        for one in archive:
            stream = archive.extractfile(one)
            assert stream is not None
            texts[one.name.partition("/")[2]] = stream.read().decode()
    return done, value, texts


def rows_of(value: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the rehearsal's rows by name."""
    return {row["name"]: row for row in value["rehearsal"]["rows"]}


def test_all_is_well_on_two_nodes(user: User) -> None:
    """Ranks on every GPU of both nodes write the known text, and the run directory goes into the archive."""
    done, value, texts = rehearse(user, 2)
    rows = rows_of(value)
    odd = {name: row for name, row in rows.items() if row["verdict"] != "OK"}
    # The nodes of this cluster have GPUs in Slurm's eyes alone.
    assert odd.keys() == {"GPUs"} and odd["GPUs"]["verdict"] == "NOTE", odd
    assert rows["job"]["found"].endswith("2 × 2 ranks, tensor 2 × pipeline 2, on CPUs")
    assert rows["start"]["found"].startswith("all 4 ranks serve, 2 on each of 2 nodes")
    assert "'egilo wobu wila '" in rows["text"]["found"]
    assert rows["leftovers"]["found"].startswith("none: all 2 nodes")
    assert len({one["node"] for one in value["rehearsal"]["ranks"]}) == 2
    assert {"ready"} == {one["state"] for one in value["rehearsal"]["ranks"]}
    assert not Path(value["rehearsal"]["directory"]).exists()
    assert done.stderr.count("ready") == 1
    names = {"README.txt", "check.txt", "check.json", "report.html", "diagnosis.txt", "plan.json", "job.sub"}
    assert names <= texts.keys()
    assert json.loads(texts["check.json"])["rehearsal"] == value["rehearsal"]
    assert "the known one" in texts["check.txt"]
    assert "tell-nobody-1" not in "".join(texts.values())


def test_a_rank_that_fails_is_named(user: User) -> None:
    """The site is told wrong, the run directory stays, and the archive has the diagnosis."""
    done, value, texts = rehearse(user, 1, "--set", "engine_args.fault=rank=1,at=load,kind=raise")
    assert done.returncode == value["exit_code"] == 3
    rows = rows_of(value)
    assert rows.keys() == {"job", "start", "log", "leftovers"}
    assert rows["start"]["verdict"] == "WRONG"
    assert "rank 1 on node" in rows["start"]["found"]
    assert rows["leftovers"]["verdict"] == "OK"
    assert (Path(value["rehearsal"]["directory"]) / "plan.json").is_file()
    assert "rank 1 on node" in texts["diagnosis.txt"]


def test_an_interrupt_ends_the_job(user: User) -> None:
    """Ctrl-C while its ranks load: the nodes are clean (the fixture looks), and what it wrote stays."""
    with background(user, "site", "check", write_site(user, 1), "--rehearse") as running:
        # A short stage may begin and end between two looks.
        stages = [f"  {stage}" for stage in ("starting", "loading", "ready")]
        wait_for("the rehearsal", lambda: any(stage in running.err for stage in stages))
        assert "site-rehearsal" in user.run("squeue", "--noheader", "--format=%j").stdout
        running.interrupt()
        assert running.ended() == 130
    wait_for("job gone", lambda: "site-rehearsal" not in user.run("squeue", "--noheader", "--format=%j").stdout)
    assert len(list(user.folder.glob("logs/site-rehearsal-*"))) == 1
    assert not list(user.folder.glob("*.tar.gz"))
