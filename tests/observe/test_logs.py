"""Logs merged: one order, bounded reads and memory, hostile files, safe to print."""

from __future__ import annotations

import os
import re
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.observe.facts import load_layout
from slurm_llm.observe.logs import Choice, LogSource, Wanted, every, last, last_merged, log_sources
from slurm_llm.observe.text import MAX_LINE, clean, last_lines, last_state, whole_characters
from slurm_llm.rundir import AttemptPaths
from tests.observe.run_dirs import T0, RunDir, make_plan
from tests.observe.test_stamps import local


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


@pytest.mark.parametrize(
    ("row", "expected"),
    [(b"plain", b"plain"), (b"1%\r2%\r", b"2%"), (b"1%\r2%", b"2%"), (b"end\r", b"end"), (b"\r \r", b"")],
)
def test_the_last_state_of_a_bar(row: bytes, expected: bytes) -> None:
    """What a terminal would still show; a carriage return at the end is part of a line end."""
    assert last_state(row) == expected


@pytest.mark.parametrize("text", ["", "a", "ß", "€", "𝄞", "aß", "\ufffd"])
def test_half_characters_are_known(text: str) -> None:
    """Cut anywhere, what is whole stays whole; junk that never becomes a character is not held back."""
    data = text.encode()
    for size in range(len(data) + 1):
        whole = whole_characters(data[:size])
        assert data[:whole].decode() == text[: len(data[:whole].decode())]
        assert size - whole < 4
    assert whole_characters(b"\x80\x80\x80\x80\x80") == 5


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


def written(folder: Path, *texts: str | bytes) -> list[LogSource]:
    """Write a log for each text, of ranks from 0 on."""
    sources = []
    for rank, text in enumerate(texts):
        path = folder / f"{rank}.log"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        sources.append(LogSource(f"{rank}", path, rank))
    return sources


Way = Callable[[list[LogSource], int], list[str]]


def backwards(sources: list[LogSource], lines: int = 10_000) -> list[str]:
    """Return the last lines, as `rank: text`."""
    return [f"{line.source.label}: {line.text}" for line in last_merged(sources, lines)]


def forwards(sources: list[LogSource], lines: int = 10_000) -> list[str]:
    """Return the same lines, read from the beginning."""
    found = [f"{line.source.label}: {line.text}" for one in every(sources, Wanted()) for line in one.lines]
    return found[-lines:] if lines else []


both_ways = pytest.mark.parametrize("read", [backwards, forwards])


@both_ways
def test_lines_are_merged_by_time(tmp_path: Path, read: Way) -> None:
    """Lines without a time stay with the one before them, and one file's lines keep their order."""
    zero = "I1130 10:00:01.0 a\n  traceback\nI1130 10:00:03.0 b\nI1130 10:00:02.5 late thread\n"
    one = "first\nI1130 10:00:02.0 c\n"
    found = read(written(tmp_path, zero, one), 100)
    assert [row[:1] + row[-1:] for row in found] == ["0a", "0k", "1t", "1c", "0b", "0d"]


@both_ways
def test_only_the_last_lines_of_all_are_kept(tmp_path: Path, read: Way) -> None:
    """The limit counts the merged lines, not those of each file."""
    zero = "".join(f"I1130 10:00:{second:02}.0 a{second}\n" for second in range(30))
    one = "".join(f"I1130 10:00:{second:02}.5 b{second}\n" for second in range(28))
    sources = written(tmp_path, zero, one)
    assert [row.rpartition(" ")[2] for row in read(sources, 3)] == ["b27", "a28", "a29"]
    assert read(sources, 0) == []


@both_ways
def test_large_logs_are_merged_whole(tmp_path: Path, read: Way) -> None:
    """Over many blocks no line is lost, doubled, cut or torn from its predecessor."""
    clock = [f"I1130 1{second // 3600}:{second // 60 % 60:02}:{second % 60:02}" for second in range(9000)]
    texts = [
        "".join(
            f"{clock[second]}.{rank}00000 {second} {'x' * (second % 300)}\n  of {second}\n" for second in range(9000)
        )
        for rank in range(3)
    ]
    found = read(written(tmp_path, *texts), 60_000)
    expected = [
        f"{rank}: {text}"
        for second in range(9000)
        for rank in range(3)
        for text in (f"{clock[second]}.{rank}00000 {second} {'x' * (second % 300)}", f"  of {second}")
    ]
    assert [row.rstrip() for row in found] == [row.rstrip() for row in expected]


