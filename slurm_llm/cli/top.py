"""Command that shows a run while it goes on: top."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.errors import Problem, RunFailed, SetupError
from slurm_llm.runs import find_run
from slurm_llm.slurm.states import RunState
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.cli.toppages import Pages
    from slurm_llm.cli.topranks import Order
    from slurm_llm.cli.topscreen import Screen
    from slurm_llm.cli.topview import View
    from slurm_llm.cli.topwatch import Looker, Watcher
    from slurm_llm.observe.live import Snapshot

REDRAW_S = 1.0
"""How often the picture is drawn anew, for the ages in it, while nothing happens."""
UNSIZED = (80, 24)
MANY = 1_000_000


@click.command()
@run_argument
@click.option("--once", is_flag=True, help="Print one picture as plain text, after two looks.")
@click.option(
    "--interval",
    "every_s",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@json_option
def top(run: str | None, once: bool, every_s: float, as_json: bool) -> None:
    """Show how RUN is while it starts, serves and ends: ranks, memory, requests, queue, times, events.

    Keys: q quits, s sorts otherwise, n and p show the next and the previous page. It ends with the run; the exit code
    is then 0, or 8 when the run ended badly. --json prints what the picture is made of.
    """
    from slurm_llm.cli.toppages import Pages
    from slurm_llm.cli.topwatch import Watcher

    around = Surroundings.of_this_process()
    if not (once or as_json) and (not sys.stdout.isatty() or around.environ.get("TERM", "dumb") == "dumb"):
        raise click.UsageError("the live view needs a terminal: --once prints one picture, --json its figures")
    # One picture is of all instances; while it lives, many are asked in turns.
    pages = Pages(a_look=MANY) if once or as_json else Pages()
    watcher = Watcher(find_run(run, around), around, pages)
    if once or as_json:
        _print(_twice(watcher, pages, every_s, around), as_json, around)
    elif not _is_well(_live(watcher, every_s, around)):
        click.get_current_context().exit(RunFailed.exit_code)


def _twice(watcher: Watcher, pages: Pages, every_s: float, around: Surroundings) -> Snapshot:
    """Return the run after two looks at its servers, that far apart; at once where none serves."""
    snapshot = watcher.look()
    if not snapshot.status.endpoints:
        return snapshot
    began = around.monotonic()
    pages.settle()
    around.pause(max(0.0, every_s - (around.monotonic() - began)))
    watcher.look()
    pages.settle()
    return watcher.look()


def _print(snapshot: Snapshot, as_json: bool, around: Surroundings) -> None:
    from slurm_llm.observe.live import snapshot_to_json

    if as_json:
        click.echo(snapshot_to_json(snapshot))
        return
    click.echo(_plain(snapshot, _view(around)))


def _plain(snapshot: Snapshot, view: View) -> str:
    """Return the picture as text without colours, as large as the terminal, or COLUMNS and LINES, say."""
    from slurm_llm.cli.topview import draw

    size = shutil.get_terminal_size(UNSIZED)
    return "\n".join(line.plain.rstrip() for line in draw(snapshot, size.columns, size.lines, view))


def _view(around: Surroundings) -> View:
    from slurm_llm.cli.topcells import Style
    from slurm_llm.cli.topview import View

    return View(around.now(), Style(has_unicode(around.environ, bool(sys.flags.utf8_mode))))


def has_unicode(environ: Mapping[str, str], utf8_mode: bool) -> bool:
    """Return whether the terminal's locale has UTF-8.

    Python itself sets LC_CTYPE to C.UTF-8 in the C locale, and `utf8_mode` (PEP 538, PEP 540): that says nothing of the
    terminal.
    """
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    if utf8_mode and environ.get("LC_CTYPE") == "C.UTF-8":
        names = ("LC_ALL", "LANG", "LANG")
    value = next((environ[name] for name in names if environ.get(name)), "")
    return "utf8" in value.lower().replace("-", "")


def _is_well(snapshot: Snapshot) -> bool:
    """Return whether the run goes on or has ended as it should: it has served until it was told, or its time was up."""
    status = snapshot.status
    served = status.state is RunState.TIMED_OUT and status.phases.ready is not None
    return not status.ended or status.state is RunState.COMPLETED or served


def _live(watcher: Watcher, every_s: float, around: Surroundings) -> Snapshot:
    """Show the run until it ends or somebody quits; return its last picture, which stays on the terminal when ended."""
    from slurm_llm.cli.topscreen import Screen
    from slurm_llm.cli.topwatch import Looker

    # The first look is made before: what is wrong with RUN is told on an ordinary screen.
    first = watcher.look()
    looker = Looker(watcher, first, every_s)
    if not watcher.over:
        with Screen() as screen:
            looker.start(screen.wake)
            _follow(looker, screen, replace(_view(around), keys=screen.keys, every_s=every_s), around)
    if looker.failure is not None:
        raise looker.failure
    if looker.broke_off:
        raise SetupError(Problem("top", "its looks broke off", todo="`slurm-llm top --once` shows why"))
    if looker.snapshot.status.ended:
        click.echo(_plain(looker.snapshot, _view(around)))
    return looker.snapshot


def _follow(looker: Looker, screen: Screen, view: View, around: Surroundings) -> None:
    """Draw and heed keys until there is nothing more to show."""
    from slurm_llm.cli.topview import draw

    while True:
        going = looker.going
        view = replace(view, now=around.now())
        screen.paint(draw(looker.snapshot, *screen.size(), view))
        if not going:
            return
        for key in screen.wait(REDRAW_S):
            if key in "qQ":
                looker.stop()
                return
            view = replace(view, order=_ordered(view.order, key))


def _ordered(order: Order, key: str) -> Order:
    from slurm_llm.cli.topranks import ORDERS

    if key == "s":
        return replace(order, by=ORDERS[(ORDERS.index(order.by) + 1) % len(ORDERS)], page=0)
    if key in "n ":
        return replace(order, page=order.page + 1)
    return replace(order, page=max(0, order.page - 1)) if key == "p" else order
