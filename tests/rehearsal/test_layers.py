"""The parallel layers alone: threads stand for ranks, so that a layout runs in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Queue
from typing import TYPE_CHECKING

import numpy as np
import pytest

from slurm_llm.rehearsal.layers import EXPERTS, LAYERS, Links, Shard, Weights
from slurm_llm.rehearsal.layout import Place, Sizes, members_of, place_of, share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

PROMPT = b"The future of AI is"
TOKENS = 16
TIMEOUT_S = 20


class ThreadGroup:
    """One member's view of a group of threads that add up arrays."""

    def __init__(self, index: int, barrier: threading.Barrier, desk: list[Ints]) -> None:
        self.index, self.size = index, len(desk)
        self._barrier, self._desk = barrier, desk

    def all_reduce(self, values: Ints) -> Ints:
        self._desk[self.index] = values
        self._barrier.wait(TIMEOUT_S)
        total: Ints = np.sum(self._desk, axis=0)
        self._barrier.wait(TIMEOUT_S)
        return total


class ThreadPipe:
    """Queues between the stages that one rank belongs to."""

    def __init__(self, incoming: Queue[Ints], outgoing: Queue[Ints]) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def receive(self, shape: tuple[int, ...]) -> Ints:
        values = self._incoming.get(timeout=TIMEOUT_S)
        assert values.shape == shape
        return values

    def send(self, values: Ints) -> None:
        self._outgoing.put(values)


class Threads:
    """A world of threads; hands out links and brings the chosen token to every rank."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._groups: dict[tuple[int, ...], tuple[threading.Barrier, list[Ints]]] = {}
        self._pipes: dict[tuple[int, int], Queue[Ints]] = {}
        self.barrier = threading.Barrier(sizes.world)
        self.chosen: list[int] = []
        self.text = b""

    def links(self, rank: int) -> Links:
        members = members_of(rank, self.sizes)
        stages = members.pipeline
        here = stages.index(rank)
        return Links(
            tensor=self._group(rank, members.tensor, 0),
            context=self._group(rank, members.context, 1),
            moe_tensor=self._group(rank, members.moe_tensor, 2),
            moe_expert=self._group(rank, members.moe_expert, 3),
            pipe=ThreadPipe(self._pipe(stages[here - 1], rank), self._pipe(rank, stages[(here + 1) % len(stages)])),
        )

    def abort(self) -> None:
        for barrier in [self.barrier, *(barrier for barrier, _ in self._groups.values())]:
            barrier.abort()

    def _group(self, rank: int, ranks: tuple[int, ...], kind: int) -> ThreadGroup:
        barrier, desk = self._groups.setdefault(
            (kind, *ranks), (threading.Barrier(len(ranks)), [np.zeros(0, np.int64)] * len(ranks))
        )
        return ThreadGroup(ranks.index(rank), barrier, desk)

    def _pipe(self, source: int, to: int) -> Queue[Ints]:
        return self._pipes.setdefault((source, to), Queue())


def write_text(
    sizes: Sizes,
    *,
    moe: bool = False,
    prompt: bytes = PROMPT,
    count: int = TOKENS,
    weights: Weights | None = None,
    move: Callable[[int, Place], Place] = lambda rank, place: place,
) -> bytes:
    """Return the text that a world of `sizes` writes; `move` puts a rank's weights in the wrong place."""
    world = Threads(sizes)
    speaker = (sizes.pipeline - 1) * sizes.tensor * sizes.context
    shards = [
        Shard(move(rank, place_of(rank, sizes)), world.links(rank), weights or Weights(0), moe=moe)
        for rank in range(sizes.world)
    ]
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            chosen = shards[rank].start(7, prompt)
            for _ in range(count):
                if rank == speaker:
                    world.chosen = chosen
                    world.text += bytes(chosen)
                world.barrier.wait(TIMEOUT_S)
                token = world.chosen
                world.barrier.wait(TIMEOUT_S)
                chosen = shards[rank].advance([7], token)
        except (ValueError, AssertionError, threading.BrokenBarrierError) as error:
            failures.append(error)
            world.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(sizes.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return world.text


DENSE = b"egilo wobu wila "
MIXED = b"ogiguri bulovopu"


def test_text_is_pinned() -> None:
    """The text for a prompt and a seed never changes, whatever the release of numpy."""
    assert write_text(Sizes()) == DENSE
    assert write_text(Sizes(), moe=True) == MIXED


@pytest.mark.parametrize(
    "sizes",
    [
        *(Sizes(tensor=tensor, moe_tensor=tensor) for tensor in (2, 3, 4, 8, 23)),
        Sizes(pipeline=2),
        Sizes(pipeline=11),
        Sizes(tensor=2, moe_tensor=2, pipeline=2),
        Sizes(context=2),
        Sizes(context=21),
        Sizes(tensor=2, moe_tensor=2, context=3, pipeline=2),
    ],
    ids=str,
)
def test_dense_text_is_the_same_in_every_layout(sizes: Sizes) -> None:
    """Tensor, pipeline and context parallel change nothing, also with more shards than rows."""
    assert write_text(sizes) == DENSE


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(tensor=4, moe_tensor=4),
        Sizes(tensor=4, moe_tensor=2, moe_expert=2),
        Sizes(tensor=4, moe_expert=4),
        Sizes(tensor=4, moe_tensor=2, moe_expert=2, pipeline=2),
        Sizes(tensor=2, moe_expert=2, context=2, pipeline=2),
        Sizes(tensor=6, moe_tensor=2, moe_expert=3),
        Sizes(tensor=9, moe_expert=9),
    ],
    ids=str,
)
def test_expert_text_is_the_same_in_every_layout(sizes: Sizes) -> None:
    """Experts placed in any way change nothing, also when some ranks hold none."""
    assert write_text(sizes, moe=True) == MIXED


