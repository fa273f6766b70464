"""Stages as real Slurm jobs: a chain that makes its products once, a server that waits for it, a bench beside it.

Programs that need a registry, a hub or GPUs are stand-ins with the same arguments; jobs, dependencies, locks, signals
and the server are real.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.process import Completed
from tests.cluster.conftest import LIVE, Cluster, Run, User, wait_for
from tests.stages.standins import write_standins

pytestmark = pytest.mark.cluster
TOKEN = "hf_" + "secretSecretSecret0123"


class Stages:
    """The user's folder with stand-ins, and the command line with them on PATH."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.out = user.folder / "made here"
        programs = write_standins(user.folder)
        self.own(user.folder)
        path = f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
        self.words = ["env", f"PATH={path}", f"HUB={user.folder / 'hub'}"]
        if "PYTHONPATH" in os.environ:
            self.words.append(f"PYTHONPATH={os.environ['PYTHONPATH']}")

    def own(self, folder: Path) -> None:
        """Give what the tests wrote to the user."""
        account = pwd.getpwnam(self.user.cluster.user)
        for place in (folder, *folder.rglob("*")):
            os.chown(place, account.pw_uid, account.pw_gid)

    def spec(self, prepare: dict[str, Any], **others: Any) -> Path:
        """Write a spec of the rehearsal engine."""
        whole = {"name": "stages", "engine": "rehearsal", "tensor_parallel_size": 2, "prepare": prepare, **others}
        return self.user.write_spec(whole)

    def cli(self, *argv: str, check: bool = True, env: tuple[str, ...] = ()) -> Completed:
        """Run the command line as the user."""
        return self.user.run(*self.words, *env, *self.user.program, *argv, check=check)

    def weights(self, repo: str = "org/tiny") -> dict[str, Any]:
        return {"repo": repo, "to": str(self.out / "tiny"), "time": "00:02:00"}


@pytest.fixture
def stages(user: User) -> Stages:
    return Stages(user)


def _ended(cluster: Cluster, job_id: str) -> str:
    def state() -> str:
        shown = cluster.slurm("scontrol", "show", "job", job_id).stdout
        word = shown.partition("JobState=")[2].split()[0]
        return "" if word in LIVE else word

    return str(wait_for(f"job {job_id} ended", state, 60))


def _rows(done: Completed) -> dict[str, dict[str, Any]]:
    return {row["stage"]: row for row in json.loads(done.stdout)}


def test_a_chain_makes_its_products_once(stages: Stages) -> None:
    """Four stages in order, two of them in the image; a second `prepare` finds all of it and submits nothing."""
    out = stages.out
    path = stages.spec(
        {
            "image": {"source": "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"},
            "weights": stages.weights(),
            "convert": {"script": str(stages.user.folder / "convert_checkpoint.py"), "to": str(out / "checkpoint")},
            "build": {"to": str(out / "engine"), "args": {"max_batch_size": 8}},
        },
        container={"image": str(out / "tritonserver-25.12-trtllm.sqsh")},
        site={"container": {"runtime": "enroot"}},
    )
    first = stages.cli("prepare", str(path), "--site", "devcluster", "--wait", "--json", env=(f"HF_TOKEN={TOKEN}",))
    rows = _rows(first)
    assert all(row["needed"] and row["job_id"] for row in rows.values()), rows
    assert json.loads((out / "engine" / "config.json").read_text()) == {"mapping": {"tp_size": 2, "pp_size": 1}}
    record = json.loads((out / "engine.slurm_llm.json").read_text())
    assert record["stage"] == "build" and record["digest"].startswith("sha256") and "--max_batch_size 8" in str(record)
    folder = Path(rows["weights"]["directory"])
    assert "token: given" in (folder / "stage.log").read_text()
    written = [place for place in folder.parent.rglob("*") if place.is_file()] + list(out.glob("*.json"))
    assert not [place for place in written if TOKEN.encode() in place.read_bytes()]
    assert not list(out.glob(".*.part"))

    again = _rows(stages.cli("prepare", str(path), "--site", "devcluster", "--json"))
    assert not any(row["needed"] or row["job_id"] for row in again.values()), again
    other = stages.cli(
        "prepare", str(path), "--site", "devcluster", "--set", "prepare.build.args.max_batch_size=9", check=False
    )
    assert other.returncode == 4
    assert "it was made otherwise: trtllm-build" in other.stderr and "remove it" in other.stderr


