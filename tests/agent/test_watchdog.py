"""When a run that loads, or a model that served, has hung: what the head makes of beats and of leaders' answers."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_llm.agent.probe import Answer, Said
from slurm_llm.agent.progress import ASLEEP, STOPPED
from slurm_llm.agent.watchdog import SUSPECT_S, Limits, Stall, Watchdog, members_of

LIMITS = Limits(ready_s=60, stall_s=10, answer_s=5, probe_s=3, unready_s=20)
OK = Answer(200, "{}")
NONE = Answer(None, "timed out")
ERROR = Answer(400, '{"error": "boom"}')
FULL = Answer(503, '{"error": "Exceeds maximum queue size"}')


def dog(instances: int = 1, per: int = 4) -> Watchdog:
    """Return a watchdog of some instances of four ranks."""
    return Watchdog(LIMITS, {index: list(range(index * per, (index + 1) * per)) for index in range(instances)})


def beats(own: Watchdog, odd: dict[int, dict[str, Any]] | None = None, ranks: int = 4) -> None:
    """Let ten seconds of beats come in: all ranks nap and wait, those in `odd` have other figures a second."""
    for second in range(0, 11, 2):
        figures: dict[str, dict[str, Any]] = {}
        for rank in range(ranks):
            rate = {"u": 0.001, "s": 0.002, "n": 50, "st": "SS", **(odd or {}).get(rank, {})}
            figures[str(rank)] = {
                "u": rate["u"] * second,
                "s": rate["s"] * second,
                "n": rate["n"] * second,
                "st": rate["st"],
                "log": 7,
            }
        own.beat({"t": 7.0, "at": 50.0 + second, "kind": "beat", "ranks": figures}, 1000.0 + second)


def said(answer: Answer, *, busy: bool = False, instance: int = 0) -> Said:
    return Said(instance, answer, generation=True, busy=busy)


SLEEPY = {"u": 0.0, "s": 0.0, "n": 4}


def test_a_rank_that_stands_out_is_named_at_the_first_silence() -> None:
    """The leader too, which sleeps while its workers look for messages."""
    own = dog()
    beats(own, {0: SLEEPY})
    assert own.heard(said(OK), 1.0) is None
    stall = own.heard(said(NONE), 9.0)
    assert stall is not None and stall.culprit is not None
    assert (stall.culprit.rank, stall.culprit.what) == (0, ASLEEP)
    assert stall.describe().startswith("the model of instance 0 has not answered a request within 5 s; rank 0 holds up")


def test_a_suspicion_ends_with_the_next_answer() -> None:
    """Nobody stands out, so somebody is looked for; a model that answers meanwhile is well, and so it stays."""
    own = dog()
    beats(own)
    own.heard(said(OK), 1.0)
    assert own.heard(said(NONE), 9.0) is None
    assert own.heard(said(OK), 11.0) is None
    assert own.overdue(9.0 + 10 * SUSPECT_S) is None


def test_a_suspicion_ends_when_others_are_answered() -> None:
    """A busy model is no dead one."""
    own = dog()
    beats(own)
    own.heard(said(OK), 1.0)
    own.heard(said(NONE), 9.0)
    assert own.heard(said(NONE, busy=True), 12.0) is None
    assert own.overdue(9.0 + 10 * SUSPECT_S) is None


def test_a_suspicion_that_lasts_is_a_stall() -> None:
    """With the rank that shows by then, or without one."""
    own = dog()
    beats(own)
    own.heard(said(OK), 1.0)
    own.heard(said(NONE), 9.0)
    assert own.overdue(9.0 + SUSPECT_S / 2) is None
    late = own.overdue(9.0 + SUSPECT_S)
    assert late is not None and late.culprit is None and "no rank stands out" in late.describe()
    beats(own, {3: SLEEPY})
    found = own.overdue(9.1)
    assert found is not None and found.culprit is not None and found.culprit.rank == 3


def test_a_model_that_answers_with_errors_has_failed() -> None:
    """Health says ready all the while; one error proves nothing, and the leader is who answers them."""
    own = dog()
    beats(own)
    own.heard(said(OK), 1.0)
    found = [own.heard(said(ERROR), 5.0 + second) for second in range(3)]
    assert found[:2] == [None, None]
    stall = found[2]
    assert isinstance(stall, Stall) and stall.refused and stall.culprit is not None and stall.culprit.rank == 0
    assert (
        stall.describe()
        == 'rank 0 calls itself ready and answers each request with an error: HTTP 400 {"error": "boom"}'
    )


def test_errors_between_answers_are_the_requests_own() -> None:
    """An answer, or one that others got, ends the row."""
    own = dog()
    for now, one in enumerate([OK, ERROR, ERROR, OK, ERROR, ERROR, OK]):
        assert own.heard(said(one), float(now)) is None
    for now in range(10, 20):
        assert own.heard(said(ERROR, busy=True), float(now)) is None


def test_a_full_queue_counts_only_when_it_lasts() -> None:
    """503 and 429 are said by servers that work on what they have."""
    own = dog()
    own.heard(said(OK), 1.0)
    assert all(own.heard(said(FULL), 2.0 + second) is None for second in range(int(LIMITS.unready_s)))
    stall = own.heard(said(FULL), 3.0 + LIMITS.unready_s)
    assert stall is not None and "HTTP 503" in stall.describe()


def test_a_server_that_never_generates_is_not_ready_for_long() -> None:
    """Health says 200 from the first moment, and each generation is refused."""
    own = dog()
    assert all(own.heard(said(ERROR), 2.0 + second) is None for second in range(int(LIMITS.unready_s)))
    assert own.heard(said(ERROR), 3.0 + LIMITS.unready_s) is not None


def test_health_that_is_not_200_for_long() -> None:
    """Of a server that has served; before that it is still loading."""
    own = dog()
    bad = Said(0, Answer(503, ""))
    assert own.heard(bad, 1.0) is None
    assert own.heard(bad, 100.0) is None
    own.heard(said(OK), 101.0)
    assert own.heard(bad, 102.0) is None
    stall = own.heard(bad, 103.0 + LIMITS.unready_s)
    assert stall is not None and "has not been ready for 21 s (HTTP 503)" in stall.describe()


def test_triton_says_of_a_stopped_stub_that_it_is_not_healthy() -> None:
    """The state of the process says more."""
    own = dog()
    beats(own, {2: {**SLEEPY, "st": "ST"}})
    own.heard(said(OK), 1.0)
    stall = [own.heard(said(ERROR), 5.0 + second) for second in range(3)][-1]
    assert stall is not None and not stall.refused and stall.culprit is not None
    assert (stall.culprit.rank, stall.culprit.what) == (2, STOPPED)


@pytest.mark.parametrize(
    ("waited", "now", "words"), [(30.0, 1009.0, ""), (30.0, 1025.0, "no rank"), (61.0, 1010.0, "not ready")]
)
def test_loading_is_bounded_by_progress_and_by_time(waited: float, now: float, words: str) -> None:
    """Whichever limit comes first; the rank that sleeps is named."""
    own = dog()
    beats(own, {1: SLEEPY})
    stall = own.loading(waited, now, lambda: "rank 1")
    assert (stall is None) is (words == "")
    if stall is not None:
        assert stall.what.startswith(words) and stall.culprit is not None and stall.culprit.rank == 1


def test_a_stall_without_a_culprit_is_looked_at_a_while_longer() -> None:
    """What ranks do is known over some seconds: the first ones of a hang still show what was before."""
    own = dog()
    beats(own)
    assert own.loading(30.0, 1000.0 + LIMITS.stall_s + 1, str) is None
    stall = own.loading(30.0, 1000.0 + LIMITS.stall_s + SUSPECT_S + 1, str)
    assert stall is not None and stall.culprit is None


def test_a_clock_that_is_set_is_no_hang() -> None:
    """A node's wall-clock time (`t`) says nothing: when a beat came does, and a clock that nobody sets."""
    own = dog()
    works = {"u": 1.0, "s": 0.0, "n": 0, "st": "R", "log": 7}
    for second, wall in enumerate((1000.0, 1002.0, 90000.0, 5.0)):
        figures = {str(rank): {**works, "u": 1.0 * second} for rank in range(4)}
        own.beat({"t": wall, "at": 2.0 * second, "kind": "beat", "ranks": figures}, 300.0 + 2 * second)
    assert own.loading(30.0, 307.0, str) is None
    assert own.progress.rates()[0].user == pytest.approx(0.5)
    assert len(own.progress.seen[0]) <= 4
    assert own.loading(30.0, 306.0 + LIMITS.stall_s + SUSPECT_S + 1, str) is not None


