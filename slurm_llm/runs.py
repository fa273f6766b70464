"""Use cases on runs that exist: find one, ask how it is, list them. Loads no schema library and prints nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm.errors import Problem, RunNotFound, SetupError, SlurmError
from slurm_llm.observe.facts import Evidence, Reading, has_result, load_evidence, serves
from slurm_llm.observe.stagewords import load_stages, with_stages
from slurm_llm.observe.status import RunStatus, SlurmWord, build_status
from slurm_llm.observe.text import clean
from slurm_llm.record import known_runs, load_record, load_submission
from slurm_llm.rundir import LOG_ROOT, PLAN, JobPaths, RunPaths
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import RunState, run_state
from slurm_llm.surroundings import Surroundings

SHOWN_CHOICES = 10
SHORTEST_BEGINNING = 9
"""Characters of a run id that may stand for it: a mistyped job id must not name a run."""


@dataclass(frozen=True)
class FoundRun:
    """A run directory and the Slurm job of it that is meant.

    `pinned` when that job was asked for; else it is the newest one that serves, or that has begun, at each look.
    """

    paths: RunPaths
    job: JobPaths | None
    pinned: bool = False

    @property
    def job_id(self) -> JobId | None:
        """The job's id, with its cluster when one was written down."""
        if self.job is None:
            return None
        submission = load_submission(self.job)
        return JobId(self.job.job_id, cluster=(submission.cluster or None) if submission else None)


Asking = Callable[[Sequence[FoundRun], Surroundings], list[SlurmWord]]
"""Returns Slurm's word on each of some jobs, as `ask_slurm` does."""


def all_runs(around: Surroundings) -> list[RunPaths]:
    """Return every run that is known here, oldest first: the user's list, and the folder `logs` of this directory."""
    runs = known_runs(around.environ, [around.cwd / LOG_ROOT])
    return sorted(runs, key=lambda run: (_made(run), str(run.root)))


def find_run(wanted: str | None, around: Surroundings) -> FoundRun:
    """Return the run that `wanted` names: a path, a job id, a run id or its beginning, a name; None is the newest.

    Of several runs with one name the only one that has not ended is meant, else, when all have ended, the newest.

    Raises:
        RunNotFound: none, or more than one.
    """
    if wanted is not None and (path := _as_path(wanted, around)) is not None:
        return path
    runs = all_runs(around)
    if wanted is None:
        if not runs:
            raise _none("no run yet", around)
        return _current_job(runs[-1])
    for pick in (_by_job_id, _by_run_id, _by_name):
        found = pick(wanted, runs)
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(wanted, found)
    raise _none(f"no run '{wanted}'", around)


def evidence_of(found: FoundRun, attempt: int | None = None) -> Evidence:
    """Read what the run directory says now, of the newest attempt or that of a number."""
    now = current(found)
    return load_evidence(now.paths, now.job, attempt)


def current(found: FoundRun) -> FoundRun:
    """Return the run with the job that is meant now: one may have handed over to another since."""
    return found if found.pinned else _current_job(found.paths)


def live_jobs(found: FoundRun, around: Surroundings) -> list[FoundRun]:
    """Return each job that is meant and may still be there: Slurm has it, or it has not told its end.

    Those that wait in the queue come first, then the oldest.

    Raises:
        SlurmError: Slurm does not answer.
    """
    jobs = [found.job] if found.pinned else found.paths.jobs()
    each = [FoundRun(found.paths, job, pinned=True) for job in jobs if job is not None]
    known = around.slurm().query([one.job_id for one in each if one.job_id is not None]) if each else {}
    states = {job_id: run_state(facts.state) for job_id, facts in known.items()}
    going = {job_id for job_id, state in states.items() if not state.is_terminal}
    live = [one for one in each if one.job_id in going or (one.job is not None and not has_result(one.job))]
    return sorted(live, key=lambda one: one.job_id is None or states.get(one.job_id) is not RunState.PENDING)


def status_of(
    found: FoundRun, around: Surroundings, ask: Asking | None = None, reading: Reading | None = None
) -> RunStatus:
    """Return the run's status; a Slurm that does not answer is told in it and is no error.

    Of several jobs of a run the newest one that serves counts; notes say how the others are. Who looks again and again
    brings an `ask` that remembers Slurm's words for a while, and a `reading` that remembers files.
    """
    group = _jobs_to_ask(found)
    words = (ask or ask_slurm)(group, around)
    pairs = zip(group, words, strict=True)
    return _merged([status_by(one, word, around, reading=reading) for one, word in pairs], group)


