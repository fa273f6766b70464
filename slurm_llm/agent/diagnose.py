"""From what a run has left to a diagnosis: the first cause, what explains and proves it, who only suffered. Pure."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import blind, clues, fold, known, reading, xids
from .causes import advice, stop_advice
from .clues import Case, Evidence, Finding
from .known import Known as Known
from .verdicts import Material as Material
from .verdicts import SlurmWords as SlurmWords
from .verdicts import judge

MOST_EVIDENCE = 8
MOST_KNOWN = 3


class Victims(NamedTuple):
    """Ranks that ended after the first one, all in one way: how, by whom, and within how many seconds.

    `by` is empty where nobody saw them end.
    """

    ranks: Tuple[int, ...]
    how: str
    by: str
    within_s: float


class Diagnosis(NamedTuple):
    """What is wrong with a run; `kind` is `none` when nothing is.

    Kinds: node, agent, preflight, memory, gpu, exit, exit0, signal, raise, unseen, step, hang, not-ready, launch, shm,
    agents, failed, time, stop, preempted, unknown. `at` is seconds since the epoch. `means` and `remedies` are for
    people.
    """

    state: str
    kind: str
    cause: str
    rank: Optional[int] = None
    node: Optional[str] = None
    at: Optional[float] = None
    phase: str = ""
    means: str = ""
    remedies: Tuple[str, ...] = ()
    evidence: Tuple[Evidence, ...] = ()
    known: Tuple[Known, ...] = ()
    victims: Tuple[Victims, ...] = ()
    warnings: Tuple[Known, ...] = ()
    missing: Tuple[str, ...] = ()


def diagnose(material: Material) -> Diagnosis:
    """Return the first cause of what has happened to a run, or that nothing has."""
    case = Case(material.facts, material.records, material.logs, material.entries)
    return _with_gpus(_dressed(judge(case, material), case, material), case)


def as_json(value: Any) -> Any:
    """Return a diagnosis as JSON values."""
    if hasattr(value, "_asdict"):
        return {name: as_json(item) for name, item in value._asdict().items()}
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


def _dressed(finding: Finding, case: Case, material: Material) -> Diagnosis:
    """Return the diagnosis of a finding, with what is known of it, what proves it and who suffered."""
    explained = tuple(_known(case, match) for match in clues.explaining(case, finding)[:MOST_KNOWN])
    hint = advice(finding.kind, finding.how, finding.phase)
    shown = Diagnosis(
        state=finding.state,
        kind=finding.kind,
        cause=finding.cause,
        rank=finding.rank,
        node=finding.node,
        at=finding.at,
        phase=finding.phase,
        warnings=_warnings(case),
        missing=material.missing,
    )
    if finding.kind in ("none", "stop"):
        hint = stop_advice(finding.state, finding.cause)
        return shown if hint is None else shown._replace(means=hint.means, remedies=(hint.remedy,))
    return shown._replace(
        means=explained[0].means if explained else hint.means if hint else "",
        remedies=tuple(dict.fromkeys(one.remedy for one in explained)) or ((hint.remedy,) if hint else ()),
        evidence=clues.evidence(case, finding)[:MOST_EVIDENCE],
        known=explained,
        victims=_victims(case, finding, material.over),
    )


def _with_gpus(found: Diagnosis, case: Case) -> Diagnosis:
    """Return the diagnosis with what the node agents and the preflight have heard of GPUs."""
    own = xids.blame(case.records, found.kind, found.cause, found.rank, found.node, found.at)
    more = xids.warnings(case.records, None if own is None else own.fault)
    found = found._replace(warnings=found.warnings + tuple(more))
    if own is None:
        return found
    found = found._replace(
        cause=own.cause,
        evidence=(Evidence(own.told.where, own.fault.describe()),) + found.evidence[: MOST_EVIDENCE - 1],
        known=(own.told,) + found.known[: MOST_KNOWN - 1],
    )
    if not own.broken:
        return found._replace(remedies=found.remedies + (own.told.remedy,))
    return found._replace(
        kind="gpu", rank=own.rank, node=own.node, means=own.told.means + ".", remedies=(own.told.remedy,)
    )


def _known(case: Case, match: reading.Match) -> Known:
    entry = case.entry(match.id)
    return Known(entry.id, entry.means, entry.remedy, entry.source, match.name, match.times)


def _warnings(case: Case) -> Tuple[Known, ...]:
    """Return each known warning once, with the log that says it most often; of a run that serves, errors too."""
    most: Dict[str, reading.Match] = {}
    serves = case.facts.state == "READY"
    for match in case.matches(known.WARNING) + (case.matches(known.FATAL) if serves else []):
        if match.id not in most or match.times > most[match.id].times:
            most[match.id] = match
    return tuple(_known(case, match) for match in most.values()) + tuple(blind.warnings(case.records))


def _victims(case: Case, finding: Finding, over: bool) -> Tuple[Victims, ...]:
    """Return who ended after the first one, grouped by how and by whom."""
    first = finding.at if finding.at is not None else case.earliest_end()
    groups: Dict[Any, List[fold.RankState]] = {}
    for own in case.facts.ranks.values():
        if own.rank == finding.rank:
            continue
        if own.state == fold.ENDED:
            groups.setdefault((own.how or "nobody saw how", case.ended_by(own)), []).append(own)
        elif over and own.state != fold.WAITING:
            groups.setdefault(("its end was not seen", ""), []).append(own)
    found = []
    for (how, by), members in groups.items():
        delays = [own.ended - first for own in members if own.ended is not None and first is not None]
        found.append(Victims(tuple(own.rank for own in members), how, by, round(max(delays + [0.0]), 2)))
    return tuple(sorted(found, key=lambda one: -len(one.ranks)))
