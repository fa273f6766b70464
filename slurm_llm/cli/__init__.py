"""Command line: which module holds which command, and how errors become exit codes. It does no command's work."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from slurm_llm import __version__
from slurm_llm.errors import SlurmLlmError

INTERRUPTED_RC = 130
LONGEST, LONGEST_END = 1000, 250
"""Characters of an error's line that are shown, and how many of them are its end."""

# Name → module and one line for --help, so that neither --help nor another command loads it.
COMMANDS = {
    "validate": ("spec", "Check a spec against a site; print every problem."),
    "plan": ("spec", "Show where every rank runs and what Slurm is asked for."),
    "render": ("spec", "Write a run directory without submitting it."),
    "image": ("image", "Look what the image of a spec holds, and keep that for its checks."),
    "prepare": ("prepare", "Make image, weights and engines that a spec needs and lacks."),
    "submit": ("submit", "Submit a spec; with --wait until it serves."),
    "rehearse": ("submit", "Submit the same job with a tiny model on CPU."),
    "wait": ("submit", "Wait until a run serves."),
    "status": ("watch", "Show how a run is, and why."),
    "logs": ("logs", "Show a run's logs, all ranks merged by time."),
    "health": ("watch", "Show a row for every rank."),
    "top": ("top", "Show a run while it goes on: ranks, memory, requests, queue, times."),
    "list": ("watch", "List the newest runs."),
    "diagnose": ("diagnose", "Say why a run failed, what proves it, and what to do."),
    "bundle": ("diagnose", "Write one archive of a run for a support ticket, without secrets."),
    "report": ("reporting", "Write a run down as one HTML page, without secrets."),
    "endpoint": ("endpoint", "Show how to reach a run: addresses, curl line, tunnel, variables."),
    "metrics": ("metrics", "Show what a run's servers count, with meaning and unit."),
    "bench": ("bench", "Measure a served model, keep and compare the figures."),
    "generate": ("act", "Ask a served model for text."),
    "tunnel": ("tunnel", "Make a run reachable at a port of this machine."),
    "shell": ("shell", "Open a shell, or run a command, where a rank runs."),
    "cancel": ("act", "End a run in order."),
    "clean": ("clean", "Remove old run directories; shows first what it would remove."),
    "site": ("site", "Find, show, compare, check and draft site profiles."),
    "devcluster": ("devcluster", "A real multi-node Slurm on this machine."),
}


@dataclass
class Invocation:
    """What holds for one call of the program."""

    debug: bool = False


def _note_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).debug = True


def _debug_option() -> click.Option:
    text = "Show the traceback of an error."
    return click.Option(["--debug"], is_flag=True, expose_value=False, callback=_note_debug, help=text)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for; `table` says where they are."""

    table: Mapping[str, tuple[str, str]] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(f"slurm_llm.cli.{self.table[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name if cmd_name != "list" else "list_")
        if not any(option.name == "debug" for option in command.params):
            command.params.append(_debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command for a mistyped one."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from slurm_llm.errors import did_you_mean

            hint = did_you_mean(args[0], self.table)
            ctx.fail(f"no command '{args[0]}'" + (f": {hint}" if hint else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of ours and of the system become lines on stderr and an exit code."""
        # Made here, so that the commands' own contexts share it.
        invocation = ctx.ensure_object(Invocation)
        try:
            return super().invoke(ctx)
        except (SlurmLlmError, OSError, KeyboardInterrupt) as error:
            if invocation.debug or isinstance(error, BrokenPipeError):
                raise
            ctx.exit(report(error))


def report(error: BaseException) -> int:
    """Print every problem of `error`, each on a line of its own and without secrets, and return the exit code."""
    from slurm_llm.sites.secrets import redacted

    if isinstance(error, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED_RC
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {_shown(f'{where}{error.strerror or error}')}", err=True)
        return 1
    if isinstance(error, SlurmLlmError):
        for problem in error.problems:
            for line in str(problem).splitlines() or [""]:
                click.echo(f"error: {_shown(redacted(line))}", err=True)
        return error.exit_code
    raise error


def _shown(line: str) -> str:
    """Return a line that quotes somebody's file as a terminal may get it: nothing that steers it, and an end."""
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - LONGEST_END - 3]} … {line[-LONGEST_END:]}"
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slurm-llm")
def cli() -> None:
    """Serve large language models with NVIDIA Triton on a Slurm cluster.

    RUN is a run id or its beginning, a job id, a name or a path; left out, it is the newest run.
    """


cli.params.append(_debug_option())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit."""
    cli.main(args=None if arguments is None else list(arguments), prog_name="slurm-llm")
