"""The rehearsal of `site check`, and the archive of everything that was seen, to send back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_llm.cli.checkview import (
    Session,
    Stages,
    json_text,
    probe_title,
    rehearsal_title,
    report_value,
    rows_text,
    site_title,
)

if TYPE_CHECKING:
    from slurm_llm.observe.bundle import Member
    from slurm_llm.observe.status import RunStatus
    from slurm_llm.runs import FoundRun
    from slurm_llm.siteprobe import ProbeReport
    from slurm_llm.siterehearsal import Rehearsal
    from slurm_llm.surroundings import Surroundings

LOG_BYTES = 1 << 20


def rehearse_site(session: Session, probed: ProbeReport | None, *, cuda: bool) -> dict[str, Any]:
    """Rehearse where Slurm takes jobs, write the archive in any case, tell of both; return all that was seen."""
    from slurm_llm.siterehearsal import discard

    rehearsed = _rehearsed(session, cuda=cuda) if probed is not None and _taken(probed) else None
    value = report_value(session.report, probed, rehearsed)
    path, told = _archive(session, probed, rehearsed, value)
    if rehearsed is not None and rehearsed.exit_code == 0 and not session.keep:
        discard(rehearsed, session.around)
    elif rehearsed is not None and rehearsed.found is not None:
        session.tell(f"\nwhat the rehearsal wrote: {rehearsed.found.paths.root}")
    session.tell(f"\nto send back: {path}\n  {told}")
    return {**value, "archive": str(path)}


def _taken(probed: ProbeReport) -> bool:
    """Return whether Slurm took the probe and let it start; what else is wrong may not hold up a rehearsal."""
    refused = any(row.verdict == "REFUSED" and row.name in ("submission", "queue") for row in probed.rows)
    if refused:
        click.echo("no rehearsal is submitted: Slurm does not take the probe", err=True)
    return not refused


def _rehearsed(session: Session, *, cuda: bool) -> Rehearsal:
    from slurm_llm.cli.progress import stage_text
    from slurm_llm.siterehearsal import run_rehearsal

    stages = Stages(session.around)

    def tell(status: RunStatus, _unanswered: int) -> None:
        stages.tell(stage_text(status))

    rehearsed = run_rehearsal(session.report, session.wanted, session.around, tell, cuda=cuda)
    session.show(f"\n{rehearsal_title(rehearsed)}", rehearsed.rows)
    return rehearsed


def _archive(
    session: Session, probed: ProbeReport | None, rehearsed: Rehearsal | None, value: dict[str, Any]
) -> tuple[Path, str]:
    """Write the archive into the current folder; return its path, and what is in it in words.

    Raises:
        SetupError: the file system refuses.
    """
    from slurm_llm.errors import Problem, SetupError
    from slurm_llm.observe.bundle import write
    from slurm_llm.ownfiles import open_new

    report, around = session.report, session.around
    name = report.site.profile.partition_name(session.wanted.partition)
    stem = re.sub(r"[^\w.-]", "_", f"site-check-{report.site.profile.name}-{name}-{around.run_id()}")
    path = around.cwd / f"{stem}.tar.gz"
    texts = {
        "check.txt": _shown(session, probed, rehearsed),
        "check.json": json_text(value) + "\n",
        **_of_probe(probed),
    }
    try:
        with open_new(path) as stream:
            return path, write(_members(stem, rehearsed, texts, around), stream, stem)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise SetupError(Problem(str(path), what, todo="cd to a folder of yours")) from None


def _shown(session: Session, probed: ProbeReport | None, rehearsed: Rehearsal | None) -> str:
    """Return what the terminal showed."""
    parts = [rows_text(site_title(session.report), session.report.rows)]
    parts += [rows_text(probe_title(probed), probed.rows)] if probed is not None else []
    parts += [rows_text(rehearsal_title(rehearsed), rehearsed.rows)] if rehearsed is not None else []
    return click.unstyle("\n\n".join(parts)) + "\n"


def _members(stem: str, rehearsed: Rehearsal | None, texts: dict[str, str], around: Surroundings) -> Iterable[Member]:
    from slurm_llm.observe.bundle import collect, collect_texts

    found = rehearsed.found if rehearsed is not None else None
    if found is None:
        return collect_texts(stem, texts, around.environ)
    own = {**texts, **_of_run(found, around)}
    return collect(found.paths, found.job, own, around.environ, log_bytes=LOG_BYTES)


def _of_probe(probed: ProbeReport | None) -> dict[str, str]:
    """Return what srun and the job said in a probe's folder, where it was kept: name → text."""
    from slurm_llm.observe.text import read_end

    if probed is None or probed.directory is None:
        return {}
    files = (path for path in sorted(probed.directory.iterdir()) if path.suffix in (".log", ".out"))
    return {f"probe/{path.name}": read_end(path, LOG_BYTES).decode("utf-8", "replace") for path in files}


def _of_run(found: FoundRun, around: Surroundings) -> dict[str, str]:
    """Return diagnosis, status and page of a run: name → text."""
    from slurm_llm.cli.diagnose import diagnosed, reports
    from slurm_llm.cli.reporting import reported
    from slurm_llm.page import render_page

    page = render_page(reported(found, around))
    return {**reports(diagnosed(found, around), around), "report.html": page}
