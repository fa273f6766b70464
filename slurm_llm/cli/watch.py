"""Commands that look at runs: status, health, list."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.cli.text import health_text, list_text, status_text, width
from slurm_llm.observe.status import status_to_json
from slurm_llm.runs import evidence_of, find_run, list_runs, status_of
from slurm_llm.surroundings import Surroundings


@click.command()
@run_argument
@json_option
def status(run: str | None, as_json: bool) -> None:
    """Show how RUN is: its state, ranks, endpoint, time left, and why it waits or failed."""
    around = Surroundings.of_this_process()
    found = status_of(find_run(run, around), around)
    tty = sys.stdout.isatty()
    click.echo(status_to_json(found) if as_json else status_text(found, around.now(), width(tty), tty))


@click.command()
@run_argument
@json_option
def health(run: str | None, as_json: bool) -> None:
    """Show a row for every rank: node, GPUs, role, state, memory, age and last error of its log."""
    from slurm_llm.observe.health import build_health, health_to_json

    around = Surroundings.of_this_process()
    found = find_run(run, around)
    state = status_of(found, around).state
    rows = build_health(evidence_of(found), state, around.now())
    tty = sys.stdout.isatty()
    click.echo(health_to_json(rows) if as_json else health_text(rows, width(tty), tty))


@click.command(name="list")
@click.option("-n", "newest", type=click.IntRange(1), default=20, show_default=True, help="Number of runs.")
@json_option
def list_(newest: int, as_json: bool) -> None:
    """List the newest runs, newest first."""
    around = Surroundings.of_this_process()
    rows = list_runs(around, newest)
    if not all(row.slurm_answered for row in rows):
        click.echo("warning: Slurm did not answer: states are the last words of the jobs themselves", err=True)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
    elif rows:
        click.echo(list_text(rows, around.now()))
    else:
        click.echo("no runs yet", err=True)
