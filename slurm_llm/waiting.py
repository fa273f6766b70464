"""Waiting for a run and ending one: polls at a polite pace, believes no single bad answer, prints nothing."""

from __future__ import annotations

import os
import shlex
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.errors import NotReady, Problem, RunFailed
from slurm_llm.observe.facts import load_layout
from slurm_llm.observe.status import RunStatus, SlurmWord
from slurm_llm.observe.text import clean
from slurm_llm.record import load_submission
from slurm_llm.runs import FoundRun, evidence_of, live_jobs, status_by, status_of
from slurm_llm.slurm.client import SlurmClient
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import RunState, SlurmState
from slurm_llm.surroundings import Surroundings

FIRST_PAUSE_S, LAST_PAUSE_S, GROWTH = 1.0, 5.0, 1.25
BELIEVED_AFTER = 3
"""How many looks in a row must say that a job has ended, before its own result is there: files and the accounting
may be seconds late."""
STOP_SPARE_S = 15
"""Seconds that an orderly stop may take beyond Triton's exit timeout and KillWait."""
HEAD_WAIT_S = 10
"""How long `cancel` waits for the job's script to be able to stop in order."""

Told = Callable[[RunStatus, int], None]
"""Is told of each look: the status, and how many times in a row Slurm has not answered."""


def tell_nobody(_status: RunStatus, _unanswered: int) -> None:
    """Ignore a look."""


@dataclass(frozen=True)
class Look:
    """One look at a run; `sure` when an end that it shows may be believed."""

    status: RunStatus
    unanswered: int
    sure: bool


def watch(found: FoundRun, around: Surroundings) -> Iterator[Look]:
    """Yield looks at the run, one squeue each: a second apart after a change, growing to five."""
    pause, unanswered, endings, last = FIRST_PAUSE_S, 0, 0, None
    while True:
        status = status_of(found, around)
        unanswered = 0 if status.slurm_answered else unanswered + 1
        endings = endings + 1 if status.ended and status.slurm_answered else 0
        yield Look(status, unanswered, status.has_result or endings >= BELIEVED_AFTER)
        pause = FIRST_PAUSE_S if status.state is not last or status.ended else min(LAST_PAUSE_S, pause * GROWTH)
        last = status.state
        around.pause(pause)


def wait_ready(
    found: FoundRun, around: Surroundings, timeout_s: float | None = None, told: Told = tell_nobody
) -> RunStatus:
    """Return once the run is READY.

    Raises:
        RunFailed: it has ended, with the cause, the rank that went first and the end of its log;
        NotReady: `timeout_s` passed; the job goes on.
    """
    begun = around.monotonic()
    for look in watch(found, around):
        told(look.status, look.unanswered)
        if look.status.ready:
            return look.status
        if look.status.ended and look.sure:
            raise RunFailed(failure_problems(look.status))
        if timeout_s is not None and around.monotonic() - begun >= timeout_s:
            raise NotReady(_not_ready(look.status, timeout_s))
    raise AssertionError("a watch has no end")


def wait_end(
    found: FoundRun, around: Surroundings, timeout_s: float | None = None, told: Told = tell_nobody
) -> RunStatus:
    """Return once the run has ended, however it did.

    Raises:
        NotReady: `timeout_s` passed; the job goes on.
    """
    begun = around.monotonic()
    for look in watch(found, around):
        told(look.status, look.unanswered)
        if _is_over(look.status) and look.sure:
            return look.status
        if timeout_s is not None and around.monotonic() - begun >= timeout_s:
            what = f"has not ended after {timeout_s:g} s, it is {look.status.state.value}"
            todo = f"the job goes on; end it with slurm-llm cancel {look.status.run_id}"
            raise NotReady(Problem(f"job {look.status.job_id}", what, todo=todo))
    raise AssertionError("a watch has no end")


def ended_well(status: RunStatus) -> bool:
    """Return whether a run that has ended did so as it should, as its job's exit status says where there is one."""
    if status.exit_code is not None:
        return status.exit_code == 0
    return status.state in (RunState.COMPLETED, RunState.CANCELLED)


def failure_problems(status: RunStatus) -> list[Problem]:
    """Return why a run that was to serve does not: its end, who went first, what it means and what to do, its log."""
    who = f"job {status.job_id} ({status.name})"
    problems = [Problem(who, status.state.value, clean(status.cause))]
    if status.first is not None and not status.cause.startswith(f"rank {status.first.rank} "):
        first = status.first
        said = f"{first.name}, {first.how or 'nobody saw how'}, while {first.phase}"
        problems.append(Problem(f"rank {first.rank} on node {first.node} went first", said))
    problems += [Problem("why", clean(status.why))] if status.why else []
    problems += [Problem("do", clean(text)) for text in status.remedies[:1]]
    problems += [Problem("note", clean(note)) for note in status.notes]
    problems += [Problem("", f"  | {clean(row)}") for row in status.log_tail]
    problems.append(Problem("next", f"slurm-llm diagnose {shlex.quote(status.called or status.run_id)}"))
    return problems


