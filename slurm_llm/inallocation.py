"""A run in an allocation that the user holds already, by salloc or in a job of the user's own.

Its script runs in the foreground, and what sbatch would do for it is done here: the output file, the warning ahead of
the time limit, the end with whoever started it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING

from slurm_llm.app import Job, Rendered, make_job, write_run
from slurm_llm.errors import PlanError, Problem, SetupError
from slurm_llm.observe.times import epoch
from slurm_llm.plan.guest import as_guest, check_guest, choose_nodes, misfit
from slurm_llm.plan.steps import grace_s, stop_warning_s
from slurm_llm.plan.types import Plan
from slurm_llm.process import start_logged
from slurm_llm.record import GUEST, Submission, known_runs, list_path, record_to_json, remember_run
from slurm_llm.runs import FoundRun
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId, format_time
from slurm_llm.slurm.held import NodeShare, parse_shares
from slurm_llm.slurm.scontrol import parse_scontrol_job, scontrol_show_job_argv
from slurm_llm.slurm.states import SlurmState
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from subprocess import Popen

LOOK_S = 0.2
LAST_GRACE_S = 10.0
"""How long processes of the script may outlive it."""
OF_A_STEP = ("SLURM_STEP", "SLURM_SRUN_", "SLURM_TASK_", "PMIX_", "PMI_", "PALS_")
ALONE = frozenset(
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_DISTRIBUTION", "SLURM_LAUNCH_NODE_IPADDR"}
)
"""Variables of the step that the user's shell may be, which are none of the job's."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Held:
    """The allocation: its job, what its nodes give, when it ends in seconds since the epoch, None for no limit."""

    facts: JobFacts
    shares: tuple[NodeShare, ...]
    ends: float | None

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.facts.job_id


def find_held(around: Surroundings) -> Held:
    """Return the allocation that this process is in.

    Raises:
        SetupError: it is in none, or that has ended; SlurmError: Slurm does not say.
    """
    number = around.environ.get("SLURM_JOB_ID", "")
    todo = "get one with salloc, or leave --in-allocation out"
    if not number.isdecimal():
        raise SetupError(Problem("--in-allocation", "this shell is in no allocation", "SLURM_JOB_ID is not set", todo))
    job_id, slurm = JobId(int(number)), around.slurm()
    answer = slurm.output(scontrol_show_job_argv(job_id))
    facts = parse_scontrol_job(answer)
    if facts is None or facts.state is not SlurmState.RUNNING:
        state = "gone" if facts is None else facts.state.value
        raise SetupError(Problem("--in-allocation", f"job {job_id} is {state}", todo=todo))
    shares = parse_shares(answer.stdout)
    if not shares:
        raise SetupError(Problem("--in-allocation", f"Slurm does not say what job {job_id} has of its nodes"))
    return Held(facts, shares, epoch(facts.end_time))


def fit(job: Job, held: Held, around: Surroundings) -> Job:
    """Return the job as it is for the allocation: in its partition, on as many of its nodes as it needs.

    A spec that leaves the number of nodes open is spread over more of them where its usual number does not fit.

    Raises:
        PlanError: the allocation has not got what the spec needs.
    """
    problems = check_guest(job.spec)
    if problems:
        raise PlanError(problems)
    job = _in_partition(job, held, around)
    if not _fits(job, held) and job.spec.resources.nodes is None:
        job = next(filter(lambda one: _fits(one, held), _wider(job, held, around)), job)
    if not _fits(job, held):
        raise PlanError(misfit(job.plan, held.shares, held.job_id.number))
    here = socket.gethostname().partition(".")[0] == choose_nodes(job.plan, held.shares)[0].partition(".")[0]
    here = here or "SLURMD_NODENAME" in around.environ
    own = as_guest(job.plan, held.shares, held.job_id.number, _first_attempt(held, around), here=here)
    problems = list(_of_the_place(own, here=here))
    if problems:
        raise PlanError(problems)
    return replace(job, plan=own)


def _of_the_place(own: Plan, *, here: bool) -> Iterator[Problem]:
    """Yield what cannot be where the script runs; `here` tells whether that is the allocation's first node."""
    todo = "start it there: srun --overlap --pty -N1 -n1 bash"
    if own.master is not None and not here:
        what = f"MASTER_ADDR is an address of {own.master.interface} on the first node, and this is another machine"
        yield Problem("--in-allocation", what, todo=todo)
    if own.access.bind == "loopback" and not here:
        what = "servers listen on the loopback address of their node (network.bind), and this is another machine"
        yield Problem("--in-allocation", what, todo=todo)
    if own.allocation.spare_nodes and not own.step.by_srun:
        what = f"{own.step.command[0]} starts ranks on all nodes of a job, and this one has more than are needed"
        yield Problem("--in-allocation", what, todo="allocate as many as the plan needs")


def _wider(job: Job, held: Held, around: Surroundings) -> Iterator[Job]:
    """Yield the job on more nodes, as far as its ranks can be spread so."""
    for nodes in range(job.plan.allocation.nodes + 1, len(held.shares) + 1):
        resources = job.spec.resources.model_copy(update={"nodes": nodes})
        with suppress(PlanError):
            yield make_job(job.spec.model_copy(update={"resources": resources}), job.site, around)


def _fits(job: Job, held: Held) -> bool:
    return len(choose_nodes(job.plan, held.shares)) == job.plan.allocation.asked_nodes