@pytest.mark.parametrize("moe", [False, True])
def test_text_depends_on_every_byte_of_the_prompt_and_their_order(moe: bool) -> None:
    """No byte of the prompt is lost, and a swap of two is seen."""
    changed = [PROMPT[:i] + b"#" + PROMPT[i + 1 :] for i in range(len(PROMPT))]
    swapped = [PROMPT[: i - 1] + PROMPT[i : i + 1] + PROMPT[i - 1 : i] + PROMPT[i + 1 :] for i in (1, 5, 18)]
    cut = [PROMPT[:i] for i in range(len(PROMPT))]
    prompts = [PROMPT, *changed, *swapped, *cut]
    texts = {write_text(Sizes(), moe=moe, prompt=prompt, count=10) for prompt in prompts}
    assert len(texts) == len(set(prompts))


class Spoiled(Weights):
    """Weights of which one matrix, or a family of them, is zero."""

    def __init__(self, spoil: str) -> None:
        super().__init__(0)
        self._spoil = spoil

    def draw(self, name: str, rows: Sequence[int], columns: Sequence[int]) -> Ints:
        drawn = super().draw(name, rows, columns)
        return drawn * 0 if name.startswith(self._spoil) else drawn


MATRICES = ["embedding", "position", "logits"] + [
    f"{layer}.{name}" for layer in range(LAYERS) for name in ("query", "key", "value", "out")
]


@pytest.mark.parametrize("name", [*MATRICES, *(f"{layer}.{way}" for layer in range(LAYERS) for way in ("up", "down"))])
def test_dense_text_depends_on_every_matrix(name: str) -> None:
    """A layer whose weights are lost is seen."""
    assert write_text(Sizes(), count=8, weights=Spoiled(name)) != DENSE[:8]


@pytest.mark.parametrize(
    "name",
    [*MATRICES, *(f"{layer}.{part}" for layer in range(LAYERS) for part in ("router", *map(str, range(EXPERTS))))],
)
def test_expert_text_depends_on_every_matrix(name: str) -> None:
    """Every expert of every layer is used by one ordinary prompt, and its loss is seen."""
    assert write_text(Sizes(), moe=True, weights=Spoiled(name)) != MIXED


def test_text_depends_on_the_seed() -> None:
    """Another seed is another model."""
    assert write_text(Sizes(), weights=Weights(1)) != DENSE


