"""The Python interface, used as its docstring shows it, with types."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import slurm_llm
from slurm_llm.api import Run
from slurm_llm.errors import NotReady, PlanError, RunNotFound
from slurm_llm.process import Completed
from slurm_llm.slurm.commands import SEPARATOR
from slurm_llm.slurm.states import RunState
from slurm_llm.spec import spec_from_mapping
from tests.http_server import serve
from tests.observe.run_dirs import FakeSlurm, RunDir, around, squeue_row

SPEC = """
name: demo
engine: rehearsal
tensor_parallel_size: 4
pipeline_parallel_size: 2
resources: {nodes: 4}
"""


@pytest.fixture
def spec_path(tmp_path: Path) -> Path:
    """Write a spec."""
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC)
    return path


class Accepting(FakeSlurm):
    """A Slurm that takes every job as number 7."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Completed:
        """Answer sinfo and sbatch, the rest as FakeSlurm."""
        if argv[0] == "sinfo":
            row = SEPARATOR.join(("batch*", "up", "1-00:00:00", "4", "8", "16000", "gpu:4"))
            return Completed(tuple(argv), 0, row + "\n", "")
        if argv[0] == "sbatch":
            self.rows = [squeue_row(7, "PENDING", reason="Priority")]
            return Completed(tuple(argv), 0, "7\n", "")
        return super().__call__(argv, env=env, timeout_s=timeout_s)


def test_spec_site_plan_render(spec_path: Path, tmp_path: Path) -> None:
    """Each step is one function from values to a value."""
    spec = slurm_llm.load_spec(spec_path, ["resources.time=00:05:00"])
    site = slurm_llm.load_site("devcluster")
    plan = slurm_llm.build_plan(spec, site)
    files = slurm_llm.render_run(spec, site, tmp_path / "out")
    assert [rank.node for rank in plan.ranks] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "--time=00:05:00" in files["job.sub"]
    assert not (tmp_path / "out").exists()


def test_a_run_from_submit_to_cancel(spec_path: Path, tmp_path: Path) -> None:
    """Submit returns a Run that says how it is, and that other processes find."""
    slurm = Accepting(after_cancel=[squeue_row(7, "CANCELLED")])
    here = around(tmp_path, slurm)
    run: Run = slurm_llm.submit(slurm_llm.load_spec(spec_path), slurm_llm.load_site("devcluster"), around=here)
    assert run.job_id == 7
    assert run.directory.parent == tmp_path / "logs"
    assert run.status().state is RunState.PENDING
    assert slurm_llm.find_run(run.run_id, around=here) == run
    with pytest.raises(NotReady):
        run.wait_ready(timeout_s=3)
    with pytest.raises(NotReady, match="it is PENDING"):
        run.generate("x")
    assert run.cancel().state is RunState.CANCELLED


def test_a_serving_run_answers(tmp_path: Path) -> None:
    """Ranks, logs and text of a run that is ready."""

    def answer(path: str, body: dict[str, object]) -> tuple[int, Iterator[bytes]]:
        text = json.dumps({"text_output": f"{body['text_input']}!"}).encode()
        return 200, iter([b"data: " + text + b"\n\n"] if path.endswith("stream") else [text])

    written = RunDir(tmp_path / "logs" / "demo-20261130-104000-abcd").serving()
    written.log("rank-3.log", "I1130 10:00:00.0 hello\n")
    written.log("rank-4.log", "I1130 10:00:01.0 again\n")
    here = around(tmp_path, FakeSlurm([squeue_row(7, "RUNNING")]))
    # A server that listens on loopback alone is asked inside its job only.
    here = replace(here, environ={**here.environ, "SLURM_JOB_ID": "7"})
    run = slurm_llm.find_run("demo", around=here)
    assert run.wait_ready(timeout_s=1).ready
    assert [row.state for row in run.ranks()] == ["ready"] * 8
    assert [line.text[-5:] for line in run.logs(lines=10)] == ["hello", "again"]
    assert [line.source.rank for line in run.logs(3)] == [3]
    assert run.logs([], lines=5) == []
    with serve(answer) as server:
        where = {"instances": [{"instance": 0, "url": server.url, "grpc": "x", "metrics": "x"}]}
        written.job_paths.endpoint(0).write_text(json.dumps(where))
        whole: str = run.generate("hi", max_tokens=3)
        pieces: Iterator[str] = run.generate("hi", stream=True)
        assert (whole, list(pieces)) == ("hi!", ["hi!"])


def test_errors_are_ours(tmp_path: Path) -> None:
    """What goes wrong is one of slurm_llm.errors."""
    spec_file = tmp_path / "bad.yaml"
    spec_file.write_text(SPEC.replace("nodes: 4", "nodes: 3"))
    with pytest.raises(PlanError):
        slurm_llm.build_plan(slurm_llm.load_spec(spec_file), slurm_llm.load_site("devcluster"))
    with pytest.raises(RunNotFound):
        slurm_llm.find_run("nope", around=around(tmp_path))


def test_names_are_there_and_others_are_not() -> None:
    """Everything in __all__ can be had, nothing else."""
    assert all(getattr(slurm_llm, name) for name in slurm_llm.__all__)
    with pytest.raises(AttributeError, match="nothing_of_this"):
        slurm_llm.nothing_of_this  # noqa: B018


def test_import_is_cheap() -> None:
    """`import slurm_llm` loads nothing but itself."""
    code = "import slurm_llm, sys; print([name for name in sys.modules if name.startswith('slurm_llm.')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_specs_own_changes_of_the_site_count_in_python_too() -> None:
    """`site:` of a spec is laid over whatever profile was loaded."""
    site = slurm_llm.load_site("devcluster", {})
    spec = spec_from_mapping(
        {"name": "a", "engine": "rehearsal", "site": {"launcher": {"mpi": "pmi2"}, "srun_extra": {"append": ["--x"]}}}
    )
    assert slurm_llm.build_plan(spec, site).step.mpi == "pmi2"
    assert slurm_llm.build_plan(spec, site).step.extra == ("--x",)
    assert "srun --mpi=pmi2" in slurm_llm.render_run(spec, site, "/runs/x")["job.sub"]