def status_by(
    found: FoundRun,
    word: SlurmWord,
    around: Surroundings,
    attempt: int | None = None,
    reading: Reading | None = None,
) -> RunStatus:
    """Return the status of one job of the run, or as an attempt of it has left it, given what Slurm said."""
    submission = load_submission(found.job) if found.job else None
    evidence = load_evidence(found.paths, found.job, attempt, reading)
    called = "" if found.job is None or _current_job(found.paths).job == found.job else str(found.job.job_id)
    guest = submission is not None and submission.is_guest
    # The allocation of a guest has a name and a time of its own.
    submitted = submission.time if submission and not guest else None
    status = build_status(evidence, word, around.now(), submitted, called)
    code = evidence.result.exit_code if evidence.result and status.has_result else None
    failed_client = status.state is RunState.FAILED and evidence.client_failed
    status = replace(status, guest=guest, exit_code=code, log_of="the client" if failed_client else status.log_of)
    return with_stages(status, load_stages(found.paths.root), word)


def _jobs_to_ask(found: FoundRun) -> list[FoundRun]:
    """Return the job that counts by the files, then those beside it that may still live, and its own successors."""
    first = current(found)
    if found.pinned or first.job is None:
        return [first]
    jobs = [job for job in found.paths.jobs() if job != first.job and not has_result(job)]
    others = [FoundRun(found.paths, job, pinned=True) for job in jobs]
    known = {one.job for one in (first, *others)}
    return [first, *others, *(one for one in _successors(first) if one.job not in known)]


def _successors(found: FoundRun) -> list[FoundRun]:
    own = found.job_id
    jobs = [job for job in found.paths.jobs() if own is not None and job.job_id > own.number]
    return [FoundRun(found.paths, job, pinned=True) for job in jobs if _follows(job) == (own and own.number)]


def _follows(job: JobPaths | None) -> int | None:
    """Return the job that this one takes over from."""
    submission = load_submission(job) if job else None
    return int(submission.after) if submission and submission.after.isdecimal() else None


def _merged(statuses: Sequence[RunStatus], group: Sequence[FoundRun]) -> RunStatus:
    """Return the status of the job that counts: the first, or, when it has ended, the newest of those that live."""
    chosen = statuses[0]
    living = [one for one in statuses if not one.ended]
    if chosen.ended and living:
        chosen = max(living, key=lambda one: one.job_id or 0)
    after = {one.job.job_id: _follows(one.job) for one in group if one.job}
    notes = [_beside(one, chosen, after) for one in statuses if one is not chosen]
    return replace(chosen, notes=(*chosen.notes, *filter(None, notes)))


def _beside(other: RunStatus, chosen: RunStatus, after: Mapping[int, int | None]) -> str:
    mine, its = chosen.job_id or 0, other.job_id or 0
    why = other.pending.text.rstrip(".") if other.pending else other.cause
    what = f"{other.state.value}: {why}" if why else other.state.value
    if after.get(its) == mine:
        return f"job {its}, which is to take over, is {what}"
    if other.ended:
        return ""
    return f"job {its}, which this one takes over from, is {what}" if after.get(mine) == its else f"job {its} is {what}"


def ask_slurm(runs: Sequence[FoundRun], around: Surroundings) -> list[SlurmWord]:
    """Ask Slurm about the jobs of `runs`, all in one call a cluster; its failure becomes each run's word."""
    ids = [found.job_id for found in runs]
    asked = [job_id for job_id in ids if job_id is not None]
    known: dict[JobId, JobFacts] = {}
    problem = ""
    if asked:
        try:
            known = around.slurm().query(asked)
        except (SlurmError, SetupError) as error:
            problem = " ".join(str(error).split())
    return [SlurmWord(asked=False) if job_id is None else SlurmWord(known.get(job_id), problem) for job_id in ids]


def list_runs(around: Surroundings, newest: int) -> list[RunStatus]:
    """Return the status of the newest runs, newest first; Slurm is asked once, about those without a result only."""
    groups = [_jobs_to_ask(_current_job(paths)) for paths in all_runs(around)[-newest:][::-1]]
    open_ones = [one for group in groups for one in group if one.job is not None and not has_result(one.job)]
    words = dict(zip(map(id, open_ones), ask_slurm(open_ones, around), strict=True))
    return [row for group in groups if (row := _status_or_none(group, words, around)) is not None]


