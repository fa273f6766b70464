"""How bad a log line is, as Triton, TensorRT-LLM, Python, vLLM, NCCL, PyTorch, MPI and Slurm say it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_llm.observe.stamps import PREFIX, STAMPED
from slurm_llm.observe.text import last_state

DEBUG, INFO, WARNING, ERROR = range(4)
LEVELS = {"error": ERROR, "warning": WARNING, "info": INFO}
NAMES = ("debug", "info", "warning", "error")

_WORDS = {
    **dict.fromkeys((b"E", b"F", b"ERROR", b"CRITICAL", b"FATAL", b"ALERT", b"CRIT", b"EMERG"), ERROR),
    **dict.fromkeys((b"W", b"WARN", b"WARNING"), WARNING),
    **dict.fromkeys((b"I", b"INFO", b"NOTICE"), INFO),
    **dict.fromkeys((b"D", b"V", b"DEBUG", b"TRACE", b"VERBOSE"), DEBUG),
}
_NAMED = rb"(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO|NOTICE|DEBUG|TRACE|VERBOSE)"
_STAMP = rb"(?:\[?\d{4}[-/]\d\d[-/]\d\d[ T][\d:.,Z+-]+\]?|\[\d\d/\d\d/\d{4}-[\d:]+\])"
_EXPLICIT = re.compile(
    PREFIX
    + rb"(?:\[?(?P<glog>[IWEFV])\d{4} \d\d:\d\d:\d\d"
    + rb"|\[(?P<torch>[IWEF]) \w+\.\w+:\d+\]"
    + rb"|(?:"
    + _STAMP
    + rb" ?)?(?:\[(?:TRT-LLM|TensorRT-LLM|TRT|vLLM)\] ?)?(?:\[RANK \d+\] ?)?\[(?P<boxed>[A-Z]{1,8}|[a-z]{3,8})\]"
    + rb"|"
    + _STAMP
    + rb"[^\n]{0,80}?\b(?P<dated>"
    + _NAMED
    + rb")\b|(?P<first>"
    + _NAMED
    + rb")\b|[\w.]{1,60} ?[-:|] ?(?P<second>"
    + _NAMED
    + rb")\b)"
)
_NCCL = re.compile(rb"[^\n]{0,160}?\bNCCL (WARN|INFO|TRACE)\b")
# NCCL has no level above WARN: what makes it fail is said there.
_NCCL_LEVELS = {b"WARN": ERROR, b"INFO": INFO, b"TRACE": DEBUG}
TRACEBACK = re.compile(PREFIX + rb"(?:[A-Z]{4,8} [^\n]{0,80}\] )?Traceback \(most recent call last\)")
_ERRORS = re.compile(
    rb"Traceback \(most recent call last\)|\b(?:error|fatal): "
    rb"|^" + PREFIX + rb"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|SystemExit)(?::|\s*$)"
    rb"|CUDA error|CUDA_ERROR|cudaError|[Ss]egmentation fault|[Bb]us error|[Oo]ut of memory|oom[-_]kill"
    rb"|std::bad_alloc|terminate called|MPI_ABORT|MPI_ERR_|error occurred in MPI|(?:OPAL|PMIX|ORTE) ERROR"
    rb"|Fatal Python error|: line \d+: +\d+ (?:Killed|Aborted|Terminated|Segmentation)|Process received signal"
    rb"|^slurm_llm: (?:[\d:]{8} )?FAILED"
)
_WARNINGS = re.compile(rb"\b\w*[Ww]arning: ")
_NEEDLES = {
    # Pieces of five bytes: CPython finds those three times as fast as longer ones.
    ERROR: (
        *(b"rror", b"RROR", b"FATAL", b"CRIT", b"crit", b"[E", b"[F", b"ALERT", b"alert", b"EMERG", b"emerg"),
        *(b"(mos", b"L WAR", b"fatal", b"xcept", b"Inter", b"mExit", b"fault", b"f mem", b"oom", b"d_all", b"te ca"),
        *(b"MPI_", b"d sig", b"AILED", b"Kille", b"Abort", b"Termi", b"\rE", b"\rF"),
    ),
    WARNING: (b"WARN", b"rning", b"[W", b"[warn", b"\rW"),
}
"""What every line that says a level of itself, and does not begin as glog's do, holds one of."""
_GLOG_HEADS = {ERROR: rb"EF", WARNING: rb"WEF"}
_BORING = {
    wanted: re.compile(
        rb"\n(?!(?:[%s]\d{4} \d\d:|%s(?:%s) \d\d-\d\d|\[[\d/]{10}-[\d:]{8}\] \[TRT-LLM\] (?:\[RANK \d+\] ?)?\[[%s]\]))"
        % (letters, PREFIX, words, letters)
    )
    for wanted, letters, words in ((ERROR, rb"IVWD", rb"INFO|DEBUG|WARNING"), (WARNING, rb"IVD", rb"INFO|DEBUG"))
}
"""Finds the lines that do not plainly say that they are less bad than that."""
_HEADS = {wanted: re.compile(rb"\n\[?[%s]\d{4} \d\d:" % letters) for wanted, letters in _GLOG_HEADS.items()}
LEVEL_BYTES = 2000
"""So much of a line is looked at for its level."""
MANY_ODD = 200
"""Lines of a block, not plainly harmless, that are looked at one by one; of more, words are searched in the block."""


