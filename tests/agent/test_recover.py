"""What follows a failed attempt, and on which nodes: judged from results, without Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import heir, journal, recover
from slurm_llm.agent.recover import END, REQUEUE, RESTART, Attempt, Ground, Limits
from slurm_llm.knownerrors import load_known_errors

LIMITS = Limits(restarts=3, backoff_s=10, reset_s=3600.0, requeues=0)
FOUR = ("a", "b", "c", "d")


def ground(
    allocated: tuple[str, ...] = FOUR, need: int = 4, lost: str = "", suspects: str = "", script: str = "a"
) -> Ground:
    """Return a ground; each letter of `lost` and `suspects` is a node."""
    return Ground(allocated, need, script, dict.fromkeys(lost, "lost"), dict.fromkeys(suspects, "first to fail"))


def failed(number: int, node: str | None = None, kind: str = "signal", served_s: float = 0.0, *known: str) -> Attempt:
    """Return an attempt that failed."""
    return Attempt(number, served_s, kind, node, tuple(known))


@pytest.mark.parametrize(
    ("served", "used"),
    [([0.0], 1), ([0.0, 0.0], 2), ([0.0, 4000.0], 1), ([0.0, 4000.0, 10.0], 2), ([4000.0, 4000.0], 1)],
)
def test_long_service_gives_restarts_back(served: list[float], used: int) -> None:
    """A server that falls over once a day must not run out of restarts; one that never stands must."""
    attempts = [failed(number, served_s=seconds) for number, seconds in enumerate(served)]
    assert recover.used_restarts(attempts, LIMITS) == used


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (ground(), "abcd"),
        (ground(lost="c"), None),
        (ground(("a", "b", "c", "d", "e"), lost="c"), "abde"),
        (ground(("a", "b", "c", "d", "e"), suspects="b"), "acde"),
        (ground(("a", "b", "c", "d", "e"), lost="e", suspects="b"), "abcd"),
        (ground(("a", "b", "c", "d", "e"), lost="bc"), None),
        (ground(("a", "b", "c", "d", "e", "f"), suspects="ab"), "acde"),
        (ground(("a", "b", "c", "d", "e"), suspects="bc"), "abde"),
        (ground(("a", "b", "c", "d", "e"), lost="a"), None),
    ],
)
def test_nodes_of_the_next_attempt(given: Ground, chosen: str | None) -> None:
    """In the allocation's order, the script's own always; without lost ones, without suspects while others are left."""
    assert recover.choose_nodes(given) == (None if chosen is None else tuple(chosen))


@pytest.mark.parametrize(
    ("attempts", "limits", "requeues", "given", "follows"),
    [
        ([failed(0)], LIMITS, 0, ground(), (RESTART, 10, 2)),
        ([failed(0), failed(1)], LIMITS, 0, ground(), (RESTART, 20, 1)),
        ([failed(0), failed(1), failed(2)], LIMITS, 0, ground(), (RESTART, 40, 0)),
        ([failed(0), failed(1), failed(2), failed(3)], LIMITS, 0, ground(), (END, 0, 0)),
        ([failed(0), failed(1), failed(2), failed(3)], LIMITS._replace(requeues=2), 1, ground(), (REQUEUE, 0, 0)),
        ([failed(0), failed(1), failed(2), failed(3)], LIMITS._replace(requeues=2), 2, ground(), (END, 0, 0)),
        ([failed(0, "c", "node")], LIMITS, 0, ground(lost="c"), (END, 0, 0)),
        ([failed(0, "c", "node")], LIMITS._replace(requeues=1), 0, ground(lost="c"), (REQUEUE, 0, 0)),
        ([failed(0, "c", "node")], LIMITS, 0, ground((*FOUR, "e"), lost="c"), (RESTART, 10, 2)),
        ([failed(0)], LIMITS._replace(restarts=0, requeues=1), 0, ground(), (REQUEUE, 0, 0)),
        ([failed(0, "a")], LIMITS._replace(requeues=1), 0, ground((*FOUR, "e"), suspects="a"), (REQUEUE, 0, 0)),
        ([failed(0, "a")], LIMITS, 0, ground((*FOUR, "e"), suspects="a"), (RESTART, 10, 2)),
        ([failed(0, "b")], LIMITS._replace(requeues=1), 0, ground((*FOUR, "e"), suspects="a"), (RESTART, 10, 2)),
    ],
)
def test_what_follows(
    attempts: list[Attempt], limits: Limits, requeues: int, given: Ground, follows: tuple[str, int, int]
) -> None:
    """Restarts first, twice the pause each time; a requeue when none is left, possible or of use; else the end."""
    order = recover.decide(attempts, limits, requeues, given)
    assert (order.next, order.pause_s, order.left) == follows
    assert order.why or order.next == RESTART


@pytest.mark.parametrize(
    ("attempts", "suspects"),
    [
        ([failed(0, "b")], ""),
        ([failed(0, "b"), failed(1, "c")], ""),
        ([failed(0, "b"), failed(1, "c"), failed(2, "b")], "b"),
        ([failed(0, "b", "signal", 0.0, "cuda-ecc")], "b"),
        ([failed(0, "b", "signal", 0.0, "cuda-oom")], ""),
        ([failed(0, None), failed(1, None)], ""),
    ],
)
def test_who_is_avoided(attempts: list[Attempt], suspects: str) -> None:
    """A node with a fault of its own at once, any other when it was the first to fail a second time."""
    assert "".join(recover.find_suspects(attempts)) == suspects


def test_faults_of_nodes_are_those_that_the_catalogue_says_to_avoid() -> None:
    """A known error that is renamed or taken out must not be forgotten here."""
    entries = {str(item["id"]): str(item["remedy"]) for item in load_known_errors()}
    assert set(entries) >= recover.HARDWARE
    assert all("exclude_nodes" in entries[name] for name in recover.HARDWARE)


def job(folder: Path, *results: dict[str, Any] | str | None) -> Path:
    """Write a job's folder: a result of each attempt, a text as it stands, None without a file."""
    for number, value in enumerate(results):
        (folder / f"attempt-{number}" / "journal").mkdir(parents=True)
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            (folder / f"result.{number}.json").write_text(text)
    return folder


