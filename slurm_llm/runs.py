"""Use cases on runs that exist: find one, ask how it is, list them. Loads no schema library and prints nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.errors import Problem, RunNotFound, SetupError, SlurmError
from slurm_llm.observe.facts import Evidence, has_result, load_evidence
from slurm_llm.observe.status import RunStatus, SlurmWord, build_status
from slurm_llm.record import known_runs, load_record, load_submission
from slurm_llm.rundir import LOG_ROOT, PLAN, JobPaths, RunPaths
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.surroundings import Surroundings

SHOWN_CHOICES = 10
SHORTEST_BEGINNING = 9
"""Characters of a run id that may stand for it: a mistyped job id must not name a run."""


@dataclass(frozen=True)
class FoundRun:
    """A run directory and the Slurm job of it that is meant: the newest one unless a job id was asked for."""

    paths: RunPaths
    job: JobPaths | None

    @property
    def job_id(self) -> JobId | None:
        """The job's id, with its cluster when one was written down."""
        if self.job is None:
            return None
        submission = load_submission(self.job)
        return JobId(self.job.job_id, cluster=(submission.cluster or None) if submission else None)


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
        return _newest_job(runs[-1])
    for pick in (_by_job_id, _by_run_id, _by_name):
        found = pick(wanted, runs)
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(wanted, found)
    raise _none(f"no run '{wanted}'", around)


def evidence_of(found: FoundRun) -> Evidence:
    """Read what the run directory says."""
    return load_evidence(found.paths, found.job)


def status_of(found: FoundRun, around: Surroundings) -> RunStatus:
    """Return the run's status; a Slurm that does not answer is told in it and is no error."""
    word = ask_slurm([found], around)[0]
    return status_by(found, word, around)


def status_by(found: FoundRun, word: SlurmWord, around: Surroundings) -> RunStatus:
    """Return the run's status, given what Slurm said."""
    submission = load_submission(found.job) if found.job else None
    return build_status(evidence_of(found), word, around.now(), submission.time if submission else None)


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
    found = [_newest_job(paths) for paths in all_runs(around)[-newest:][::-1]]
    open_ones = [one for one in found if one.job is not None and not has_result(one.job)]
    words = dict(zip(map(id, open_ones), ask_slurm(open_ones, around), strict=True))
    rows = (_status_or_none(one, words.get(id(one), SlurmWord(asked=False)), around) for one in found)
    return [row for row in rows if row is not None]


def _status_or_none(found: FoundRun, word: SlurmWord, around: Surroundings) -> RunStatus | None:
    """Another release's plan, or one cut off, must not hide the other runs."""
    try:
        return status_by(found, word, around)
    except SetupError:
        return None


def _as_path(wanted: str, around: Surroundings) -> FoundRun | None:
    path = Path(os.path.normpath(around.cwd / wanted))
    if "/" not in wanted and not (path / PLAN).is_file():
        return None
    for folder in (path, *path.parents):
        if (folder / PLAN).is_file():
            return _within(RunPaths(folder), path)
    return None


def _within(paths: RunPaths, path: Path) -> FoundRun:
    """A path into a job's folder means that job."""
    for job in paths.jobs():
        if job.root == path or job.root in path.parents:
            return FoundRun(paths, job)
    return _newest_job(paths)


def _newest_job(paths: RunPaths) -> FoundRun:
    jobs = paths.jobs()
    return FoundRun(paths, jobs[-1] if jobs else None)


def _by_job_id(wanted: str, runs: Sequence[RunPaths]) -> list[FoundRun]:
    if not (wanted.isascii() and wanted.isdecimal()):
        return []
    jobs = (FoundRun(run, run.job(int(wanted))) for run in runs)
    return [found for found in jobs if found.job is not None and found.job.root.is_dir()]


def _by_run_id(wanted: str, runs: Sequence[RunPaths]) -> list[FoundRun]:
    exact = [run for run in runs if wanted in (_run_id(run), run.root.name)]
    begun = [run for run in runs if _run_id(run).startswith(wanted)] if len(wanted) >= SHORTEST_BEGINNING else []
    return [_newest_job(run) for run in exact or begun]


def _by_name(wanted: str, runs: Sequence[RunPaths]) -> list[FoundRun]:
    named = [_newest_job(run) for run in runs if wanted in (_name(run), _slug(run))]
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