def level_of(row: bytes) -> int | None:
    """Return the level that a row says of itself; None when it says none."""
    if b"NCCL " in row and (match := _NCCL.match(row)):
        return _NCCL_LEVELS[match[1]]
    if (match := _EXPLICIT.match(row)) and (word := _word(match)) in _WORDS:
        return _WORDS[word]
    if _ERRORS.search(row):
        return ERROR
    return WARNING if _WARNINGS.search(row) else None


def is_head(row: bytes) -> bool:
    """Return whether a row begins something: it bears a time or a level of its own, or a traceback begins."""
    if STAMPED.match(row) or TRACEBACK.match(row) or (b"NCCL " in row and _NCCL.match(row)):
        return True
    match = _EXPLICIT.match(row)
    return match is not None and _word(match) in _WORDS


def _word(match: re.Match[bytes]) -> bytes:
    return match[match.lastgroup].upper() if match.lastgroup else b""


def bad_lines(data: bytes | bytearray, size: int, wanted: int) -> Iterator[int]:
    """Yield, rising, where in `data` lines begin that say they are as bad as `wanted`.

    `data` begins with a line end and whole lines follow, up to `size`; `wanted` is WARNING or ERROR.
    """
    for start in _odd_lines(data, size, wanted):
        end = data.find(b"\n", start, size)
        row = bytes(data[start : min(size if end < 0 else end, start + LEVEL_BYTES)])
        if (level_of(last_state(row)) or DEBUG) >= wanted:
            yield start


def _odd_lines(data: bytes | bytearray, size: int, wanted: int) -> list[int]:
    """Return, rising, where lines begin that are not plainly less bad; never leave out one that is as bad."""
    odd = []
    for match in _BORING[wanted].finditer(data, 0, size):
        odd.append(match.end())
        if len(odd) > MANY_ODD:
            return _by_words(data, size, wanted)
    return odd


def _by_words(data: bytes | bytearray, size: int, wanted: int) -> list[int]:
    found = {match.start() + 1 for match in _HEADS[wanted].finditer(data, 0, size)}
    for needle in (needle for level, own in _NEEDLES.items() if level >= wanted for needle in own):
        at = data.find(needle, 1, size)
        while at >= 0:
            found.add(data.rfind(b"\n", 0, at + 1) + 1)
            end = data.find(b"\n", at, size)
            at = data.find(needle, end, size) if end >= 0 else -1
    return sorted(found)
