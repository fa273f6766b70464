"""The attempts of a run, of all its jobs: which are shown, and in how much detail. Reads journals and result files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.agent import journal, safely
from slurm_llm.observe.diagnose import RunDiagnosis
from slurm_llm.observe.facts import Reading, load_evidence
from slurm_llm.observe.reporttimes import AttemptLine, Source, build_attempt
from slurm_llm.observe.status import RunStatus
from slurm_llm.record import load_submission
from slurm_llm.rundir import AttemptPaths, JobPaths, RunPaths

MOST_ATTEMPTS = 40
"""Attempts that have a lane, the newest ones."""
DETAILED = 3
"""Attempts whose ranks are shown: the newest one of the job that is meant, and the newest ones that failed."""
FRESH_S = 120.0
"""A job beside the one that is meant still runs when its journals are no older."""


@dataclass(frozen=True)
class Attempts:
    """The newest attempts, oldest first; `main` is the place of the one that is diagnosed, None where none has begun.

    `left_out` is how many came before them, `journals` are their folders, `records` those of the main one.
    """

    lines: tuple[AttemptLine, ...]
    main: int | None
    left_out: int
    journals: tuple[Path, ...]
    records: tuple[journal.Record, ...]


def load_attempts(paths: RunPaths, meant: JobPaths | None, diagnosis: RunDiagnosis, now: float) -> Attempts:
    """Return the attempts of a run, of which the job `meant` is diagnosed.

    Raises:
        SetupError: there is no readable plan.json.
    """
    pairs: list[_Pair] = [(job, attempt) for job in paths.jobs() for attempt in (*job.attempts(),) or (None,)]
    shown = pairs[-MOST_ATTEMPTS:]
    main = max((at for at, (job, attempt) in enumerate(shown) if job == meant and attempt), default=None)
    kept = _Kept()
    made: dict[int, AttemptLine] = {}
    for at in sorted(range(len(shown)), key=lambda at: (at != main, -at)):
        job, attempt = shown[at]
        kept.whole = at == main or (kept.count < DETAILED and attempt is not None and _failed(job, attempt))
        source = _source(paths, shown, at, kept, (diagnosis.status, now))
        if at == main and diagnosis.found.kind not in ("none", "stop"):
            source = replace(source, blamed=diagnosis.found.rank)
        made[at] = build_attempt(source, now, kept.whole)
    return Attempts(
        lines=tuple(made[at] for at in range(len(shown))),
        main=main,
        left_out=len(pairs) - len(shown),
        journals=tuple(attempt.journal for _, attempt in shown if attempt is not None),
        records=tuple(kept.of(shown[main][1])) if main is not None else (),
    )


class _Kept(Reading):
    """Reads all journals of an attempt, or only the job's and the head's, and keeps the records of the first."""

    def __init__(self) -> None:
        self._records: dict[Path, list[journal.Record]] = {}
        self.whole = True
        self.count = 0

    def records(self, attempt: AttemptPaths) -> list[journal.Record]:
        """Return the records of an attempt's journals, in order of time."""
        folder = attempt.journal
        if self.whole:
            self.count += 1
            found = journal.read_folder(str(folder))
        else:
            found = journal.in_order(
                item for name in ("job", "head") for item in journal.read(str(folder / f"{name}.jsonl"))
            )
        self._records[attempt.root] = found
        return found

    def of(self, attempt: AttemptPaths | None) -> list[journal.Record]:
        """Return what was read of an attempt."""
        return self._records.get(attempt.root, []) if attempt is not None else []


_Pair = tuple[JobPaths, AttemptPaths | None]


def _source(paths: RunPaths, pairs: Sequence[_Pair], at: int, kept: _Kept, known: tuple[RunStatus, float]) -> Source:
    job, attempt = pairs[at]
    status, now = known
    evidence = load_evidence(paths, job, attempt.number if attempt else None, kept)
    last_of_job = at + 1 == len(pairs) or pairs[at + 1][0] != job
    over = evidence.result is not None or not last_of_job
    if job.job_id == status.job_id:
        live, state = not over and not status.ended, status.state.value if last_of_job else "UNKNOWN"
    else:
        live = not over and _lives(evidence.last_record, job.job_id, status, now)
        state = evidence.facts.state if evidence.facts else "PENDING" if live else "UNKNOWN"
    return Source(evidence, kept.of(attempt), load_submission(job), state, live)


def _lives(last: float | None, job_id: int, status: RunStatus, now: float) -> bool:
    """Tell whether a job beside the one that is meant is still there, as far as the run directory can say."""
    if last is not None:
        return now - last < FRESH_S
    return not status.ended and job_id > (status.job_id or 0)


def _failed(job: JobPaths, attempt: AttemptPaths) -> bool:
    try:
        value = safely.loads(job.result(attempt.number).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("state") not in (None, "COMPLETED", "CANCELLED")
