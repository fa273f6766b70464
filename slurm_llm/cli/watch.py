"""Commands that look at runs: status, logs, health, list."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, parse_ranks, run_argument
from slurm_llm.cli.text import health_text, list_text, status_text, width
from slurm_llm.errors import InputError, Problem
from slurm_llm.observe.status import status_to_json
from slurm_llm.runs import FoundRun, evidence_of, find_run, list_runs, status_of
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.observe.logs import LogLine, LogSource

OTHERS = ("srun", "job", "agents", "preflight")
FOLLOW_LOOK_S = 3.0
"""How often `logs -f` asks whether the run has ended; growing to ten times that."""


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
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
    elif rows:
        click.echo(list_text(rows, around.now()))
    else:
        click.echo("no runs yet", err=True)


@click.command()
@run_argument
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks, such as 0,2-5.")
@click.option("--source", "others", multiple=True, type=click.Choice(OTHERS), help="Only these other logs.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run ends.")
@click.option("-n", "lines", type=click.IntRange(0), default=100, show_default=True, help="Lines to begin with.")
@json_option
def logs(
    run: str | None, ranks: str | None, others: tuple[str, ...], following: bool, lines: int, as_json: bool
) -> None:
    """Show the logs of RUN's newest attempt merged by time, with the rank in front of each line.

    Beside those of the ranks: what srun said, the job's own output, the node agents' and the preflight's.
    """
    from slurm_llm.observe.logs import follow, last_merged

    around = Surroundings.of_this_process()
    found = find_run(run, around)
    sources = _chooser(found, parse_ranks(ranks), others)
    if ranks is not None and not any(source.rank is not None for source in sources()):
        raise InputError(Problem("--rank", f"no such rank, or nothing of it yet: {ranks}"))
    last, ends = last_merged(sources(), lines)
    _print(last, as_json)
    if following:
        for batch in follow(sources, ends, _ending(found, around), around.pause):
            _print(batch, as_json)


def _chooser(found: FoundRun, ranks: frozenset[int] | None, others: tuple[str, ...]) -> Callable[[], list[LogSource]]:
    """Return what lists the wanted logs anew; naming ranks, or others, leaves out the rest."""
    from slurm_llm.observe.logs import log_sources

    wanted = ranks if ranks is not None or not others else frozenset()
    beside = others or (OTHERS if ranks is None else ())
    return lambda: log_sources(evidence_of(found), wanted, beside)


def _ending(found: FoundRun, around: Surroundings) -> Callable[[], bool]:
    """Return what tells whether the run has ended, asking Slurm only now and then."""
    pause, due, over = FOLLOW_LOOK_S, around.monotonic(), False

    def is_over() -> bool:
        nonlocal pause, due, over
        if not over and around.monotonic() >= due:
            over = status_of(found, around).ended
            due = around.monotonic() + pause
            pause = min(pause * 1.5, 10 * FOLLOW_LOOK_S)
        return over

    return is_over


def _print(lines: Iterable[LogLine], as_json: bool) -> None:
    for line in lines:
        label = line.source.label
        if as_json:
            click.echo(json.dumps({"at": line.at, "source": label, "rank": line.source.rank, "text": line.text}))
        else:
            click.echo(f"[{label}] {line.text}")
