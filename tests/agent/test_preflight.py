from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.agent import journal, preflight, visible


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


UUIDS = ("GPU-ff43b23a-ec75-7ae8-4b60-15e30c10532d", "GPU-11aa0000-ec75-7ae8-4b60-15e30c10532d")
SLICE = "MIG-377e0000-1111-2222-3333-444444444444"
H200 = [visible.Device(gpu, uuid, "NVIDIA H200", 143771, 0) for gpu, uuid in enumerate(UUIDS)]
SLICED = [H200[0]._replace(slices=(SLICE,)), H200[1]]
IN_USE = H200[1]._replace(used_mib=6784, pids=(444, 485))


@pytest.mark.parametrize(
    ("text", "known", "gpus", "problem"),
    [
        pytest.param("0,1", H200, 2, "", id="all of the job's"),
        pytest.param(",".join(UUIDS), H200, 2, "", id="by UUID"),
        pytest.param("GPU-ff43,GPU-11aa", H200, 2, "", id="by the beginning of a UUID"),
        pytest.param(SLICE, SLICED, 1, "", id="a MIG device"),
        pytest.param(f"MIG-{UUIDS[0]}/1/0", H200, 1, "", id="a MIG device by its old name"),
        pytest.param("0,2", H200, 2, "names 2, the driver shows only 0 GPU-ff43", id="one that is not there"),
        pytest.param("GPU-0000", H200, 1, "names GPU-0000, the driver", id="another node's UUID"),
        pytest.param("MIG-0000", SLICED, 1, "names MIG-0000, the driver", id="a MIG device that is not there"),
        pytest.param("0", H200[:1], 2, "the driver shows 1 GPUs, the job has 2 a node", id="one is lost"),
        pytest.param("0,0", H200, 2, "names 0 more than once", id="twice"),
    ],
)
def test_the_driver_must_know_what_a_rank_is_shown(
    monkeypatch: pytest.MonkeyPatch, text: str, known: list[visible.Device], gpus: int, problem: str
) -> None:
    """CUDA itself stops at the first name that it does not know, and says nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    found = preflight.driver_findings(gpus, known)
    assert problem in " ".join(found.problems)
    assert bool(found.problems) is bool(problem)
    assert found.warnings == []


def test_without_a_driver_or_with_another_vendors_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs is told."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert preflight.driver_findings(1, []) == ([], [])
    (warning,) = preflight.driver_findings(1, None).warnings
    assert warning == "the GPU driver has not answered within 15 s"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "7")
    assert preflight.driver_findings(1, H200) == ([], [])


@pytest.mark.parametrize(
    ("text", "local", "told"), [("0,1", "0", True), ("0,1", "1", False), ("1", "1", True), ("0", "0", False)]
)
def test_a_gpu_in_use_is_told_once_a_node(monkeypatch: pytest.MonkeyPatch, text: str, local: str, told: bool) -> None:
    """Where all ranks see all GPUs the first one tells; a rank with one of its own tells of that."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    monkeypatch.setenv("SLURM_LOCALID", local)
    found = preflight.driver_findings(len(text.split(",")), [H200[0], IN_USE])
    assert found.problems == []
    said = f"GPU 1 ({UUIDS[1]}) has 6784 of 143771 MiB in use before the start, by process 444, 485"
    assert found.warnings == ([said] if told else [])


def test_ranks_that_are_shown_one_and_the_same_gpu_are_named() -> None:
    """All of the node's GPUs for everybody is what engines want; the same device of another node is another one."""
    mine = visible.Shown("n1", 2, UUIDS[:1])
    others = [
        mine,
        visible.Shown("n1", 3, UUIDS[:1]),
        visible.Shown("n1", 4, UUIDS[1:]),
        visible.Shown("n2", 5, UUIDS[:1]),
    ]
    assert visible.shared(mine, others) == [
        f"it is shown {UUIDS[0]} alone, and so is rank 3: they would share that GPU"
    ]
    assert visible.shared(mine._replace(uuids=UUIDS), [visible.Shown("n1", 3, UUIDS)]) == []


def test_what_a_rank_sees_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file of its own: rank.sh and the agents have theirs."""
    (tmp_path / "journal").mkdir()
    monkeypatch.setenv("LLMRUN_ATTEMPT", str(tmp_path))
    shown = visible.Shown("n1", 5, UUIDS)
    preflight.write_down(shown, preflight.Findings([], ["GPU 1 is in use"]))
    (item,) = journal.read(str(tmp_path / "journal" / "sees-5.jsonl"))
    assert (item["kind"], item["rank"], item["node"], item["gpus"]) == ("sees", 5, "n1", list(UUIDS))
    assert item["busy"] == ["GPU 1 is in use"]
