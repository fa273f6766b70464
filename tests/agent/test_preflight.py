from __future__ import annotations

import pytest

from slurm_llm.agent import preflight


def test_layout_that_is_as_planned_has_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 5 of 8 with two a node belongs on the third node."""
    for name, value in (("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_PROCID", "5"), ("SLURM_NODEID", "2")):
        monkeypatch.setenv(name, value)
    assert preflight.layout_problems(8, 2) == []


def test_every_fault_of_the_layout_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong number of tasks and a wrong node are two problems, each with both numbers."""
    for name, value in (("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "5"), ("SLURM_NODEID", "0")):
        monkeypatch.setenv(name, value)
    assert preflight.layout_problems(8, 2) == [
        "the step has 4 tasks, the plan has 8",
        "rank 5 runs on node 0 of the job, the plan has it on 2",
    ]


@pytest.mark.parametrize(
    ("visible", "gpus", "good"),
    [
        ("0,1", 2, True),
        ("GPU-8f2c,GPU-11aa", 2, True),
        ("MIG-377e-1,MIG-377e-2", 2, True),
        (None, 0, True),
        (None, 2, False),
        ("0", 2, False),
        ("NoDevFiles", 2, False),
        ("", 1, False),
    ],
)
def test_visible_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: int, good: bool) -> None:
    """Indices, UUIDs and MIG slices count alike; an unset variable shows the neighbours' GPUs."""
    for name in preflight.VISIBLE:
        monkeypatch.delenv(name, raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (preflight.gpu_problems(gpus) == []) is good


def test_amd_and_intel_gpus_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm names them in variables of their own."""
    for name in preflight.VISIBLE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0,1")
    assert preflight.gpu_problems(2) == []
    assert preflight.gpu_problems(3) == ["2 GPUs visible (ROCR_VISIBLE_DEVICES=0,1), the job has 3 a node"]


def test_an_interface_that_is_not_there_is_named() -> None:
    """To MPI a wrong name is a warning only."""
    assert preflight.interface_problems("") == preflight.interface_problems("lo") == []
    (problem,) = preflight.interface_problems("hsn9")
    assert problem.startswith("no interface hsn9 here (network.interface in the site profile): there are ")
    assert "lo" in problem
