"""The command that holds a site's profile against the cluster: `site check`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, set_option
from slurm_llm.cli.text import NARROW, width
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.observe.checkrows import Row
    from slurm_llm.sitecheck import SiteReport, Wanted
    from slurm_llm.siteprobe import ProbeReport

INDENT, VERDICT = 2, 10
NAME_WIDTH = 14
_COLOURS = {"OK": "green", "NOTE": "cyan", "UNKNOWN": "yellow"}


@click.command()
@click.argument("target", metavar="NAME[:PARTITION]", required=False)
@click.option("--run", "running", is_flag=True, help="Look at the nodes too: submits a job of a minute at most.")
@click.option("-A", "--account", metavar="A", help="Account of the jobs.")
@click.option("--qos", metavar="Q", help="QOS of the jobs.")
@click.option("--nodes", type=click.IntRange(1, 64), metavar="N", help="Nodes of the jobs. Default: 2 where possible.")
@click.option("--image", metavar="IMAGE", help="Image that the ranks run in. Default: the site's own.")
@set_option
@click.option("--keep", is_flag=True, help="Keep the folder of the job that --run submits.")
@json_option
@click.pass_context
def check(
    context: click.Context,
    target: str | None,
    running: bool,
    account: str | None,
    qos: str | None,
    nodes: int | None,
    image: str | None,
    settings: tuple[str, ...],
    keep: bool,
    as_json: bool,
) -> None:
    """Hold a site's profile against the live cluster; without --run no job is created.

    Exit code 3: the profile contradicts the cluster; 6: Slurm refuses a job or does not answer; 4: no job can be
    planned, as without an account.
    """
    from slurm_llm.sitecheck import Wanted, check_site
    from slurm_llm.sites.find import split_target

    around = Surroundings.of_this_process()
    site, partition = split_target(target)
    wanted = Wanted(site, partition, account, nodes, image, qos=qos, settings=settings)
    report = check_site(wanted, around)
    if not as_json:
        _print(_title(report), report.rows)
    probed = _probe(report, wanted, around, keep=keep, as_json=as_json) if running else None
    if as_json:
        click.echo(_json(report, probed))
    context.exit(_exit_code(report, probed))


def _exit_code(report: SiteReport, probed: ProbeReport | None) -> int:
    from slurm_llm.observe.checkrows import exit_code

    return exit_code((*report.rows, *(probed.rows if probed else ())))


def _probe(
    report: SiteReport, wanted: Wanted, around: Surroundings, *, keep: bool, as_json: bool
) -> ProbeReport | None:
    """Run the probe, unless Slurm has just refused as much in that partition."""
    from slurm_llm.observe.sitefacts import topic_of
    from slurm_llm.sitecheck import TRIAL
    from slurm_llm.siteprobe import run_probe

    name = report.site.profile.partition_name(wanted.partition)
    tried = (row for row in report.rows if row.topic == topic_of(name) and row.name == TRIAL)
    if any(row.verdict in ("REFUSED", "UNPLANNED") for row in tried):
        click.echo(f"no job is submitted: partition {name} does not take it", err=True)
        return None
    begun, last = around.monotonic(), ""

    def tell(stage: str) -> None:
        nonlocal last
        if stage != last:
            click.echo(f"{around.monotonic() - begun:6.1f} s  {stage}", err=True)
        last = stage

    probed = run_probe(report, wanted, around, tell, keep=keep)
    if not as_json:
        _print(
            f"\nnodes of partition {probed.partition}" + (f", job {probed.job_id}" if probed.job_id else ""),
            probed.rows,
        )
        if probed.directory is not None:
            click.echo(f"\nwhat the job wrote: {probed.directory}")
    return probed


def _title(report: SiteReport) -> str:
    return f"site {report.site.profile.name}  {report.site.path}"


def _print(title: str, rows: Sequence[Row]) -> None:
    columns = width(sys.stdout.isatty())
    click.echo(click.style(title, bold=True))
    topic = ""
    for row in rows:
        if row.topic != topic:
            click.echo(f"\n{row.topic}")
            topic = row.topic
        click.echo("\n".join(_lines(row, min(columns, 120))))


def _lines(row: Row, columns: int = NARROW) -> Iterator[str]:
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


def _json(report: SiteReport, probed: ProbeReport | None) -> str:
    value = {
        "site": report.site.profile.name,
        "path": str(report.site.path),
        "exit_code": _exit_code(report, probed),
        "rows": [asdict(row) for row in report.rows],
        "probe": None,
    }
    if probed is not None:
        value["probe"] = {
            "partition": probed.partition,
            "job_id": probed.job_id,
            "directory": None if probed.directory is None else str(probed.directory),
            "rows": [asdict(row) for row in probed.rows],
            "records": probed.records,
        }
    return json.dumps(value, indent=1, ensure_ascii=False)
