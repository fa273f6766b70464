"""`prepare --dry-run`: every stage's commands and options, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_llm.cli import cli
from slurm_llm.stagerecord import StageRef
from slurm_llm.stages.chain import KILL_INVALID, depend_on
from slurm_llm.stages.serving import find_stages
from tests.stages.making import around, job_of, with_image

PREPARE = {
    "image": {"source": "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3", "time": "00:20:00"},
    "weights": {"repo": "org/tiny", "to": "/s/tiny"},
    "build": {"to": "/s/engine", "source": "/s/ckpt", "args": {"max_batch_size": 8}},
}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a spec in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "spec.yaml"
    bench = {"command": ["genai-perf", "profile"], "time": "00:10:00"}
    value = {"name": "demo", "engine": "rehearsal", "prepare": PREPARE, "bench": bench, **with_image()}
    path.write_text(json.dumps(value))
    return path


def test_a_dry_run_shows_all_and_writes_nothing(spec: Path) -> None:
    """Each stage with its product, its sbatch line, what gets into the container, and its commands."""
    done = CliRunner().invoke(cli, ["prepare", str(spec), "--site", "devcluster", "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["stage"]: row for row in json.loads(done.output)}
    assert list(rows) == ["image", "weights", "build"]
    assert "--time=00:20:00" in rows["image"]["options"] and not rows["image"]["enter"]
    assert rows["weights"]["options"][-2:] == ["--dependency=afterok:<image>", KILL_INVALID]
    assert rows["build"]["enter"][0] == "srun"
    assert rows["build"]["commands"][0].startswith("trtllm-build --checkpoint_dir /s/ckpt --output_dir /s/.engine.")
    text = CliRunner().invoke(cli, ["prepare", str(spec), "--site", "devcluster", "--dry-run"]).output
    assert "stage build: to be made" in text and "  $ hf download org/tiny --local-dir=/s/.tiny.part" in text
    assert [path.name for path in spec.parent.iterdir()] == ["spec.yaml"]


def test_submit_shows_its_stages_before_its_files(spec: Path) -> None:
    """The bench too, after the serving job."""
    done = CliRunner().invoke(cli, ["submit", str(spec), "--site", "devcluster", "--prepare", "--bench", "--dry-run"])
    assert done.exit_code == 0, done.output
    before, bench, after = done.output.partition("stage bench: to run once the server is ready")
    assert bench and "stage image" in before and "==> job.sub <==" in after
    assert "'--dependency=after:<the serving job>'" in after
    assert "  $ genai-perf profile" in after


@pytest.mark.parametrize(("prepare", "bench"), [(True, False), (False, True)])
def test_flags_without_their_sections_are_refused(tmp_path: Path, prepare: bool, bench: bool) -> None:
    """Nothing is submitted that the user takes for prepared or measured."""
    job = job_of(tmp_path, None)
    with pytest.raises(Exception, match="the spec has no such section"):
        find_stages(job, tmp_path / "run", around(tmp_path), prepare=prepare, bench=bench)


def test_a_chained_job_never_waits_for_what_cannot_come() -> None:
    """Slurm ends it when the job before it has failed."""
    ref = StageRef("build", "8", "/s")
    assert depend_on(ref.job_id) == ("--dependency=afterok:8", "--kill-on-invalid-dep=yes")