def test_the_server_waits_for_its_stage_and_the_bench_for_the_server(stages: Stages) -> None:
    """prepare → serve → bench in one submission; the bench finds the endpoint and ends the server."""
    command = 'curl -sf "$SLURM_LLM_URL/v2/models/$SLURM_LLM_MODEL/ready" && echo "served $SLURM_LLM_JOB"'
    bench = {"command": ["bash", "-c", command], "stop_server": True, "time": "00:02:00"}
    path = stages.spec({"weights": stages.weights()}, bench=bench, resources={"time": "00:05:00"})
    done = stages.cli("submit", str(path), "--site", "devcluster", "--prepare", "--bench", "--json")
    value = json.loads(done.stdout)
    run = Run(stages.user, Path(value["directory"]), int(value["job_id"]))
    stages.user.runs.append(run)
    (weights,) = json.loads((run.path / "stages.json").read_text())
    (measure,) = json.loads((run.path / "bench.json").read_text())
    status = stages.cli("status", str(run.path))
    began = (Path(weights["folder"]) / "result.json").exists()
    assert began or f"waiting for stage weights (job {weights['job_id']})" in " ".join(status.stdout.split())
    assert run.wait_ended()["state"] == "COMPLETED"
    assert _ended(run.user.cluster, measure["job_id"]) == "COMPLETED"
    assert f"served {run.job_id}" in (Path(measure["folder"]) / "stage.log").read_text()
    assert "export HF_HUB_OFFLINE=1" in (run.path / "job.sub").read_text()
    assert "stage bench" in stages.cli("status", str(run.path)).stdout


def test_a_stage_that_fails_stops_the_chain_and_is_named(stages: Stages) -> None:
    """The stages behind it and the server are cancelled by Slurm; the status blames the stage and its command."""
    out = stages.out
    build = {"to": str(out / "engine"), "source": str(out / "tiny"), "args": {"too_large": True}, "gpus": 0}
    path = stages.spec(
        {"weights": stages.weights(), "build": build},
        container={"image": str(out / "tritonserver-25.12-trtllm.sqsh")},
        site={"container": {"runtime": "enroot"}},
    )
    (out).mkdir()
    (out / "tritonserver-25.12-trtllm.sqsh").write_text("image")
    stages.own(out)
    done = stages.cli("submit", str(path), "--site", "devcluster", "--prepare", "--wait", check=False)
    assert done.returncode == 8, done
    assert "stage build" in done.stderr and "trtllm-build" in done.stderr and "exit status 3" in done.stderr
    assert "CUDA out of memory" in done.stderr
    status = json.loads(stages.cli("status", "--json").stdout)
    assert status["state"] == "FAILED" and status["slurm_state"] == "CANCELLED"
    assert status["why"] and status["remedies"], status
    assert not (out / "engine").exists() and (out / "tiny" / "config.json").exists()
    folder = Path(status["directory"] + ".stages")
    assert json.loads((folder / "weights" / "result.json").read_text())["state"] == "DONE"


def _image(stages: Stages) -> Path:
    image = {"source": "nvcr.io/nvidia/tritonserver:25.12-py3", "to": str(stages.out / "image.sqsh")}
    return stages.spec({"image": image}, site={"container": {"runtime": "enroot"}})


def _import(stages: Stages, path: Path) -> dict[str, Any]:
    """Start an import that waits for its gate."""
    gate = (f"GATE={stages.user.folder / 'gate'}",)
    return _rows(stages.cli("prepare", str(path), "--site", "devcluster", "--json", env=gate))["image"]


def test_a_stage_that_is_cancelled_leaves_nothing_half_made(stages: Stages) -> None:
    """scancel ends the stage's command too, its result says so, and the unfinished file is gone."""
    row = _import(stages, _image(stages))
    wait_for("the import began", lambda: (stages.out / "imports").exists(), 60)
    stages.user.run("scancel", str(row["job_id"]))
    assert _ended(stages.user.cluster, str(row["job_id"])) == "CANCELLED"
    result = json.loads((Path(row["directory"]) / "result.json").read_text())
    assert result["state"] == "CANCELLED" and "told to end" in result["cause"]
    assert {place.name for place in stages.out.iterdir()} == {"imports", ".image.sqsh.lock"}


def test_two_that_make_the_same_do_it_once(stages: Stages) -> None:
    """Two jobs import the same image at a time: one waits for the other, names it, and finds the image there."""
    path = _image(stages)
    rows = [_import(stages, path) for _ in range(2)]
    logs = [Path(row["directory"]) / "stage.log" for row in rows]
    said = "who makes the same"
    wait_for("one of them waits", lambda: any(said in log.read_text() for log in logs if log.exists()), 60)
    (stages.user.folder / "gate").touch()
    for row in rows:
        assert _ended(stages.user.cluster, str(row["job_id"])) == "COMPLETED"
    results = [json.loads((Path(row["directory"]) / "result.json").read_text()) for row in rows]
    assert sorted(result["state"] for result in results) == ["DONE", "SKIPPED"]
    assert (stages.out / "imports").read_text().count("docker://") == 1
    assert (stages.out / "image.sqsh").read_text() == "image\n"


def test_a_python_without_the_package_is_refused(stages: Stages) -> None:
    """Where the profile's Python cannot import this package no stage could run: nothing is submitted."""
    site = {"python": "/bin/false"}
    done = stages.cli(
        "prepare", str(stages.spec({"weights": stages.weights()}, site=site)), "--site", "devcluster", check=False
    )
    assert done.returncode == 5
    assert "/bin/false, the Python of site devcluster, cannot import it" in done.stderr