def _in_partition(job: Job, held: Held, around: Surroundings) -> Job:
    asked, own = job.plan.allocation.partition, held.facts.partition
    if asked is None or own in asked.split(","):
        return job
    parts = job.site.profile.partitions
    name = next((name for name, part in parts.items() if own in _names(part.slurm_partition or name)), None)
    if job.spec.partition is None and name is not None:
        return make_job(job.spec.model_copy(update={"partition": name}), job.site, around)
    what = f"job {held.job_id} is in partition {own}, the plan is for {asked}"
    raise PlanError(Problem("partition", what, todo="leave it out, or allocate there"))


def _names(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(given.split(",")) if isinstance(given, str) else given


def _first_attempt(held: Held, around: Surroundings) -> int:
    """Return a number that no run in this allocation has used: marks on the nodes are made of it."""
    number = held.job_id.number
    used = [one.number for run in known_runs(around.environ, ()) for one in run.job(number).attempts()]
    return max(used, default=-1) + 1


@contextmanager
def alone(held: Held, around: Surroundings) -> Iterator[None]:
    """Keep other runs of this user out of the allocation.

    Raises:
        SetupError: one is there.
    """
    path = list_path(around.environ).with_name(f"allocation-{held.job_id.number}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another run of yours is in job {held.job_id}"
            raise SetupError(Problem("--in-allocation", what, todo="end it first: slurm-llm cancel")) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def begin(rendered: Rendered, held: Held, around: Surroundings) -> FoundRun:
    """Write the run directory and who runs it.

    Raises:
        SetupError: the file system refuses.
    """
    write_run(rendered)
    number = held.job_id.number
    own = rendered.paths.job(number)
    own.root.mkdir(mode=0o700, exist_ok=True)
    cluster = around.environ.get("SLURM_CLUSTER_NAME", "")
    by = Submission(str(number), cluster, round(around.now(), 3), GUEST, host=socket.gethostname(), pid=os.getpid())
    own.submission.write_text(record_to_json(by), encoding="utf-8")
    remember_run(rendered.paths.root, around.environ)
    return FoundRun(rendered.paths, own, pinned=True)


def script_environment(job: Job, held: Held, around: Surroundings) -> dict[str, str]:
    """Return the environment that the script expects: that of the job, with the nodes of this run."""
    kept = {
        name: value for name, value in around.environ.items() if not name.startswith(OF_A_STEP) and name not in ALONE
    }
    nodes = choose_nodes(job.plan, held.shares)
    names = ",".join(nodes)
    return {**kept, "SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names, "SLURM_JOB_NAME": job.plan.name}


@dataclass
class Script:
    """The script in the foreground: what it has said, and what it is to be told; `note` tells what is done here."""

    found: FoundRun
    process: Popen[bytes]
    say: Say
    note: Say
    around: Surroundings
    warn_at: float | None
    asked: bool = False
    told: bool = False
    offset: int = field(default=0)

    def follow(self) -> int:
        """Show what it says until it has ended, and return its exit status."""
        with _heeding(self._ask):
            while self.process.poll() is None:
                self._show()
                self._tell()
                self.around.pause(LOOK_S)
        self._sweep()
        self._show(final=True)
        status = self.process.returncode
        return status if status >= 0 else 128 - status

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True

    def _tell(self) -> None:
        job = self.found.job
        if self.asked or (job is not None and job.stop.exists()):
            self.asked = True
        if self.asked and not self.told:
            # To the script alone: srun would pass it on to ranks.
            self.told = True
            self.note("the server stops in order; the allocation stays")
            self.process.send_signal(signal.SIGTERM)
        if self.warn_at is not None and self.around.now() >= self.warn_at:
            self.warn_at = None
            self.process.send_signal(signal.SIGUSR1)

    def _show(self, *, final: bool = False) -> None:
        path = self.found.paths.output(self.found.job.job_id if self.found.job else 0)
        with path.open("rb") as stream:
            stream.seek(self.offset)
            data = stream.read()
        *rows, rest = data.split(b"\n")
        rows += [rest] if final and rest else []
        self.offset += len(data) - len(rest)
        for row in rows:
            self.say(row.decode("utf-8", "replace"))

    def _sweep(self) -> None:
        """End what a script that was killed has left: nobody else would, while the allocation goes on."""
        deadline = time.monotonic() + LAST_GRACE_S
        for number in (signal.SIGTERM, signal.SIGKILL):
            while _signal_group(self.process.pid, number) and time.monotonic() < deadline:
                self.around.pause(LOOK_S)


def _signal_group(leader: int, number: int) -> bool:
    """Signal every process of a group; return whether there was any."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _heeding(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have what would end this process end the script in order instead."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


def start(job: Job, found: FoundRun, held: Held, around: Surroundings, say: Say, note: Say) -> Script:
    """Start the script; `say` gets the lines of its output, `note` words about it.

    Raises:
        SetupError: there is no bash, or its output cannot be written.
    """
    output = found.paths.output(held.job_id.number)
    try:
        process = start_logged(("bash", str(found.paths.script)), output, env=script_environment(job, held, around))
    except OSError as error:
        raise SetupError(Problem(str(output), f"the script cannot be started: {error.strerror}")) from None
    return Script(found, process, say, note, around, _warn_at(job, held, around))


def _warn_at(job: Job, held: Held, around: Surroundings) -> float | None:
    """Return when the script is to be told that the time limit is near."""
    if held.ends is None:
        return None
    left = max(0, int(held.ends - around.now()))
    return held.ends - stop_warning_s(format_time(left)) - grace_s(job.plan)


def limits(held: Held, around: Surroundings) -> str:
    """Return for how long the allocation is there, in words; empty without an end."""
    return "" if held.ends is None else f"ends in {format_time(max(0, int(held.ends - around.now())))}"


__all__ = ["Held", "Script", "alone", "begin", "find_held", "fit", "limits", "start"]
