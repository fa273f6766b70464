"""Which lines are wanted: levels of every program, tracebacks whole, expressions; fast ways find what slow ones do."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from slurm_llm.observe import logslevels
from slurm_llm.observe.logs import LEVELS, LogSource, Wanted, every
from slurm_llm.observe.logsfilter import literals
from slurm_llm.observe.logslevels import DEBUG, ERROR, INFO, WARNING, bad_lines, level_of
from slurm_llm.observe.text import MAX_LINE

LINES: list[tuple[str, int | None]] = [
    ('E1130 10:44:26.957985 17287 a.cc:1] "x"', ERROR),
    ("F1130 10:44:26.957985 17287 a.cc:1] x", ERROR),
    ("W1130 10:44:26.957985 17287 a.cc:1] error: x", WARNING),
    ("I1130 10:44:26.957985 17287 a.cc:1] ERROR x", INFO),
    ("[rank3]:[E1130 10:44:26.123456789 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught", ERROR),
    ("[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout", ERROR),
    ("[11/30/2026-10:15:37] [TRT-LLM] [E] Failed", ERROR),
    ("[11/30/2026-10:15:37] [TRT-LLM] [RANK 3] [W] Odd", WARNING),
    ("[11/30/2026-10:15:37] [TRT-LLM] [I] Error: none", INFO),
    ("[TensorRT-LLM][ERROR] Assertion failed", ERROR),
    ("[TensorRT-LLM][WARNING] Odd", WARNING),
    ("[TensorRT-LLM][INFO] Error: none", INFO),
    ("ERROR 11-30 10:15:37 [core.py:1] EngineCore failed", ERROR),
    ("(EngineCore_0 pid=7) ERROR 11-30 10:15:37 [core.py:1] failed", ERROR),
    ("\x1b[1;36m(APIServer pid=1)\x1b[0;0m WARNING 11-30 10:15:37 [a.py:1] x", WARNING),
    ("INFO 11-30 10:15:37 [core.py:1] error: none", INFO),
    ("DEBUG 11-30 10:15:37 [core.py:1] x", DEBUG),
    ("2026-11-30 10:44:26,123 - root - ERROR - x", ERROR),
    ("2026-11-30 10:44:26,123 INFO error: x", INFO),
    ("ERROR:root:x", ERROR),
    ("root - WARNING - x", WARNING),
    ("node1:12:34 [0] NCCL WARN Call to connect failed", ERROR),
    ("node1:12:34 [0] NCCL INFO error: none", INFO),
    ("[2026-11-30 10:44:26] node1:12:34 [0] net.cc:85 NCCL WARN x", ERROR),
    ("Traceback (most recent call last):", ERROR),
    ("RuntimeError: CUDA error: an illegal memory access", ERROR),
    ("torch.OutOfMemoryError: CUDA out of memory", ERROR),
    ("KeyboardInterrupt", ERROR),
    ("/x.py:3: UserWarning: odd", WARNING),
    ("srun: error: n1: task 1: Exited with exit code 143", ERROR),
    ("0: slurmstepd-n1: error: *** STEP 1.2 ON n1 CANCELLED AT 2026-11-30T20:05:32 ***", ERROR),
    ("slurm_llm: 20:05:31 FAILED: rank 5", ERROR),
    ("slurm_llm: 20:05:31 READY", None),
    ("2026/11/30 10:44:26 [error] 7#7: connect() failed", ERROR),
    ("bash: line 3:  4711 Killed                  python", ERROR),
    ("[WARNING]  (123) : Server a/b is DOWN", WARNING),
    ("[ALERT]    (123) : sendmsg()", ERROR),
    ("terminate called after throwing an instance of 'std::bad_alloc'", ERROR),
    ("[n1:3] *** Process received signal ***", ERROR),
    ("loading the error table", None),
    ("[1, 2, 3]", None),
    ('  File "x.py", line 1, in f', None),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_levels_of_every_program(line: str, expected: int | None) -> None:
    """A line's own word counts before what it speaks of; NCCL's WARN is what it says when it fails."""
    assert level_of(line.encode()) == expected


@pytest.mark.parametrize("wanted", [WARNING, ERROR])
@pytest.mark.parametrize("seed", range(8))
def test_no_line_that_is_bad_is_passed_over(wanted: int, seed: int) -> None:
    """Both quick looks through a block, that for few odd lines and that for words, find all that a slow one does."""
    chance = random.Random(seed)
    dull = ["I1130 10:44:26.9 1 a.cc:1] x", "INFO 11-30 10:15:37 [a.py:1] x", "plain words", "  indented"]
    rows = [chance.choice([*dull * 12, *(line for line, _ in LINES)]) for _ in range(chance.choice((30, 900)))]
    data = ("\n" + "\n".join(rows) + "\n").encode()
    starts, at = [], 1
    for row in rows:
        starts.append(at)
        at += len(row.encode()) + 1
    bad = {start for start, row in zip(starts, rows, strict=True) if (level_of(row.encode()) or 0) >= wanted}
    assert list(bad_lines(data, len(data), wanted)) == sorted(bad)
    assert bad <= set(logslevels._by_words(data, len(data), wanted))


def shown(folder: Path, text: str | bytes, **wanted: object) -> list[str]:
    """Return the wanted lines of one log."""
    path = folder / "log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    found = every([LogSource("rank 0", path, 0)], Wanted(**wanted))  # type: ignore[arg-type]
    return [line.text for one in found for line in one.lines]


TROUBLE = """I1130 10:00:01.0 1 a.cc:1] fine
Traceback (most recent call last):
  File "a.py", line 1, in f
    g()

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in f
ValueError: bad
and what it says in a second line
W1130 10:00:02.0 1 a.cc:1] odd
E1130 10:00:03.0 1 a.cc:1] failed:
  because
