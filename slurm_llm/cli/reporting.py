"""Command that writes a run down as one page: report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, run_argument

if TYPE_CHECKING:
    from slurm_llm.observe.facts import Endpoint
    from slurm_llm.observe.metrics import Page
    from slurm_llm.observe.report import Report
    from slurm_llm.observe.reportmetrics import Metrics
    from slurm_llm.observe.status import RunStatus
    from slurm_llm.runs import FoundRun
    from slurm_llm.surroundings import Surroundings

AT_ONCE = 16
"""Pages of metrics that are asked for at a time."""
LOOK_S = 1.0
"""Between two looks at the metrics of a run that serves, for rates."""


@click.command()
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    help="File or folder to write to, - for standard output.  [default: here, under the run directory's name]",
)
@click.option("--force", is_flag=True, help="Replace a file that is no report of this run.")
@json_option
def report(run: str | None, output: Path | None, force: bool, as_json: bool) -> None:
    """Write RUN down as one HTML page that needs no network: timeline, cause of failure, figures, plan, versions.

    Secrets are left out; names of users, hosts and folders stay: look before you send it. --json prints the values.
    """
    from slurm_llm.observe.report import report_to_json
    from slurm_llm.page import render_page, write_page
    from slurm_llm.runs import find_run
    from slurm_llm.surroundings import Surroundings

    if as_json and (output or force):
        raise click.UsageError("--json prints the values and writes no file: without -o and --force")
    around = Surroundings.of_this_process()
    found = find_run(run, around)
    made = reported(found, around)
    if as_json or output == Path("-"):
        click.echo(report_to_json(made) if as_json else render_page(made))
        return
    path = around.cwd / (output or "")
    path = path / file_name(found) if path.is_dir() else path
    write_page(path, render_page(made), made.run_id, force)
    click.echo(str(path))


def file_name(found: FoundRun) -> str:
    """Return a report's usual name: that of the run directory, with the job's id where one was asked for."""
    of_job = f"-job{found.job.job_id}" if found.pinned and found.job else ""
    return f"{found.paths.root.name}{of_job}.html"


def reported(found: FoundRun, around: Surroundings) -> Report:
    """Return the report of a run: what its directory says, what Slurm says, and what its servers say right now."""
    from slurm_llm.cli.diagnose import diagnosed
    from slurm_llm.cli.diagnoseview import cause_rows, further_rows
    from slurm_llm.observe.report import Asked, load_report
    from slurm_llm.runs import current

    now = around.now()
    own = diagnosed(found, around)
    asked = Asked(
        diagnosis=own,
        facts=tuple(_facts(own.status, now)),
        told=tuple(cause_rows(own)),
        further=tuple(further_rows(own)),
        metrics=_metrics(own.status, around),
        now=now,
        environ=around.environ,
    )
    return load_report(found.paths, current(found).job, asked)


def _facts(status: RunStatus, now: float) -> Iterator[tuple[str, str]]:
    """Yield the times of the run, where it serves and why it waits."""
    from slurm_llm.agent import phases
    from slurm_llm.observe.reportdraw import clock, span

    at = status.phases
    for label, moment in (("submitted", at.submitted), ("began", at.began), ("ready", at.ready), ("ended", at.ended)):
        if moment is not None:
            yield label, clock(moment)
    if at.ready is not None:
        until = next((one for one in (at.served_until, at.ended) if one is not None), now)
        yield "served", span(until - at.ready)
    took = phases.parts(at.took)
    if took:
        yield "start", " · ".join(took)
    if status.time_left_s is not None:
        yield "Slurm ends it", clock(now + status.time_left_s)
    if status.slurm_state is not None:
        yield "Slurm says", status.slurm_state.value
    for one in status.endpoints:
        yield ("balancer" if one.instance is None else "endpoint"), f"{one.url}, model {status.model}"
    if status.pending is not None:
        yield "waits", f"{status.pending.text} [{status.pending.code}]"


def _metrics(status: RunStatus, around: Surroundings) -> Metrics | None:
    """Ask the instances of a run that serves for their metrics, twice; None of any other run."""
    own = [one for one in status.endpoints if one.instance is not None and one.metrics]
    if not own:
        return None
    from slurm_llm.cli.metricsview import value_text
    from slurm_llm.observe.livefigures import add_up, build_figures
    from slurm_llm.observe.metrics import build_metrics
    from slurm_llm.observe.metricsnotes import build_notes
    from slurm_llm.observe.reportmetrics import UNUSED, build_report_metrics, headlines

    began = around.monotonic()
    first, _ = _pages(own)
    around.pause(LOOK_S)
    pages, problems = _pages(own)
    seconds, before = around.monotonic() - began, {page.instance: page.families for page in first}
    served = max(1.0, around.now() - (status.phases.ready or around.now()))
    whole = add_up(build_figures(status.model, status.engine, page.families, UNUSED, served) for page in pages)
    now = add_up(
        build_figures(status.model, status.engine, page.families, before.get(page.instance, ()), seconds)
        for page in pages
    )
    rows = build_metrics(pages)
    return build_report_metrics(
        rows,
        [page.instance for page in pages],
        build_notes(rows, status.engine),
        problems,
        headlines(whole, now) if whole and now else (),
        value_text,
    )


def _pages(own: Sequence[Endpoint]) -> tuple[list[Page], list[str]]:
    """Return the pages of the instances that show one, and in words why others do not."""
    from concurrent.futures import ThreadPoolExecutor

    from slurm_llm.observe.metrics import Page

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(_page, own))
    return [one for one in answers if isinstance(one, Page)], [one for one in answers if isinstance(one, str)]


def _page(one: Endpoint) -> Page | str:
    """Return what an instance counts, or in words why it does not tell."""
    from slurm_llm.errors import RequestFailed
    from slurm_llm.observe.metrics import Page
    from slurm_llm.observe.metricstext import parse_metrics
    from slurm_llm.triton import page

    try:
        return Page(one.instance or 0, tuple(parse_metrics(page(one.metrics))))
    except RequestFailed as error:
        return f"instance {one.instance}: {error.problems[0]}"
