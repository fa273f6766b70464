"""One rank's share of a tiny parallel language model in exact integers; knows neither MPI nor Triton.

Every value is an int64 far from overflow, and every sum over ranks is a sum of integers, so the text is the
same, bit for bit, in any layout. Blocks end in `_fold`, which scrambles: a shard that is missing, doubled or
on the wrong rank changes the text instead of vanishing in a rounding.

What is parallel, and how:

- tensor: embedding by column, attention by head, feed-forward by column then row, logits by symbol;
- pipeline: contiguous blocks of layers, activations handed from stage to stage;
- context: the prompt is cut into contiguous pieces; each rank keeps the attention state of its own positions
  only, and the states are summed when a later position reads them (new positions are dealt out in turn);
- experts: contiguous blocks of experts for each expert-parallel rank, every expert cut by mixture-of-experts
  tensor parallel; the router is replicated.

Splits are uneven where they must be, and a rank without a share takes part with nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .layout import Place, share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

LAYERS = 8
HIDDEN = 32
HEADS = 8
HEAD_DIM = 4
FEED_FORWARD = 64
EXPERTS = 8
EXPERT_FEED_FORWARD = 16
BEGIN = 256  # the token before every prompt; the others are bytes

VOWELS = b"aeiou"
CONSONANTS = b"bdfghklmnprstvwz"
SYMBOLS = VOWELS + CONSONANTS + b" "
_VOWELS, _CONSONANTS = frozenset(VOWELS), frozenset(CONSONANTS)
_VOWEL = np.array([symbol in VOWELS for symbol in SYMBOLS])
_SPACE = np.array([symbol == 0x20 for symbol in SYMBOLS])
_SPACE_BONUS = 0x7000  # a word ends after about two syllables
_NEVER = -(1 << 40)


class Group(Protocol):
    """Ranks that add up arrays; `index` is this rank's position among the `size` members."""

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, values: Ints) -> Ints:
        """Return the sum of every member's `values`."""


class Pipe(Protocol):
    """The way from the previous pipeline stage and to the next."""

    def receive(self, shape: tuple[int, ...]) -> Ints:
        """Return the activations of the previous stage."""

    def send(self, values: Ints) -> None:
        """Hand activations to the next stage."""


@dataclass(frozen=True)
class Links:
    """Everything through which a rank talks to the others while it computes."""

    tensor: Group
    context: Group
    moe_tensor: Group
    moe_expert: Group
    pipe: Pipe


