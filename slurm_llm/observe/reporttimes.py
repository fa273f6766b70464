"""When each attempt of a run, and each of its ranks, went through its phases: rows of a report's timeline. Pure.

Times are seconds since the epoch, by the clocks of the nodes that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_llm.agent import fold
from slurm_llm.agent.journal import Record
from slurm_llm.observe.facts import Evidence, RankPlace
from slurm_llm.observe.health import node_names
from slurm_llm.observe.text import clean
from slurm_llm.record import Submission

PHASES = {
    "queue": ("Q", "in the queue"),
    "check": ("C", "agents start, preflight"),
    "launch": ("L", "srun, container, MPI launcher"),
    "start": ("S", "up to the engine's process"),
    "load": ("M", "model is loaded"),
    "wait": ("W", "loaded, first answer awaited"),
    "serve": ("R", "ready, serves"),
    "ending": ("E", "ending"),
}
"""Every phase, in order, with its letter and what happens in it."""
STATES = {
    "first": ("F", "went first, or is blamed"),
    "failed": ("X", "ended badly"),
    "unseen": ("?", "its end was not seen"),
    "ended": ("E", "ended as it was told"),
    "serve": ("R", "ready, serves"),
    "wait": ("W", "loaded, first answer awaited"),
    "load": ("M", "loading"),
    "start": ("S", "starting"),
    "launch": ("L", "launched, nothing heard of it"),
    "ending": ("D", "told to end"),
    "none": ("-", "never started"),
}
"""What a rank came to at last, the worst first, with its letter and what it means."""
NOTICED_S = 2.0
"""The end of loading may be noticed so much later than a first answer."""
_ORDERLY = ("exit 0", "signal SIGTERM", "exit 143")


@dataclass(frozen=True)
class Span:
    """One phase of an attempt or a rank, from `begin` to `end`."""

    phase: str
    begin: float
    end: float


@dataclass(frozen=True)
class RankLine:
    """One rank of an attempt. `at` are its coordinates in words, `gpus` slots of its node, or devices where known.

    `start_s` is from the start of the server's step to the engine's process, `load_s` from there to the end of loading;
    None is what nobody knows: a worker that blocks while it loads never tells its end.
    """

    rank: int
    node: str
    node_index: int
    local: int
    instance: int
    role: str
    gpus: str
    at: str
    state: str
    spans: tuple[Span, ...]
    ended: float | None
    how: str
    start_s: float | None
    load_s: float | None


@dataclass(frozen=True)
class AttemptLine:
    """One start of the server in one job of the run; `until` is the last moment that is told of.

    `attempt` is None where the job has begun none. `after` is the job that this one takes over from, 0 without one;
    `first` the rank that went first or is blamed, `first_at` and `first_how` when and how a process of it ended, where
    that was seen.
    """

    job_id: int
    attempt: int | None
    by: str
    after: int
    state: str
    cause: str
    live: bool
    submitted: float | None
    began: float | None
    ready: float | None
    ended: float | None
    until: float
    first: int | None
    first_at: float | None
    first_how: str
    spans: tuple[Span, ...]
    ranks: tuple[RankLine, ...] = ()


@dataclass(frozen=True)
class Source:
    """What an attempt's line is made of: evidence and records, who submitted its job, how the run is now.

    `live` tells whether it is the newest attempt of a job that still runs; `blamed` is the rank that a diagnosis names.
    """

    evidence: Evidence
    records: Sequence[Record]
    submission: Submission | None
    state: str
    live: bool
    blamed: int | None = None


@dataclass(frozen=True)
class _Moments:
    server: float | None
    ready: float | None
    ending: float | None
    until: float
    found: Mapping[int, float]


def build_attempt(source: Source, now: float, with_ranks: bool) -> AttemptLine:
    """Return the line of one attempt; its ranks are left out unless `with_ranks`."""
    evidence, told = source.evidence, source.submission
    facts, result = evidence.facts, evidence.result
    at = _moments(source, now)
    first, first_at, first_how = _first_rank(source)
    attempt = evidence.attempt.number if evidence.attempt else None
    submitted = told.time if told and not attempt else None
    began = result.began if result and result.began else facts.began if facts else None
    marks = [
        ("queue", submitted),
        ("check", began),
        ("launch", at.server),
        ("load", max(at.found.values(), default=None)),
    ]
    marks += [("serve", at.ready), ("ending", at.ending)]
    return AttemptLine(
        job_id=evidence.job.job_id if evidence.job else 0,
        attempt=attempt,
        by=clean(told.by) if told else "",
        after=int(told.after) if told and told.after.isdecimal() else 0,
        state=clean(result.state if result else source.state),
        cause=clean(result.cause if result else ""),
        live=source.live,
        submitted=submitted,
        began=began,
        ready=at.ready,
        ended=result.ended if result else None,
        until=at.until,
        first=first,
        first_at=first_at,
        first_how=first_how,
        spans=_spans(marks, at.until),
        ranks=tuple(_ranks(source, at, first, first_how)) if with_ranks else (),
    )


def _moments(source: Source, now: float) -> _Moments:
    evidence, records = source.evidence, source.records
    facts, result = evidence.facts, evidence.result
    told = source.submission.time if source.submission else None
    known = [one for one in (result.ended if result else None, evidence.last_record, told) if one is not None]
    until = now if source.live else max(known, default=now)
    ends = [float(item["t"]) for item in records if item["kind"] in ("stop", "term")]
    ends += [one for one in (evidence.failed_at, facts.first_end.at if facts and facts.first_end else None) if one]
    ready = facts.ready_at if facts else None
    if not ends and result and result.ended:
        ends = [min((own.ended for own in facts.ranks.values() if own.ended), default=result.ended) if facts else until]
    server = next((float(item["t"]) for item in records if item["kind"] == "server"), None)
    found: dict[int, float] = {}
    for item in records:
        if item["kind"] == "found" and item.get("main") and isinstance(item.get("rank"), int):
            found.setdefault(item["rank"], float(item["t"]))
    return _Moments(server, ready, min(ends, default=None), until, found)


def _first_rank(source: Source) -> tuple[int | None, float | None, str]:
    """Return the rank that went first or is blamed, and when and how its process ended where that was seen."""
    evidence = source.evidence
    told = evidence.result.first if evidence.result else None
    end = told or (evidence.facts.first_end if evidence.facts and evidence.result is None else None)
    rank = source.blamed if source.blamed is not None else end.rank if end else None
    if end is None or end.rank != rank:
        return rank, None, ""
    return rank, end.at, clean(f"{fold.shown(end.name)}: {end.how or 'nobody saw how'}")


def _spans(marks: Iterable[tuple[str, float | None]], until: float) -> tuple[Span, ...]:
    """Return the phases that begin at `marks`; each goes on until the next one, the last until `until`.

    Clocks of nodes differ a little: a phase that would begin before the one before it begins with that one.
    """
    begun: list[tuple[str, float]] = []
    for phase, moment in marks:
        if moment is None or moment >= until:
            continue
        begun.append((phase, max(moment, begun[-1][1]) if begun else moment))
    ends = [moment for _, moment in begun[1:]] + [until] * bool(begun)
    return tuple(Span(phase, begin, end) for (phase, begin), end in zip(begun, ends, strict=True) if end > begin)


def _ranks(source: Source, at: _Moments, first: int | None, first_how: str) -> Iterable[RankLine]:
    evidence = source.evidence
    known = evidence.facts.ranks if evidence.facts else {}
    names, ways = node_names(evidence, known), _dimensions(evidence.layout.ranks)
    ended = evidence.result.ranks_ended if evidence.result else {}
    for place in evidence.layout.ranks:
        own = known.get(place.rank) or fold.RankState(place.rank)
        how = own.how or ended.get(place.rank, "")
        found = at.found.get(place.rank)
        spans = _rank_spans(own, found, at)
        named = [f"instance {place.instance}"] if evidence.layout.instances > 1 else []
        in_time = own.loaded is not None and (at.ready is None or own.loaded < at.ready + NOTICED_S)
        yield RankLine(
            rank=place.rank,
            node=clean(own.node or names.get(place.node, f"node {place.node}")),
            node_index=place.node,
            local=place.local,
            instance=place.instance,
            role=place.role,
            gpus=_gpus(place, own.visible_gpus),
            at=" · ".join([*named, *(f"{name} {getattr(place.at, field)}" for name, field in ways.items())]),
            state="first" if place.rank == first else _state(own, how, spans, source.live),
            spans=spans,
            ended=own.ended,
            how=clean((place.rank == first and first_how) or how),
            start_s=_between(at.server, found),
            load_s=_between(found, _earliest(own.loaded, at.ready)) if in_time else None,
        )


def _rank_spans(own: fold.RankState, found: float | None, at: _Moments) -> tuple[Span, ...]:
    serving = at.ready if found is not None else None
    loaded = own.loaded if own.loaded is not None and (serving is None or own.loaded < serving) else None
    until = own.ended if own.ended is not None else at.until
    if own.started is None and found is None and not at.found:
        # Nothing of the step was seen: the wait for it is no rank's.
        return _spans([("launch", at.server)], until)
    marks = [("launch", at.server), ("start", own.started), ("load", found), ("wait", loaded)]
    return _spans([*marks, ("serve", serving), ("ending", at.ending)], until)


def _state(own: fold.RankState, how: str, spans: Sequence[Span], live: bool) -> str:
    if own.state == fold.ENDED or how:
        return "ended" if how in _ORDERLY else "failed"
    if not live:
        return "none" if own.state == fold.WAITING else "unseen"
    return spans[-1].phase if spans else "none"


def _dimensions(places: Sequence[RankPlace]) -> dict[str, str]:
    """Return short name → field of the coordinates in which ranks differ; moe_tp only where experts are spread too."""
    known = {"tp": "tensor", "cp": "context", "pp": "pipeline", "moe_tp": "moe_tensor", "ep": "moe_expert"}
    found = {name: field for name, field in known.items() if any(getattr(place.at, field) for place in places)}
    if "ep" not in found:
        found.pop("moe_tp", None)
    return found


def _gpus(place: RankPlace, visible: str | None) -> str:
    """Return the devices behind the plan's slots, as Slurm named them to the rank; the slots until it has."""
    shown = [clean(name) for name in (visible or "").split(",") if name]
    return ",".join(shown[slot] if slot < len(shown) else f"slot {slot}" for slot in place.gpus)


def _earliest(*moments: float | None) -> float | None:
    return min((one for one in moments if one is not None), default=None)


def _between(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None or last < first else round(last - first, 3)
