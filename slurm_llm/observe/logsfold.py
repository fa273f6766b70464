"""Fold what many ranks say alike, within some seconds, into one record that names them. Pure; memory is bounded."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slurm_llm.observe.logslines import LogLine

WINDOW_S = 3.0
"""How far apart in time lines may be that are folded."""
MOST_HELD = 5000
"""Lines that are held back at most, waiting for the same ones of further ranks."""

_VARYING = re.compile(
    r"^(?:\[rank\d+\]:)?\[?[IWEFV]\d{4} [\d:.]+ +\d+"  # glog: time and thread
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[ T][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?|\[\d\d/\d\d/\d{4}-[\d:]+\]"
    r"|\b\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\b0x[0-9a-fA-F]+\b|\b[0-9a-f]{12,}\b"
    r"|(?<![A-Za-z])(?:pid|PID|tid|thread|local_rank|device|cuda|GPU|gpu)[ _:=#]{0,2}\d+"
    r"|(?<![A-Za-z])(?:tp|pp|cp|moe_tp|moe_ep|TP|PP|EP|DP)[ _:=#]{0,2}\d+"
    r"|^\S+:\d+:\d+ \[\d+\]"  # NCCL: node, process, thread, device
)
_OF_RANK = re.compile(r"([Rr][Aa][Nn][Kk][ _:=#-]{0,2}|\dr|/)(\d+)")
_NUMBER = re.compile(r"(?<![0-9.])\d+(?![0-9.])")
_NAME = re.compile(r"[A-Za-z][\w-]*")
_NUMBERED = re.compile(r"[A-Za-z][A-Za-z_-]*\d[\w-]*")


@dataclass
class Folded:
    """A record, of the lowest of the ranks that have said it; `ranks` is empty for what no rank says."""

    lines: list[LogLine]
    ranks: set[int] = field(default_factory=set)
    keys: tuple[str, ...] = ()
    first: float = 0.0
    held_since: float = 0.0

    @property
    def at(self) -> float:
        """When the first rank said it."""
        return self.first


class Folding:
    """Takes in records in order of time, either way, and gives them back folded, in the order of the first of each."""

    def __init__(self, nodes: Iterable[str] = (), window_s: float = WINDOW_S) -> None:
        self._nodes = frozenset(nodes)
        self._name = _NAME if any(not _NUMBERED.search(name) for name in self._nodes) else _NUMBERED
        self._window_s = window_s
        self._held: deque[Folded] = deque()
        self._open: dict[str, list[Folded]] = {}
        self._lines = 0

    def push(self, lines: list[LogLine], now: float = 0.0) -> Iterator[Folded]:
        """Take in a record at the moment `now`, and yield those to which nothing can be added any more."""
        own = lines[0]
        while self._held and (abs(own.at - self._held[0].lines[0].at) > self._window_s or self._lines > MOST_HELD):
            yield self._release()
        rank = own.source.rank
        keys = () if rank is None else self.keys(lines)
        group = next((one for key in keys for one in self._open.get(key, ()) if rank not in one.ranks), None)
        if group is not None and rank is not None:
            self._join(group, lines, rank)
            return
        made = Folded(lines, set() if rank is None else {rank}, keys, own.at, now)
        self._held.append(made)
        self._lines += len(lines)
        for key in keys:
            self._open.setdefault(key, []).append(made)

    def ripe(self, before: float) -> Iterator[Folded]:
        """Yield what has been held since `before` or longer."""
        while self._held and self._held[0].held_since <= before:
            yield self._release()

    def rest(self) -> Iterator[Folded]:
        """Yield all that is held."""
        while self._held:
            yield self._release()

    def _join(self, group: Folded, lines: list[LogLine], rank: int) -> None:
        if rank < (group.lines[0].source.rank or 0):
            group.lines = lines
        group.first = min(group.first, lines[0].at)
        group.ranks.add(rank)

    def _release(self) -> Folded:
        one = self._held.popleft()
        self._lines -= len(one.lines)
        for key in one.keys:
            self._open[key].remove(one)
            if not self._open[key]:
                del self._open[key]
        return one

    def keys(self, lines: list[LogLine]) -> tuple[str, ...]:
        """Return what two records of different ranks must share one of to be the same.

        Without times, processes, addresses and places of a rank; once with the rank's own number left out too.
        """
        own = lines[0].source
        text = "\n".join(_VARYING.sub("#", line.text) for line in lines)
        if self._nodes:
            text = self._name.sub(lambda match: "#" if match[0] in self._nodes else match[0], text)
        rank = str(own.rank)
        text = _OF_RANK.sub(lambda match: match[1] + "#" if match[2] == rank else match[0], text)
        which = f"{own.job_id}.{own.attempt} "
        if rank not in text:
            return (which + text,)
        return (which + text, which + _NUMBER.sub(lambda match: "#" if match[0] == rank else match[0], text))


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks as `0-3,8`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
