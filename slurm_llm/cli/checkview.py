"""How a checked site is shown: its rows on a terminal, and all of it as JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from slurm_llm.cli.text import NARROW, width

if TYPE_CHECKING:
    from slurm_llm.observe.checkrows import Row
    from slurm_llm.sitecheck import SiteReport, Wanted
    from slurm_llm.siteprobe import ProbeReport
    from slurm_llm.siterehearsal import Rehearsal
    from slurm_llm.surroundings import Surroundings

INDENT, VERDICT = 2, 10
NAME_WIDTH = 14
_COLOURS = {"OK": "green", "NOTE": "cyan", "UNKNOWN": "yellow"}


@dataclass(frozen=True)
class Session:
    """A check that goes on: what Slurm said, how jobs are wanted, and how it is told of; `quiet` where JSON follows."""

    report: SiteReport
    wanted: Wanted
    around: Surroundings
    quiet: bool
    keep: bool

    def show(self, title: str, rows: Sequence[Row]) -> None:
        """Print rows under a heading."""
        self.tell(rows_text(title, rows, width(sys.stdout.isatty())))

    def tell(self, text: str) -> None:
        """Print a text, unless JSON is to stand alone."""
        if not self.quiet:
            click.echo(text)


class Stages:
    """Tells on stderr what a job does, a line for each change."""

    def __init__(self, around: Surroundings) -> None:
        self._around, self._begun, self._last = around, around.monotonic(), ""

    def tell(self, stage: str) -> None:
        """Tell a stage, unless it is the last one."""
        if stage != self._last:
            click.echo(f"{self._around.monotonic() - self._begun:6.1f} s  {stage}", err=True)
        self._last = stage


def site_title(report: SiteReport) -> str:
    """Return the heading of what Slurm said."""
    return f"site {report.site.profile.name}  {report.site.path}"


def probe_title(probed: ProbeReport) -> str:
    """Return the heading of what a probe saw."""
    return f"nodes of partition {probed.partition}" + (f", job {probed.job_id}" if probed.job_id else "")


def rehearsal_title(rehearsed: Rehearsal) -> str:
    """Return the heading of what a rehearsal showed."""
    return f"a server on partition {rehearsed.partition}"


def rows_text(title: str, rows: Sequence[Row], columns: int = NARROW) -> str:
    """Return a heading and rows under their topics."""
    lines, topic = [click.style(title, bold=True)], ""
    for row in rows:
        if row.topic != topic:
            lines += ["", row.topic]
            topic = row.topic
        lines += _lines(row, min(columns, 120))
    return "\n".join(lines)


def _lines(row: Row, columns: int) -> Iterator[str]:
    """Yield a row: verdict, name and finding; then, unless all is well, the profile's value and what to do."""
    verdict = row.verdict.value
    texts = [row.found]
    if verdict != "OK":
        whose = "the job has" if verdict == "REFUSED" else "the profile has"
        told = f"{whose} {row.profile}" if row.profile else ""
        texts.append(", ".join(part for part in (told, row.where) if part))
        texts.append(row.todo if row.todo.startswith(f"{row.key}:") else ": ".join(p for p in (row.key, row.todo) if p))
    head = (
        " " * INDENT
        + click.style(f"{verdict:<{VERDICT}}", fg=_COLOURS.get(verdict, "red"))
        + f"{row.name:<{NAME_WIDTH}}"
    )
    indent = INDENT + VERDICT + NAME_WIDTH + 1
    first = True
    for text in filter(None, texts):
        for line in textwrap.wrap(text, max(30, columns - indent), break_long_words=False, break_on_hyphens=False):
            yield (head + " " if first else " " * indent) + line
            first = False


def report_value(report: SiteReport, probed: ProbeReport | None, rehearsed: Rehearsal | None) -> dict[str, Any]:
    """Return everything that was seen as values of JSON, every record of every rank of a probe included."""
    from slurm_llm.observe.checkrows import exit_code

    rows = (*report.rows, *(probed.rows if probed else ()), *(rehearsed.rows if rehearsed else ()))
    return {
        "site": report.site.profile.name,
        "path": str(report.site.path),
        "exit_code": exit_code(rows),
        "rows": [asdict(row) for row in report.rows],
        "probe": None if probed is None else _probe_value(probed),
        "rehearsal": None if rehearsed is None else _rehearsal_value(rehearsed),
    }


def json_text(value: dict[str, Any]) -> str:
    """Return such values as text."""
    return json.dumps(value, indent=1, ensure_ascii=False)


def _probe_value(probed: ProbeReport) -> dict[str, Any]:
    return {
        "partition": probed.partition,
        "job_id": probed.job_id,
        "directory": None if probed.directory is None else str(probed.directory),
        "rows": [asdict(row) for row in probed.rows],
        "records": probed.records,
    }


def _rehearsal_value(rehearsed: Rehearsal) -> dict[str, Any]:
    found = rehearsed.found
    return {
        "partition": rehearsed.partition,
        "job_id": None if found is None or found.job is None else found.job.job_id,
        "directory": None if found is None else str(found.paths.root),
        "rows": [asdict(row) for row in rehearsed.rows],
        "ranks": [asdict(one) for one in rehearsed.ranks],
        "devices": {str(rank): device for rank, device in rehearsed.devices.items()},
    }
