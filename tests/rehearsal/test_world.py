"""The layout's arithmetic, waiting, parameters, and the engine's queue on one rank."""

from __future__ import annotations

import threading
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.rehearsal.engine import Leader, Settings, Step, parse_settings, parse_step, start_engine
from slurm_llm.rehearsal.layers import Shard, Weights
from slurm_llm.rehearsal.layout import Sizes, members_of, place_of
from slurm_llm.rehearsal.texts import Request
from slurm_llm.rehearsal.world import AloneWorld, RehearsalError, wait_until
from slurm_llm.topology import ParallelSizes, coordinates, groups

TIMEOUT_S = 10
small = st.integers(1, 5)


@given(small, small, small, small)
def test_layout_is_the_planners(moe_tensor: int, moe_expert: int, context: int, pipeline: int) -> None:
    """Every rank has the coordinates and groups that the plan prints for it."""
    tensor = moe_tensor * moe_expert
    ours = Sizes(tensor, pipeline, context, moe_tensor, moe_expert)
    theirs = ParallelSizes(tensor, pipeline, context, moe_tensor, moe_expert)
    assert ours.world == theirs.world_size
    for rank in range(ours.world):
        place, at = place_of(rank, ours), coordinates(rank, theirs)
        assert (place.tensor, place.context, place.pipeline, place.moe_tensor, place.moe_expert) == astuple(at)
        assert astuple(members_of(rank, ours)) == astuple(groups(rank, theirs))


def test_place_reads_well() -> None:
    """The log names only the dimensions that are there."""
    assert str(place_of(3, Sizes(tensor=4, moe_tensor=4, pipeline=2))) == "tp 3 pp 0"
    assert (
        str(place_of(7, Sizes(tensor=4, moe_tensor=2, moe_expert=2, context=2))) == "tp 3 pp 0 cp 1 moe_tp 1 moe_ep 1"
    )


def test_waiting_gives_up_at_the_deadline() -> None:
    """A condition that never comes true ends the wait with False."""
    assert not wait_until(lambda: False, deadline_s=0.01)
    assert wait_until(lambda: True, deadline_s=0.0)


def test_parameters_are_read_from_text() -> None:
    """All parameters arrive as strings; unset expert sizes are filled."""
    parameters = {
        "tensor_parallel_size": "4",
        "pipeline_parallel_size": "2",
        "moe_expert_parallel_size": "2",
        "moe": "true",
        "seed": "7",
        "step_ms": "20",
        "join_timeout_s": "5",
    }
    sizes = Sizes(tensor=4, pipeline=2, context=1, moe_tensor=2, moe_expert=2)
    assert parse_settings(parameters) == Settings(sizes, moe=True, seed=7, step_ms=20, join_timeout_s=5)
    assert parse_settings({}) == Settings(Sizes())


def test_wrong_parameters_are_reported_together() -> None:
    """Every problem stands in the one message, with the value."""
    wrong = {
        "tensor_parallel_size": "4",
        "moe_expert_parallel_size": "3",
        "pipeline_parallel_size": "0",
        "seed": "x",
        "moe": "maybe",
    }
    with pytest.raises(RehearsalError) as caught:
        parse_settings(wrong)
    for part in ("pipeline_parallel_size is '0'", "seed is 'x'", "moe is 'maybe'", "1 x moe_expert_parallel_size 3"):
        assert part in str(caught.value)


@given(st.binary())
def test_any_prompt_survives_the_way_to_the_ranks(prompt: bytes) -> None:
    """A command reads back as it was written."""
    step = Step(forget=[3], start=[(4, prompt)], advance=[(1, 97), (2, 32)])
    assert parse_step(step.encode()) == step


