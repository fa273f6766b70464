"""What has happened in a run, from an attempt's journal records: changes of state, warnings, complaints, ends. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_llm.agent import fold, journal
from slurm_llm.observe.text import clean
from slurm_llm.slurm.states import RunState

GOOD, PLAIN, WARNING, BAD = "good", "plain", "warning", "bad"
KEPT = 200
"""Events that are kept, the newest ones."""

_LEVELS = {
    "READY": GOOD,
    "COMPLETED": GOOD,
    "DEGRADED": WARNING,
    "DRAINING": WARNING,
    **{state.value: BAD for state in RunState if state.is_terminal and state is not RunState.COMPLETED},
}
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Event:
    """Something that has happened, `at` seconds since the epoch; `level` is GOOD, PLAIN, WARNING or BAD."""

    at: float
    level: str
    text: str


def build_events(records: Iterable[journal.Record], first: fold.FirstEnd | None) -> tuple[Event, ...]:
    """Return the newest events, in order of time; of ends of ranks the first unasked one, and how many followed."""
    ordered = list(records)
    words = clean(fold.describe(first)) if first is not None else ""
    found = [event for item in ordered if (event := _event(item, words)) is not None]
    if first is not None:
        found += [Event(first.at, BAD, words), *_others(ordered, first)]
    # After an outage of the file system a writer writes again what may have been lost: some of it is there twice.
    return tuple(sorted(dict.fromkeys(found), key=lambda event: event.at)[-KEPT:])


def _others(records: Sequence[Record], first: fold.FirstEnd) -> list[Event]:
    """Return one event for all other ranks that have ended: when one goes, the others do."""
    ends = {
        int(item["rank"]): float(item["t"])
        for item in records
        if item["kind"] == "ended" and item.get("main") and item.get("rank") != first.rank
    }
    if not ends:
        return []
    return [
        Event(max(ends.values()), PLAIN, f"{len(ends)} other rank{'s have' if len(ends) > 1 else ' has'} ended too")
    ]


def _event(item: Record, known: str) -> Event | None:
    """Return what a record tells; `known` is what another event says already."""
    told = _TOLD.get(item["kind"])
    if told is None:
        return None
    level, words = told
    text = clean(words(item)).replace("\t", " ").strip()
    if item["kind"] == "state":
        level = _LEVELS.get(str(item.get("state")), PLAIN)
        text = text.removesuffix(f": {known}") if known else text
    return Event(float(item["t"]), level, text) if text else None


def _state(item: Record) -> str:
    reason = str(item.get("reason", ""))
    return str(item.get("state", "")) + (f": {reason}" if reason else "")


def _field(name: str) -> Callable[[Record], str]:
    return lambda item: str(item.get(name, ""))


def _complaint(item: Record) -> str:
    return f"rank {item.get('rank')} on node {item.get('node', '?')}: {item.get('text', '')}"


def _lost(item: Record) -> str:
    return f"node {item.get('node', '?')} is lost: {item.get('why', '')}"


def _restart(item: Record) -> str:
    return f"the server is started again in {float(item.get('in_s', 0)):g} s"


_TOLD: dict[str, tuple[str, Callable[[Record], str]]] = {
    "state": (PLAIN, _state),
    "warning": (WARNING, _field("text")),
    "complaint": (BAD, _complaint),
    "stall": (BAD, _field("what")),
    "lost": (BAD, _lost),
    "unwatched": (WARNING, _field("text")),
    "restart": (WARNING, _restart),
    "requeue": (WARNING, lambda item: f"the job is requeued: {item.get('why', '')}"),
    journal.NO_RESTART: (BAD, lambda item: f"the server is not started again: {item.get('why', '')}"),
    **{kind: (WARNING, _field("text")) for kind in sorted(fold.SERVICE_NEWS)},
}
