"""Memory, GPUs and processors over the time of a run, from samples of its node agents. Reads with bounded effort.

An agent writes a sample every 10 s for as long as the job runs: after days on many nodes these are gigabytes, so long
journals are looked into at places spread over the file.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from slurm_llm.agent.journal import SAMPLES_ENDING, parse_line
from slurm_llm.observe.text import clean

WHOLE_BYTES = 1 << 18
"""A journal up to this size is read whole."""
LOOKS = 12_000
"""Looks into longer journals, of all nodes together."""
FEWEST, MOST = 16, 240
"""Looks into one journal; also the moments on a plot at most."""
LOOK_BYTES = 1 << 14
EVERY_S = 10.0
_MARK = b'"kind":"sample"'
EACH = 8
"""So many nodes have a line of their own in a plot; of more the lowest, middle and highest are drawn."""


@dataclass(frozen=True)
class Sample:
    """What one node said of all its ranks together; None where it had no figure. `cores` are processors kept busy."""

    at: float
    node: str
    host_mib: float
    cpu_s: float
    gpu_mib: float | None
    gpu_percent: float | None


@dataclass(frozen=True)
class Line:
    """One line of a plot: its name, and a value for each of the series' times, None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Series:
    """One figure of every node over time: `times` in seconds since the epoch, lines of nodes or of their range."""

    title: str
    unit: str
    times: tuple[float, ...]
    lines: tuple[Line, ...]


def load_samples(folders: Iterable[Path]) -> list[list[Sample]]:
    """Return the samples of each journal below `folders`, one list a node and attempt, in order of time."""
    paths = [path for folder in folders for path in _journals(folder)]
    looks = max(FEWEST, min(MOST, LOOKS // max(1, len(paths))))
    found = (sorted(_samples(path, looks), key=lambda sample: sample.at) for path in paths)
    return [own for own in found if own]


def _journals(folder: Path) -> list[Path]:
    """Return the files with samples; of an older run, which kept them with the rest, the journals of nodes."""
    try:
        names = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
    except OSError:
        return []
    own = [path for path in names if path.name.endswith(SAMPLES_ENDING)]
    return own or [path for path in names if not path.name.startswith(("rank-", "sees-", "head.", "job."))]


def _samples(path: Path, looks: int) -> Iterator[Sample]:
    try:
        with path.open("rb") as stream:
            for row in _rows(stream, looks):
                item = parse_line(row) if _MARK in row else None
                own = None if item is None else _sample(item, path.stem)
                if own is not None:
                    yield own
    except OSError:
        return


def _rows(stream: BinaryIO, looks: int) -> Iterator[bytes]:
    """Yield every line of a short journal, and of a long one the first sample at each of `looks` places."""
    size = os.fstat(stream.fileno()).st_size
    if size <= WHOLE_BYTES:
        yield from stream.read(WHOLE_BYTES).split(b"\n")
        return
    for number in range(looks):
        stream.seek(number * (size - LOOK_BYTES) // max(1, looks - 1))
        # A look begins and ends somewhere inside a line.
        rows = stream.read(LOOK_BYTES).split(b"\n")[1:-1]
        yield from [row for row in rows if _MARK in row][:1]


def _sample(item: Mapping[str, Any], node: str) -> Sample | None:
    try:
        ranks = [own for own in item["ranks"].values() if isinstance(own, dict)]
        gpus = list(item.get("gpus", {}).values())
        return Sample(
            at=float(item["t"]),
            node=clean(str(item.get("node", node.removesuffix(".samples")))),
            host_mib=sum(float(own.get("rss_mib") or 0.0) for own in ranks),
            cpu_s=sum(float(own.get("cpu_s") or 0.0) for own in ranks),
            gpu_mib=sum(float(own[0] or 0.0) for own in gpus) if gpus else None,
            gpu_percent=statistics.fmean(float(own[1] or 0.0) for own in gpus) if gpus else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def build_series(journals: Sequence[Sequence[Sample]]) -> list[Series]:
    """Return the plots that there are figures for: host memory, processors, GPU memory, GPU use; by node."""
    times = [sample.at for own in journals for sample in own]
    if not times or max(times) - min(times) < EVERY_S / 2:
        return []
    begin, end = min(times), max(times)
    step = max(EVERY_S, (end - begin) / MOST)
    grid = tuple(round(begin + step * (number + 0.5), 1) for number in range(int((end - begin) / step) + 1))
    kinds: tuple[tuple[str, str, Callable[[Sequence[Sample]], Points]], ...] = (
        ("Memory of the ranks' processes", "GiB", lambda own: _points(own, lambda one: one.host_mib / 1024)),
        ("Processors kept busy", "cores", _cores),
        ("GPU memory in use", "GiB", lambda own: _points(own, lambda one: _gib(one.gpu_mib))),
        ("GPU use, mean of a node's GPUs", "%", lambda own: _points(own, lambda one: one.gpu_percent)),
    )
    made = (
        _series(title, unit, [(own[0].node, points(own)) for own in journals], grid) for title, unit, points in kinds
    )
    return [one for one in made if one is not None]


Points = list[tuple[float, float]]


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def _points(own: Sequence[Sample], value: Callable[[Sample], float | None]) -> Points:
    return [(sample.at, found) for sample in own if (found := value(sample)) is not None]


def _cores(own: Sequence[Sample]) -> Points:
    """Return processor time by time between two samples; less than before means that a process has ended."""
    pairs = pairwise(own)
    return [
        (after.at, (after.cpu_s - before.cpu_s) / (after.at - before.at))
        for before, after in pairs
        if after.cpu_s >= before.cpu_s and after.at - before.at >= 1.0
    ]


def _series(title: str, unit: str, journals: Iterable[tuple[str, Points]], grid: tuple[float, ...]) -> Series | None:
    cells: dict[str, dict[int, list[float]]] = {}
    step = grid[1] - grid[0] if len(grid) > 1 else EVERY_S
    for node, points in journals:
        for at, value in points:
            place = min(len(grid) - 1, max(0, int((at - grid[0]) / step + 0.5)))
            cells.setdefault(node, {}).setdefault(place, []).append(value)
    if not cells:
        return None
    lines = [
        Line(node, tuple(_mean(own.get(place)) for place in range(len(grid)))) for node, own in sorted(cells.items())
    ]
    return Series(title, unit, grid, tuple(lines if len(lines) <= EACH else _range(lines, len(grid))))


def _mean(values: Sequence[float] | None) -> float | None:
    return round(statistics.fmean(values), 3) if values else None


def _range(lines: Sequence[Line], count: int) -> Iterator[Line]:
    """Yield the lowest, middle and highest value of all nodes at each time; the last names the node of the peak."""
    columns = [[one for line in lines if (one := line.values[place]) is not None] for place in range(count)]
    peak = max(lines, key=lambda line: max((one for one in line.values if one is not None), default=0.0))
    kinds: tuple[tuple[str, Callable[[list[float]], float]], ...] = (
        (f"highest ({peak.name})", max),
        ("middle", statistics.median),
        ("lowest", min),
    )
    for name, pick in kinds:
        yield Line(name, tuple(round(pick(column), 3) if column else None for column in columns))
