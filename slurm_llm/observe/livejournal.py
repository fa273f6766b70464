"""A run's journals as they grow: each look reads only what was appended since the last one. Judges nothing.

A run of 4,096 ranks has thousands of files. Those of single ranks are opened only while their node's agent has not told
the same, as `journal.read_briefly` does it.
"""

from __future__ import annotations

import os
from pathlib import Path

from slurm_llm.agent import fold, journal
from slurm_llm.observe.facts import Layout, Reading, load_layout
from slurm_llm.rundir import AttemptPaths

SAMPLES_FIRST = 16384
"""Bytes at the end of a file of samples that the first look reads: it may have grown for days."""


class GrowingJournal:
    """One attempt's journals; `samples` are each node's newest one, all other records are kept in order of time."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._read: dict[str, int] = {}
        self._events: list[journal.Record] = []
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._trouble = False
        self.samples: dict[str, journal.Record] = {}
        self.version = 0
        """Grows whenever there is a new record other than a sample."""

    def look(self) -> list[journal.Record]:
        """Read what is new and return all records, in order of time."""
        before = len(self._events)
        late = []
        for name in self._names():
            rank = _rank_of(name)
            if rank is None:
                self._take(name)
            else:
                late.append((name, rank))
        # What agents have just told decides which journals of ranks say anything more.
        for name, rank in late:
            if not self._is_told(rank):
                self._take(name)
        if len(self._events) > before:
            self.version += 1
            self._events = journal.in_order(self._events)
        return journal.in_order([*self._events, *self.samples.values()])

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries]
        except OSError:
            return []
        return sorted(name for name in names if name.endswith(journal.ENDING) and not name.startswith("sees-"))

    def _is_told(self, rank: int) -> bool:
        return rank in self._begun and (not self._trouble or rank in self._ended)

    def _take(self, name: str) -> None:
        path, at = f"{self._folder}/{name}", self._read.get(name, 0)
        size = journal.size(path)
        if size == at:
            return
        if size < at:
            # Removed by hand, and begun anew.
            at = 0
        of_samples = name.endswith(journal.SAMPLES_ENDING)
        if of_samples:
            at = max(at, size - SAMPLES_FIRST)
        try:
            with Path(path).open("rb") as stream:
                stream.seek(at)
                data = stream.read(size - at)
        except OSError:
            return
        rows = data.split(b"\n")
        last = journal.parse_line(rows[-1])
        # A record ends without a newline. One that is no record yet is read again with its rest.
        self._read[name] = at + len(data) - (0 if last is not None else len(rows[-1]))
        for row in rows[-3:] if of_samples else rows:
            self._keep(row)

    def _keep(self, row: bytes) -> None:
        item = journal.parse_line(row) if row else None
        if item is None:
            return
        if item["kind"] == journal.SAMPLE:
            self.samples[str(item.get("node", "?"))] = item
            return
        self._events.append(item)
        rank = item.get("rank")
        if isinstance(rank, int) and item.get("main"):
            if item["kind"] == "found" and item.get("started"):
                self._begun.add(rank)
            elif item["kind"] == "ended":
                self._ended.add(rank)
        calm = item.get("state", "READY") in journal.CALM_STATES
        self._trouble = self._trouble or item["kind"] in journal.TROUBLE or not calm


def _rank_of(name: str) -> int | None:
    stem = name[: -len(journal.ENDING)]
    number = stem.removeprefix("rank-")
    return int(number) if number != stem and number.isascii() and number.isdecimal() else None


class LiveReading(Reading):
    """A run directory that is looked at again and again: the plan is read once, journals as they grow."""

    def __init__(self) -> None:
        self._layouts: dict[Path, Layout] = {}
        self._journals: dict[Path, GrowingJournal] = {}
        self._facts: dict[Path, tuple[int, fold.RunFacts]] = {}
        self._looked: dict[Path, list[journal.Record]] = {}

    def layout(self, plan: Path) -> Layout:
        """Return what the plan says; it never changes."""
        if plan not in self._layouts:
            self._layouts[plan] = load_layout(plan)
        return self._layouts[plan]

    def journal_of(self, attempt: AttemptPaths) -> GrowingJournal:
        """Return the attempt's journals, as far as they were read."""
        return self._journals.setdefault(attempt.journal, GrowingJournal(attempt.journal))

    def begin(self) -> None:
        """Begin another look: each journal is read once in a look, however often it is asked for."""
        self._looked.clear()

    def records(self, attempt: AttemptPaths) -> list[journal.Record]:
        """Return the attempt's records, of samples each node's newest."""
        if attempt.journal not in self._looked:
            self._looked[attempt.journal] = self.journal_of(attempt).look()
        return self._looked[attempt.journal]

    def facts(self, attempt: AttemptPaths, records: list[journal.Record], ranks: int) -> fold.RunFacts:
        """Return what the records add up to; samples alone do not make it count anew."""
        version = self.journal_of(attempt).version
        known = self._facts.get(attempt.journal)
        if known is None or known[0] != version:
            known = self._facts[attempt.journal] = version, fold.fold(records, ranks)
        return known[1]
