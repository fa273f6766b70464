"""Use case: a short job that looks at a site's nodes; submits it, waits for it, folds what it saw."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_llm import app, render
from slurm_llm.agent import journal
from slurm_llm.errors import Problem, SetupError, SlurmError
from slurm_llm.observe import probe
from slurm_llm.observe.checkrows import Row, Verdict, exit_code
from slurm_llm.observe.insiderows import fold
from slurm_llm.observe.refusals import explain_refusal
from slurm_llm.ownfiles import write_texts
from slurm_llm.rundir import PROBE_SCRIPT
from slurm_llm.sitecheck import NAME, SiteReport, Wanted, limit_of, located, plan_check, refused, room_of
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.reasons import Clears, explain_reason
from slurm_llm.slurm.states import SlurmState, run_state
from slurm_llm.surroundings import Surroundings
from slurm_llm.tritonhome import wheel_links
from slurm_llm.waiting import BELIEVED_AFTER, FIRST_PAUSE_S, GROWTH, LAST_PAUSE_S

LIMIT_S = 300
"""Time limit of the job; it runs a minute at most."""

Told = Callable[[str], None]
"""Is told what the job does now, once for each look."""


@dataclass(frozen=True)
class ProbeReport:
    """A probe that has ended: its rows, its job, its folder when that was kept, and every record in it."""

    partition: str
    job_id: int | None
    rows: tuple[Row, ...]
    directory: Path | None
    records: tuple[journal.Record, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the worst row."""
        return exit_code(self.rows)


def run_probe(
    report: SiteReport, wanted: Wanted, around: Surroundings, told: Told, *, keep: bool = False
) -> ProbeReport:
    """Submit a probe to one logical partition, wait for its end and fold what it saw; an interrupt ends the job.

    The folder stays when something is wrong, or with `keep`.

    Raises:
        PlanError, InputError: no such job can be planned; SetupError: no folder can be written.
    """
    site, name = report.site, report.site.profile.partition_name(wanted.partition)
    profile = site.profile.for_partition(name)
    partition = profile.partitions[name]
    wanted = replace(wanted, room=room_of(partition, report.facts))
    job = plan_check(wanted, site, name, limit_of(profile, name, LIMIT_S), around)
    folder = app.log_root(job, around) / f"{NAME}-{around.run_id()}"
    _write(folder, _texts(job, profile, folder, around), _logs_remedy(job))
    slurm = around.slurm()
    try:
        submitted = slurm.submit(str(folder / PROBE_SCRIPT))
    except SlurmError as error:
        shutil.rmtree(folder, ignore_errors=True)
        row = refused(Row("job", "submission", Verdict.REFUSED, ""), error.stderr or str(error), job, wanted)
        return ProbeReport(name, None, (row,), None)
    try:
        facts = _await_end(submitted.job_id, folder, around, told)
    except BaseException:
        slurm.cancel(submitted.job_id)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    seen = probe.load_probe(folder, job.plan, profile, report.facts.mpi_types, bool(wheel_links()))
    rows = [located(row, site) for row in (*_ending(facts, name), *(() if _never_ran(facts) else fold(seen)))]
    records = tuple(journal.read_folder(str(folder)))
    stays = keep or exit_code(rows) != 0
    if not stays:
        shutil.rmtree(folder, ignore_errors=True)
    return ProbeReport(name, submitted.job_id.number, tuple(rows), folder if stays else None, records)


def _texts(job: app.Job, profile: SiteProfile, folder: Path, around: Surroundings) -> dict[str, str]:
    """Return the files of a probe's folder."""
    target = render.Target(folder, job.plan.python or sys.executable, around.environ)
    texts = render.render_probe(job.plan, target)
    texts[probe.EXPECTED] = json.dumps(probe.expected_of(job.plan, profile))
    return texts


def _logs_remedy(job: app.Job) -> str:
    logs, place = app.site_logs(job)
    if logs is None:
        return "cd to a folder of yours, or set storage.logs in the profile"
    return f"set storage.logs{f' ({place})' if place else ''} to a folder of yours"


def _write(folder: Path, texts: dict[str, str], todo: str) -> None:
    try:
        write_texts(folder, texts)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        what = f"cannot be written: {error.strerror}"
        raise SetupError(Problem(str(folder), what, todo=todo)) from None


def _await_end(job_id: JobId, folder: Path, around: Surroundings, told: Told) -> JobFacts | None:
    """Return what Slurm says of the job once it has ended; None when it has forgotten it.

    A job that can never start is cancelled, and its facts are returned.
    """
    pause, endings, last = FIRST_PAUSE_S, 0, ""
    while True:
        stage, facts, over = _look(job_id, around)
        told(stage)
        if facts is not None and facts.state is SlurmState.PENDING and _never(facts):
            around.slurm().cancel(job_id)
            return facts
        endings = endings + 1 if over else 0
        # What the job wrote last may show late here.
        if over and (endings >= BELIEVED_AFTER or _has_ended(folder)):
            return facts
        pause = FIRST_PAUSE_S if stage != last or over else min(LAST_PAUSE_S, pause * GROWTH)
        last = stage
        around.pause(pause)


def _look(job_id: JobId, around: Surroundings) -> tuple[str, JobFacts | None, bool]:
    """Return the job's stage in words, Slurm's facts, and whether they say that it is over."""
    try:
        facts = around.slurm().query([job_id]).get(job_id)
    except SlurmError as error:
        return f"Slurm does not answer: {error.stderr.strip()}", None, False
    if facts is None:
        return "Slurm knows nothing of it any more", None, True
    if facts.state is SlurmState.PENDING:
        return f"queued: {explain_reason(facts.reason).text}", facts, False
    over = run_state(facts.state).is_terminal and facts.state is not SlurmState.COMPLETING
    return facts.state.value.lower(), facts, over


def _never(facts: JobFacts) -> bool:
    return explain_reason(facts.reason).clears is Clears.NEVER


def _has_ended(folder: Path) -> bool:
    return any(record["kind"] == "end" for record in journal.read(str(folder / probe.EVENTS)))


def _never_ran(facts: JobFacts | None) -> bool:
    return facts is not None and facts.state is SlurmState.PENDING


def _ending(facts: JobFacts | None, partition: str) -> list[Row]:
    """Return a row when Slurm, not the job, decided how it ended."""
    if facts is None or facts.state is SlurmState.COMPLETED:
        return []
    if facts.state is SlurmState.PENDING:
        reason = explain_reason(facts.reason)
        hint = explain_refusal(f"{reason.code} {reason.text}", partition)
        found = f"it never starts: {reason.text} [{reason.code}]"
        return [Row("job", "queue", Verdict.REFUSED, found, "", hint.key, hint.todo)]
    if facts.state is SlurmState.FAILED:
        return []
    found = f"Slurm ended it: {facts.state.value}" + (f", {facts.reason}" if facts.reason else "")
    return [Row("job", "end", Verdict.REFUSED, found)]