Loading:  10%\rLoading: 100%
I1130 10:00:04.0 1 a.cc:1] error: words
"""


def test_an_error_is_shown_with_all_its_lines(tmp_path: Path) -> None:
    """A traceback up to what comes next; what follows a line of level error; no bar."""
    rows = [row for row in TROUBLE.splitlines() if row]
    errors = [*rows[1:9], *rows[10:12]]
    assert shown(tmp_path, TROUBLE, level=ERROR) == errors
    assert shown(tmp_path, TROUBLE, level=WARNING) == [*rows[1:9], rows[9], *rows[10:12]]
    assert len(shown(tmp_path, TROUBLE, level=INFO)) == len(rows) - 1, "of a bar its last state alone"
    assert shown(tmp_path, TROUBLE, level=ERROR, grep=re.compile("bad|because")) == ["ValueError: bad", "  because"]


@pytest.mark.parametrize(
    ("pattern", "ignore_case", "expected"),
    [
        ("CUDA error", False, (b"CUDA error",)),
        ("tim(ed )?out|refused", False, (b"tim", b"refused")),
        (r"\[E\] .*failed", False, (b"failed",)),
        ("ab?cd", False, (b"cd",)),
        ("abc{2}d", False, (b"ab",)),
        ("abc+d", False, (b"abc",)),
        ("[a-z]+ms", False, (b"ms",)),
        ("[]x]yz", False, (b"yz",)),
        ("(a|b)", False, ()),
        ("a.b", False, ()),
        ("foo|.", False, ()),
        (r"\x41BC", False, ()),
        (r"a\d2345", False, (b"2345",)),
        ("(?i)abc", False, ()),
        ("ABC", True, (b"abc",)),
        ("GRÖSSE", True, ()),
        ("Größe", False, ("Größe".encode(),)),
        ("", False, ()),
    ],
)
def test_texts_that_an_expression_needs(pattern: str, ignore_case: bool, expected: tuple[bytes, ...]) -> None:
    """Only what every fitting line holds; where that is not plain, none."""
    assert literals(pattern, ignore_case) == expected


WORDS = ("error", "ERROR", "CUDA", "größe", "a", "12", "x.y", "[E]", "\r", "\t", "\x1b[31m", "  ", "\0", "\xff")
PATTERNS = (
    "error", "CUDA error", "^error", "x$", "a.*12", "ß", "^.{5}$", r"\d\d", r"x\.y|CUDA", r"\Aa", "[^a]12", r"\[E\]",
    "err(or)?", "(?i)cuda", "a{2}", r"\bERROR\b", "größe|12", r"\s\s", "e+r+o", "", "Ö", ".ö",
)  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ignore_case", [False, True])
def test_an_expression_finds_what_it_finds_in_the_lines_that_are_shown(
    tmp_path: Path, pattern: str, ignore_case: bool
) -> None:
    """The search in bytes is only quicker: with controls, bars, other letters and half characters in the log too."""
    chance = random.Random(pattern)
    rows = ["".join(chance.choice(WORDS) for _ in range(chance.randrange(1, 6))) for _ in range(400)]
    data = b"\n".join(row.encode("latin-1" if "\xff" in row else "utf-8") for row in rows)
    expression = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    everything = shown(tmp_path, data)
    assert len(everything) > 100
    assert shown(tmp_path, data, grep=expression) == [text for text in everything if expression.search(text)]


def test_a_piece_that_is_everywhere(tmp_path: Path) -> None:
    """A text is found too where thousands of lines hold half of it."""
    rows = [f"CUDA is fine {number}" for number in range(20_000)]
    rows[17_000] = "CUDA error here"
    assert shown(tmp_path, "\n".join(rows), grep=re.compile("CUDA error")) == ["CUDA error here"]
    assert (
        shown(tmp_path, "\n".join(rows), grep=re.compile("fine 1.7[0-9]$"))[:2]
        == ["CUDA is fine 1070", "CUDA is fine 1071"][:2]
    )


def test_what_is_found_far_into_a_line_is_shown(tmp_path: Path) -> None:
    """Of a line of a megabyte the part around it; a line that ends before is shown from its beginning."""
    data = "a" * 300_000 + "needle" + "b" * 500_000 + "\nneedle\n"
    far, near = shown(tmp_path, data, grep=re.compile("needle"))
    assert re.fullmatch("…a{1000}needleb+…", far)
    assert len(far) == MAX_LINE + 2
    assert near == "needle"


def test_names_of_levels() -> None:
    """What the command line calls them is what JSON calls them."""
    assert all(logslevels.NAMES[level] == name for name, level in LEVELS.items())
