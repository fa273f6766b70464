"""GPU errors as causes: which of them explains an end, and which is only told."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_llm.agent import diagnose, fold, journal, known, reading, xids

UUID = "GPU-ff43b23a-ec75-7ae8-4b60-15e30c10532d"
READY: journal.Record = {"t": 2.0, "kind": "state", "state": "READY"}
FOUND: list[journal.Record] = [
    {"t": 1.0, "kind": "found", "rank": rank, "node": f"n{rank}", "pid": rank, "main": True} for rank in (0, 1, 2)
]
DEATH: journal.Record = {
    "t": 50.0,
    "kind": "ended",
    "rank": 1,
    "node": "n1",
    "name": "tritonserver",
    "main": True,
    "how": "exit 1",
    "lived_s": 48,
}
STALL: journal.Record = {"t": 300.0, "kind": "stall", "rank": None, "what": "the model of instance 0 has not answered"}


def xid(number: int, at: float, node: str = "n1", ranks: tuple[int, ...] = (1,), **more: Any) -> journal.Record:
    """Return the record of an Xid of GPU 3."""
    return {"t": at, "kind": "xid", "node": node, "gpu": 3, "uuid": UUID, "xid": number, "ranks": list(ranks), **more}


def look_at(*records: journal.Record) -> diagnose.Diagnosis:
    """Return the diagnosis of a run of three ranks on three nodes."""
    all_of_it: list[journal.Record] = [*FOUND, READY, *records]
    entries: list[known.Entry] = []
    logs: list[reading.Log] = []
    return diagnose.diagnose(diagnose.Material(fold.fold(all_of_it, 3), all_of_it, logs, entries, codes=(1,)))


@pytest.mark.parametrize(
    ("records", "kind", "rank", "node", "begins"),
    [
        pytest.param([xid(79, 49.0), DEATH], "gpu", 1, "n1", f"GPU 3 ({UUID}) of node n1 reports Xid 79", id="its own"),
        pytest.param([xid(79, 51.5), DEATH], "gpu", 1, "n1", "GPU 3", id="told a moment after the end"),
        pytest.param([xid(95, 49.0, "n2", (2,)), DEATH], "gpu", 2, "n2", "GPU 3", id="a peer's GPU broke"),
        pytest.param([xid(31, 49.5), DEATH], "exit", 1, "n1", "rank 1 on node n1 went first", id="the program's fault"),
        pytest.param([xid(31, 49.5, "n2", (2,)), DEATH], "exit", 1, "n1", "rank 1", id="a peer's program"),
        pytest.param([xid(79, 10.0), DEATH], "exit", 1, "n1", "rank 1", id="long before"),
        pytest.param([xid(79, 60.0), DEATH], "exit", 1, "n1", "rank 1", id="long after"),
        pytest.param([xid(45, 49.0), DEATH], "exit", 1, "n1", "rank 1", id="only a consequence"),
        pytest.param([xid(79, 49.0, other=True), DEATH], "exit", 1, "n1", "rank 1", id="another job's"),
        pytest.param([xid(119, 20.0), STALL], "gpu", 1, "n1", "GPU 3", id="a hang since then"),
        pytest.param(
            [xid(31, 48.0), xid(79, 49.0), DEATH], "gpu", 1, "n1", f"GPU 3 ({UUID}) of node n1 reports Xid 79"
        ),
        pytest.param(
            [{"t": 49.0, "kind": "gpu", "node": "n1", "gpu": 3, "uuid": UUID, "error": 15, "ranks": [1]}, DEATH],
            "gpu",
            1,
            "n1",
            f"GPU 3 ({UUID}) of node n1 does not answer",
            id="lost without an Xid",
        ),
    ],
)
def test_what_a_gpu_error_makes_of_an_end(
    records: list[journal.Record], kind: str, rank: int, node: str, begins: str
) -> None:
    """A broken GPU is the cause; a program's fault only says more; what is far, another's or an effect is neither."""
    found = look_at(*records)
    assert (found.kind, found.rank, found.node) == (kind, rank, node)
    assert found.cause.startswith(begins)


def test_a_broken_gpu_is_told_with_meaning_remedy_and_source() -> None:
    """And what came of it stays in the sentence."""
    found = look_at(xid(79, 49.0), DEATH)
    assert "; then rank 1 on node n1 went first: tritonserver ended: exit 1" in found.cause
    assert "has fallen off the bus" in found.means
    assert "Put node n1 into `exclude_nodes`" in found.remedies[0]
    assert found.evidence[0].where == "journal/n1.jsonl"
    assert (found.known[0].id, found.known[0].source) == ("xid-79", xids.SOURCE)


def test_a_programs_fault_adds_to_cause_and_remedies() -> None:
    """The engine's own words come first."""
    found = look_at(xid(31, 49.5, pid=580), DEATH)
    assert found.cause.endswith("reports Xid 31: a kernel touched memory that is not its own, in process 580")
    assert "Mostly a fault of the program" in found.remedies[-1]
    assert len(found.remedies) == 2


def test_of_a_run_that_is_well_errors_are_warnings() -> None:
    """Memory that is to be replaced does not end a run, and a GPU in use beforehand explains a later lack of memory."""
    sees: journal.Record = {
        "t": 0.5,
        "kind": "sees",
        "rank": 0,
        "node": "n0",
        "gpus": [UUID],
        "busy": ["GPU 0 has 9 of 10 MiB in use"],
    }
    all_of_it = [*FOUND, READY, xid(63, 9.0), sees]
    facts = fold.fold(all_of_it, 3)
    found = diagnose.diagnose(diagnose.Material(facts, all_of_it, [], [], over=False))
    assert found.kind == "none"
    assert [one.id for one in found.warnings] == ["xid-63", "gpu-in-use"]
    assert found.warnings[1].means == "node n0: GPU 0 has 9 of 10 MiB in use"


def test_an_error_told_twice_counts_once_with_its_process() -> None:
    """NVML and the kernel's log both tell of it."""
    (own,) = xids.faults([xid(31, 5.0, ranks=()), xid(31, 5.1, pid=580)])
    assert (own.at, own.pid, own.ranks) == (5.0, 580, (1,))


def test_an_unknown_number_is_told_all_the_same() -> None:
    """NVIDIA adds numbers with every generation."""
    (own,) = xids.faults([xid(999, 5.0)])
    assert own.describe() == f"GPU 3 ({UUID}) of node n1 reports Xid 999: an error that NVIDIA's catalogue explains"
    assert own.remedy()