def test_results_are_read(tmp_path: Path) -> None:
    """One that is not there, or cut off, is an attempt all the same."""
    found = {"kind": "node", "node": "c", "known": [{"id": "node-failure"}]}
    job(tmp_path, {"ready": 10.0, "ended": 25.0, "diagnosis": found}, None, '{"ready": 1', {"ready": None})
    assert recover.read_attempts(str(tmp_path)) == [
        Attempt(0, 15.0, "node", "c", ("node-failure",)),
        Attempt(1),
        Attempt(2),
        Attempt(3),
    ]


def test_requeues_are_counted_over_the_jobs_life(tmp_path: Path) -> None:
    """One that Slurm refused was none."""
    job(tmp_path, {}, {}, {})
    for number, kinds in enumerate((("begin", "requeue"), ("requeue",), ("requeue", "requeue-refused"))):
        for kind in kinds:
            journal.append(str(tmp_path / f"attempt-{number}" / "journal" / "job.jsonl"), journal.record(kind))
    assert recover.requeues_so_far(str(tmp_path), recover.read_attempts(str(tmp_path))) == 2


def test_an_end_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` says why nothing follows, and need not wait to see whether something does."""
    root = job(tmp_path, {"state": "FAILED"})
    (root / "attempt-0" / "journal").mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = recover.Given(str(root / "attempt-0"), 0, Limits(0, 1, 3600.0, 0), 0, "")
    assert recover.main(given) == 0
    assert capsys.readouterr().out.split()[0] == "end"
    records = journal.read(str(root / "attempt-0" / "journal" / "job.jsonl"))
    assert [(item["kind"], item.get("why")) for item in records] == [("no-restart", "no restart was asked for")]


def test_the_living_are_those_that_the_head_has_not_lost(tmp_path: Path) -> None:
    """The last clean-up must not wait for a node that never answers."""
    (tmp_path / "journal").mkdir()
    journal.append(str(tmp_path / "journal" / "head.jsonl"), journal.record("lost", node="b"))
    assert recover.living(str(tmp_path), FOUR) == ["a", "c", "d"]


@pytest.mark.parametrize(("timeout_s", "pause_s"), [(300.0, 30.0), (15.0, 2.0), (100.0, 10.0), (3600.0, 30.0)])
def test_the_heir_looks_often_enough(timeout_s: float, pause_s: float) -> None:
    """Several times before Slurm gives up the script's node, and with it the heir."""
    assert heir.pause_s(timeout_s) == pause_s


def test_who_is_the_heir(monkeypatch: pytest.MonkeyPatch) -> None:
    """One agent, on another node than the script's."""
    found = []
    for number in "0123":
        monkeypatch.setenv("SLURM_NODEID", number)
        found.append(heir.is_heir())
    assert found == [False, True, False, False]
