"""Commands that act on a run: generate, cancel."""

from __future__ import annotations

import json
import sys

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.cli.text import status_text, width
from slurm_llm.dialects import Value
from slurm_llm.errors import NotReady, Problem, RunNotFound
from slurm_llm.observe.status import RunStatus, status_to_json
from slurm_llm.observe.text import clean
from slurm_llm.runs import find_run, status_of
from slurm_llm.surroundings import Surroundings


@click.command()
@click.argument("run_and_prompt", nargs=-1, required=True, metavar="[RUN] PROMPT")
@click.option("--stream", "streaming", is_flag=True, help="Print the text piece by piece.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens to write at most.")
@click.option("--param", "given", multiple=True, metavar="NAME=VALUE", help="A sampling parameter: temperature=0.")
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="Print this too: finish_reason, with --json.")
@click.option("--id", "request_id", default="", help="Request id; one is made up otherwise.")
@click.option("--instance", type=click.IntRange(0), help="Which replica; default: the balancer, or the first one.")
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds.")
@json_option
def generate(
    run_and_prompt: tuple[str, ...],
    streaming: bool,
    max_tokens: int | None,
    given: tuple[str, ...],
    outputs: tuple[str, ...],
    request_id: str,
    instance: int | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Ask the model that RUN serves to go on from PROMPT; with one argument it is the prompt for the newest run.

    Ctrl-C cancels the request on the server.
    """
    if len(run_and_prompt) > 2:
        raise click.UsageError("one RUN and one PROMPT: put quotes around a prompt of several words")
    around = Surroundings.of_this_process()
    found = find_run(run_and_prompt[0] if len(run_and_prompt) == 2 else None, around)
    from slurm_llm import triton

    served = triton.Served(*_endpoint(status_of(found, around), instance))
    ask = triton.Ask(run_and_prompt[-1], max_tokens, request_id, timeout_s, _parameters(given), outputs).with_id()
    pieces = triton.answers(served, ask) if streaming else iter([triton.answer(served, ask)])
    for piece in pieces:
        if as_json:
            value = {"id": ask.request_id, "text_output": piece.text, **piece.outputs}
            click.echo(json.dumps(value, ensure_ascii=False))
        else:
            click.echo(_shown(piece.text), nl=False)
    if not as_json:
        click.echo()


def _parameters(given: tuple[str, ...]) -> dict[str, Value]:
    """Return NAME=VALUE words as parameters; a value is JSON where it can be read as such, else text."""
    made: dict[str, Value] = {}
    for word in given:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--param {word}: it must be NAME=VALUE")
        try:
            made[name] = json.loads(text)
        except ValueError:
            made[name] = text
    return made


def _shown(piece: str) -> str:
    """A terminal gets no control characters out of a model's mouth; a pipe gets every one."""
    if not sys.stdout.isatty():
        return piece
    return "\n".join(clean(row) for row in piece.split("\n"))


def _endpoint(status: RunStatus, instance: int | None) -> tuple[str, str, str]:
    for one in status.endpoints:
        if instance in (None, one.instance):
            return one.url, status.model, status.engine
    where = f"run {status.run_id}"
    known = [one.instance for one in status.endpoints if one.instance is not None]
    if known:
        raise NotReady(Problem(where, f"has no instance {instance}", f"0-{max(known)}"))
    what = f"serves nothing: it is {status.state.value}"
    raise NotReady(Problem(where, what, clean(status.cause), f"slurm-llm status {status.run_id}"))


@click.command()
@run_argument
@json_option
def cancel(run: str | None, as_json: bool) -> None:
    """End RUN: out of the queue, or stopped in order where it runs; then nothing of it is left on a node."""
    from slurm_llm import waiting

    around = Surroundings.of_this_process()
    found = find_run(run, around)
    before = status_of(found, around)
    if before.job_id is None:
        raise RunNotFound(Problem(f"run {before.run_id}", "no job of it has begun", todo="`squeue --me` shows jobs"))
    if not before.ended:
        what = f"ending job {before.job_id} ({clean(before.name)}), which is {before.state.value}"
        click.echo("; ".join((what, *map(clean, before.notes))), err=True)
    after = waiting.cancel(found, around)
    tty = sys.stdout.isatty()
    if as_json:
        click.echo(status_to_json(after))
    elif before.ended:
        click.echo(f"job {before.job_id} had ended already: {before.state.value}")
    else:
        click.echo(status_text(after, around.now(), width(tty), tty))
