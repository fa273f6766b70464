"""Commands that act on a run: generate, cancel."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.cli.text import status_text, width
from slurm_llm.dialects import Value
from slurm_llm.errors import InputError, Problem, RunNotFound
from slurm_llm.observe.status import status_to_json
from slurm_llm.observe.text import clean
from slurm_llm.runs import find_run, status_of
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.triton import Answer, Served

PART = 2000
"""Characters that are cleaned at a time."""


def _named(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.BadParameter("an empty id names no request")
    return value


@click.command()
@click.argument("run_and_prompt", nargs=-1, metavar="[RUN] PROMPT")
@click.option("--file", "path", type=click.Path(), help="Read the prompt from this file; - is standard input.")
@click.option("--stream/--no-stream", "streaming", default=None, help="Text as it comes; default on a terminal.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens to write at most.")
@click.option("--param", "given", multiple=True, metavar="NAME=VALUE", help="A sampling parameter: temperature=0.")
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="Print this too: finish_reason, with --json.")
@click.option("--request-id", "--id", "request_id", default="", help="One is made up otherwise.")
@click.option("--cancel", "stopped", metavar="ID", callback=_named, help="Stop this request instead of asking.")
@click.option("--instance", type=click.IntRange(0), help="Which replica; default: the balancer, or the first one.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Tell the request's id on standard error, first.")
@json_option
def generate(
    run_and_prompt: tuple[str, ...],
    path: str | None,
    streaming: bool | None,
    max_tokens: int | None,
    given: tuple[str, ...],
    outputs: tuple[str, ...],
    request_id: str,
    stopped: str | None,
    instance: int | None,
    timeout_s: float,
    verbose: bool,
    as_json: bool,
) -> None:
    """Ask the model that RUN serves to go on from PROMPT; with one argument it is the prompt for the newest run.

    PROMPT - is read from standard input. Ctrl-C cancels the request on the server.
    """
    run, word = _run_and_prompt(run_and_prompt, prompted=path is None and stopped is None)
    parameters = _parameters(given)
    prompt = "" if stopped is not None else _prompt(word, path)
    around = Surroundings.of_this_process()
    status = status_of(find_run(run, around), around)
    from slurm_llm import triton
    from slurm_llm.observe.served import served_of

    served = served_of(status, around.environ, instance)
    if stopped is not None:
        _stop(served, stopped, as_json)
        return
    ask = triton.Ask(prompt, max_tokens, request_id, timeout_s, parameters, outputs).with_id()
    if verbose:
        click.echo(f"request {ask.request_id} to {served.url}", err=True)
    as_stream = sys.stdout.isatty() and not as_json if streaming is None else streaming
    _print(triton.answers(served, ask) if as_stream else iter([triton.answer(served, ask)]), ask.request_id, as_json)


def _run_and_prompt(words: tuple[str, ...], prompted: bool) -> tuple[str | None, str]:
    """Return RUN and PROMPT; where the prompt comes from elsewhere there is RUN only."""
    if not prompted:
        if len(words) > 1:
            raise click.UsageError("with --file or --cancel there is RUN and no PROMPT")
        return (words[0] if words else None), ""
    if not words:
        raise click.UsageError("Missing argument PROMPT: a text, or - for standard input")
    if len(words) > 2:
        raise click.UsageError("one RUN and one PROMPT: put quotes around a prompt of several words")
    return (words[0] if len(words) == 2 else None), words[-1]


def _prompt(word: str, path: str | None) -> str:
    """Return the prompt as it is to be sent.

    Raises:
        InputError: it cannot be read, or is no text.
    """
    source = "-" if path is None and word == "-" else path
    if source is None:
        return word
    where = "standard input" if source == "-" else source
    try:
        return (sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()).decode("utf-8")
    except OSError as error:
        raise InputError(Problem(where, f"cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError as error:
        raise InputError(
            Problem(where, f"is no UTF-8 text: byte {error.start} is {error.object[error.start]:#x}")
        ) from None


def _print(pieces: Iterator[Answer], request_id: str, as_json: bool) -> None:
    try:
        for piece in pieces:
            if as_json:
                value = {"id": request_id, "text_output": piece.text, **piece.outputs}
                click.echo(json.dumps(value, ensure_ascii=False))
            else:
                click.echo(_shown(piece.text), nl=False)
    finally:
        # What follows, an error too, begins on a line of its own.
        if not as_json:
            click.echo()


def _stop(served: Served, request_id: str, as_json: bool) -> None:
    from slurm_llm import triton

    triton.stop(served, request_id)
    told = len(served.stops)
    if as_json:
        click.echo(json.dumps({"id": request_id, "servers": told}))
    else:
        click.echo(f"request {clean(request_id)}: told to stop; a server does not say whether it had one")


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
    rows = piece.split("\n")
    # In parts: of a long line `clean` would show its beginning alone.
    return "\n".join("".join(clean(row[at : at + PART]) for at in range(0, len(row), PART)) for row in rows)


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
