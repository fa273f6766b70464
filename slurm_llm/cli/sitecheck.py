"""The command that holds a site's profile against the cluster: `site check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slurm_llm.cli.checkview import Session, Stages, json_text, probe_title, report_value, site_title
from slurm_llm.cli.options import json_option, set_option
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from slurm_llm.siteprobe import ProbeReport

_RUN = "Look at the nodes too: submits a job of a minute at most."
_REHEARSE = "Then serve a tiny model on whole nodes, and write one archive of all that was seen, to send back."
_DEVICE = "With --rehearse: what the ranks compute on; cuda needs PyTorch there."


def _job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which jobs there are, and how they are to be."""
    for option in reversed(
        (
            click.option("--run", "running", is_flag=True, help=_RUN),
            click.option("--rehearse", is_flag=True, help=_REHEARSE),
            click.option(
                "--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True, help=_DEVICE
            ),
            click.option("-A", "--account", metavar="A", help="Account of the jobs."),
            click.option("--qos", metavar="Q", help="QOS of the jobs."),
            click.option(
                "--nodes", type=click.IntRange(1, 64), metavar="N", help="Nodes of the jobs. Default: 2 where possible."
            ),
            click.option("--image", metavar="IMAGE", help="Image that the ranks run in. Default: the site's own."),
        )
    ):
        command = option(command)
    return command


@click.command()
@click.argument("target", metavar="NAME[:PARTITION]", required=False)
@_job_options
@set_option
@click.option("--keep", is_flag=True, help="Keep the folders of the jobs that --run and --rehearse submit.")
@json_option
@click.pass_context
def check(
    context: click.Context,
    target: str | None,
    running: bool,
    rehearse: bool,
    device: str,
    account: str | None,
    qos: str | None,
    nodes: int | None,
    image: str | None,
    settings: tuple[str, ...],
    keep: bool,
    as_json: bool,
) -> None:
    """Hold a site's profile against the live cluster; without --run or --rehearse no job is created.

    Exit code 3: the profile contradicts the cluster; 6: Slurm refuses a job or does not answer; 4: no job can be
    planned, as without an account.
    """
    from slurm_llm.sitecheck import Wanted, check_site
    from slurm_llm.sites.find import split_target

    if device != "cpu" and not rehearse:
        raise click.UsageError("--device is for --rehearse")
    around = Surroundings.of_this_process()
    site, partition = split_target(target)
    wanted = Wanted(site, partition, account, nodes, image, qos=qos, settings=settings)
    session = Session(check_site(wanted, around), wanted, around, quiet=as_json, keep=keep)
    session.show(site_title(session.report), session.report.rows)
    probed = _probe(session) if running or rehearse else None
    value = report_value(session.report, probed, None)
    if rehearse:
        from slurm_llm.cli.siterehearsal import rehearse_site

        value = rehearse_site(session, probed, cuda=device == "cuda")
    if as_json:
        click.echo(json_text(value))
    context.exit(value["exit_code"])


def _probe(session: Session) -> ProbeReport | None:
    """Run the probe, unless Slurm has just refused as much in that partition."""
    from slurm_llm.observe.sitefacts import topic_of
    from slurm_llm.sitecheck import TRIAL
    from slurm_llm.siteprobe import run_probe

    report, wanted = session.report, session.wanted
    name = report.site.profile.partition_name(wanted.partition)
    tried = (row for row in report.rows if row.topic == topic_of(name) and row.name == TRIAL)
    if any(row.verdict in ("REFUSED", "UNPLANNED") for row in tried):
        click.echo(f"no job is submitted: partition {name} does not take it", err=True)
        return None
    probed = run_probe(report, wanted, session.around, Stages(session.around).tell, keep=session.keep)
    session.show(f"\n{probe_title(probed)}", probed.rows)
    if probed.directory is not None:
        session.tell(f"\nwhat the job wrote: {probed.directory}")
    return probed
