from __future__ import annotations

from typing import Any

import pytest

from slurm_llm.agent.fold import describe, end_of, fold

HELLO = {"t": 0.0, "kind": "hello", "node": "n1"}


def ended(t: float, rank: int, how: str | None, **more: Any) -> dict[str, Any]:
    """Return a node agent's record of an end."""
    fields = {"main": False, "name": "triton_python_b", "lived_s": 60.0, "asked": False, "node": f"n{rank // 2 + 1}"}
    return {"t": t, "at": t, "kind": "ended", "rank": rank, "how": how, **fields, **more}


MAIN = {"main": True, "name": "tritonserver"}
LOADED = {"t": 40.0, "kind": "loaded", "rank": 3}


@pytest.mark.parametrize(
    ("records", "rank"),
    [
        pytest.param([ended(5, 3, "signal SIGKILL")], 3, id="a stub that is killed"),
        pytest.param([ended(5, 3, "signal SIGKILL", lived_s=0.5)], 3, id="a stub that is killed early"),
        pytest.param([ended(5, 3, "exit 0", **MAIN)], 3, id="a server that exits 0 unasked"),
        pytest.param([ended(5, 3, None)], 3, id="a long-lived child that nobody reaped in time"),
        pytest.param([ended(5, 3, "exit 1", lived_s=0.1)], None, id="the stub's version question exits with 1"),
        pytest.param([ended(5, 3, None, name="sh", lived_s=0.0)], None, id="a short helper"),
        pytest.param([ended(60, 3, "exit 0", helper=True)], None, id="a stub that completed a configuration"),
        pytest.param([ended(60, 3, "signal SIGKILL", helper=True)], 3, id="one that was killed"),
        pytest.param([ended(60, 3, "signal SIGKILL", tracker=True)], None, id="what tidies up after another process"),
        pytest.param([ended(60, 3, "exit 0", name="python3", lived_s=11)], None, id="vLLM has looked at its model"),
        pytest.param([ended(60, 3, "exit 1", name="python3", lived_s=11)], 3, id="a long-lived child that failed"),
        pytest.param(
            [LOADED, ended(60, 3, None, name="cc1plus", lived_s=9)], None, id="a compiler at the first request"
        ),
        pytest.param(
            [LOADED, ended(60, 3, None, name="VLLM::EngineCor", lived_s=50)], 3, id="an engine whose parent reaped it"
        ),
        pytest.param(
            [LOADED, ended(60, 3, "exit 0", name="VLLM::Worker", lived_s=50)], 3, id="a worker that has left in order"
        ),
        pytest.param([ended(5, 3, "exit 3", lived_s=0.2)], 3, id="a stub that exits otherwise, however soon"),
        pytest.param([ended(5, 3, "signal SIGTERM", asked=True, **MAIN)], None, id="a server that was told to"),
        pytest.param(
            [ended(6, 1, "signal SIGTERM", **MAIN), ended(5, 4, "signal SIGKILL", lived_s=1, name="EngineCore")],
            4,
            id="the killed child is the cause of its server's end",
        ),
        pytest.param(
            [ended(60, 1, "exit 1", **MAIN), ended(5, 4, "signal SIGKILL", lived_s=1, name="cc1plus")],
            1,
            id="a helper killed long before is not",
        ),
        pytest.param(
            [ended(5.2, 2, "exit 3", **MAIN), ended(5.1, 7, "exit 3", **MAIN), ended(5.3, 0, "exit 3", **MAIN)],
            7,
            id="the earliest by the agents' clocks, whatever the order of arrival",
        ),
        pytest.param(
            [{"t": 5.0, "kind": "stop"}, ended(4.5, 3, "signal SIGTERM", **MAIN)],
            None,
            id="scancel reaches an engine before the head",
        ),
        pytest.param(
            [{"t": 5.0, "kind": "stop"}, ended(4.5, 3, "signal SIGSEGV", **MAIN)], 3, id="a crash just before a stop"
        ),
        pytest.param(
            [{"t": 5.0, "kind": "stop"}, ended(9, 3, "signal SIGKILL", **MAIN)], None, id="killed while stopping"
        ),
    ],
)
def test_who_went_first(records: list[dict[str, Any]], rank: int | None) -> None:
    """The culprit is named, helpers and victims are not."""
    found = fold([HELLO, *records], 8).first_end
    assert (None if found is None else found.rank) == rank


STUB = {"kind": "found", "main": False, "name": "triton_python_b", "node": "n3", "rank": 4, "pid": 44}