@both_ways
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n\n \n", []),
        (b"no end", ["no end"]),
        (b"10%\r20%\r30%\nend\r\n", ["30%", "end"]),
        (b"a\0b\0\0\n\0\0\0\n", ["ab"]),
        ("ß€".encode()[:-1] + b"\n", ["ß\ufffd"]),
        (b"\x1b[31mred\x1b[0m\x1b]0;t\x07\n", ["red"]),
        (bytes(range(128, 256)) + b"\n", [clean(bytes(range(128, 256)).decode("utf-8", "replace"))]),
        (b"\x1b[2J\n", []),
        (b"2099-01-01 00:00:00 a\nb\n", ["2099-01-01 00:00:00 a", "b"]),
    ],
)
def test_odd_bytes(tmp_path: Path, read: Way, data: bytes, expected: list[str]) -> None:
    """Nothing at all, no line end, bars, NULs, half characters, escapes, junk, a time that cannot be."""
    assert read(written(tmp_path, data), 100) == [f"0: {text}" for text in expected]


@both_ways
def test_a_line_of_many_megabytes(tmp_path: Path, read: Way) -> None:
    """It is shown in parts that are cut, memory does not hold it, and what stands around it is found."""
    data = b"first\n" + b"x" * 20_000_000 + b"\nlast\n"
    sources = written(tmp_path, data)
    tracemalloc.start()
    found = read(sources, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found[0], found[-1]) == ("0: first", "0: last")
    assert all(len(row) <= MAX_LINE + 4 for row in found)
    assert peak < 4_000_000


@both_ways
def test_a_file_with_a_hole_of_a_terabyte(tmp_path: Path, read: Way) -> None:
    """A log that was cut while its writer went on behind: the hole is not read."""
    sources = written(tmp_path, "I1130 10:00:01.0 before\n")
    with sources[0].path.open("r+b") as stream:
        stream.seek(1 << 40)
        stream.write(b"I1130 10:00:02.0 behind\n")
    assert read(sources, 10) == ["0: I1130 10:00:01.0 before", "0: I1130 10:00:02.0 behind"]


@both_ways
def test_files_that_cannot_be_read(tmp_path: Path, read: Way) -> None:
    """A log that is not there, or no file, is none; the others are shown."""
    sources = [*written(tmp_path, "a\n"), LogSource("1", tmp_path / "none"), LogSource("2", tmp_path)]
    assert read(sources, 10) == ["0: a"]


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    """What is gone is not shown, and nothing breaks."""
    sources = written(tmp_path, "".join(f"I1130 10:00:01.0 {number}\n" for number in range(50_000)))
    found = every(sources, Wanted())
    texts = [next(found).lines[0].text]
    sources[0].path.write_text("")
    texts += [line.text for one in found for line in one.lines]
    assert texts[0] == "I1130 10:00:01.0 0"
    assert len(texts) < 50_000


