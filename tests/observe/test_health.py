"""Rows of ranks: their state in every phase, what they hold, and the last error of their logs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_llm.observe.health import build_health, health_to_json, last_error
from slurm_llm.runs import evidence_of
from slurm_llm.slurm.states import RunState
from tests.observe.run_dirs import T0, RunDir, make_plan


def test_a_serving_run(tmp_path: Path) -> None:
    """Every rank is ready, with its node, GPUs, role, place, memory and the age of its log."""
    run = RunDir(tmp_path / "run").serving()
    run.note("node3", 12, "sample", node="node3", ranks={"5": {"rss_mib": 321.5, "cpu_s": 1.0}})
    path = run.log("rank-5.log", "I1130 10:00:00.0 fine\n")
    os.utime(path, (T0 + 50, T0 + 50))
    row = build_health(evidence_of(run.job), RunState.READY, T0 + 60)[5]
    assert (row.rank, row.node, row.gpus, row.visible_gpus, row.role) == (5, "node3", (1,), "0,1", "worker")
    assert (row.at.tensor, row.at.pipeline, row.state, row.rss_mib, row.log_age_s) == (1, 1, "ready", 321.5, 10.0)
    assert row.last_error is None


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """Every rank has a row before anything is known of it."""
    rows = build_health(evidence_of(RunDir(tmp_path / "run").submitted().job), RunState.PENDING, T0)
    assert [row.state for row in rows] == ["waiting"] * 8
    assert rows[0].node is None
    assert rows[0].log_age_s is None


def test_ranks_of_a_run_that_is_gone(tmp_path: Path) -> None:
    """A rank whose end nobody saw is not shown as ready; the one that was seen says how it ended."""
    run = RunDir(tmp_path / "run").serving()
    run.note(
        "node1", 9, "ended", rank=0, node="node1", main=True, how="signal SIGSEGV", name="tritonserver", asked=False
    )
    rows = build_health(evidence_of(run.job), RunState.FAILED, T0 + 60)
    assert (rows[0].state, rows[0].how) == ("ended", "signal SIGSEGV")
    assert (rows[1].state, rows[1].rss_mib) == ("gone", None)


@pytest.mark.parametrize(
    "line",
    [
        'E1130 10:44:26.957985 17287 model.cc:1] "failed to load"',
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "AssertionError",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "node3:123:456 [0] NCCL WARN Connect to 10.0.0.1 failed",
        "*** An error occurred in MPI_Init",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        "[node3:17287] PMIX ERROR: UNREACHABLE in file",
        "[11/30/2026-10:15:37] [TRT-LLM] [E] Failed to parse the arguments",
        "ERROR 11-30 10:15:37 engine.py:1] boom",
        "Segmentation fault (core dumped)",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "rank.sh: line 82: 17356 Killed                  tritonserver",
    ],
)
def test_errors_of_every_kind_are_found(tmp_path: Path, line: str) -> None:
    """The last error stands out of what was said after it."""
    path = tmp_path / "log"
    path.write_text(f"I1130 10:00:00.0 first\n{line}\nI1130 10:00:01.0 later\n  and more\n")
    assert last_error(path) == line


@pytest.mark.parametrize(
    "line",
    [
        'I1130 10:44:26.957985 17287 model.cc:1] "loading"',
        'E1130 10:45:14.897246 17287 server.cc:241] "CudaDriverHelper has not been initialized."',
        "Error: Failed to initialize NVML",
        "INFO no errors",
        "",
    ],
)
def test_what_is_no_error(tmp_path: Path, line: str) -> None:
    """Triton's complaints on a node without a GPU driver are none."""
    path = tmp_path / "log"
    path.write_text(line + "\n")
    assert last_error(path) is None


def test_an_error_is_safe_to_print(tmp_path: Path) -> None:
    """Escape sequences in a message are gone."""
    path = tmp_path / "log"
    path.write_bytes(b"ValueError: \x1b]0;owned\x07bad\xff\n")
    assert last_error(path) == "ValueError: bad\ufffd"


def test_4096_rows(tmp_path: Path) -> None:
    """Every rank of a large run has its row, and the JSON reads back."""
    plan = make_plan(tensor_parallel_size=8, pipeline_parallel_size=1, replicas=512, resources={"nodes": 1024})
    run = RunDir(tmp_path / "run", plan=plan).serving()
    rows = build_health(evidence_of(run.job), RunState.READY, T0 + 60)
    assert len(rows) == 4096
    assert {row.state for row in rows} == {"ready"}
    assert json.loads(health_to_json(rows))[4095]["rank"] == 4095
