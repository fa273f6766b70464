"""Folding: what many ranks say alike is one record with their numbers; what differs stays, and memory is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.observe.logs import Folded, Folding, LogLine, LogSource, Wanted, every, last, rank_list
from slurm_llm.observe.logsfold import MOST_HELD, WINDOW_S


def line(rank: int | None, text: str, at: float = 0.0) -> LogLine:
    """Return a line."""
    return LogLine(at, (rank or 0, 0), LogSource("x", Path("x"), rank), text)


def folded(*lines: LogLine, nodes: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return ranks and text of what lines become."""
    folding = Folding(nodes)
    found = [one for own in lines for one in folding.push([own])]
    return [(rank_list(one.ranks), one.lines[0].text) for one in [*found, *folding.rest()]]


ALIKE = [
    "plain words",
    'I1130 20:05:1{rank}.98 2854{rank} server.cc:241] "x"',
    "2026-11-30 10:44:2{rank},12{rank} INFO x",
    "[11/30/2026-10:15:3{rank}] [TRT-LLM] [RANK {rank}] [I] x",
    "(Worker_TP{rank} pid=123{rank}) INFO 11-30 10:15:3{rank} [a.py:1] x 1",
    "node{rank}:123{rank}:456{rank} [{rank}] NCCL WARN x",
    "[rank{rank}]: Traceback (most recent call last):",
    "rehearsal: rank {rank}/8 tp {rank} pp 0 on node{rank}: joined, attempt 0 of 1",
    "/tmp/llmrun-1.0/{rank}/repository, version 1",
    "region llm7a0r{rank}_shm",
    "at 0x7ffe{rank}abc",
    "local_rank={rank} device: cuda:{rank}",
]


@pytest.mark.parametrize("text", ALIKE)
def test_what_differs_by_rank_alone_is_the_same(text: str) -> None:
    """Time, process, thread, rank, node and address do not count; the lowest rank's own words are shown."""
    lines = [line(rank, text.format(rank=rank)) for rank in (1, 0, 2)]
    assert folded(*lines, nodes=("node0", "node1", "node2")) == [("0-2", text.format(rank=0))]


@pytest.mark.parametrize(
    "texts",
    [("a", "b"), ("loss 0.1", "loss 0.2"), ("loaded 10%", "loaded 20%"), ("rank 3 died", "rank 7 died"), ("v7", "v8")],
)
def test_what_differs_otherwise_is_not(texts: tuple[str, str]) -> None:
    """Figures, words and other ranks' numbers say something."""
    assert len(folded(line(1, texts[0]), line(2, texts[1]))) == 2


def test_what_is_said_twice_is_shown_twice() -> None:
    """A rank's own repetition is another line, and joins that of the others."""
    rows = folded(line(0, "a"), line(0, "a"), line(1, "a"), line(1, "b"), line(1, "a"))
    assert rows == [("0-1", "a"), ("0-1", "a"), ("1", "b")]


def test_other_logs_attempts_and_later_times_are_not_folded() -> None:
    """What srun says is no rank's; an attempt is not its predecessor; after some seconds it is news again."""
    assert len(folded(line(None, "a"), line(None, "a"))) == 2
    other = LogLine(0.0, (1, 0), LogSource("x", Path("x"), 1, attempt=1), "a")
    assert len(folded(line(0, "a"), other)) == 2
    assert len(folded(line(0, "a"), line(1, "a", WINDOW_S + 1))) == 2


def test_what_is_held_back_is_bounded() -> None:
    """However much is said within a moment."""
    folding = Folding()
    held = most = 0
    for number in range(3 * MOST_HELD):
        held += 1 - sum(1 for _ in folding.push([line(number % 2, f"text {number}")]))
        most = max(most, held)
    assert most <= MOST_HELD + 2


@pytest.fixture
def sources(tmp_path: Path) -> list[LogSource]:
    """Logs of 32 ranks: a traceback all of them print within a second, and a line of each its own."""
    found = []
    for rank in range(32):
        path = tmp_path / str(rank)
        clock = f"10:00:01.{rank:02}"
        path.write_text(
            f"I1130 {clock} 4{rank} a.cc:1] start\n"
            f"Traceback (most recent call last):\n  in rank {rank}\nValueError: x\n"
            f"I1130 10:00:20.{rank:02} 4{rank} a.cc:1] took {rank * 7 + 100} ms\n"
        )
        found.append(LogSource(f"rank {rank}", path, rank))
    return found


def shown(found: list[Folded]) -> list[str]:
    """Return ranks and lines."""
    return [f"{rank_list(one.ranks)} {line.text}" for one in found for line in one.lines]


def test_a_traceback_is_folded_whole(sources: list[LogSource]) -> None:
    """Read from either end it is the same, and the number of lines counts what is shown."""
    forwards = shown(list(every(sources, Wanted(), Folding())))
    assert forwards[:4] == [
        "0-31 I1130 10:00:01.00 40 a.cc:1] start",
        "0-31 Traceback (most recent call last):",
        "0-31   in rank 0",
        "0-31 ValueError: x",
    ]
    assert len(forwards) == 36
    assert shown(last(sources, Wanted(), 100, Folding())) == forwards
    assert shown(last(sources, Wanted(), 34, Folding())) == forwards[2:]


@pytest.mark.parametrize(("ranks", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([5, 1, 2, 9, 8], "1-2,5,8-9")])
def test_ranks_in_short(ranks: list[int], text: str) -> None:
    """Neighbours share a range."""
    assert rank_list(ranks) == text
