"""Command that shows what the servers of a run count: metrics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.cli.text import width
from slurm_llm.errors import Problem, RequestFailed
from slurm_llm.observe.endpoint import no_such, serving
from slurm_llm.observe.text import clean
from slurm_llm.runs import FoundRun, evidence_of, find_run, status_of
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.observe.facts import Endpoint
    from slurm_llm.observe.metrics import Page
    from slurm_llm.observe.status import RunStatus

AT_ONCE = 16
"""Pages that are asked for at a time."""


@click.command()
@run_argument
@click.option("--instance", type=click.IntRange(0), help="Only this replica.")
@click.option("--raw", is_flag=True, help="Print the pages as they are.")
@click.option("--interval", "seconds", type=click.FloatRange(0.1, 3600), help="Look twice, S seconds apart: rates too.")
@json_option
@click.option("--sd", is_flag=True, help="Where the pages of all running jobs are, for Prometheus' file_sd.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="With --sd: write this file, as a whole.")
@click.option(
    "--watch", "every_s", type=click.FloatRange(1, 3600), help="With -o: keep it true, looking every S seconds."
)
def metrics(
    run: str | None,
    instance: int | None,
    raw: bool,
    seconds: float | None,
    as_json: bool,
    sd: bool,
    output: str | None,
    every_s: float | None,
) -> None:
    """Show what the servers of RUN count, with meaning and unit, one column an instance.

    The leaders' metrics pages are asked themselves, past any proxy. An instance that does not answer is told at the
    end, and the exit code is 10.
    """
    around = Surroundings.of_this_process()
    if sd or output or every_s:
        _show_targets(sd and not (run or raw or as_json or seconds or instance is not None), output, every_s, around)
        return
    if raw and (as_json or seconds is not None):
        raise click.UsageError("--raw prints pages as they are: without --json and --interval")
    found = find_run(run, around)
    status = status_of(found, around)
    asked = _instances(status, instance)
    if raw:
        _print_raw(*_texts(asked))
        return
    look = _look(asked, seconds, around)
    _show(found, status, asked, look, as_json)
    if look.faults:
        raise RequestFailed(look.faults)


def _show_targets(alone: bool, output: str | None, every_s: float | None, around: Surroundings) -> None:
    from slurm_llm.cli.metricstargets import show_targets

    if not alone:
        raise click.UsageError("--sd lists all running jobs, and takes -o and --watch alone: metrics --sd [-o FILE]")
    if every_s is not None and output is None:
        raise click.UsageError("--watch keeps a file true: name it with -o")
    show_targets(output, every_s, around)


@dataclass(frozen=True)
class _Look:
    """Pages of the instances that answered, those of a second look `seconds` later, and what was wrong."""

    pages: Sequence[Page]
    later: Sequence[Page]
    seconds: float
    faults: Sequence[Problem]


def _look(asked: Sequence[Endpoint], seconds: float | None, around: Surroundings) -> _Look:
    faults, pages = _pages(asked)
    if seconds is None or not pages:
        return _Look(pages, (), 0.0, faults)
    began = around.monotonic()
    around.pause(seconds)
    passed = around.monotonic() - began
    answered = {page.instance for page in pages}
    again, later = _pages([one for one in asked if one.instance in answered])
    return _Look(pages, later, passed, [*faults, *again])


def _instances(status: RunStatus, instance: int | None) -> list[Endpoint]:
    """Return the instances to ask: a balancer has no metrics page of its own."""
    known = [one for one in serving(status) if one.instance is not None]
    asked = [one for one in known if instance in (None, one.instance)]
    if not asked:
        raise no_such(status.run_id, "instance", instance, 1 + max(one.instance or 0 for one in known))
    return asked


def _texts(asked: Sequence[Endpoint]) -> tuple[list[Problem], list[tuple[Endpoint, str]]]:
    """Return what each instance's page says, and the problems of those that do not answer."""
    from slurm_llm import triton

    def ask(one: Endpoint) -> str | RequestFailed:
        try:
            return triton.page(one.metrics)
        except RequestFailed as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(zip(asked, pool.map(ask, asked), strict=True))
    faults = [fault for _, answer in answers if not isinstance(answer, str) for fault in answer.problems]
    return faults, [(one, answer) for one, answer in answers if isinstance(answer, str)]


def _print_raw(faults: list[Problem], texts: Sequence[tuple[Endpoint, str]]) -> None:
    for one, text in texts:
        click.echo(f"# instance {one.instance}: {one.metrics}")
        click.echo("\n".join(map(clean, text.split("\n"))) if sys.stdout.isatty() else text, nl=not text.endswith("\n"))
    if faults:
        raise RequestFailed(faults)


def _pages(asked: Sequence[Endpoint]) -> tuple[list[Problem], list[Page]]:
    faults, texts = _texts(asked)
    read = [_read(one, text) for one, text in texts]
    for fault in read:
        faults += fault if isinstance(fault, list) else []
    return faults, [page for page in read if not isinstance(page, list)]


def _read(one: Endpoint, text: str) -> Page | list[Problem]:
    from slurm_llm.observe.metrics import Page
    from slurm_llm.observe.metricstext import parse_metrics

    try:
        return Page(one.instance or 0, tuple(parse_metrics(text)))
    except RequestFailed as error:
        return [Problem(f"{one.metrics} {fault.where}".rstrip(), fault.what, fault.allowed) for fault in error.problems]


def _show(found: FoundRun, status: RunStatus, asked: Sequence[Endpoint], look: _Look, as_json: bool) -> None:
    from slurm_llm.cli.metricsview import metrics_json, metrics_text
    from slurm_llm.observe.metrics import build_metrics
    from slurm_llm.observe.metricsnotes import build_notes

    rows = build_metrics(look.pages, look.later, look.seconds)
    notes = build_notes(rows, status.engine, _release(found, status.engine))
    if as_json:
        instances = [{"instance": one.instance, "metrics": one.metrics} for one in asked]
        about = {"run_id": status.run_id, "model": status.model, "engine": status.engine, "instances": instances}
        click.echo(metrics_json(about, rows, notes, look.seconds or None))
    elif rows:
        numbers = [page.instance for page in look.later or look.pages]
        click.echo(metrics_text(rows, numbers, notes, width(sys.stdout.isatty())))


def _release(found: FoundRun, engine: str) -> tuple[int, ...]:
    """Return the image's release of Triton where it matters: its table brings the schema library with it."""
    if engine != "tensorrtllm":
        return ()
    from slurm_llm.engines.releases import release_of

    release = release_of(evidence_of(found).layout.image)
    return tuple(map(int, release.triton.split("."))) if release else ()
