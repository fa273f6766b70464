"""A run's diagnosis on the login node: the job's own core, with what Slurm says and what is not there to look at.

Reads the run directory; asks nobody and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm.agent import diagnose as core
from slurm_llm.agent import fold, journal, known, reading, safely
from slurm_llm.agent.clues import Evidence as Line
from slurm_llm.observe.attempts import goes_on, recorded
from slurm_llm.observe.facts import Evidence
from slurm_llm.observe.replies import Reply, judged
from slurm_llm.observe.slurmwords import SlurmView, has_failed
from slurm_llm.observe.stamps import stamp
from slurm_llm.observe.status import CANCELLED_WAITING, RunStatus
from slurm_llm.rundir import AttemptPaths, JobPaths
from slurm_llm.slurm.states import RunState

SCHEMA = 1
BUDGET = reading.Budget(own=32 << 20, others=64 << 20)
"""A minute of a login node's time at most: logs are read at some 5 MiB/s."""
MOST_NAMED = 4
UNEXPLAINED = ("unknown", "launch", "failed", "unseen", "memory", "agents")
"""Kinds of which Slurm's accounting may say more than the run directory."""


@dataclass(frozen=True)
class RunDiagnosis:
    """What is wrong with a run, and where it was looked for."""

    status: RunStatus
    found: core.Diagnosis
    view: SlurmView
    replies: tuple[Reply, ...] = ()
    goes_on: str = ""
    """What the job is about after this attempt, where that was not the end."""


def diagnose_run(
    evidence: Evidence,
    status: RunStatus,
    view: SlurmView,
    catalogue: Iterable[Mapping[str, Any]],
    replies: Sequence[Reply] = (),
) -> RunDiagnosis:
    """Return the diagnosis of the run's newest attempt.

    `catalogue` is that of `load_known_errors`, `replies` what a model that is called ready says right now.
    """
    entries = known.entries(dict(item) for item in catalogue)
    if evidence.attempt is None or evidence.job is None:
        return RunDiagnosis(status, _not_begun(evidence, status, entries), view)
    material = _material(evidence, evidence.job, evidence.attempt, entries)
    over = status.ended or status.has_result or status.state is RunState.PENDING
    missing = (*material.missing, *_missing(evidence, evidence.attempt, material.records, over))
    material = material._replace(over=over, slurm=_slurm_words(view), missing=missing)
    found = core.diagnose(material)
    if found.kind in ("none", "stop"):
        # Slurm and the clock know more of a run that is well than its own journals.
        found = found._replace(state=status.state.value, cause=_well(status, found))
    if found.kind == "none" and status.ready:
        found = judged(found, status, replies, evidence.layout.probe_s)
    found = found._replace(evidence=(*found.evidence, *_slurm_evidence(found, view)))
    after = f"the server is not started again: {evidence.no_more}" if evidence.no_more else ""
    if found.state != status.state.value and evidence.result is not None:
        after = goes_on(status)
    return RunDiagnosis(status, found, view, tuple(replies), after)


def diagnose_earlier(evidence: Evidence, status: RunStatus, catalogue: Iterable[Mapping[str, Any]]) -> RunDiagnosis:
    """Return the diagnosis of an attempt that others have followed: as the job wrote it down, else by what is left.

    What Slurm says now, and most of the job's output, is about later ones.
    """
    if evidence.attempt is None or evidence.job is None:
        return RunDiagnosis(status, _not_begun(evidence, status, []), SlurmView())
    found = recorded(_result_of(evidence.job, evidence.attempt))
    if found is None:
        entries = known.entries(dict(item) for item in catalogue)
        found = core.diagnose(_material(evidence, evidence.job, evidence.attempt, entries))
    return RunDiagnosis(status, found, SlurmView())


def diagnosis_to_json(own: RunDiagnosis) -> str:
    """Return a diagnosis as JSON text."""
    value = {
        "schema": SCHEMA,
        "run_id": own.status.run_id,
        "name": own.status.name,
        "job_id": own.status.job_id,
        "attempt": own.status.attempt,
        "directory": own.status.directory,
        **core.as_json(own.found),
        "run_state": own.status.state.value,
        "goes_on": own.goes_on,
        "asked": [vars(one) for one in own.replies],
        "earlier": [vars(one) for one in own.status.earlier],
        "slurm": {
            "state": own.view.facts.state.value if own.view.facts else None,
            "derived_exit_code": own.view.derived_exit_code,
            "steps": [vars(step) for step in own.view.steps],
            "bad_nodes": {name: vars(node) for name, node in own.view.bad_nodes.items()},
            "problems": list(own.view.problems),
        },
    }
    return json.dumps(value, indent=1, ensure_ascii=False)


def _material(evidence: Evidence, job: JobPaths, attempt: AttemptPaths, entries: list[known.Entry]) -> core.Material:
    records = journal.read_folder(str(attempt.journal))
    facts = evidence.facts or fold.fold(records, len(evidence.layout.ranks))
    told = _result_of(job, attempt)
    first = facts.first_end.rank if facts.first_end else _stalled(records)
    logs, late = reading.read_logs(
        reading.sources(str(attempt.root)), entries, first, budget=BUDGET, clock=lambda line, near: stamp(line, near)
    )
    codes = [int(item["code"]) for item in records if item["kind"] == "preflight"]
    return core.Material(
        facts=facts,
        records=records,
        logs=logs,
        entries=entries,
        preflight=codes[-1] if codes else 0,
        codes=tuple(told.get("srun", ())),
        told=(str(told["state"]), str(told["cause"])) if told else None,
        missing=tuple(late) + tuple(_cut(logs)),
    )