FULL = Sizes(tensor=4, moe_tensor=2, moe_expert=2, pipeline=2)


def is_seen(sizes: Sizes, move: Callable[[int, Place], Place], *, moe: bool = False) -> bool:
    """Whether weights in the wrong place change the text, or do not even fit together."""
    try:
        return write_text(sizes, moe=moe, move=move) != (MIXED if moe else DENSE)
    except ValueError:
        return True


@pytest.mark.parametrize("rank", range(FULL.world))
@pytest.mark.parametrize("moe", [False, True])
def test_a_doubled_shard_is_seen(rank: int, moe: bool) -> None:
    """A rank that loads the weights of its neighbour, so that its own are missing, changes the text."""

    def move(at: int, place: Place) -> Place:
        return place_of(at ^ 1, FULL) if at == rank else place

    assert is_seen(FULL, move, moe=moe)


@pytest.mark.parametrize("pair", [(0, 1), (0, 3), (1, 2), (4, 7)])
@pytest.mark.parametrize("moe", [False, True])
def test_two_swapped_ranks_are_seen(pair: tuple[int, int], moe: bool) -> None:
    """Two ranks of a tensor group with each other's weights change the text."""
    swap = {pair[0]: pair[1], pair[1]: pair[0]}

    def move(at: int, place: Place) -> Place:
        return place_of(swap.get(at, at), FULL)

    assert is_seen(FULL, move, moe=moe)


def test_experts_laid_out_in_the_wrong_order_are_seen() -> None:
    """Expert parallel must be fastest inside the tensor group."""

    def move(at: int, place: Place) -> Place:
        return replace(place, moe_tensor=place.tensor % 2, moe_expert=place.tensor // 2)

    assert is_seen(FULL, move, moe=True)


def test_experts_on_the_wrong_ranks_are_seen() -> None:
    """A rank that holds other experts than its group gives it changes the text."""

    def move(at: int, place: Place) -> Place:
        return replace(place, moe_expert=1 - place.moe_expert) if at == 2 else place

    assert is_seen(FULL, move, moe=True)


def test_swapped_stages_are_seen() -> None:
    """Layers must run in order."""
    sizes = Sizes(pipeline=4)
    order = [0, 2, 1, 3]
    assert is_seen(sizes, lambda at, place: replace(place, pipeline=order[at]))


def test_swapped_context_pieces_are_seen() -> None:
    """Each rank must read its own piece of the prompt."""
    sizes = Sizes(context=3)
    order = [0, 2, 1]
    assert is_seen(sizes, lambda at, place: replace(place, context=order[at]))


def test_sequences_of_a_batch_do_not_touch_each_other() -> None:
    """Texts written together, joining and leaving at different steps, are the texts written alone."""
    shard = Shard(place_of(0, Sizes()), Threads(Sizes()).links(0), Weights(0), moe=True)
    first = shard.start(1, PROMPT)
    for _ in range(3):
        first += shard.advance([1], first[-1:])
    second = shard.start(2, b"other")
    for _ in range(5):
        one, two = shard.advance([1, 2], [first[-1], second[-1]])
        first.append(one)
        second.append(two)
    shard.forget(2)
    for _ in range(TOKENS - len(first)):
        first += shard.advance([1], first[-1:])
    assert bytes(first) == MIXED
    assert write_text(Sizes(), moe=True, prompt=b"other").startswith(bytes(second))


def test_going_on_equals_reading_the_whole_text_again() -> None:
    """The attention state holds everything: a prompt with the written text appended goes on the same way."""
    for written in (1, 7, 15):
        assert write_text(Sizes(), prompt=PROMPT + DENSE[:written])[: TOKENS - written] == DENSE[written:]


@pytest.mark.parametrize(("total", "parts"), [(8, 3), (22, 4), (5, 8), (0, 3), (32, 1)])
def test_shares_are_those_of_array_split(total: int, parts: int) -> None:
    """Every index belongs to exactly one share, as numpy.array_split cuts."""
    expected = [list(piece) for piece in np.array_split(np.arange(total), parts)]
    assert [list(share(total, parts, index)) for index in range(parts)] == expected
