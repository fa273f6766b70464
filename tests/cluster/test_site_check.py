"""`site check` on a real cluster, as its ordinary user: the shipped profile is right, each wrong one is told why."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from slurm_llm.process import Completed
from tests.cluster.conftest import User, wait_for

pytestmark = pytest.mark.cluster

Row = dict[str, str]
PARTITION: dict[str, Any] = {
    "slurm_partition": "batch",
    "gpus_per_node": 4,
    "gpu_request": {"style": "gres"},
    "cpus": {"per_node": 8, "per_rank": 1},
    "time": {"max": "1-00:00:00", "default": "01:00:00"},
}
# Slurm 22.05.8's default collective lets some ranks leave MPI_Init while others are still in it.
ENV = {"set": {"OMPI_MCA_mpi_yield_when_idle": 1, "SLURM_PMIX_FENCE": "ring"}}


def check(user: User, partition: dict[str, Any], *argv: str, **values: Any) -> tuple[Completed, dict[str, Any]]:
    """Check a profile with one partition, changed by `partition` and `values`."""
    profile = {
        "schema_version": 1,
        "name": "own",
        "slurm": {"version": "22.05.8", "kill_wait_s": 10},
        "launcher": {"mpi": "pmix"},
        "env": ENV,
        "partitions": {"own": {**PARTITION, **partition}},
        **values,
    }
    path = user.write_spec(profile, "own.yaml")
    done = user.cli("site", "check", str(path), "--json", *argv, check=False)
    return done, json.loads(done.stdout) if done.stdout.startswith("{") else {}


def by_key(rows: list[Row], key: str) -> Row:
    """Return the only row of a key that complains."""
    [row] = [row for row in rows if row["key"] == key and row["verdict"] != "OK"]
    return row


def test_the_shipped_profile_is_accepted(user: User) -> None:
    """Nothing differs, Slurm takes a job in each partition, and none is created."""
    before = user.run("squeue", "--noheader", "--states=all").stdout
    done = user.cli("site", "check", "devcluster")
    assert done.stdout.count("accepted (2 × 2 ranks)") == 2
    assert not {"DIFFERS", "REFUSED", "WRONG"} & set(done.stdout.split())
    assert user.run("squeue", "--noheader", "--states=all").stdout == before
    assert list(user.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("partition", "values", "code", "verdict", "key"),
    [
        ({"slurm_partition": "gpu"}, {}, 3, "DIFFERS", "partitions.own.slurm_partition"),
        ({"time": {"max": "7-00:00:00"}}, {}, 3, "DIFFERS", "partitions.own.time.max"),
        ({"gpus_per_node": 8}, {}, 3, "DIFFERS", "partitions.own.gpus_per_node"),
        ({"cpus": {"per_node": 64}}, {}, 3, "DIFFERS", "partitions.own.cpus.per_node"),
        ({}, {"slurm": {"version": "23.11"}}, 3, "DIFFERS", "slurm.version"),
        ({}, {"launcher": {"mpi": "pmix_v9"}}, 3, "DIFFERS", "launcher.mpi"),
        ({}, {"container": {"runtime": "pyxis"}}, 3, "DIFFERS", "container.runtime"),
        ({}, {"account": {"default": "nobody"}}, 6, "REFUSED", "account"),
        ({"constraint": "a100"}, {}, 3, "REFUSED", "partitions.own.constraint"),
        ({"constraint": "a100"}, {}, 3, "DIFFERS", "partitions.own.constraint"),
        ({"qos": "nope"}, {}, 6, "REFUSED", "partitions.own.qos"),
        ({"reservation": "nope"}, {}, 6, "REFUSED", "partitions.own.reservation"),
        ({"licenses": "nope:1"}, {}, 6, "REFUSED", "partitions.own.licenses"),
    ],
)
def test_a_wrong_profile_is_told_its_key(
    user: User, partition: dict[str, Any], values: dict[str, Any], code: int, verdict: str, key: str
) -> None:
    """By what the cluster says of itself, or by sbatch's own words."""
    done, report = check(user, partition, **values)
    assert done.returncode == report["exit_code"] == code
    rows = [row for row in report["rows"] if row["key"] == key and row["verdict"] == verdict]
    assert len(rows) == 1


def test_a_probe_finds_one_mpi_world_on_two_nodes(user: User) -> None:
    """Four ranks on two nodes in one world, both hosts beside them, and nothing stays."""
    done = user.cli("site", "check", "devcluster:debug", "--run", "--json")
    probe = json.loads(done.stdout)["probe"]
    found = {(row["topic"], row["name"]): row for row in probe["rows"]}
    assert found["MPI", "world"]["found"] == "4 ranks on 2 nodes in one world"
    assert {row["verdict"] for row in probe["rows"]} <= {"OK", "NOTE"}
    ranks = [record for record in probe["records"] if record["kind"] == "rank"]
    assert sorted(record["rank"] for record in ranks) == [0, 1, 2, 3]
    assert len({record["node"] for record in ranks}) == 2
    assert all(len(record["together"]["/dev/shm"]) == 3 for record in ranks)
    assert len({record["nodeid"] for record in probe["records"] if record["kind"] == "node"}) == 2
    assert probe["directory"] is None
    assert list(user.folder.glob("logs/*")) == []


@pytest.mark.parametrize(
    ("values", "topic", "key"),
    [
        ({"launcher": {"mpi": "pmi2"}}, "MPI", "launcher.mpi"),
        ({"network": {"interface": "ib0", "internet": "none"}}, "network", "network.interface"),
        ({"python": "/opt/none/python3"}, "job", "python"),
        ({"ulimits": {"memlock": "unlimited"}}, "memory", "ulimits.memlock"),
        ({"step_prologue": "export OMPI_MCA_mpi_yield_when_idle=0"}, "environment", "env.set"),
        ({"storage": {"local": "/opt/none"}}, "memory", "storage.local"),
    ],
)
def test_what_only_the_nodes_know_is_told_by_the_probe(
    user: User, values: dict[str, Any], topic: str, key: str
) -> None:
    """Slurm takes the job, and the nodes are not as the profile says; the job's folder stays to look into."""
    done, report = check(user, {}, "--run", **values)
    assert done.returncode == 3
    row = by_key(report["probe"]["rows"], key)
    assert (row["verdict"], row["topic"]) == ("WRONG", topic)
    assert row["where"].startswith(str(user.folder / "own.yaml"))
    assert report["probe"]["directory"].startswith(str(user.folder / "logs"))


def test_an_interrupt_takes_the_job_out_of_the_queue(user: User) -> None:
    """Ctrl-C while it waits behind another job: nothing of it stays."""
    busy = user.run("sbatch", "--parsable", "--exclusive", f"-N{len(user.cluster.nodes)}", "--wrap=sleep 60").stdout
    wait_for("the other job runs", lambda: "RUNNING" in user.run("squeue", "-j", busy.strip(), "-ho%T").stdout)
    try:
        words = ("timeout", "--preserve-status", "-s", "INT", "4", sys.executable, "-m", "slurm_llm")
        done = user.run(*words, "site", "check", "devcluster:batch", "--run", check=False)
        assert done.returncode == 130, done
        assert "queued" in done.stderr
        wait_for("job gone", lambda: "site-check" not in user.run("squeue", "-ho%j").stdout)
        assert list(user.folder.glob("logs/*")) == []
    finally:
        user.run("scancel", busy.strip())
