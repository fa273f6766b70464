"""Logs: bounded reads, times of many kinds, one order, safe to print, followed without losing or breaking a line."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_llm.observe.logs import LogLine, LogSource, follow, last_merged, log_sources
from slurm_llm.observe.stamps import stamp
from slurm_llm.observe.text import MAX_LINE, clean, last_lines
from slurm_llm.runs import evidence_of
from tests.observe.run_dirs import RunDir, make_plan


def local(text: str) -> float:
    """Return seconds since the epoch of a local time."""
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


NEAR = local("2026-11-30 12:00:00")


@pytest.mark.parametrize(
    ("line", "expected", "part"),
    [
        ('I1130 10:44:26.957985 17287 a.cc:1] "x"', "2026-11-30 10:44:26", 0.957985),
        ("E0102 03:04:05.5 1 a.cc:1] x", "2026-01-02 03:04:05", 0.5),
        ("W1231 23:59:59.0 1 a.cc:1] x", "2025-12-31 23:59:59", 0.0),
        ("2026-11-30 10:44:26,123 INFO x", "2026-11-30 10:44:26", 0.123),
        ("2026-11-30T10:44:26.25 x", "2026-11-30 10:44:26", 0.25),
        ("[2026-11-30 10:44:26] x", "2026-11-30 10:44:26", 0.0),
        ("[11/30/2026-10:15:37] [TRT-LLM] [I] x", "2026-11-30 10:15:37", 0.0),
        ("INFO 11-30 10:15:37 x", "2026-11-30 10:15:37", 0.0),
        ("(EngineCore_0 pid=7) WARNING 11-30 10:15:37 [a.py:1] x", "2026-11-30 10:15:37", 0.0),
        ("slurm_llm: 10:44:55 READY", "2026-11-30 10:44:55", 0.0),
        ("slurm_llm: 23:59:59 READY", "2026-11-29 23:59:59", 0.0),
        ("slurmstepd: error: *** STEP 2.2 ON n CANCELLED AT 2026-11-30T10:59:53 ***", "2026-11-30 10:59:53", 0.0),
    ],
)
def test_times_of_every_kind(line: str, expected: str, part: float) -> None:
    """Each program's own form is read; a year that is missing is the file's, never ahead of the file."""
    found = stamp(line, NEAR)
    assert found is not None
    assert found == pytest.approx(local(expected) + part, abs=1e-3)


@pytest.mark.parametrize(
    "line", ["", "hello", "1130 10:44", "I9999 99:99:99.9 x", "2026-13-45 10:00:00", "[rank 3]", "INFO x"]
)
def test_lines_without_a_time(line: str) -> None:
    """What is no time is none."""
    assert stamp(line, NEAR) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttab", "plain\ttab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00\x08\x7fb\x9b31mc", "ab31mc"),
        ("\x1b", ""),
        ("\x1bPq#0\x1b\\x", "x"),
        ("Größe ✓", "Größe ✓"),
        ("a\u202eb\u2028c", "abc"),
        ("\ud800x", "?x"),
    ],
)
def test_nothing_reaches_the_terminal_but_text(text: str, expected: str) -> None:
    """Escape sequences and control characters of a log cannot move a cursor or set a title."""
    assert clean(text) == expected


def test_a_line_without_end_is_cut() -> None:
    """One line is never more than MAX_LINE characters."""
    assert len(clean("x" * 100_000)) == MAX_LINE + 1


def test_the_last_lines_of_a_large_file(tmp_path: Path) -> None:
    """Only the end of a file is read; blank lines do not count, carriage returns end a line."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n\n" % number for number in range(300_000)) + b"10%\r20%\r\nend")
    tracemalloc.start()
    rows, size = last_lines(path, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == ["line 299998", "line 299999", "10%", "20%", "end"]
    assert size == path.stat().st_size
    assert peak < 4_000_000


def test_a_file_without_a_line_end_is_bounded(tmp_path: Path) -> None:
    """A gigabyte of no line end would not be read whole."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * 5_000_000)
    rows, _ = last_lines(path, 3)
    assert len(rows) == 1
    assert len(rows[0]) <= 1 << 20


def test_every_line_of_a_file_can_be_had(tmp_path: Path) -> None:
    """Asking for more lines than there are gives all, the first one whole."""
    path = tmp_path / "log"
    path.write_text("".join(f"{number} {'x' * 50}\n" for number in range(5000)))
    rows, _ = last_lines(path, 10_000)
    assert len(rows) == 5000
    assert rows[0].startswith("0 ")


def merged(*texts: str | bytes, lines: int = 100, folder: Path) -> list[str]:
    """Return logs merged, as `rank: text`."""
    sources = []
    for rank, text in enumerate(texts):
        path = folder / f"{rank}.log"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        sources.append(LogSource(f"{rank}", path, rank))
    return [f"{line.source.label}: {line.text}" for line in last_merged(sources, lines)[0]]


def test_lines_are_merged_by_time(tmp_path: Path) -> None:
    """Lines without a time stay with the one before them, and one file's lines keep their order."""
    zero = "I1130 10:00:01.0 a\n  traceback\nI1130 10:00:03.0 b\nI1130 10:00:02.5 late thread\n"
    one = "first\nI1130 10:00:02.0 c\n"
    found = merged(zero, one, folder=tmp_path)
    assert [row[:1] + row[-1:] for row in found] == ["0a", "0k", "1t", "1c", "0b", "0d"]


def test_only_the_last_lines_of_all_are_kept(tmp_path: Path) -> None:
    """The limit counts the merged lines, not those of each file."""
    zero = "".join(f"I1130 10:00:{second:02}.0 a{second}\n" for second in range(30))
    one = "".join(f"I1130 10:00:{second:02}.5 b{second}\n" for second in range(28))
    found = merged(zero, one, lines=3, folder=tmp_path)
    assert [row.rpartition(" ")[2] for row in found] == ["b27", "a28", "a29"]
    assert merged(zero, one, lines=0, folder=tmp_path) == []


def test_sources_of_a_run(tmp_path: Path) -> None:
    """Every rank, then what srun, the job, the agents and the preflight said."""
    run = RunDir(tmp_path / "run").loading()
    labels = [source.label for source in log_sources(evidence_of(run.job))]
    assert labels == [*(f"rank {rank}" for rank in range(8)), "srun", "job", "agents", "preflight"]
    assert [source.rank for source in log_sources(evidence_of(run.job), {1, 9}, ())] == [1]


class Follower:
    """Follows files, and writes to them each time it would wait."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.got: list[list[LogLine]] = []

    def run(self, sources: list[LogSource], ends: dict[Path, int] | None = None) -> list[str]:
        """Return all texts that came."""
        for batch in follow(lambda: sources, ends or {}, lambda: not self.steps, self.pause):
            self.got.append(batch)
        return [line.text for batch in self.got for line in batch]

    def pause(self, _seconds: float) -> None:
        """Do the next step instead of waiting."""
        self.steps.pop(0)()


def append(path: Path, data: bytes) -> Callable[[], object]:
    """Return a step that appends to a file."""

    def step() -> None:
        with path.open("ab") as stream:
            stream.write(data)

    return step


def test_following_holds_back_what_is_not_whole(tmp_path: Path) -> None:
    """Neither half a line, nor half a character, nor half a line end is shown."""
    path = tmp_path / "log"
    character = "ß".encode()
    steps = (
        append(path, b"one\ntw"),
        append(path, b"o\n" + character[:1]),
        append(path, character[1:] + b"\r"),
        append(path, b"\nthree\rfour\nfi"),
        append(path, b"ve"),
    )
    assert Follower(*steps).run([LogSource("0", path, 0)]) == ["one", "two", "ß", "three", "four", "five"]


def test_following_begins_where_reading_ended(tmp_path: Path) -> None:
    """No line is shown twice, and a file that comes later is shown from its beginning."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("seen\n")
    _, ends = last_merged([LogSource("0", old, 0)], 10)
    steps = (append(old, b"a\n"), append(new, b"b\n"))
    assert Follower(*steps).run([LogSource("0", old, 0), LogSource("1", new, 1)], ends) == ["a", "b"]


def test_following_a_file_that_was_cut(tmp_path: Path) -> None:
    """A log that was emptied is read from its beginning again."""
    path = tmp_path / "log"
    path.write_text("a long first line\n")
    steps = (lambda: path.write_text("new\n"),)
    assert Follower(*steps).run([LogSource("0", path, 0)], {path: path.stat().st_size}) == ["new"]


def test_a_line_without_end_is_shown_after_a_while(tmp_path: Path) -> None:
    """A prompt or progress bar that stands still does not stay hidden until the end."""
    path = tmp_path / "log"
    follower = Follower(append(path, b"waiting..."), *([lambda: None] * 6))
    follower.run([LogSource("0", path, 0)])
    assert follower.got[0][0].text == "waiting..."
    assert follower.got[1:] == [[]]


def test_a_large_file_is_followed_in_pieces(tmp_path: Path) -> None:
    """Memory holds one piece of a file, however much has come since the last look."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%07d\n" % number for number in range(100_000)))
    tracemalloc.start()
    count = sum(len(batch) for batch in follow(lambda: [LogSource("0", path, 0)], {}, lambda: True, lambda _: None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 5_000_000


def test_4096_logs(tmp_path: Path) -> None:
    """All ranks' logs are merged to the last lines."""
    plan = make_plan(tensor_parallel_size=8, pipeline_parallel_size=1, replicas=512, resources={"nodes": 1024})
    run = RunDir(tmp_path / "run", plan=plan).submitted()
    for rank in range(4096):
        run.log(f"rank-{rank}.log", f"I1130 {10 + rank // 3600:02}:{rank // 60 % 60:02}:{rank % 60:02}.0 rank {rank}\n")
    lines, _ = last_merged(log_sources(evidence_of(run.job), None, ()), 3)
    assert [line.source.rank for line in lines] == [4093, 4094, 4095]