def _stalled(records: Sequence[journal.Record]) -> int | None:
    return next((item.get("rank") for item in records if item["kind"] == "stall"), None)


def _result_of(job: JobPaths, attempt: AttemptPaths) -> dict[str, Any]:
    """Return the attempt's result file, empty when there is none that is whole."""
    try:
        value = safely.loads(job.result(attempt.number).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and {"state", "cause"} <= set(value) else {}


def _cut(logs: Iterable[reading.Log]) -> Iterable[str]:
    """Yield the logs that were not read whole."""
    for log in logs:
        if log.read < log.size:
            yield f"{log.source.name}: {log.read >> 20} of {log.size >> 20} MiB were read, its end and its beginning"


def _slurm_words(view: SlurmView) -> core.SlurmWords | None:
    facts = view.facts
    if facts is None:
        return None
    return core.SlurmWords(
        state=facts.state.value,
        reason=facts.reason,
        exit_code=facts.exit_code,
        signal=facts.signal,
        derived_exit_code=view.derived_exit_code if view.derived_exit_code is not None else facts.derived_exit_code,
        bad_nodes={name: node.state for name, node in view.bad_nodes.items()},
    )


def _slurm_evidence(found: core.Diagnosis, view: SlurmView) -> Iterable[Line]:
    """Yield what Slurm says of steps and nodes, where something is wrong."""
    if found.kind in ("none", "stop"):
        return
    for step in view.steps if found.kind in UNEXPLAINED else ():
        if has_failed(step) and step.name != "batch":
            how = f"signal {step.signal}" if step.signal else f"exit status {step.exit_code}"
            yield Line("sacct", f"step {step.name}: {step.state}, {how}")
    for name, node in view.bad_nodes.items():
        yield Line("scontrol", f"node {name} is {node.state}" + (f": {node.reason}" if node.reason else ""))


def _well(status: RunStatus, found: core.Diagnosis) -> str:
    if found.kind == "stop":
        return status.cause or found.cause
    return f"nothing is wrong that is known of; it is {status.state.value}"


def _not_begun(evidence: Evidence, status: RunStatus, entries: list[known.Entry]) -> core.Diagnosis:
    """Return the diagnosis of a job of which no attempt has begun: it waits, or its script never ran."""
    if not status.ended:
        why = f": {status.pending.text}" if status.pending else ""
        return core.Diagnosis(status.state.value, "none", f"no attempt has begun; it is {status.state.value}{why}")
    if status.cause == CANCELLED_WAITING:
        return core.Diagnosis(status.state.value, "stop", status.cause)
    job = evidence.job
    log = (
        reading.read_log(reading.output_of(str(evidence.paths.root), str(job.job_id)), entries, BUDGET.own)
        if job
        else None
    )
    matches = [match for match in log.matches if match.kind == known.FATAL] if log else []
    told = [match.line for match in matches] + (log.telling + log.last if log else [])
    lines = tuple(Line(log.source.name, line) for line in dict.fromkeys(told)) if log else ()
    entry = next((one for one in entries if matches and one.id == matches[0].id), None)
    return core.Diagnosis(
        state=status.state.value,
        kind="launch",
        cause=status.cause or "the job ended before its script began",
        means=entry.means if entry else "",
        remedies=(entry.remedy,) if entry else (),
        evidence=lines[: core.MOST_EVIDENCE],
        missing=() if lines else ("the job has left no output",),
    )


def _missing(evidence: Evidence, attempt: AttemptPaths, records: Sequence[journal.Record], over: bool) -> Iterable[str]:
    """Yield what should be there and is not: journals, records of nodes and ranks, logs, the result file."""
    torn = _torn(attempt.journal)
    if torn:
        yield f"torn lines in journals: {_named(torn)}"
    if not records:
        yield "the journals: there is no record of this attempt"
    elif not any(item["kind"] == "state" for item in records):
        yield "the head's journal (journal/head.jsonl)"
    nodes = {str(item["node"]) for item in records if item["kind"] == "hello"}
    if records and len(nodes) < evidence.layout.nodes:
        yield f"node agents: {len(nodes)} of {evidence.layout.nodes} have said hello"
    known_ranks = {item.get("rank") for item in records if item["kind"] in ("start", "found")}
    logs = [place.rank for place in evidence.layout.ranks if not attempt.rank_log(place.rank).is_file()]
    gone = [rank for rank in logs if rank in known_ranks]
    if gone:
        yield f"logs of ranks that ran: {_named([f'rank-{rank}.log' for rank in gone])}"
    if over and not _result_of(JobPaths(attempt.root.parent, 0), attempt):
        yield "the result file: the job's script did not come to its end"


def _torn(folder: Path) -> list[str]:
    """Return the journals with lines that are no records."""
    try:
        paths = sorted(folder.glob("*.jsonl"))
        return [path.name for path in paths if _has_torn_line(path)]
    except OSError:
        return []


def _has_torn_line(path: Path) -> bool:
    return any(line.strip() and journal.parse_line(line) is None for line in path.read_bytes().split(b"\n"))


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED} more"