def _not_ready(status: RunStatus, timeout_s: float) -> Problem:
    why = status.pending.text.rstrip(".") if status.pending else clean(status.cause)
    what = f"not ready after {timeout_s:g} s, it is {status.state.value}"
    todo = f"the job goes on: slurm-llm wait {status.run_id}, or slurm-llm cancel {status.run_id}"
    return Problem(f"job {status.job_id}", what, why, todo)


def cancel(found: FoundRun, around: Surroundings, told: Told = tell_nobody) -> RunStatus:
    """End the run, in order where it runs, and return its last status; a run that has ended is left as it is.

    All of its jobs end. Those in the queue go first, so that none starts in place of one that ends.

    Raises:
        SlurmError: Slurm does not answer, or refuses; NotReady: a job is still there after scancel.
    """
    done: dict[JobId | None, RunStatus] = {}
    while left := [one for one in live_jobs(found, around) if one.job_id not in done]:
        done[left[0].job_id] = _cancel_job(left[0], around, told)
    return next(iter(done.values())) if len(done) == 1 else status_of(found, around)


def _cancel_job(found: FoundRun, around: Surroundings, told: Told) -> RunStatus:
    job_id, slurm = found.job_id, around.slurm()
    facts = slurm.query([job_id]).get(job_id) if job_id is not None else None
    status = status_by(found, SlurmWord(facts, asked=job_id is not None), around)
    if job_id is None or _is_over(status):
        return status
    if status.guest:
        return _stop_guest(found, around, told)
    if facts is not None and facts.state is SlurmState.RUNNING and _stop_in_order(found, job_id, slurm, around):
        status = _wait_end(found, around, _stop_limit(found), told)
        if _is_over(status):
            return status
    slurm.cancel(job_id)
    limit = load_layout(found.paths.plan).kill_wait_s + STOP_SPARE_S
    status = _wait_end(found, around, limit, told)
    if not _is_over(status):
        what = f"still {status.state.value} {limit} s after scancel"
        raise NotReady(Problem(f"job {job_id}", what, todo=f"look at `squeue -j {job_id}`, then cancel again"))
    return status


def _is_ours(pid: int) -> bool:
    """Tell whether a process of this machine is one of this program: ids are given out again."""
    try:
        return b"slurm" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _stop_guest(found: FoundRun, around: Surroundings, told: Told) -> RunStatus:
    """Have whoever started a run in an allocation end it: the job itself is not ours to end.

    Raises:
        NotReady: it is still there after its time.
    """
    own = load_submission(found.job) if found.job else None
    if own is None or found.job is None:
        return status_of(found, around)
    found.job.stop.touch()
    if own.host == socket.gethostname() and _is_ours(own.pid):
        # Other machines see the file a little later.
        os.kill(own.pid, signal.SIGTERM)
    status = _wait_end(found, around, _stop_limit(found), told)
    if not _is_over(status):
        what = f"still {status.state.value}: process {own.pid} on {own.host}, which started it, does not end it"
        raise NotReady(Problem(f"run {status.run_id}", what, todo=f"`scancel {own.job_id}` ends the whole allocation"))
    return status


def _is_over(status: RunStatus) -> bool:
    """An end counts once Slurm has let the job go: nothing of it is on a node any more.

    A guest's allocation goes on: its own result is its end.
    """
    if status.guest and status.ended and status.has_result:
        return True
    letting_go = status.slurm_state in (SlurmState.COMPLETING, SlurmState.RUNNING, SlurmState.SIGNALING)
    unknown = status.state is RunState.UNKNOWN and status.slurm_answered and status.slurm_state is None
    return (status.ended and not letting_go) or unknown


def _stop_in_order(found: FoundRun, job_id: JobId, slurm: SlurmClient, around: Surroundings) -> bool:
    """Ask the job's script to stop its ranks; False when it cannot hear yet, and nothing of ours has begun.

    Before its head has written a record the script has no trap, and TERM would end the script alone.
    """
    deadline = around.monotonic() + HEAD_WAIT_S
    while not evidence_of(found).head_began:
        if around.monotonic() >= deadline:
            return False
        around.pause(0.2)
    slurm.cancel(job_id, signal="TERM", batch=True)
    return True


def _stop_limit(found: FoundRun) -> float:
    layout = load_layout(found.paths.plan)
    return layout.client_grace_s + layout.exit_timeout_s + layout.kill_wait_s + STOP_SPARE_S


def _wait_end(found: FoundRun, around: Surroundings, limit_s: float, told: Told) -> RunStatus:
    begun = around.monotonic()
    for look in watch(found, around):
        told(look.status, look.unanswered)
        late = around.monotonic() - begun >= limit_s
        if late or (_is_over(look.status) and (look.sure or look.status.attempt is None)):
            return look.status
    raise AssertionError("a watch has no end")
