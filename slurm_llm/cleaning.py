"""Which old run directories may go: none that lives, whose job may still be there, or that is not a run of this user.

It looks and decides; `removing` acts.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.errors import SlurmError
from slurm_llm.observe.facts import has_result
from slurm_llm.record import known_runs, load_record, load_submission
from slurm_llm.rundir import BENCH, LOG_ROOT, STAGE_RECIPE, STAGES, JobPaths, RunPaths, is_run_name, stages_folder
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import RunState, SlurmState, run_state
from slurm_llm.slurm.userqueue import Queued, parse_user_queue, user_queue_argv
from slurm_llm.stagerecord import load_refs
from slurm_llm.surroundings import Surroundings

USUAL = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT, RunState.PREEMPTED})
"""Ends that the job or Slurm itself has told."""
ASKED_FOR = (RunState.PLANNED, RunState.LOST, RunState.UNKNOWN)
"""States whose directories go only where they are named."""
DRAFT_S = 86400.0
CLEARING = ".clearing.tmp"
"""Ending of a directory that is being removed: whatever interrupts that, the next time goes on with it."""
MOST_ASKED = 1000
"""Jobs in one question to Slurm: a word of a command line has a length."""

LIVES, YOUNG, KEPT_NEWEST, OTHER_STATE = "a job of it is in the queue or runs", "younger", "among the newest", "state"
NOT_OURS, UNANSWERED, HOLDS = "no run of yours", "Slurm does not answer for it", "a stage made its product in it"
NAMED = "a folder with a name of your own"


@dataclass(frozen=True)
class Wish:
    """What is to go: what has been still for so many seconds, in these states, but not the newest so many runs."""

    older_s: float
    states: frozenset[RunState] = USUAL
    keep: int = 0


@dataclass(frozen=True)
class Old:
    """A run that may go: `still_since` is when it last wrote (seconds since the epoch), `bytes` its space on disk."""

    paths: RunPaths
    folders: tuple[Path, ...]
    run_id: str
    name: str
    state: RunState
    still_since: float
    bytes: int
    jobs: tuple[int, ...]


@dataclass(frozen=True)
class Findings:
    """What may go, oldest first; left-over drafts; and how many runs stay, by reason."""

    old: tuple[Old, ...]
    drafts: tuple[Path, ...]
    kept: dict[str, int]


@dataclass(frozen=True)
class _Seen:
    paths: RunPaths
    run_id: str
    name: str
    jobs: tuple[JobPaths, ...]
    ids: tuple[JobId, ...]
    still_since: float


def find_old(wish: Wish, roots: Sequence[Path], around: Surroundings) -> Findings:
    """Look through the user's list of runs, the folder `logs` here and `roots`.

    Raises:
        SlurmError, SetupError: Slurm does not say which jobs are there; then nothing may go.
    """
    runs = known_runs(around.environ, [around.cwd / LOG_ROOT, *roots])
    kept: Counter[str] = Counter()
    seen = [one for run in runs if (one := _see(run, kept)) is not None]
    seen.sort(key=lambda one: one.still_since)
    newest = {one.paths.root for one in sorted(seen, key=lambda one: one.run_id)[max(0, len(seen) - wish.keep) :]}
    folders = {around.cwd / LOG_ROOT, *roots, *(run.root.parent for run in runs)}
    drafts = tuple(sorted(path for folder in folders for path in _drafts(folder, around.now())))
    left = []
    for one in seen:
        young = around.now() - one.still_since < wish.older_s
        reason = YOUNG if young else KEPT_NEWEST if one.paths.root in newest else ""
        kept.update([reason] if reason else [])
        left += [] if reason else [one]
    dead = _without_living(left, kept, around)
    states = _states(dead, around)
    old = []
    for one in dead:
        state = states[one.paths.root]
        reason = _why_not(one, state, wish)
        kept.update([reason] if reason else [])
        old += [] if reason or state is None else [_old(one, state)]
    return Findings(tuple(old), drafts, dict(kept))


def _why_not(one: _Seen, state: RunState | None, wish: Wish) -> str:
    if state is None:
        return UNANSWERED
    if state not in wish.states:
        return f"{OTHER_STATE} {state.value}"
    return HOLDS if _holds_product(one.paths.root) else ""


def _see(run: RunPaths, kept: Counter[str]) -> _Seen | None:
    record = load_record(run)
    if record is None or not _is_own_folder(run.root):
        kept[NOT_OURS] += 1
        return None
    if not is_run_name(run.root.name):
        # Whoever chose a name for it may keep other things in it.
        kept[NAMED] += 1
        return None
    jobs = tuple(run.jobs())
    ids = [_id_of(job) for job in jobs]
    refs = (ref for name in (STAGES, BENCH) for ref in load_refs(run.root / name))
    ids += [JobId(int(ref.job_id)) for ref in refs if ref.job_id.isdecimal()]
    return _Seen(run, record.run_id, record.name, jobs, tuple(ids), _last_change(run.root, jobs))


def _id_of(job: JobPaths) -> JobId:
    submission = load_submission(job)
    return JobId(job.job_id, cluster=(submission.cluster or None) if submission else None)


def _is_own_folder(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _last_change(root: Path, jobs: Iterable[JobPaths]) -> float:
    """Return when anything of the run was written last, as far as the entries of its upper folders say."""
    folders = [root, *(job.root for job in jobs)]
    folders += [attempt.journal for job in jobs for attempt in job.attempts()[-1:]]
    times = [0.0]
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            times.append(folder.stat().st_mtime)
            times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(times)


def _drafts(folder: Path, now: float) -> Iterable[Path]:
    """Yield half-written directories of this user that nobody writes any more."""
    try:
        names = [path for path in folder.iterdir() if path.name.startswith(".") and path.name.endswith(".tmp")]
    except OSError:
        return
    for path in names:
        left = path.name.endswith(CLEARING) or now - path.lstat().st_mtime > DRAFT_S
        if left and _is_own_folder(path):
            yield path


def _without_living(seen: Sequence[_Seen], kept: Counter[str], around: Surroundings) -> list[_Seen]:
    if not seen:
        return []
    queues: dict[str | None, tuple[Queued, ...]] = {None: _queue(None, around)}
    for cluster in {job.cluster for one in seen for job in one.ids if job.cluster}:
        with suppress(SlurmError):
            queues[cluster] = _queue(cluster, around)
    scripts = {one.command for queue in queues.values() for one in queue}
    numbers = {(cluster, one.number) for cluster, queue in queues.items() for one in queue}
    dead = []
    for one in seen:
        script = str(one.paths.script)
        lives = any((job.cluster, job.number) in numbers or (None, job.number) in numbers for job in one.ids)
        lives = lives or any(command == script or command.startswith(f"{script} ") for command in scripts)
        silent = any(job.cluster not in queues for job in one.ids)
        kept.update([LIVES] if lives else [UNANSWERED] if silent else [])
        dead += [] if lives or silent else [one]
    return dead


def _queue(cluster: str | None, around: Surroundings) -> tuple[Queued, ...]:
    # squeue's --user takes a number as well.
    return parse_user_queue(around.slurm().output(user_queue_argv(str(os.getuid()), clusters=cluster)))


def _states(seen: Sequence[_Seen], around: Surroundings) -> dict[Path, RunState | None]:
    """Return how each run ended: as its newest job has written itself, else as Slurm says, which is asked once.

    None is one of which Slurm cannot tell.
    """
    states: dict[Path, RunState | None] = {}
    asked: dict[Path, JobId] = {}
    for one in seen:
        open_jobs = [job for job in one.jobs if not has_result(job)]
        if open_jobs:
            asked[one.paths.root] = _id_of(open_jobs[-1])
        else:
            states[one.paths.root] = _written(one.jobs[-1]) if one.jobs else RunState.PLANNED
    ids, known = list(asked.values()), dict[JobId, JobFacts]()
    for start in range(0, len(ids), MOST_ASKED):
        known.update(around.slurm().query(ids[start : start + MOST_ASKED]))
    for one in seen:
        if one.paths.root in asked:
            states[one.paths.root] = _told(one, known.get(asked[one.paths.root]))
    return states


def _told(one: _Seen, facts: JobFacts | None) -> RunState | None:
    """Return how a run without a result of its own ended; a job of another name has got its number again."""
    if facts is not None and facts.name in (one.name, ""):
        # The controller has forgotten the job, and the accounting does not answer.
        return None if facts.state is SlurmState.UNKNOWN else run_state(facts.state)
    return RunState.LOST if any(job.attempts() for job in one.jobs) else RunState.UNKNOWN


def _written(job: JobPaths) -> RunState:
    attempts = job.attempts()
    try:
        return RunState(json.loads(job.result(attempts[-1].number).read_text(encoding="utf-8"))["state"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return RunState.UNKNOWN


def _holds_product(root: Path) -> bool:
    """Return whether a stage has put what it makes into the run's own folders: weights are worth more than logs."""
    mine = (root, stages_folder(root))
    for recipe in stages_folder(root).glob(f"*/{STAGE_RECIPE}"):
        try:
            product = json.loads(recipe.read_text(encoding="utf-8"))["product"]
            path = Path(product["path"]) if product else None
        except (OSError, ValueError, KeyError, TypeError):
            return True
        if path is not None and any(folder == path or folder in path.parents for folder in mine):
            return True
    return False


def _old(one: _Seen, state: RunState) -> Old:
    root = one.paths.root
    folders = tuple(path for path in (root, stages_folder(root)) if _is_own_folder(path))
    numbers = tuple(job.job_id for job in one.jobs)
    return Old(one.paths, folders, one.run_id, one.name, state, one.still_since, sum(map(size_of, folders)), numbers)


def size_of(folder: Path) -> int:
    """Return the space that a folder takes on disk, in bytes; links count as themselves, what cannot be read as 0."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                total += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    total += size_of(Path(entry.path))
    except OSError:
        return total
    return total
