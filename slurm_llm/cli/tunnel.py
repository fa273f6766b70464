"""Command that makes a run reachable at a port of this machine: tunnel."""

from __future__ import annotations

import asyncio
import json
import platform
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.errors import NotReady, Problem, RunFailed
from slurm_llm.observe import endpoint as handing
from slurm_llm.runs import find_run, status_of
from slurm_llm.surroundings import Surroundings
from slurm_llm.waiting import ended_well, failure_problems

if TYPE_CHECKING:
    from slurm_llm.listening import Listener
    from slurm_llm.observe.facts import Endpoint
    from slurm_llm.observe.status import RunStatus
    from slurm_llm.tunnelling import Tunnel

WAYS = ("auto", "direct", "srun", "ssh")
WORDS = {
    "direct": "straight to {node}",
    "srun": "through a step of the job on {node}",
    "ssh": "through ssh to {node}",
}


@click.command()
@run_argument
@click.option("--port", type=click.IntRange(1, 65535), help="Port here. Default: 8000, or any where that is taken.")
@click.option("--socket", "path", type=click.Path(path_type=Path), help="A socket for you alone, in place of a port.")
@click.option("--via", "way", type=click.Choice(WAYS), default="auto", show_default=True, help="How to get there.")
@click.option("--instance", type=click.IntRange(0), help="Which replica; default: the balancer, or the first one.")
@click.option("--print", "only_print", is_flag=True, help="Print what to type on a laptop, and open nothing.")
@json_option
def tunnel(
    run: str | None,
    port: int | None,
    path: Path | None,
    way: str,
    instance: int | None,
    only_print: bool,
    as_json: bool,
) -> None:
    """Make RUN reachable at a port of this machine's loopback, until Ctrl-C or the end of the run.

    From where the node's ports cannot be reached, all connections go through one small step of the job (--via srun),
    or through ssh to the node. It follows the run when that is started again or handed over.
    """
    if path is not None and (port is not None or only_print):
        raise click.UsageError("--socket is in place of --port, and not for --print")
    around = Surroundings.of_this_process()
    found = find_run(run, around)
    status = status_of(found, around)
    chosen = handing.choose(status, instance)
    if only_print:
        more = (("--via", way) if way != "auto" else ()) + (() if instance is None else ("--instance", str(instance)))
        click.echo("\n".join(_laptop(status, chosen, port or handing.LOCAL_PORT, more, around)))
        return
    from slurm_llm import tunnelling

    listeners = _listen(port, None if path is None else around.cwd / path, both=bool(chosen.openai))

    async def hold() -> RunStatus | None:
        held = tunnelling.Tunnel(found, around, instance, way, _say)
        place = tunnelling.find_place(found, instance)
        if place is None:
            raise NotReady(Problem(f"run {status.run_id}", "serves nothing just now", todo="try again"))
        await held.open(place)
        _head(status, chosen, listeners, held, as_json=as_json)
        return await held.hold([one.socket for one in listeners])

    try:
        ended = asyncio.run(hold())
    finally:
        for one in listeners:
            one.close()
    _end(ended)


def _listen(port: int | None, path: Path | None, *, both: bool) -> list[Listener]:
    """Return where the tunnel listens, for the OpenAI front end too where there is one."""
    from slurm_llm.listening import listen, listen_privately

    if path is not None:
        paths = (path, path.with_name(f"{path.name}.openai"))
        return [listen_privately(one) for one in paths[: 2 if both else 1]]
    first = listen(port, handing.LOCAL_PORT)
    return [first, listen(None, first.port % 65535 + 1)] if both else [first]


def _say(text: str) -> None:
    click.echo(text, err=True)


def _end(status: RunStatus | None) -> None:
    """Tell how the run ended, or, to a person, that the tunnel was closed before; a run that failed is an error."""
    if status is None:
        if sys.stderr.isatty():
            # A terminal shows ^C where the prompt would come next.
            _say("\nclosed")
        return
    if not ended_well(status):
        raise RunFailed(failure_problems(status))
    _say(f"the run has ended: {status.state.value}")


def _head(status: RunStatus, chosen: Endpoint, listeners: list[Listener], held: Tunnel, *, as_json: bool) -> None:
    """Tell that the tunnel is open, and how to use it."""
    assert held.place is not None
    first, node = listeners[0], held.place.node
    openai = [f"{one.url}/v1" for one in listeners[1:]]
    laptop = _forward(listeners, held.around)
    if as_json:
        sockets = [str(one.path) for one in listeners if one.path is not None]
        value = {"url": first.url, "openai": "".join(openai), "sockets": sockets, "via": held.way, "node": node}
        value.update(run_id=status.run_id, job_id=str(held.place.job), model=status.model)
        value.update(key_file=chosen.key_file, laptop=laptop)
        click.echo(json.dumps(value, ensure_ascii=False))
    else:
        click.echo(f"{first.name} is run {status.run_id},\n  {WORDS[held.way].format(node=node)}")
        click.echo(f"  laptop   {laptop}")
        for one, url in zip(listeners[1:], openai, strict=True):
            click.echo(f"  openai   {url}" + ("" if one.path is None else f" at {one.path}"))
        click.echo("\n".join(_try(first, status, chosen)))
        click.echo("Ctrl-C closes it; so does the end of the run.")
    sys.stdout.flush()


def _try(first: Listener, status: RunStatus, chosen: Endpoint) -> Iterator[str]:
    line, *others = handing.curl(first.url, status.model, status.engine, chosen.key_file)
    yield f"  try      {line}"
    if first.path is not None:
        yield f"    --unix-socket {shlex.quote(str(first.path))} \\"
    yield from (f"  {line}" for line in others)


def _login(around: Surroundings) -> str:
    user = around.environ.get("USER") or around.environ.get("LOGNAME", "")
    host = handing.LOGIN_NODE if "SLURM_JOB_ID" in around.environ else platform.node() or handing.LOGIN_NODE
    return shlex.quote(f"{user}@{host}" if user else host)


def _forward(listeners: list[Listener], around: Surroundings) -> str:
    """Return the ssh line that leads from a laptop to the tunnel; a socket is at the usual ports there."""
    ports = [one.port or handing.LOCAL_PORT + index for index, one in enumerate(listeners)]
    forwards = (f"-L {one.forward(port)}" for one, port in zip(listeners, ports, strict=True))
    return " ".join(("ssh -N", *forwards, _login(around)))


def _laptop(
    status: RunStatus, chosen: Endpoint, port: int, more: tuple[str, ...], around: Surroundings
) -> Iterator[str]:
    """Yield what to type on a laptop: a line that opens both ends, here with `more` words, and the plain one."""
    program = Path(sys.argv[0]).resolve()
    words = [str(program)] if program.name == "slurm-llm" else [sys.executable, "-m", "slurm_llm"]
    there = shlex.join((*words, "tunnel", status.directory, "--port", str(port), *more))
    yield f"On your laptop; the model is at http://127.0.0.1:{port} there then:"
    yield f"  ssh -t -L {port}:127.0.0.1:{port} {_login(around)} {shlex.quote(there)}"
    if handing.is_inward(chosen):
        return
    plain = handing.tunnel(chosen, "", "", False, port).command.rpartition(" ")[0]
    yield "Where the login node reaches the node's ports, with nothing running here:"
    yield f"  {plain} {_login(around)}"
