"""How long each phase of a start took. The first run's moments are those of a real one on the devcluster."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_llm.agent import fold, journal, phases

T = 1796057398.0
BEGIN: journal.Record = {"t": T + 0.44, "kind": "begin"}
SERVER = {"t": T + 1.58, "kind": "server"}
STARTS: list[journal.Record] = [
    {"t": T + 1.7 + 0.01 * rank, "kind": "start", "rank": rank, "node": f"n{rank // 2}", "gpus": ""}
    for rank in range(4)
]
FINDS: list[journal.Record] = [
    {"t": T + 1.9 + 0.01 * rank, "kind": "found", "rank": rank, "node": f"n{rank // 2}", "main": True, "pid": rank}
    for rank in range(4)
]
FINDS[0]["ports"] = {"http": 1}
STUB = {"t": T + 2.5, "kind": "found", "rank": 1, "node": "n0", "main": False, "pid": 99}
LOADED: journal.Record = {"t": T + 2.8, "kind": "loaded", "rank": 0, "node": "n0"}
READY = {"t": T + 3.06, "kind": "state", "state": "READY"}
WHOLE = [BEGIN, SERVER, *STARTS, *FINDS, STUB, LOADED, READY]


def of(*records: journal.Record) -> phases.Phases:
    """Return the phases of four ranks on two nodes, as the fold of their journals has them."""
    return fold.fold(records, 4).phases


def test_a_whole_start_adds_up() -> None:
    """From the script's begin to READY nothing is left out, and nothing is counted twice."""
    own = of(*WHOLE)
    assert (own.check_s, own.launch_s, own.start_s, own.load_s, own.answer_s) == (1.14, 0.15, 0.2, 0.87, 0.26)
    took = [own.check_s, own.launch_s, own.start_s, own.load_s, own.answer_s]
    assert own.ready_s == pytest.approx(sum(one for one in took if one is not None))


@pytest.mark.parametrize(
    ("records", "known"),
    [
        pytest.param([], [], id="nothing yet"),
        pytest.param([BEGIN], [], id="the preflight runs, or failed"),
        pytest.param([BEGIN, SERVER, *STARTS[:3]], ["check_s"], id="a rank has not begun"),
        pytest.param([BEGIN, SERVER, *STARTS, *FINDS], ["check_s", "launch_s", "start_s"], id="it loads"),
        pytest.param([BEGIN, SERVER, *STARTS, *FINDS, LOADED], ["check_s", "launch_s", "start_s", "load_s"]),
        pytest.param([BEGIN, SERVER, READY], ["check_s", "ready_s"], id="no agents"),
        pytest.param(
            [BEGIN, SERVER, *STARTS, *FINDS, READY],
            ["check_s", "launch_s", "start_s", "load_s", "ready_s"],
            id="nobody saw it load",
        ),
    ],
)
def test_what_has_not_ended_is_not_told(records: list[journal.Record], known: list[str]) -> None:
    """A phase of a run that is on its way has no length."""
    own = of(*records)._asdict()
    assert [name for name, value in own.items() if value is not None and name != "slowest"] == known


def test_the_rank_that_holds_up_the_others_is_named() -> None:
    """A node that pulls its image late, or a rank whose program is long in coming."""
    late = [dict(one, t=one["t"] + 40.0) if one["rank"] == 3 else one for one in STARTS]
    later = [dict(one, t=one["t"] + 40.0) for one in FINDS]
    own = of(BEGIN, SERVER, *late, *later)
    slow = phases.outstanding(own)
    assert slow is not None
    assert (slow.phase, slow.rank, slow.node, slow.seconds) == ("launch", 3, "n1", 40.15)
    assert phases.parts(own) == ["check 1.1 s", "launch 40 s", "slowest rank 3 on n1 (launch 40 s)"]


def test_when_all_take_alike_nobody_is_named() -> None:
    """Some rank is always last."""
    own = of(*WHOLE)
    assert phases.outstanding(own) is None
    assert phases.parts(own) == ["check 1.1 s", "launch 0.3 s", "load 0.9 s", "answer 0.3 s"]


def test_an_answer_that_is_seen_before_the_end_of_loading_takes_no_time() -> None:
    """The head's probe can be faster than the agent's look; and clocks of nodes differ."""
    own = of(BEGIN, SERVER, *STARTS, *FINDS, dict(LOADED, t=T + 9.0), READY)
    assert (own.load_s, own.answer_s) == (1.13, 0.0)
    assert of(dict(BEGIN, t=T + 5.0), SERVER).check_s == 0.0


@pytest.mark.parametrize(
    ("attempt", "submitted", "queue_s"), [(0, T - 3.0, 3.44), (0, None, None), (1, T - 3.0, None), (0, T + 9, 0.0)]
)
def test_only_the_first_attempt_has_queued(attempt: int, submitted: float | None, queue_s: float | None) -> None:
    """A restart finds its nodes there; who submits by sbatch has left no time."""
    own = phases.queued(of(*WHOLE), submitted, BEGIN["t"], attempt)
    assert own.queue_s == queue_s


def test_json_holds_all_of_it() -> None:
    """The result file is read back; one of an older job has none, and one that was cut off is no reason to fail."""
    own = of(*WHOLE)
    assert phases.from_json(phases.as_json(own)) == own
    nothing: list[Any] = [None, {}, {"slowest": [{}]}, {"slowest": [], "unknown": 1}, []]
    assert [phases.from_json(value) for value in nothing] == [None] * 5