def test_time_in_which_the_head_stood_still_does_not_count() -> None:
    """A job that was suspended has not hung."""
    own = dog()
    beats(own)
    own.progress.forgive(500.0)
    assert own.loading(30.0, 1500.0 + LIMITS.stall_s - 1, str) is None
    assert own.loading(30.0, 1500.0 + LIMITS.stall_s + SUSPECT_S + 1, str) is not None


def test_an_instance_that_serves_hides_no_other() -> None:
    """What works for requests is no progress of an instance that hangs while it loads."""
    own = dog(2)
    beats(own, {5: SLEEPY, **{rank: {"u": 0.5, "s": 0.01, "n": 5} for rank in range(4)}}, ranks=8)
    assert own.loading(30.0, 1025.0, str) is not None
    own.heard(said(OK), 1.0)
    stall = own.loading(30.0, 1025.0, str)
    assert stall is not None and stall.culprit is not None and stall.culprit.rank == 5
    own.heard(said(OK, instance=1), 1.0)
    assert own.loading(1000.0, 9000.0, str) is None


def test_the_ranks_of_instances_come_from_the_plan() -> None:
    """Leaders first."""
    plan = {
        "ranks": [{}] * 6,
        "instances": [{"index": 0, "first_rank": 0, "leader": 0}, {"index": 1, "first_rank": 3, "leader": 4}],
    }
    assert members_of(plan) == {0: [0, 1, 2], 1: [4, 3, 5]}