def test_memory_stays_flat_however_much_is_found(tmp_path: Path) -> None:
    """All lines of large logs go through, and little of them is held."""
    rows = "".join(f"I1130 10:{minute:02}:00.0 {'x' * 80}\n" * 200 for minute in range(60))
    sources = written(tmp_path, *[rows] * 4)
    tracemalloc.start()
    count = sum(len(one.lines) for one in every(sources, Wanted(grep=re.compile("x"))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 48_000
    assert peak < 8_000_000


def hours(count: int, filler: int = 60) -> str:
    """Return a line for every ten seconds."""
    return "".join(
        f"I1130 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.0 {'x' * filler}\n"
        for second in range(0, count * 3600, 10)
    )


@pytest.mark.parametrize("filler", [60, 2000])
def test_times_bound_what_is_read(tmp_path: Path, filler: int) -> None:
    """Lines from one moment to another, in a log that is searched by halving too; the last ones before a moment."""
    sources = written(tmp_path, hours(10, filler))
    os.utime(sources[0].path, (local("2026-11-30 10:00:00"),) * 2)
    span = Wanted(since=local("2026-11-30 05:00:00"), until=local("2026-11-30 05:00:30"))
    found = [line.text[:14] for one in every(sources, span) for line in one.lines]
    assert found == [f"I1130 05:00:{second:02}" for second in (0, 10, 20, 30)]
    assert [line.text[:14] for one in last(sources, span, 2) for line in one.lines] == found[-2:]


@both_ways
def test_a_log_that_was_silent_for_days(tmp_path: Path, read: Way) -> None:
    """A time without a year is the file's, however far it is from the line before."""
    sources = written(tmp_path, "I1101 10:00:00.0 a\nI1130 10:00:00.0 d\n", "I1102 10:00:00.0 b\nI1129 10:00:00.0 c\n")
    for source in sources:
        os.utime(source.path, (local("2026-11-30 10:00:00"),) * 2)
    began = local("2026-10-01 10:00:00")
    assert [row[-1] for row in read([replace(one, began=began) for one in sources], 10)] == [*"abcd"]


def test_a_clock_without_a_day_goes_on_over_midnight(tmp_path: Path) -> None:
    """The job's own output has clock times alone: those of the second day lie after those of the first."""
    began = local("2026-11-28 22:00:00")
    path = tmp_path / "out"
    path.write_text("slurm_llm: 22:00:01 STARTING\nslurm_llm: 23:00:00 READY\nslurm_llm: 04:00:00 x\n")
    os.utime(path, (began + 30 * 3600,) * 2)
    found = every([LogSource("job", path, began=began)], Wanted())
    assert [round(line.at - began) for one in found for line in one.lines] == [1, 3600, 6 * 3600]


def test_sources_of_a_run(tmp_path: Path) -> None:
    """Every rank, then what else writes logs; ranks by number, node, instance; a balancer only where there is one."""
    plan = make_plan(tensor_parallel_size=2, pipeline_parallel_size=1, replicas=4)
    run = RunDir(tmp_path / "run", plan=plan).loading()
    layout = load_layout(run.paths.plan)
    for name in ("step-0.log", "step-3.log", "agents.log", "preflight.log"):
        run.log(name, "")

    def labels(choice: Choice) -> list[str]:
        found = log_sources(run.paths, run.job_paths, run.job_paths.attempt(0), layout, choice)
        return [one.label for one in found]

    ranks = [f"rank {rank}" for rank in range(8)]
    assert labels(Choice()) == [*ranks, "srun", "srun", "job", "agents", "preflight"]
    run.log("balancer.log", "")
    assert labels(Choice())[-1] == "balancer"
    assert labels(Choice(frozenset({1, 9}))) == ["rank 1"]
    assert labels(Choice(nodes=frozenset({"node2", "node4"}))) == ["rank 2", "rank 3", "rank 6", "rank 7"]
    assert labels(Choice(frozenset({1, 2}), frozenset({"node2"}), others=("job",))) == ["rank 2", "job"]
    assert labels(Choice(instance=3)) == ["rank 6", "rank 7", "srun"]
    assert labels(Choice(others=("agents",))) == ["agents"]


def test_an_attempt_has_its_part_of_the_jobs_output(tmp_path: Path) -> None:
    """The job's output is one file for all attempts; of each its own lines are shown."""
    run = RunDir(tmp_path / "run").submitted()
    clock = [time.strftime("%H:%M:%S", time.localtime(T0 + second)) for second in (1, 50, 101, 150)]
    run.note("job", 0, "begin")
    run.attempt = 1
    run.note("job", 100, "begin")
    run.paths.output(7).write_text("".join(f"slurm_llm: {text} x\nmore\n" for text in clock))
    os.utime(run.paths.output(7), (T0 + 200,) * 2)

    def shown(attempt: AttemptPaths) -> list[str]:
        sources = log_sources(run.paths, run.job_paths, attempt, load_layout(run.paths.plan), Choice(others=("job",)))
        return [line.text[11:19] for line in last_merged(sources, 10) if line.head]

    assert [shown(one) for one in run.job_paths.attempts()] == [clock[:2], clock[2:]]


def test_a_container_in_another_time_zone(tmp_path: Path) -> None:
    """A rank writes one moment as a local time and as seconds: by that its lines are put where they belong."""
    run = RunDir(tmp_path / "run").loading()
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(T0 + 2 - 3 * 3600 - 900))
    text = f"{begun} slurm_llm: rank 0 of instance 0 on node node1\n"
    attempt = run.job_paths.attempt(0)
    for rank in range(8):
        os.utime(run.log(f"rank-{rank}.log", text), (T0 + 2,) * 2)
    sources = log_sources(run.paths, run.job_paths, attempt, load_layout(run.paths.plan), Choice(frozenset({5})))
    assert [line.at for line in last_merged(sources, 10)] == [T0 + 2]


@pytest.fixture
def many(tmp_path: Path) -> Iterator[list[LogSource]]:
    """The logs of 4,096 ranks, a line each."""
    plan = make_plan(tensor_parallel_size=8, pipeline_parallel_size=1, replicas=512, resources={"nodes": 1024})
    run = RunDir(tmp_path / "run", plan=plan).submitted()
    for rank in range(4096):
        clock = f"{10 + rank // 3600:02}:{rank // 60 % 60:02}:{rank % 60:02}"
        path = run.log(f"rank-{rank}.log", f"I1130 {clock}.0 rank {rank}\n")
        os.utime(path, (local(f"2026-11-30 {clock}"),) * 2)
    yield log_sources(run.paths, run.job_paths, run.job_paths.attempt(0), load_layout(run.paths.plan), Choice())


def _target(handle: Path) -> str:
    try:
        return str(handle.readlink())
    except OSError:
        # That of the folder itself, which was read to find it.
        return ""


def test_4096_logs(many: list[LogSource]) -> None:
    """All ranks' logs are merged, from either end, with no more than a few files open."""
    before, open_now = resource.getrlimit(resource.RLIMIT_NOFILE), len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 8, before[1]))
    try:
        newest = [line.source.rank for line in last_merged(many, 3)]
        oldest = [one.lines[0].source.rank for one in every(many, Wanted())]
        # Other tests' threads open and close files of their own.
        logs = {str(source.path) for source in many}
        assert not logs & set(map(_target, Path("/proc/self/fd").iterdir())), "and none is left open"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert newest == [4093, 4094, 4095]
    assert oldest == list(range(4096))