def _status_or_none(
    group: Sequence[FoundRun], words: Mapping[int, SlurmWord], around: Surroundings
) -> RunStatus | None:
    """Another release's plan, or one cut off, must not hide the other runs."""
    try:
        statuses = [status_by(one, words.get(id(one), SlurmWord(asked=False)), around) for one in group]
    except SetupError:
        return None
    return _merged(statuses, group)


def _as_path(wanted: str, around: Surroundings) -> FoundRun | None:
    path = Path(os.path.normpath(around.cwd / wanted))
    try:
        if "/" not in wanted and not (path / PLAN).is_file():
            return None
        for folder in (path, *path.parents):
            if (folder / PLAN).is_file():
                return _within(RunPaths(folder), path)
    except OSError as error:
        # A name that is too long, say, is no path; a path was meant as one.
        if "/" in wanted:
            raise RunNotFound(Problem("RUN", clean(wanted), f"cannot be looked into: {error.strerror}")) from None
    return None


def _within(paths: RunPaths, path: Path) -> FoundRun:
    """A path into a job's folder means that job."""
    for job in paths.jobs():
        if job.root == path or job.root in path.parents:
            return FoundRun(paths, job, pinned=True)
    return _current_job(paths)


def _current_job(paths: RunPaths) -> FoundRun:
    """Return the run with its newest job that serves, as far as the files say, else the newest that has begun."""
    jobs = paths.jobs()[::-1]
    serving = next(filter(serves, jobs), None)
    return FoundRun(paths, serving or next((job for job in jobs if job.attempts()), jobs[0] if jobs else None))


def _by_job_id(wanted: str, runs: Sequence[RunPaths]) -> list[FoundRun]:
    if not (wanted.isascii() and wanted.isdecimal()):
        return []
    jobs = (FoundRun(run, run.job(int(wanted)), pinned=True) for run in runs)
    known = [found for found in jobs if found.job is not None and found.job.root.is_dir()]
    # Runs in one allocation have its job in common: the newest is meant.
    return known[-1:] if known and _is_guest(known[-1]) else known


def _is_guest(found: FoundRun) -> bool:
    submission = load_submission(found.job) if found.job else None
    return submission is not None and submission.is_guest


def _by_run_id(wanted: str, runs: Sequence[RunPaths]) -> list[FoundRun]:
    exact = [run for run in runs if wanted in (_run_id(run), run.root.name)]
    begun = [run for run in runs if _run_id(run).startswith(wanted)] if len(wanted) >= SHORTEST_BEGINNING else []
    return [_current_job(run) for run in exact or begun]


def _by_name(wanted: str, runs: Sequence[RunPaths]) -> list[FoundRun]:
    named = [_current_job(run) for run in runs if wanted in (_name(run), _slug(run))]
    going = [found for found in named if found.job is not None and not has_result(found.job)]
    return going or named[-1:]


def _run_id(run: RunPaths) -> str:
    """Return the run's id; a folder with a name of the user's has it in its record only."""
    if run.run_id != run.root.name:
        return run.run_id
    record = load_record(run)
    return record.run_id if record else run.run_id


def _made(run: RunPaths) -> str:
    """Return when the run was made as a text that sorts; a run id begins with it, a folder of the user's does not."""
    if run.run_id != run.root.name:
        return run.run_id
    record = load_record(run)
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(record.created)) if record else ""


def _name(run: RunPaths) -> str:
    record = load_record(run)
    return record.name if record else ""


def _slug(run: RunPaths) -> str:
    return run.root.name.removesuffix(f"-{run.run_id}")


def _none(what: str, around: Surroundings) -> RunNotFound:
    looked = f"looked at this user's list of runs and in {around.cwd / LOG_ROOT}"
    return RunNotFound(Problem("RUN", what, looked, "`slurm-llm list` shows the known ones, or give a path"))


def _ambiguous(wanted: str, found: Sequence[FoundRun]) -> RunNotFound:
    what = f"'{wanted}' fits {len(found)} runs"
    choices = [
        Problem("", f"  {_run_id(one.paths)}  {_job_words(one)}  {one.paths.root}") for one in found[-SHOWN_CHOICES:]
    ]
    return RunNotFound([Problem("RUN", what, todo="say which one by its run id or job id"), *choices])


def _job_words(found: FoundRun) -> str:
    return f"job {found.job.job_id}" if found.job else "no job"
