"""A report of a run: all that a page shows, as one value with a JSON form. Reads the run directory, asks nobody."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_llm import __version__
from slurm_llm.observe.benchresults import load_results
from slurm_llm.observe.diagnose import RunDiagnosis
from slurm_llm.observe.facts import Evidence, load_evidence
from slurm_llm.observe.redact import Redactor
from slurm_llm.observe.reportattempts import Attempts, load_attempts
from slurm_llm.observe.reportbench import Benches, build_benches
from slurm_llm.observe.reportlogs import Tail, beginning_of, load_tails
from slurm_llm.observe.reportmetrics import Metrics
from slurm_llm.observe.reportplan import Hide, PlanView, Rows, build_plan_view, versions_of
from slurm_llm.observe.reportsamples import Series, build_series, load_samples
from slurm_llm.observe.reporttimes import AttemptLine
from slurm_llm.observe.status import RunStatus
from slurm_llm.observe.text import clean
from slurm_llm.record import RunRecord
from slurm_llm.rundir import SPEC, JobPaths, RunPaths

SCHEMA = 1
MOST_TEXT = 500
"""Characters of a row's text."""


@dataclass(frozen=True)
class Proof:
    """One line of evidence, and where it stands."""

    where: str
    line: str


@dataclass(frozen=True)
class Report:
    """Everything that a page shows of a run; texts are safe to print and without secrets.

    `told` and `further` are label and text as `diagnose` says them, before and after the evidence. `attempts` are the
    newest ones of all jobs, oldest first, `left_out` how many came before them; `main` is the place of the one that is
    diagnosed, None where none has begun. `good` is None of a run that is neither well nor has failed. Times are seconds
    since the epoch.
    """

    schema: int
    run_id: str
    name: str
    state: str
    good: bool | None
    made: float
    version: str
    head: Rows
    told: Rows
    evidence: tuple[Proof, ...]
    further: Rows
    notes: tuple[str, ...]
    attempts: tuple[AttemptLine, ...]
    left_out: int
    main: int | None
    series: tuple[Series, ...]
    metrics: Metrics | None
    benches: Benches
    plan: PlanView
    versions: Rows
    tails: tuple[Tail, ...]


@dataclass(frozen=True)
class Asked:
    """What a report needs beside the run directory: the diagnosis, in words too, metrics, the clock, variables.

    `facts` are rows of the head that only Slurm or the clock know; values of variables in `environ` that are named like
    secrets are hidden.
    """

    diagnosis: RunDiagnosis
    facts: Sequence[tuple[str, str]]
    told: Sequence[tuple[str, str]]
    further: Sequence[tuple[str, str]]
    metrics: Metrics | None
    now: float
    environ: Mapping[str, str]


@dataclass(frozen=True)
class _Files:
    """Texts of the run directory; empty where a file is not there."""

    plan: str
    script: str
    spec: str

    @staticmethod
    def of(paths: RunPaths) -> _Files:
        return _Files(_text(paths.plan), _text(paths.script), _text(paths.root / SPEC))


def load_report(paths: RunPaths, job: JobPaths | None, asked: Asked) -> Report:
    """Return the report of a run, of which `job` is meant.

    Raises:
        SetupError: there is no readable plan.json.
    """
    status, found = asked.diagnosis.status, asked.diagnosis.found
    evidence, files = load_evidence(paths, job), _Files.of(paths)
    hide = _redactor(paths, files, asked.environ).text
    plan = _mapping(files.plan)
    attempts = load_attempts(paths, job, asked.diagnosis, asked.now)
    main = None if attempts.main is None else attempts.lines[attempts.main]
    return Report(
        schema=SCHEMA,
        run_id=clean(status.run_id),
        name=clean(status.name),
        state=status.state.value,
        good=_good(status),
        made=asked.now,
        version=__version__,
        head=_rows([*_head(status, evidence.record), *asked.facts], hide),
        told=_rows(asked.told, hide),
        evidence=tuple(Proof(clean(own.where), clean(hide(own.line))) for own in found.evidence),
        further=_rows(asked.further, hide),
        notes=tuple(clean(hide(text)) for text in status.notes),
        attempts=tuple(replace(line, cause=clean(hide(line.cause))) for line in attempts.lines),
        left_out=attempts.left_out,
        main=attempts.main,
        series=tuple(build_series(load_samples(attempts.journals))),
        metrics=asked.metrics,
        benches=build_benches(load_results(paths), hide),
        plan=build_plan_view(plan, files.script, files.spec, hide),
        versions=_versions(evidence, plan, attempts),
        tails=tuple(load_tails(evidence, main, hide)),
    )


def report_to_json(report: Report) -> str:
    """Return a report as JSON text."""
    return json.dumps(report, default=vars, indent=1, ensure_ascii=False)


def _rows(pairs: Iterable[tuple[str, str]], hide: Hide) -> Rows:
    return tuple((label, _short(clean(hide(text)))) for label, text in pairs)


def _short(text: str) -> str:
    """Return a text without its end where that goes on and on: lists of thousands of ranks."""
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT].rpartition(",")[0] + ", …"


def _good(status: RunStatus) -> bool | None:
    name = status.state.value
    if name in ("READY", "COMPLETED"):
        return True
    if name == "TIMED_OUT" and status.phases.ready is not None:
        # It served until its time was up: its exit status is 0 too.
        return None
    return False if name in ("FAILED", "LOST", "TIMED_OUT", "PREEMPTED") else None


def _head(status: RunStatus, about: RunRecord | None) -> Iterator[tuple[str, str]]:
    yield "run", status.run_id
    cluster = f" on {status.cluster}" if status.cluster else ""
    yield "job", "none" if status.job_id is None else f"{status.job_id}{cluster}"
    if status.attempt:
        yield "attempt", str(status.attempt)
    yield "engine", status.engine + (f" (rehearsal of {status.rehearsal_of})" if status.rehearsal_of else "")
    if about is not None and about.model:
        yield "model", about.model
    yield "site", status.site
    if about is not None:
        yield "by", f"{about.user} on {about.host}"
    others = ", ".join(f"{count} {name}" for name, count in status.rank_states.items() if name != "ready")
    yield "ranks", f"{status.ranks_ready} of {status.ranks_total} ready" + (f": {others}" if others else "")
    yield "nodes", f"{status.nodes}" + (f": {status.node_list}" if status.node_list else "")
    yield "directory", status.directory


def _versions(evidence: Evidence, plan: Mapping[str, Any], attempts: Attempts) -> Rows:
    leader = next((place.rank for place in evidence.layout.ranks if place.role != "worker"), 0)
    log = beginning_of(evidence.attempt.rank_log(leader)) if evidence.attempt else ""
    about = evidence.record
    made = () if about is None else (("slurm_llm of the run", clean(about.version)),)
    own = (("slurm_llm of this report", __version__), ("Python of this report", platform.python_version()))
    return (*made, *own, *versions_of(plan, attempts.records, log))


def _redactor(paths: RunPaths, files: _Files, environ: Mapping[str, str]) -> Redactor:
    """Return what hides secrets: those of the environment, keys of endpoints, and what the run's files name as one."""
    redactor = Redactor()
    redactor.learn(environ)
    redactor.learn_keys(paths)
    for text in (files.spec, files.script, files.plan):
        redactor.text(text)
    return redactor


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