class Weights:
    """Weights by name, row and column, from a seed; a shard draws its own entries and no others."""

    def __init__(self, seed: int, place: Callable[[Ints], Any] | None = None) -> None:
        """`place` puts a matrix where it is to be multiplied: on a GPU; None leaves it in the host's memory."""
        self._seed = seed
        self._place = place

    def matrix(self, name: str, rows: Sequence[int], columns: Sequence[int]) -> Any:
        """Return what an array of activations is multiplied with: `x @ matrix`."""
        drawn = self.draw(name, rows, columns)
        return drawn if self._place is None else self._place(drawn)

    def draw(self, name: str, rows: Sequence[int], columns: Sequence[int]) -> Ints:
        """Return the entries at `rows` x `columns` of the matrix `name`, each in -8..7."""
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        row_salt, column_salt = np.frombuffer(digest[:16], dtype=">u8").astype(np.uint64).reshape(2, 1)
        row = np.array(rows, np.uint64)[:, None]
        column = np.array(columns, np.uint64)[None, :]
        mixed = _mix(_mix(row + row_salt) ^ (column + column_salt))
        return (mixed >> np.uint64(60)).astype(np.int64) - 8


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit values (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _fold(values: Ints) -> Ints:
    """Scramble to 16 bits, centred on zero."""
    return ((values ^ (values >> 7) ^ (values >> 15) ^ (values >> 29)) & 0xFFFF) - 0x8000


def _byte(values: Ints) -> Ints:
    """Take 8 middle bits, centred on zero: sums of products over positions stay small."""
    return ((values >> 6) & 0xFF) - 0x80


def _gather(group: Group, mine: Ints, columns: int) -> Ints:
    """Return all `columns`, put side by side in the group's order."""
    whole = np.zeros((mine.shape[0], columns), np.int64)
    begin = share(columns, group.size, group.index).start
    whole[:, begin : begin + mine.shape[1]] = mine
    return group.all_reduce(whole)


class _Attention:
    """Linear attention over this rank's heads; the state is a sum over positions of key x value."""

    def __init__(self, place: Place, links: Links, weights: Weights, layer: int) -> None:
        heads = share(HEADS, place.sizes.tensor, place.tensor)
        columns = range(heads.start * HEAD_DIM, heads.stop * HEAD_DIM)
        self._links = links
        self.heads = len(heads)
        self._query = weights.matrix(f"{layer}.query", range(HIDDEN), columns)
        self._key = weights.matrix(f"{layer}.key", range(HIDDEN), columns)
        self._value = weights.matrix(f"{layer}.value", range(HIDDEN), columns)
        self._out = weights.matrix(f"{layer}.out", columns, range(HIDDEN))

    def read_prompt(self, x: Ints, state: Ints) -> Ints:
        """Attend from a contiguous piece of a new prompt; `state` (heads, dim, dim) gets this piece's sum."""
        query, added = self._project(x)
        running = added.cumsum(axis=0)
        if len(x):
            state[:] = running[-1]
        seen = self._before(state) + running
        return self._finish(x, np.einsum("thd,thde->the", query, seen))

    def read_token(self, x: Ints, states: Ints, mine: NDArray[np.bool_]) -> Ints:
        """Attend from one new position of each sequence; `states` takes in the positions that are `mine`."""
        query, added = self._project(x)
        states[mine] += added[mine]
        read = np.einsum("thd,thde->the", query, states)
        return self._finish(x, self._links.context.all_reduce(read))

    def _project(self, x: Ints) -> tuple[Ints, Ints]:
        shape = (len(x), self.heads, HEAD_DIM)
        query, key, value = (_byte(x @ w).reshape(shape) for w in (self._query, self._key, self._value))
        return query, key[..., :, None] * value[..., None, :]

    def _before(self, mine: Ints) -> Ints:
        """Return the sum over the pieces of the prompt in front of this rank's."""
        context = self._links.context
        pieces = np.zeros((context.size, *mine.shape), np.int64)
        pieces[context.index] = mine
        before: Ints = context.all_reduce(pieces)[: context.index].sum(axis=0)
        return before

    def _finish(self, x: Ints, read: Ints) -> Ints:
        partial = _fold(read).reshape(len(x), self.heads * HEAD_DIM) @ self._out
        return _fold(x + self._links.tensor.all_reduce(partial))


class _Dense:
    """Feed-forward block, first matrix by column, second by row."""

    def __init__(self, place: Place, links: Links, weights: Weights, layer: int) -> None:
        inner = share(FEED_FORWARD, place.sizes.tensor, place.tensor)
        self._tensor = links.tensor
        self._up = weights.matrix(f"{layer}.up", range(HIDDEN), inner)
        self._down = weights.matrix(f"{layer}.down", inner, range(HIDDEN))

    def __call__(self, x: Ints) -> Ints:
        return _fold(x + self._tensor.all_reduce(_fold(x @ self._up) @ self._down))


class _Experts:
    """Mixture of experts: two of eight for each position; this rank holds slices of a block of experts."""

    def __init__(self, place: Place, links: Links, weights: Weights, layer: int) -> None:
        inner = share(EXPERT_FEED_FORWARD, place.sizes.moe_tensor, place.moe_tensor)
        self._mine = share(EXPERTS, place.sizes.moe_expert, place.moe_expert)
        self._links = links
        self._router = weights.matrix(f"{layer}.router", range(HIDDEN), range(EXPERTS))
        self._up = [weights.matrix(f"{layer}.{expert}.up", range(HIDDEN), inner) for expert in self._mine]
        self._down = [weights.matrix(f"{layer}.{expert}.down", inner, range(HIDDEN)) for expert in self._mine]

    def __call__(self, x: Ints) -> Ints:
        gates = self._gates(x)
        partial = np.zeros((len(self._mine), *x.shape), np.int64)
        for here, expert in enumerate(self._mine):
            rows = np.flatnonzero(gates[:, expert])
            partial[here, rows] = _fold(x[rows] @ self._up[here]) @ self._down[here]
        # An expert's slices are summed before it is scrambled, the experts after: both groups must be right.
        slices = _fold(self._links.moe_tensor.all_reduce(partial))
        mine = np.einsum("te,eth->th", gates[:, self._mine.start : self._mine.stop], slices)
        return _fold(x + self._links.moe_expert.all_reduce(mine))

    def _gates(self, x: Ints) -> Ints:
        best = np.argsort(-_fold(x @ self._router), axis=1, kind="stable")
        gates = np.zeros((len(x), EXPERTS), np.int64)
        np.put_along_axis(gates, best[:, :1], 3, axis=1)
        np.put_along_axis(gates, best[:, 1:2], 1, axis=1)
        return gates


class _Sequence:
    """What this rank remembers of one text: an attention state for each of its layers, and the length."""

    def __init__(self, layers: int, heads: int, length: int) -> None:
        self.states = np.zeros((layers, heads, HEAD_DIM, HEAD_DIM), np.int64)
        self.length = length


class Shard:
    """This rank's layers, heads, experts and symbols; all ranks call the same methods in the same order."""

    def __init__(self, place: Place, links: Links, weights: Weights, *, moe: bool) -> None:
        sizes = place.sizes
        self._place, self._links, self._weights = place, links, weights
        self._hidden = share(HIDDEN, sizes.tensor, place.tensor)
        layers = share(LAYERS, sizes.pipeline, place.pipeline)
        self._attention = [_Attention(place, links, weights, layer) for layer in layers]
        block = _Experts if moe else _Dense
        self._feed_forward = [block(place, links, weights, layer) for layer in layers]
        self._embedding = weights.draw("embedding", range(BEGIN + 1), self._hidden)
        symbols = share(len(SYMBOLS), sizes.tensor, place.tensor)
        self._logits = weights.matrix("logits", range(HIDDEN), symbols)
        self._heads = len(share(HEADS, sizes.tensor, place.tensor))
        self._sequences: dict[int, _Sequence] = {}

    def start(self, slot: int, prompt: bytes) -> list[int]:
        """Read a prompt into a new sequence; on the last stage return its first token, elsewhere nothing."""
        tokens = [BEGIN, *prompt]
        mine = share(len(tokens), self._place.sizes.context, self._place.context)
        sequence = _Sequence(len(self._attention), self._heads, len(tokens))
        self._sequences[slot] = sequence
        x = self._enter(tokens[mine.start : mine.stop], mine)
        for layer, attention in enumerate(self._attention):
            x = self._feed_forward[layer](attention.read_prompt(x, sequence.states[layer]))
        if not self._leave(x):
            return []
        last = x[-1:] if len(tokens) - 1 in mine else np.zeros((1, HIDDEN), np.int64)
        return self._choose(self._links.context.all_reduce(last), tokens[-1:])

    def advance(self, slots: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Read one more token of each sequence; on the last stage return the next ones, elsewhere nothing."""
        sequences = [self._sequences[slot] for slot in slots]
        positions = [sequence.length for sequence in sequences]
        context = self._place.sizes.context
        mine = np.array([position % context == self._place.context for position in positions])
        x = self._enter(tokens, positions)
        for layer, attention in enumerate(self._attention):
            states = np.stack([sequence.states[layer] for sequence in sequences])
            x = self._feed_forward[layer](attention.read_token(x, states, mine))
            for row, sequence in enumerate(sequences):
                sequence.states[layer] = states[row]
        for sequence in sequences:
            sequence.length += 1
        return self._choose(x, tokens) if self._leave(x) else []

    def forget(self, slot: int) -> None:
        """Release a sequence."""
        del self._sequences[slot]

    def _enter(self, tokens: Sequence[int], positions: Sequence[int]) -> Ints:
        if self._place.pipeline > 0:
            return self._links.pipe.receive((len(tokens), HIDDEN))
        place = self._weights.draw("position", positions, self._hidden)
        word = self._embedding[np.array(tokens, np.int64)]
        return _fold(_gather(self._links.tensor, word * 977 + place * 131, HIDDEN))

    def _leave(self, x: Ints) -> bool:
        """Hand `x` on; True on the last stage."""
        if self._place.pipeline == self._place.sizes.pipeline - 1:
            return True
        self._links.pipe.send(x)
        return False

    def _choose(self, x: Ints, before: Sequence[int]) -> list[int]:
        """Return the best symbol after each row; only those that leave the text pronounceable compete."""
        scores = _fold(_gather(self._links.tensor, x @ self._logits, len(SYMBOLS)))
        scores[:, _SPACE] += _SPACE_BONUS
        for row, token in enumerate(before):
            scores[row, ~_allowed_after(token)] = _NEVER
        return [SYMBOLS[best] for best in scores.argmax(axis=1)]


def _allowed_after(token: int) -> NDArray[np.bool_]:
    if token in _CONSONANTS:
        return _VOWEL
    return ~_VOWEL if token in _VOWELS else ~(_VOWEL | _SPACE)
