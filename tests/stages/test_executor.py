"""What submitit hands to sbatch: options, environment and script, with stand-ins for sbatch and srun on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_llm.errors import SetupError, SubmitError
from slurm_llm.process import run
from slurm_llm.stages.executor import Submission, submit
from slurm_llm.stages.runner import run_stage

SBATCH = """#!/bin/bash
env >{folder}/environment
cp "${{@: -1}}" {folder}/script
[[ ! -e {folder}/refuse ]] || {{ cat {folder}/refuse >&2; exit 1; }}
echo "Submitted batch job 42 on cluster one"
"""
OPTIONS = (
    *("--job-name=a name:build", "--nodes=1", "--time=1-00:00:30", "--gres=gpu:2", "--signal=B:USR1@90"),
    *("--exclusive", "-Cfast", "--account=p", "--dependency=afterok:7", "--kill-on-invalid-dep=yes"),
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose sbatch and srun are stand-ins."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH.format(folder=tmp_path)), ("srun", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:/usr/bin:/bin", "HF_TOKEN": "hf_x", "SBATCH_PARTITION": "other", "SLURM_CONF": "/c"}


def _submission(folder: Path) -> Submission:
    return Submission(run_stage, "/f", folder / "sub folder", "/opt/my python", OPTIONS, ("export A='b c'",))


def test_the_script_has_the_sites_options_and_no_others(tmp_path: Path, environ: dict[str, str]) -> None:
    """None of submitit's own stays but the job's output; the job's process becomes Python."""
    assert submit(_submission(tmp_path), environ) == "42"
    lines = (tmp_path / "script").read_text().splitlines()
    folder = tmp_path / "sub folder"
    assert sorted(line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")) == sorted(
        [
            *("--account=p", "--constraint=fast", "--dependency=afterok:7", "--exclusive", "--gres=gpu:2"),
            *("--job-name='a name:build'", "--kill-on-invalid-dep=yes", "--nodes=1", "--open-mode=append"),
            *(f"--output='{folder}/%j_0_log.out'", "--signal=B:USR1@90", "--time=1-00:00:30"),
        ]
    )
    assert "export A='b c'" in lines
    assert f"exec '/opt/my python' -u -m submitit.core._submit '{folder}'" in lines
    assert run(("bash", "-n", str(tmp_path / "script"))).returncode == 0


def test_sbatch_gets_the_users_environment_without_options(tmp_path: Path, environ: dict[str, str]) -> None:
    """A token goes to the job by the environment alone; an inherited partition does not; ours comes back unchanged."""
    before = dict(os.environ)
    submit(_submission(tmp_path), environ)
    assert dict(os.environ) == before
    seen = (tmp_path / "environment").read_text().splitlines()
    assert "HF_TOKEN=hf_x" in seen and "SLURM_CONF=/c" in seen
    assert not [line for line in seen if line.startswith("SBATCH_")]
    assert "hf_x" not in (tmp_path / "script").read_text()


def test_a_refusal_keeps_slurms_words(tmp_path: Path, environ: dict[str, str]) -> None:
    """As for every other sbatch."""
    (tmp_path / "refuse").write_text("sbatch: error: Invalid account or account/partition combination specified\n")
    with pytest.raises(SubmitError, match="Invalid account or account/partition combination"):
        submit(_submission(tmp_path), environ)


def test_without_slurm_there_is_one_clear_line(tmp_path: Path) -> None:
    """submitit itself would raise a RuntimeError."""
    with pytest.raises(SetupError, match="Slurm's `srun` is not on PATH"):
        submit(_submission(tmp_path), {"PATH": "/nonexistent"})