@pytest.mark.parametrize(
    ("how", "server", "lived_s", "first"),
    [
        pytest.param("exit 3", 9.0, 2.0, 4, id="it exits, and PMIx ends the others a second later"),
        pytest.param("exit 0", 9.0, 2.0, 4, id="with status 0 too"),
        pytest.param("exit 0", 5.1, 2.0, 4, id="its own server has failed and ends both"),
        pytest.param("exit 1", 9.0, 0.1, 1, id="it was asked for its version only"),
    ],
)
def test_a_stub_that_exits_went_before_those_that_pmix_ended(
    how: str, server: float, lived_s: float, first: int
) -> None:
    """The end of the last child of a server counts with whatever status; `finish`, which follows, excuses nothing."""
    records = [
        HELLO,
        {**STUB, "t": 1.0},
        ended(5.0, 4, how, pid=44, lived_s=lived_s),
        ended(6.2, 1, "signal SIGKILL", **MAIN),
        ended(server, 4, "exit 1", **MAIN),
        {"t": 6.5, "kind": "finish"},
    ]
    end = fold(records, 8).first_end
    assert end is not None and end.rank == first
    if server < 6:
        assert end.name == "tritonserver"


def test_the_end_of_a_rank_that_was_not_the_first() -> None:
    """Where all die at once, the one that is meant is told with its own end."""
    records = [
        {"t": 1.0, "kind": "state", "state": "READY"},
        ended(5.0, 2, "signal SIGKILL"),
        ended(5.2, 3, "signal SIGKILL", **MAIN),
        ended(5.1, 3, "signal SIGKILL"),
    ]
    found = end_of(records, 3)
    assert found is not None
    assert (found.rank, found.at, found.name, found.phase) == (3, 5.1, "triton_python_b", "serving")
    assert end_of(records, 4) is None


def test_where_no_agent_saw_an_engine_the_wrapper_counts() -> None:
    """A rank that fails before it starts its engine leaves only its own exit record."""
    records = [{"t": 3.0, "kind": "exit", "rank": 2, "node": "n2", "code": 139}]
    found = fold(records, 4).first_end
    assert found is not None
    assert (found.rank, found.node, found.how) == (2, "n2", "signal SIGSEGV")
    seen = {"t": 2.0, "kind": "found", "rank": 2, "node": "n2", "main": True, "pid": 7}
    assert fold([HELLO, seen, *records], 4).first_end is None


def test_the_sentence_says_rank_node_process_how_and_when() -> None:
    """What a person reads at night names everything that is known."""
    records = [HELLO, {"t": 2.0, "kind": "state", "state": "READY"}, ended(5, 3, "signal SIGKILL")]
    found = fold(records, 4).first_end
    assert found is not None
    assert (
        describe(found)
        == "rank 3 on node n2 went first: triton_python_backend_stub ended: signal SIGKILL, while serving"
    )
    unasked = fold([HELLO, ended(5, 0, "exit 0", **MAIN)], 4).first_end
    assert unasked is not None
    assert "though nobody had asked it to, while loading" in describe(unasked)


def test_states_of_ranks_follow_their_records() -> None:
    """A rank waits, starts, loads, serves once its leader answers, and ends."""
    records: list[dict[str, Any]] = [HELLO]
    assert fold(records, 2).ranks[1].state == "waiting"
    records.append({"t": 1.0, "kind": "start", "rank": 1, "node": "n1", "gpus": "0,1"})
    assert fold(records, 2).ranks[1].state == "starting"
    records.append({"t": 2.0, "kind": "found", "rank": 1, "node": "n1", "main": True, "pid": 7})
    assert fold(records, 2).ranks[1].state == "loading"
    records.append({"t": 3.0, "kind": "state", "state": "READY"})
    facts = fold(records, 2)
    assert (facts.ranks[1].state, facts.ranks[1].pid, facts.ranks[1].visible_gpus) == ("ready", 7, "0,1")
    assert (facts.state, facts.ready_at, facts.ranks[0].state) == ("READY", 3.0, "waiting")
    records.append({"t": 4.0, "kind": "sample", "ranks": {"1": {"rss_mib": 12.5, "cpu_s": 1.0}, "99": {}}})
    records.append(ended(5, 1, "exit 3", **MAIN))
    last = fold(records, 2).ranks[1]
    assert (last.state, last.how, last.rss_mib, last.ended) == ("ended", "exit 3", 12.5, 5)


def test_records_of_unknown_kinds_and_ranks_are_ignored() -> None:
    """A newer agent's words do not break an older reader."""
    facts = fold([{"t": 1.0, "kind": "news", "rank": 0}, {"t": 1.0, "kind": "found", "rank": 12, "main": True}], 2)
    assert [own.state for own in facts.ranks.values()] == ["waiting", "waiting"]


@pytest.mark.parametrize("whys", [("asked", "handed over to job 5"), ("handed over to job 5", "asked")])
def test_the_heads_own_reason_for_a_stop_comes_before_asked(whys: tuple[str, str]) -> None:
    """The head asks the script to stop, whose note may be a fraction of a millisecond before the head's own."""
    records = [{"t": 389.5607 + place / 10000, "kind": "stop", "why": why} for place, why in enumerate(whys)]
    assert fold(records, 4).stop_why == "handed over to job 5"
    other = {"t": 400.0, "kind": "stop", "why": "time limit"}
    assert fold([*records, other], 4).stop_why == "handed over to job 5"
