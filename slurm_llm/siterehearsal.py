"""Use case: a rehearsal on a site that is checked; submits it, asks it for a text, ends it, tells what that showed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from slurm_llm import app, triton
from slurm_llm.agent import journal
from slurm_llm.errors import NotReached, NotReady, PlanError, Problem, RequestFailed, RunFailed, SlurmError
from slurm_llm.observe import rehearsalrows as rows
from slurm_llm.observe.checkrows import Row, Verdict, exit_code
from slurm_llm.observe.health import RankHealth, build_health
from slurm_llm.observe.refusals import explain_refusal
from slurm_llm.observe.served import served_of
from slurm_llm.observe.status import RunStatus
from slurm_llm.removing import forget_gone, remove_folder
from slurm_llm.runs import FoundRun, evidence_of, status_of
from slurm_llm.sitecheck import SiteReport, Wanted, limit_of, located, plan_check, refused, room_of, sizes_of
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.formats import parse_time
from slurm_llm.slurm.reasons import Clears, Reason
from slurm_llm.surroundings import Surroundings
from slurm_llm.waiting import Told, cancel, wait_end, wait_ready

NAME = "site-rehearsal"
LIMIT_S = 600
"""Time limit of the job; it takes seconds once it runs."""
ANSWER_S = 60.0
FAILING_S = 30.0
"""How long a run that does not answer has to fail by itself, and then names its cause."""
SAMPLE_S = 12.0
"""How long it may take until the agents have looked at the GPUs of every rank that has loaded."""
LOOK_S = 0.5


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal that has ended: its rows, its run where one was submitted, its ranks as they served.

    `devices` is rank → name and UUID of the GPU that its log says it computes on.
    """

    partition: str
    rows: tuple[Row, ...]
    found: FoundRun | None = None
    ranks: tuple[RankHealth, ...] = ()
    devices: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the worst row."""
        return exit_code(self.rows)


class _NeverStarts(Exception):
    """The job is in the queue for a reason that Slurm never lifts."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


@dataclass(frozen=True)
class _Going:
    """A rehearsal that was submitted, and who is told of each look at it."""

    job: app.Job
    found: FoundRun
    around: Surroundings
    told: Told
    cuda: bool


def run_rehearsal(
    report: SiteReport, wanted: Wanted, around: Surroundings, told: Told, *, cuda: bool = False
) -> Rehearsal:
    """Submit a rehearsal on whole nodes of one logical partition, ask it for its text and end it.

    With `cuda` the ranks compute on their GPUs. An interrupt ends the job; its run directory stays in any case.

    Raises:
        SetupError: no folder can be written; InputError: a setting is wrong.
    """
    name = report.site.profile.partition_name(wanted.partition)
    limit = limit_of(report.site.profile.for_partition(name), name, LIMIT_S)
    asked = rehearsal_of(wanted, report, name, limit, cuda=cuda)
    try:
        job = plan_check(asked, report.site, name, limit, around)
        rendered = app.render_job(job, app.new_run_dir(job, around), around)
        submitted = app.submit_job(job, rendered, around)
    except PlanError as error:
        return Rehearsal(name, tuple(_unplanned(one) for one in error.problems))
    except SlurmError as error:
        empty = Row(rows.TOPIC, "submission", Verdict.REFUSED, "")
        return Rehearsal(name, (refused(empty, error.stderr or str(error), job, asked),))
    found = FoundRun(rendered.paths, rendered.paths.job(submitted.job_id.number), pinned=True)
    going = _Going(job, found, around, told, cuda)
    try:
        made = _watched(going, name)
    except BaseException:
        around.slurm().cancel(submitted.job_id)
        raise
    return replace(made, rows=tuple(located(row, report.site) for row in made.rows))


def discard(rehearsal: Rehearsal, around: Surroundings) -> None:
    """Remove the run directory of a rehearsal that has ended."""
    if rehearsal.found is not None:
        remove_folder(rehearsal.found.paths.root)
        forget_gone(around)


