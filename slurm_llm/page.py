"""The page of a report: fills its template, with every text escaped, and writes the file whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import markupsafe

from slurm_llm.agent.blind import spans as folded
from slurm_llm.assets import templates_dir
from slurm_llm.errors import InputError, Problem
from slurm_llm.observe.report import Report
from slurm_llm.observe.reportbars import EACH_RANK, draw_attempts, draw_ranks, outstanding
from slurm_llm.observe.reportdraw import Drawing, clock, common_beginning, number, short, span
from slurm_llm.observe.reportheat import Times, draw_states, draw_times, start_times
from slurm_llm.observe.reportplot import draw_series, draw_sweep
from slurm_llm.observe.reporttimes import PHASES, STATES, AttemptLine, RankLine
from slurm_llm.observe.text import clean
from slurm_llm.ownfiles import open_new, replacing, told_of

TEMPLATE = "report.html.j2"
BEGINNING = 1024
"""Bytes at the beginning of a page, in which it says whose report it is."""


@dataclass(frozen=True)
class NodeRow:
    """The ranks of one node, for a table of those that are too many for a row each."""

    node: str
    ranks: str
    gpus: str
    states: str


@dataclass(frozen=True)
class Ranks:
    """How the ranks of one attempt are shown: rows of the timeline, cells when there are many, a table of either.

    `part` tells that not all have a row, `beginning` is what all nodes' names begin with, `seen` are the states there.
    """

    line: AttemptLine
    rows: Drawing | None
    part: bool
    states: Drawing | None
    times: Drawing | None
    spread: Times | None
    beginning: str
    nodes: tuple[NodeRow, ...]
    seen: dict[str, tuple[str, str]]


def render_page(report: Report) -> str:
    """Return the report as one HTML page that needs nothing else."""
    attempts = report.attempts
    begin = min((line.spans[0].begin for line in attempts if line.spans), default=report.made)
    variables: dict[str, object] = {
        "report": report,
        "mark": mark(report.run_id),
        "lanes": draw_attempts(attempts) if any(line.spans for line in attempts) else None,
        "ranks": [_ranks(line) for line in _newest_first(report) if line.ranks],
        "series": draw_series(report.series, begin),
        "sweeps": [draw_sweep(one.points, f"sweep{one.first}", (one.x_of, one.y_of)) for one in report.benches.sweeps],
        "phases": PHASES,
        "states": STATES,
    }
    return _environment().get_template(TEMPLATE).render(variables)


def _newest_first(report: Report) -> Iterator[AttemptLine]:
    """Yield the attempts, the one that is diagnosed first, then the newest ones."""
    if report.main is not None:
        yield report.attempts[report.main]
    yield from (line for place, line in reversed(list(enumerate(report.attempts))) if place != report.main)


def _ranks(line: AttemptLine) -> Ranks:
    many = len(line.ranks) > EACH_RANK
    shown = outstanding(line.ranks)
    times = start_times(line.ranks) if many else None
    name = f"{line.job_id}-{line.attempt}"
    return Ranks(
        line=line,
        rows=draw_ranks(line, shown, f"ranks{name}"),
        part=many,
        states=draw_states(line.ranks, f"states{name}") if many else None,
        times=draw_times(line.ranks, times, f"times{name}") if times else None,
        spread=times,
        beginning=common_beginning([rank.node for rank in line.ranks]) if many else "",
        nodes=tuple(_nodes(line.ranks)) if many else (),
        seen={name: words for name, words in STATES.items() if any(rank.state == name for rank in line.ranks)},
    )


def _nodes(ranks: Sequence[RankLine]) -> Iterator[NodeRow]:
    nodes: dict[str, list[RankLine]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank)
    for name, own in nodes.items():
        counts = {state: sum(rank.state == state for rank in own) for state in STATES}
        states = ", ".join(f"{count} {STATES[state][1]}" for state, count in counts.items() if count)
        gpus = ", ".join(dict.fromkeys(rank.gpus for rank in own if rank.gpus))
        yield NodeRow(name, folded(rank.rank for rank in own), gpus, states)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters.update(span=span, clock=clock, coordinate=number, short=short)
    return environment


def _printable(value: object) -> object:
    """Return a text without what steers a reader's eye or a terminal: no control character, no change of direction."""
    if value is None:
        raise jinja2.UndefinedError("the page printed None")
    return value if isinstance(value, markupsafe.Markup) or not isinstance(value, str) else clean(value)


def mark(run_id: str) -> str:
    """Return what a page says of itself, so that it is known when it is to be written anew."""
    return f"slurm_llm, report of run {clean(run_id)}"


def write_page(path: Path, text: str, run_id: str, force: bool) -> None:
    """Write a page, mode 0600, whole or not at all.

    Raises:
        InputError: there is something else than a report of this run, and not `force`; it is no plain file.
        SetupError: the folder is not there, or the file system refuses.
    """
    with told_of(path):
        _refuse_foreign(path, run_id, force)
        with replacing(path) as draft, open_new(draft) as stream:
            stream.write(text.encode("utf-8", "replace"))
            stream.flush()
            os.fsync(stream.fileno())


def _refuse_foreign(path: Path, run_id: str, force: bool) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(
            Problem(str(path), "is no plain file", todo="name another file with -o, or - for standard output")
        )
    if force or not path.exists():
        return
    with path.open("rb") as stream:
        beginning = stream.read(BEGINNING).decode("utf-8", "replace")
    found = re.search(r'<meta name="generator" content="([^"]*)">', beginning)
    if found is None or found[1] != str(markupsafe.escape(mark(run_id))):
        what, todo = "is there, and is no report of this run", "name another file with -o, or add --force"
        raise InputError(Problem(str(path), what, todo=todo))
