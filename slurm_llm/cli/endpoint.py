"""Command that says how to reach a run: endpoint."""

from __future__ import annotations

import platform
import textwrap
import time
from collections.abc import Iterator

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.observe import endpoint as handing
from slurm_llm.observe.facts import Endpoint
from slurm_llm.observe.keys import GRPC_PREFIX
from slurm_llm.observe.status import RunStatus
from slurm_llm.observe.text import clean
from slurm_llm.runs import find_run, status_of
from slurm_llm.slurm.formats import format_time
from slurm_llm.surroundings import Surroundings

LABEL = 11
COLUMNS = 80


@click.command()
@run_argument
@click.option("--env", "as_env", is_flag=True, help='Print variables: eval "$(slurm-llm endpoint --env)"')
@json_option
def endpoint(run: str | None, as_env: bool, as_json: bool) -> None:
    """Show how to reach RUN: addresses, a curl line, a tunnel for a laptop, and when its job ends.

    While it does not serve: one line that says why, and exit code 9.
    """
    if as_env and as_json:
        raise click.UsageError("--env or --json, not both")
    around = Surroundings.of_this_process()
    status = status_of(find_run(run, around), around)
    if as_env:
        click.echo(handing.shell_lines(handing.variables(status)))
        return
    user = around.environ.get("USER") or around.environ.get("LOGNAME", "")
    reach = handing.tunnel(handing.serving(status)[0], user, platform.node(), "SLURM_JOB_ID" in around.environ)
    if as_json:
        click.echo(handing.endpoint_to_json(status, reach, around.now()))
    else:
        click.echo("\n".join(_lines(status, reach, around.now())))


def _lines(status: RunStatus, reach: handing.Tunnel, now: float) -> Iterator[str]:
    first, *others = status.endpoints
    if not status.ready:
        yield from _wrapped("state", f"{status.state.value} {clean(status.cause)}".rstrip())
    yield _row("url", first.url)
    yield _row("model", f"{status.model}  engine {status.engine}")
    if first.balancer:
        yield _row("balancer", f"{first.balancer} before {len(others)} instances")
    if first.openai:
        yield _row("openai", first.openai)
    for one in status.endpoints:
        yield from _instance(one)
    if first.exporter:
        yield _row("exporter", first.exporter)
    if first.key_file:
        yield _row("key", first.key_file)
        yield _row("", f"a header; for gRPC, {GRPC_PREFIX} goes before its name")
    yield _row("ends", _end(status, now))
    for note in status.notes:
        yield from _wrapped("note", clean(note))
    # Commands are never cut or wrapped: they are there to be copied.
    first_line, *more = handing.curl_of(status)
    yield _row("try", first_line)
    yield from (f"  {line}" for line in more)
    if handing.is_inward(first):
        yield from _wrapped("reach", f"on its node alone: `slurm-llm tunnel {status.run_id}` opens it here")
        return
    yield _row("laptop", "on it, then use " + " and ".join(filter(None, (reach.url, reach.openai))))
    yield f"    {reach.command}"
    yield from _wrapped("", f"({reach.guessed})")


def _instance(one: Endpoint) -> Iterator[str]:
    if one.instance is None:
        return
    yield _row(f"instance {one.instance}", one.url)
    yield _row("  grpc", one.grpc)
    yield _row("  metrics", one.metrics)


def _end(status: RunStatus, now: float) -> str:
    moment = handing.ends_at(status, now)
    if moment is None or status.time_left_s is None:
        return "Slurm says no time limit" if status.slurm_answered else "not known: Slurm did not answer"
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    return f"{clock}, in {format_time(status.time_left_s)}, with job {status.job_id}"


def _row(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"


def _wrapped(label: str, text: str) -> Iterator[str]:
    rows = textwrap.wrap(text, COLUMNS - LABEL - 2, break_long_words=False, break_on_hyphens=False)
    return (_row("" if place else label, row) for place, row in enumerate(rows))