class Ear:
    """A client that writes down what it hears."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.reason = ""
        self.stop_text: str | None = None
        self.error = ""
        self.gone = False
        self.heard = threading.Event()
        self.done = threading.Event()

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def send(self, text: str) -> None:
        self.pieces.append(text)
        self.heard.set()

    def finish(self, text: str, reason: str, stop_text: str | None) -> None:
        self.pieces.append(text)
        self.reason, self.stop_text = reason, stop_text
        self.done.set()

    def fail(self, message: str) -> None:
        self.error = message
        self.done.set()

    def is_gone(self) -> bool:
        return self.gone


def take_all(text: str, max_tokens: int, *stop_texts: str) -> Ear:
    """Return a client that was told `text` token by token."""
    ear = Ear()
    request = Request("", b"", ear, max_tokens=max_tokens, stop_texts=stop_texts)
    for token in text:
        if request.take(ord(token)):
            break
    return ear


@pytest.mark.parametrize(
    ("stop_texts", "pieces", "reason", "stop_text"),
    [
        ((), ["b", "a", "n", "a", "n", "e"], "length", None),
        (("nan",), ["b", "a", "", "", ""], "stop", "nan"),
        (("nab",), ["b", "a", "", "", "na", "ne"], "length", None),
        (("x", "e"), ["b", "a", "n", "a", "n", ""], "stop", "e"),
        (("ban",), ["", "", ""], "stop", "ban"),
    ],
)
def test_a_stop_text_ends_the_text_and_is_never_sent(
    stop_texts: tuple[str, ...], pieces: list[str], reason: str, stop_text: str | None
) -> None:
    """One piece for each token; what may begin a stop text is held back until it is sure."""
    ear = take_all("banane", 6, *stop_texts)
    assert (ear.pieces, ear.reason, ear.stop_text) == (pieces, reason, stop_text)


def start_leader(**parameters: str) -> Leader:
    """Return the leader of a world of one."""
    leader = start_engine(parameters, lambda line: None)
    assert leader is not None
    return leader


def test_one_rank_needs_no_mpi() -> None:
    """A plan of one rank writes its text alone."""
    leader, ear = start_leader(), Ear()
    leader.submit(Request("", b"The future of AI is", ear))
    assert ear.done.wait(TIMEOUT_S)
    assert (ear.text, len(ear.pieces), ear.reason) == ("egilo wobu wila ", 16, "length")
    leader.close(TIMEOUT_S)


def test_cancel_ends_the_named_request_only() -> None:
    """Of three requests in flight the named one ends with what it has; an empty id names none."""
    leader = start_leader(step_ms="5")
    named, other, nameless = Ear(), Ear(), Ear()
    for request_id, ear, tokens in (("a", named, 10_000), ("b", other, 60), ("", nameless, 60)):
        leader.submit(Request(request_id, b"text", ear, max_tokens=tokens))
    assert all(ear.heard.wait(TIMEOUT_S) for ear in (named, other, nameless))
    leader.cancel("")
    leader.cancel("no such id")
    leader.cancel("a")
    assert all(ear.done.wait(TIMEOUT_S) for ear in (named, other, nameless))
    assert [ear.reason for ear in (named, other, nameless)] == ["cancelled", "length", "length"]
    assert other.text == nameless.text
    assert other.text.startswith(named.text[:60])
    leader.close(TIMEOUT_S)


def test_a_client_that_left_frees_its_place() -> None:
    """A request whose client is gone ends at the next look."""
    leader, ear = start_leader(step_ms="2"), Ear()
    leader.submit(Request("", b"text", ear, max_tokens=100_000))
    assert ear.heard.wait(TIMEOUT_S)
    ear.gone = True
    assert ear.done.wait(TIMEOUT_S)
    assert ear.reason == "cancelled"
    leader.close(TIMEOUT_S)


def test_close_cancels_what_does_not_end_in_time_and_refuses_more() -> None:
    """Closing answers everybody."""
    leader, running, late = start_leader(step_ms="2"), Ear(), Ear()
    leader.submit(Request("", b"text", running, max_tokens=100_000))
    assert running.heard.wait(TIMEOUT_S)
    leader.close(0.05)
    assert running.done.wait(TIMEOUT_S)
    assert running.reason == "cancelled"
    leader.submit(Request("", b"text", late))
    assert late.error == "the engine is shutting down"


def test_more_requests_than_places_wait_their_turn() -> None:
    """A hundred requests at once all get the same text."""
    leader, ears = start_leader(), [Ear() for _ in range(100)]
    for ear in ears:
        leader.submit(Request("", b"text", ear, max_tokens=4))
    assert all(ear.done.wait(TIMEOUT_S) for ear in ears)
    assert len({ear.text for ear in ears}) == 1
    leader.close(TIMEOUT_S)


class LostWorld(AloneWorld):
    """A world whose other ranks cannot be reached."""

    def publish(self, command: bytes) -> None:
        raise RehearsalError("nobody there")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broken_engine_answers_everybody() -> None:
    """When the engine's thread dies, waiting and later requests get an error instead of silence."""
    world = LostWorld()
    sizes = Sizes()
    shard = Shard(place_of(0, sizes), world.links(members_of(0, sizes)), Weights(0), moe=False)
    leader = Leader(world, shard, Settings(sizes), lambda line: None)
    waiting, late = Ear(), Ear()
    leader.submit(Request("", b"text", waiting))
    assert waiting.done.wait(TIMEOUT_S)
    assert "engine has failed" in waiting.error
    leader.submit(Request("", b"text", late))
    assert late.done.wait(TIMEOUT_S)
    assert late.error == "the engine has failed"
    leader.close(TIMEOUT_S)
