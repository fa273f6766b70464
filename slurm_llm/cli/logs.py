"""The command that shows logs: the last lines, all that are wanted, and those that come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.runs import find_run
from slurm_llm.surroundings import Surroundings

OTHERS = ("srun", "job", "agents", "preflight", "staging", "balancer", "client")
_OPTIONS = (
    click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks, such as 0,8-15."),
    click.option("--node", "nodes", metavar="NODES", help="Only ranks on these nodes, such as node[1-4]."),
    click.option("--instance", type=click.IntRange(0), metavar="N", help="Only this replica: its ranks, and its srun."),
    click.option("--source", "others", multiple=True, type=click.Choice(OTHERS), help="Only these other logs."),
    click.option("--attempt", metavar="N", help="That start of the server, or `all`. Default: the newest one."),
    click.option("--level", type=click.Choice(("error", "warning", "info")), help="Only lines so bad or worse."),
    click.option("--grep", metavar="REGEX", help="Only lines in which this (Python) expression is found."),
    click.option("-i", "ignore_case", is_flag=True, help="Let --grep take small and capital letters for the same."),
    click.option("--since", metavar="TIME", help="Only from then on: 10m, 2h (ago), 14:30, 2026-11-30T14:30."),
    click.option("--until", metavar="TIME", help="Only up to then."),
    click.option("-n", "lines", metavar="N", help="The last N lines, or `all`. Default: 100; all that a filter finds."),
    click.option("--fold/--no-fold", default=None, help="Show once what ranks say alike. Default: on a terminal."),
    click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run ends."),
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@run_argument
@_options
@json_option
def logs(run: str | None, fold: bool | None, following: bool, as_json: bool, **asked: Any) -> None:
    """Show the logs of RUN's newest attempt merged by time, with the ranks in front of each line.

    Beside those of the ranks: what srun said, the job's own output, the node agents', the preflight's, the balancer's
    and the client's. Options that choose lines combine: all of them must hold.
    """
    from slurm_llm.cli.logschoice import Asked, View, question
    from slurm_llm.cli.logsview import Printer
    from slurm_llm.observe import logs as reading

    around = Surroundings.of_this_process()
    put = question(Asked(**asked), around.now())
    view = View(find_run(run, around), put)
    view.check()
    is_terminal = sys.stdout.isatty()
    printer = Printer(as_json, is_terminal, around.environ, around.monotonic)
    sources = view.sources()
    ends = reading.whole_ends(sources) if following else None
    folds = fold if fold is not None else is_terminal and not as_json
    if put.count is None:
        printer.show(reading.every(sources, put.wanted, view.folding(folds), ends))
    else:
        printer.show(reading.last(sources, put.wanted, put.count, view.folding(folds), ends))
    if following:
        source = reading.Following(view.sources, view.ending(around), around.pause, around.monotonic)
        for batch in reading.followed(source, put.wanted, view.folding(folds), ends or {}):
            printer.show(batch)
    elif not printer.printed and put.count != 0:
        click.echo("no such line" if sources else "no log yet", err=True)
