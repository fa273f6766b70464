"""Command that opens a shell where a rank runs, or runs a command there: shell."""

from __future__ import annotations

import sys

import click

from slurm_llm.cli.options import run_argument
from slurm_llm.errors import Problem, SetupError
from slurm_llm.runs import find_run, status_of
from slurm_llm.slurm.client import scrub_environment
from slurm_llm.surroundings import Surroundings

AFTER = "slurm_llm.after_dashes"


class WithCommand(click.Command):
    """A command that takes what stands behind `--` as the words of another one, and leaves them as they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words behind the first `--`; parse the others."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[AFTER] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the words in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@click.command(cls=WithCommand)
@run_argument
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Whose place and environment.")
@click.option("--print", "only_print", is_flag=True, help="Print the srun line instead of running it.")
@click.pass_context
def shell(context: click.Context, run: str | None, rank: int, only_print: bool) -> None:
    """Open a shell where a rank of RUN runs: its node, container, variables and GPUs, in the run directory.

    Behind `--` stands a command to run there instead; its exit status is this one's. The run does not notice either.
    """
    from slurm_llm.entering import find_side, shell_words

    words: tuple[str, ...] = context.meta[AFTER]
    around = Surroundings.of_this_process()
    found = find_run(run, around)
    side = find_side(found, status_of(found, around), rank)
    pty = sys.stdin.isatty() and sys.stdout.isatty()
    argv = shell_words(side, rank, words, pty=pty)
    if only_print:
        import shlex

        click.echo(shlex.join(argv))
        return
    if pty:
        click.echo(f"rank {rank} of job {side.job.number}, on {side.node}; it ends with the job", err=True)
    _become(argv, around)


def _become(argv: tuple[str, ...], around: Surroundings) -> None:
    from slurm_llm.process import become

    try:
        become(argv, env=scrub_environment(around.environ))
    except OSError as error:
        raise SetupError(Problem("srun", str(error.strerror), todo="run this where jobs are submitted")) from None
