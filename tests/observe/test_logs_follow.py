"""Logs followed: nothing lost, doubled or broken, whatever becomes of the files; bars that stand; further attempts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.observe.logs import Folding, Following, LogLine, LogSource, Wanted, followed, last, whole_ends
from slurm_llm.observe.logsfollow import MAX_PENDING, follow
from slurm_llm.observe.text import MAX_LINE


def doing(steps: list[Callable[[], object]]) -> Callable[[float], None]:
    """Return a pause in which the next step is done."""

    def pause(_seconds: float) -> None:
        steps.pop(0)()

    return pause


class Follower:
    """Follows files, and does a step each time it would wait."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.got: list[list[LogLine]] = []

    def run(self, sources: list[LogSource], ends: dict[Path, int] | None = None) -> list[str]:
        """Return all texts that came."""
        for batch in follow(lambda: sources, ends or {}, lambda: not self.steps, self.pause):
            self.got += [batch] if batch else []
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


def nothing() -> None:
    """Be the step in which nothing happens."""


def test_what_is_not_whole_is_held_back(tmp_path: Path) -> None:
    """Neither half a line, nor half a character, nor half a line end is shown; of a bar its last state alone."""
    path = tmp_path / "log"
    character = "ß".encode()
    steps = (
        append(path, b"one\ntw"),
        append(path, b"o\n" + character[:1]),
        append(path, character[1:] + b"\r"),
        append(path, b"\n1%\r2%\rfour\nfi"),
        append(path, b"ve"),
    )
    assert Follower(*steps).run([LogSource("0", path, 0)]) == ["one", "two", "ß", "four", "five"]


def test_following_goes_on_where_reading_ended(tmp_path: Path) -> None:
    """No line is shown twice or torn where the one meets the other; a file that comes later is shown whole."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("seen\nhal")
    sources = [LogSource("0", old, 0), LogSource("1", new, 1)]
    ends = whole_ends(sources)
    seen = [line.text for one in last(sources, Wanted(), 10, ends=ends) for line in one.lines]
    steps = (append(old, b"f\na\n"), append(new, b"b\n"))
    assert [*seen, *Follower(*steps).run(sources, ends)] == ["seen", "half", "a", "b"]


@pytest.mark.parametrize("size", [10, MAX_PENDING + 10])
def test_a_line_that_is_not_finished_yet_ends_nowhere(tmp_path: Path, size: int) -> None:
    """A following reader begins before a short one; one without end is not read again and again."""
    path = tmp_path / "log"
    path.write_bytes(b"a\n" + b"x" * size)
    assert whole_ends([LogSource("0", path, 0)])[path] == (2 if size == 10 else size + 2)


@pytest.mark.parametrize("text", ["new\n", "a line that is longer than the first one was\n"])
@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_file_that_becomes_another(tmp_path: Path, text: str, how: str) -> None:
    """A log that was emptied, or replaced by one of any size, is read from its beginning again."""
    path = tmp_path / "log"
    path.write_text("a long first line\n")
    other = tmp_path / "other"

    def change() -> None:
        other.write_text(text)
        other.rename(path) if how == "replaced" else path.write_text("")

    steps = (nothing, change, nothing if how == "replaced" else append(path, text.encode()))
    assert Follower(*steps).run([LogSource("0", path, 0)], {path: path.stat().st_size}) == [text.rstrip()]


def test_a_file_that_goes(tmp_path: Path) -> None:
    """Somebody removes a log: what comes at its place is shown."""
    path = tmp_path / "log"
    path.write_text("a\n")
    assert Follower(nothing, path.unlink, nothing, append(path, b"b\n")).run([LogSource("0", path, 0)]) == ["a", "b"]


def test_a_line_without_end_is_shown_after_a_while(tmp_path: Path) -> None:
    """A prompt or bar that stands still does not stay hidden until the end; half a character of it does."""
    path = tmp_path / "log"
    follower = Follower(append(path, b"1%\rwaiting \xc3"), *([nothing] * 6), append(path, b"\x9f\n"))
    follower.run([LogSource("0", path, 0)])
    assert [[line.text for line in batch] for batch in follower.got] == [["waiting "], ["ß"]]


def test_a_large_file_is_followed_in_pieces(tmp_path: Path) -> None:
    """Memory holds one piece of a file, however much has come since the last look, and however long a line is."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%07d\n" % number for number in range(50_000)) + b"x" * 3_000_000 + b"\nend\n")
    tracemalloc.start()
    count, text = 0, ""
    for batch in follow(lambda: [LogSource("0", path, 0)], {}, lambda: True, lambda _: None):
        count += sum(line.text.isdecimal() for line in batch)
        text = batch[-1].text if batch else text
        assert all(len(line.text) <= MAX_LINE + 1 for line in batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (count, text) == (50_000, "end")
    assert peak < 8_000_000


def test_a_traceback_that_comes_in_parts_keeps_its_level(tmp_path: Path) -> None:
    """What follows an error later is still part of it, and wanted with it."""
    path = tmp_path / "log"
    source = LogSource("0", path, 0)
    steps: list[Callable[[], object]] = [
        append(path, b"E1130 10:00:01.0 1 a.cc:1] bad\n"),
        append(path, b"  of it\n"),
        append(path, b"I1130 10:00:02.0 1 a.cc:1] good\n"),
    ]
    following = Following(lambda: [source], lambda: not steps, doing(steps), lambda: 0.0)
    found = [one for batch in followed(following, Wanted(level=3), None, {}) for one in batch]
    assert [line.text[-5:] for one in found for line in one.lines] == ["] bad", "of it"]


def test_a_further_attempt_is_followed_and_the_one_before_to_its_end(tmp_path: Path) -> None:
    """Its logs are shown from their beginning; late words of the earlier one too; the job's output goes on."""
    first, second = LogSource("0", tmp_path / "0", 0), LogSource("0", tmp_path / "1", 0, attempt=1)
    out = LogSource("job", tmp_path / "out")
    now = [[first, out]]
    steps: list[Callable[[], object]] = [
        append(first.path, b"a\n"),
        append(out.path, b"once more\n"),
        lambda: now.append([second, replace(out, attempt=1)]),
        append(second.path, b"b\n"),
        append(first.path, b"late\n"),
        append(out.path, b"end\n"),
    ]
    batches = follow(lambda: now[-1], {}, lambda: not steps, doing(steps))
    assert [(line.text, line.source.attempt) for batch in batches for line in batch] == [
        ("a", 0),
        ("once more", 0),
        ("b", 1),
        ("late", 0),
        ("end", 1),
    ]


def test_lines_that_come_are_folded(tmp_path: Path) -> None:
    """The same line of ranks that are a little apart is shown once, a moment later; none is lost at the end."""
    sources = [LogSource(str(rank), tmp_path / str(rank), rank) for rank in range(3)]
    ticks = [0.0]
    steps = [append(source.path, b"same\n") for source in sources] + [nothing, append(sources[1].path, b"own\n")]

    def wait(_seconds: float) -> None:
        ticks.append(ticks[-1] + 0.4)
        steps.pop(0)()

    following = Following(lambda: sources, lambda: not steps, wait, lambda: ticks[-1])
    found = [one for batch in followed(following, Wanted(), Folding(), {}) for one in batch]
    assert [(one.lines[0].text, sorted(one.ranks)) for one in found] == [("same", [0, 1, 2]), ("own", [1])]