def rehearsal_of(wanted: Wanted, report: SiteReport, name: str, limit: str, *, cuda: bool) -> Wanted:
    """Return the job of a rehearsal: on every GPU of its nodes, as far as the partition gives so many.

    Half of its time limit may pass until it is ready: what keeps it from that is then named, and not the limit.
    """
    profile = report.site.profile
    partition = profile.partitions[name]
    room = room_of(partition, report.facts)
    nodes, ranks = sizes_of(partition, wanted.nodes, room)
    gpus, most = partition.gpus_per_node or ranks, partition.limits.max_gpus
    ranks = gpus if most is None or nodes * gpus <= most else max(1, most // nodes)
    limits = [f"name={NAME}", f"timeouts.ready_s={max(1, (parse_time(limit) or LIMIT_S) // 2)}"]
    device = ["engine_args.device=cuda"] if cuda else []
    return replace(wanted, room=room, nodes=nodes, ranks=ranks, settings=(*limits, *device, *wanted.settings))


def _unplanned(problem: Problem) -> Row:
    found = ": ".join(part for part in (problem.what, problem.allowed) if part)
    return Row(rows.TOPIC, "plan", Verdict.UNPLANNED, found, "", problem.where, problem.todo)


def _watched(going: _Going, name: str) -> Rehearsal:
    """Wait until the rehearsal serves, look at it, end it; or tell why it does not serve."""
    found, around = going.found, going.around
    job_row = Row(rows.TOPIC, "job", Verdict.OK, _job_text(going))
    try:
        status = wait_ready(found, around, told=_impatient(going.told))
    except _NeverStarts as never:
        cancel(found, around)
        return Rehearsal(name, (_never_row(never.reason, name),), found)
    except RunFailed:
        status = status_of(found, around)
        why = (rows.failed_row(status, "start"), *rows.said_row(status), *rows.log_rows(_records(going), ()))
        return Rehearsal(name, (job_row, *why, _leftovers(going)), found)
    asked, answered = _text_row(going, status)
    ranks, devices = _ranks(going, status)
    seen = (*rows.started_rows(status, ranks), asked, *_gpu_rows(going, ranks, devices))
    ended = _ended(going, failing=not answered)
    last = (ended, *rows.log_rows(_records(going), ranks), _leftovers(going))
    return Rehearsal(name, (job_row, *seen, *last), found, tuple(ranks), devices)


def _job_text(going: _Going) -> str:
    allocation, sizes = going.job.plan.allocation, going.job.plan.sizes
    device = ", on their GPUs" if going.cuda else ", on CPUs"
    return (
        f"{going.found.job_id}: {allocation.nodes} × {allocation.ranks_per_node} ranks, "
        f"tensor {sizes.tensor_parallel_size} × pipeline {sizes.pipeline_parallel_size}{device}"
    )


def _impatient(told: Told) -> Told:
    """Return what passes looks on, and gives up on a job that can never start."""

    def tell(status: RunStatus, unanswered: int) -> None:
        told(status, unanswered)
        if status.pending is not None and status.pending.clears is Clears.NEVER:
            raise _NeverStarts(status.pending)

    return tell


def _never_row(reason: Reason, partition: str) -> Row:
    hint = explain_refusal(f"{reason.code} {reason.text}", partition)
    found = f"it never starts: {reason.text} [{reason.code}]"
    return Row(rows.TOPIC, "queue", Verdict.REFUSED, found, "", hint.key, hint.todo)


def _text_row(going: _Going, status: RunStatus) -> tuple[Row, bool]:
    """Ask the leader for the text that is known; return also whether it is well, as far as that tells."""
    spec = going.job.spec
    experts = spec.moe_expert_parallel_size is not None or spec.moe_tensor_parallel_size is not None
    ask = triton.Ask(rows.PROMPT, rows.TOKENS, timeout_s=ANSWER_S)
    try:
        text = triton.generate(served_of(status, going.around.environ), ask)
    except (RequestFailed, NotReady) as error:
        if isinstance(error, NotReached):
            todo = "inside the job it answers; from here `tunnel` opens it, see docs/operating.md"
            return Row(rows.TOPIC, "text", Verdict.NOTE, str(error.problems[0]), todo=todo), True
        return Row(rows.TOPIC, "text", Verdict.WRONG, str(error.problems[0]), todo="see the row of its end"), False
    return rows.text_row(text, rows.known_text(spec.engine_args.get("seed"), experts)), True


def _ranks(going: _Going, status: RunStatus) -> tuple[list[RankHealth], dict[int, tuple[str, str]]]:
    """Return the ranks as they serve, and what each computes on; waits for the agents' look at GPUs, where any are."""
    around, waits = going.around, going.cuda and any(item.get("gpus") for item in _inventory(going))
    begun = around.monotonic()
    while True:
        evidence = evidence_of(going.found)
        ranks = build_health(evidence, status.state, around.now())
        late = around.monotonic() - begun >= SAMPLE_S
        if not waits or late or all(one.used_gpus for one in ranks):
            break
        around.pause(LOOK_S)
    if evidence.attempt is None or not going.cuda:
        return ranks, {}
    said = {one.rank: rows.device_of(evidence.attempt.rank_log(one.rank)) for one in ranks}
    return ranks, {rank: device for rank, device in said.items() if device is not None}


def _gpu_rows(going: _Going, ranks: list[RankHealth], devices: Mapping[int, tuple[str, str]]) -> Iterator[Row]:
    profile: SiteProfile = going.job.site.profile
    name = profile.partition_name(going.job.spec.partition)
    inventory = _inventory(going)
    asked = going.job.plan.allocation.ranks_per_node if profile.partitions[name].gpus_per_node else 0
    yield rows.inventory_row(inventory, asked, f"partitions.{name}.gpus_per_node")
    if going.cuda:
        yield from rows.device_rows(ranks, devices, f"partitions.{name}.gpu_request")
    elif inventory:
        todo = "--device cuda lets each rank compute on its GPU; its Python or the image needs PyTorch"
        yield Row(rows.TOPIC, "ranks' GPUs", Verdict.NOTE, "shown, not used", todo=todo)


def _inventory(going: _Going) -> list[journal.Record]:
    return [item for item in _records(going) if item["kind"] == "gpus"]


def _records(going: _Going) -> list[journal.Record]:
    attempt = evidence_of(going.found).attempt
    return [] if attempt is None else journal.read_folder(str(attempt.journal))


def _ended(going: _Going, *, failing: bool) -> Row:
    """End the run in order; one that is `failing` may first do so by itself, as it then says why."""
    begun = going.around.monotonic()
    try:
        if failing:
            status = _failed(going)
            if status is not None:
                return rows.failed_row(status, "end")
        status = cancel(going.found, going.around, going.told)
    except NotReady as error:
        return Row(rows.TOPIC, "end", Verdict.WRONG, str(error.problems[0]))
    return rows.ended_row(status, going.around.monotonic() - begun)


def _failed(going: _Going) -> RunStatus | None:
    """Return how the run has ended by itself within a short time, if it has."""
    try:
        return wait_end(going.found, going.around, FAILING_S, going.told)
    except NotReady:
        return None


def _leftovers(going: _Going) -> Row:
    return rows.leftovers_row(_records(going), going.job.plan.allocation.nodes)
