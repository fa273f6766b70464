"""From a command line to a load: lengths, datasets and their checks. Reads a dataset's file, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from slurm_llm.benching.tools import Entry
from slurm_llm.errors import InputError, Problem
from slurm_llm.observe.benchresults import Spread

TOKENS_A_WORD = 1.3
"""Output tokens for each word of a dataset's answer, as NVIDIA's benchmark of the core model counts by default."""
MOST_BYTES = 1 << 28
Lengths = tuple[tuple[int, int, float], ...]


def parse_spread(option: str, text: str) -> Spread:
    """Return the mean and standard deviation of `MEAN[,STDDEV]`.

    Raises:
        InputError: it is something else, or no length that can be.
    """
    parts = text.split(",")
    try:
        mean, deviation = float(parts[0]), float(parts[1]) if len(parts) > 1 else 0.0
    except ValueError:
        mean = deviation = math.nan
    if len(parts) > 2 or not (1 <= mean < 1e7 and 0 <= deviation < 1e7):
        raise InputError(Problem(option, f"'{text}' is no number of tokens", "MEAN or MEAN,STDDEV", "such as 512,64"))
    return mean, deviation


def parse_sweep(text: str) -> tuple[int, ...]:
    """Return the concurrencies of `1,2,4,8`, in the order given.

    Raises:
        InputError: it is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < int(part) <= 100_000 for part in parts):
        raise InputError(Problem("--sweep", f"'{text}' is no list of concurrencies", todo="such as 1,2,4,8"))
    return tuple(dict.fromkeys(int(part) for part in parts))


def load_dataset(path: Path) -> tuple[tuple[Entry, ...], str]:
    """Return a dataset's entries and the SHA-256 of its file.

    Two forms: JSON lines with `text` (or `input_ids`) and perhaps `output_length`, as aiperf reads them; or one JSON
    list of objects with `input`, `instruction` and `output`, as NVIDIA's benchmark of the core model has them, whose
    answers may take 1.3 tokens a word.

    Raises:
        InputError: it cannot be read, or a row is neither.
    """
    data = _read("--dataset", path)
    try:
        text = data.decode("utf-8")
        whole = json.loads(text) if text.lstrip().startswith("[") else None
        rows = whole if whole is not None else [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise InputError(Problem(f"--dataset {path}", f"is no JSON: {error}", "a list, or an object a line")) from None
    entries, faults = [], []
    for number, row in enumerate(rows, 1):
        entry = _entry(row) if isinstance(row, Mapping) else None
        if entry is None:
            what = "has neither `text`, `input_ids` nor `input` with `instruction` and `output`"
            faults.append(Problem(f"--dataset {path}", f"row {number} {what}"))
        else:
            entries.append(entry)
    if faults or not entries:
        raise InputError(faults[:5] or [Problem(f"--dataset {path}", "is empty")])
    return tuple(entries), hashlib.sha256(data).hexdigest()


def _entry(row: Mapping[str, Any]) -> Entry | None:
    most = row.get("output_length")
    most = most if isinstance(most, int) and most > 0 else None
    ids, text = row.get("input_ids"), row.get("text")
    if isinstance(ids, list) and ids and all(isinstance(one, int) for one in ids):
        return Entry(ids=tuple(ids), most=most)
    if isinstance(text, str) and text:
        return Entry(text, most=most)
    parts = [row.get(name) for name in ("input", "instruction", "output")]
    if not all(isinstance(part, str) for part in parts):
        return None
    put, asked, output = map(str, parts)
    return Entry(f"{put} {asked}", most=max(1, int(len(output.split(" ")) * TOKENS_A_WORD)))


def load_lengths(path: Path) -> Lengths:
    """Return pairs of input and output tokens with their share.

    Two forms: a list of `[input, output, share]`; or `{"input": [[low, high, count], …], "output": […]}`, histograms as
    NVIDIA's benchmark of the core model has them, taken at the middle of each bucket, input and output independent.

    Raises:
        InputError: it is neither.
    """
    where, problem = f"--lengths {path}", "is neither a list of [input, output, share] nor histograms"
    try:
        value = json.loads(_read("--lengths", path).decode("utf-8"))
        rows = _independent(value) if isinstance(value, Mapping) else [tuple(map(float, row)) for row in value]
        made = tuple((round(put), round(most), share) for put, most, share in rows)
    except (ValueError, TypeError, KeyError):
        raise InputError(
            Problem(where, problem, '[[128, 64, 1]] or {"input": [[1, 9, 3]], "output": [[1, 9, 3]]}')
        ) from None
    if not made or any(put < 1 or most < 1 or not 0 < share < math.inf for put, most, share in made):
        raise InputError(Problem(where, "lengths and shares are above zero"))
    return made


def _independent(value: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    sides = [[((low + high) / 2, count) for low, high, count in value[name]] for name in ("input", "output")]
    return [(put, most, first * second) for (put, first), (most, second) in product(*sides)]


def _read(option: str, path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(Problem(f"{option} {path}", f"has more than {MOST_BYTES >> 20} MiB"))
        return path.read_bytes()
    except OSError as error:
        raise InputError(Problem(f"{option} {path}", f"cannot be read: {error.strerror}")) from None
