"""Commands that measure a served model and show what was measured: bench, bench list, bench diff."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from slurm_llm.cli import LazyGroup
from slurm_llm.cli.options import json_option, run_argument
from slurm_llm.errors import BenchInvalid, Problem, RunNotFound
from slurm_llm.runs import FoundRun, find_run
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.benching.asked import Asked
    from slurm_llm.benching.scene import Scene
    from slurm_llm.observe.benchresults import BenchResult, Load

MEASURE = "run"
BENCH_COMMANDS = {
    MEASURE: ("bench", "Measure a run that is ready: the same as `bench RUN`."),
    "list": ("bench", "List what was measured on a run."),
    "diff": ("bench", "Compare two measurements."),
}
PLACES = ("step", "job", "here")


class BenchGroup(LazyGroup):
    """The commands of `bench`; whatever is none of them is a run to measure, or an option of measuring."""

    table = BENCH_COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command; of a name that is none, the one that measures it."""
        return super().get_command(ctx, cmd_name if cmd_name in self.table else MEASURE)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let `bench RUN --concurrency 4` mean `bench run RUN --concurrency 4`."""
        if not args or (args[0] not in self.table and args[0] not in ("-h", "--help", "--debug")):
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


@click.group(cls=BenchGroup, options_metavar="", subcommand_metavar="[RUN] [OPTIONS] | list [RUN] | diff A B")
def bench() -> None:
    """Measure RUN with a load generator, list what was measured, compare two measurements.

    `slurm-llm bench run --help` shows the options of measuring. The load comes from aiperf (genai-perf or perf_analyzer
    where they are), as a step of the run's job. A measurement that must not be used says why, and the exit code is 11.
    """


def _load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what load is wanted; names are those of `Asked`."""
    whole, positive, text = click.IntRange(1), click.FloatRange(0, min_open=True), str
    rows: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (("--concurrency", "-c"), {"type": whole, "help": "Requests in flight. Default: 1."}),
        (("--requests", "-n"), {"type": whole, "help": "How many. Default: 4 for each in flight, at least 20."}),
        (("--duration",), {"type": positive, "metavar": "S", "help": "For S seconds, in place of --requests."}),
        (("--request-rate",), {"type": positive, "metavar": "R", "help": "R requests a second; -c bounds them then."}),
        (("--arrival",), {"type": click.Choice(("poisson", "constant")), "help": "How they arrive. Default: poisson."}),
        (("--input-tokens",), {"type": text, "metavar": "MEAN[,STDDEV]", "help": "Length of prompts. Default: 128."}),
        (("--output-tokens",), {"type": text, "metavar": "MEAN[,STDDEV]", "help": "Length of answers. Default: 64."}),
        (("--dataset",), {"metavar": "FILE", "help": "Prompts from a file."}),
        (("--lengths",), {"metavar": "FILE", "help": "Lengths with their shares, or histograms, from a file."}),
        (("--streaming/--no-streaming",), {"default": True, "help": "Answers in pieces, or whole."}),
        (("--warmup",), {"type": click.IntRange(0), "metavar": "N", "help": "Requests before that do not count."}),
        (("--seed",), {"type": click.IntRange(0), "default": 0, "help": "Of drawn lengths and prompts. Default: 0."}),
        (("--instance",), {"type": click.IntRange(0), "help": "Only this replica."}),
        (
            ("--endpoint",),
            {"type": click.Choice(("generate", "chat", "completions")), "help": "Triton's, or OpenAI's."},
        ),
        (("--token-ids",), {"is_flag": True, "help": "Token ids to the core model over gRPC (perf_analyzer)."}),
        (("--sweep",), {"metavar": "1,2,4,8", "help": "One measurement for each concurrency, and a plot."}),
        (("--repeat",), {"type": whole, "default": 1, "metavar": "N", "help": "Each N times: then noise is known."}),
    )
    for words, more in reversed(rows):
        command = click.option(*words, **more)(command)
    return command


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say by what and from where."""
    rows: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (
            ("--tool",),
            {"default": "auto", "metavar": "NAME", "help": "aiperf, genai-perf, perf_analyzer, or its path."},
        ),
        (("--tokenizer",), {"default": "", "metavar": "DIR", "help": "Counts tokens. Default: the model's own."}),
        (("--here", "place"), {"flag_value": "here", "help": "On this machine, not as a step of the job."}),
        (("--job", "place"), {"flag_value": "job", "help": "In a small job of its own."}),
        (("--partition",), {"help": "Of that job. Default: the run's."}),
        (("--time",), {"help": "Its limit. Default: 00:30:00."}),
        (("--cpus",), {"type": click.IntRange(1), "help": "For the tool. Default: up to 8 of the job's on a node."}),
        (("--in-image",), {"is_flag": True, "help": "The tool is the run's image's."}),
        (("--dry-run",), {"is_flag": True, "help": "Print the command and its files; run nothing."}),
    )
    for words, more in reversed(rows):
        command = click.option(*words, **more)(command)
    return command


@click.command(name=MEASURE)
@run_argument
@_load_options
@_place_options
@json_option
def run(run: str | None, as_json: bool, dry_run: bool, tool: str, **given: Any) -> None:
    """Measure RUN, which is ready, and keep the result in its directory.

    With --sweep or --repeat there are several, one after the other. While the tool runs nothing else should use the
    server: a measurement during which it did is told apart by Triton's own count, and is invalid.
    """
    from slurm_llm.benching.asked import protocol_of
    from slurm_llm.benching.scene import TOOLS, choose

    around = Surroundings.of_this_process()
    scene, asked, loads = _scene(run, given, around)
    told = {name: _spoken(loads[0], protocol_of(name, asked)) for name in TOOLS}
    programs = choose(scene, told, tool)
    if dry_run:
        _print_plan(scene, told, programs, loads, asked)
        return
    results = _measure(scene, programs, loads, asked)
    _show(scene, results, as_json)
    invalid = [one for one in results if not one.valid]
    if invalid:
        raise BenchInvalid([Problem(f"bench {one.number}", "is invalid", one.reasons[0]) for one in invalid])


def _scene(run: str | None, given: Mapping[str, Any], around: Surroundings) -> tuple[Scene, Asked, list[Load]]:
    from slurm_llm.benching.asked import Asked, loads_of
    from slurm_llm.benching.placing import DEFAULT_TIME, Where
    from slurm_llm.benching.scene import set_scene

    asked = Asked(**{name: given[name] for name in Asked.__dataclass_fields__})
    loads, entries = loads_of(asked, around.cwd)
    where = Where(
        place=given["place"] or PLACES[0],
        cpus=given["cpus"],
        time=given["time"] or DEFAULT_TIME,
        partition=given["partition"],
        in_image=given["in_image"],
    )
    scene = set_scene(
        find_run(run, around), where, around, asked.instance, None if asked.token_ids else given["tokenizer"]
    )
    return replace(scene, entries=entries), asked, loads


def _spoken(load: Load, protocol: str) -> Load:
    return replace(load, protocol=protocol)


def _print_plan(scene: Scene, told: Mapping[str, Load], programs: list[str], loads: list[Load], asked: Asked) -> None:
    """Print what would be started, and every file of the first measurement."""
    from slurm_llm.benching.measuring import plan_one, texts_of
    from slurm_llm.benching.scene import TOOLS, FoundTool

    name = programs[-1].rpartition("/")[2] if len(programs) == 1 else next(one for one in programs if "/" not in one)
    tool = FoundTool(TOOLS[name], programs[0] if len(programs) == 1 else name, "")
    number = 1 + max((int(path.name) for path in scene.paths.benches()), default=0)
    one = plan_one(scene, _spoken(loads[0], told[name].protocol), tool, number)
    click.echo(shlex.join(one.argv))
    for file, text in texts_of(scene, one).items():
        if not file.startswith("tokenizer/"):
            click.echo(f"\n# {one.folder / file}\n{text.rstrip()}")
    more = len(loads) * asked.repeat - 1
    if more:
        click.echo(f"\n# and {more} more: {', '.join(str(load.concurrency) for load in loads)} in flight")


def _measure(scene: Scene, programs: list[str], loads: list[Load], asked: Asked) -> list[BenchResult]:
    """Run every measurement in turn, told on stderr; those after a server that is gone are left out."""
    from slurm_llm.benching.asked import protocol_of
    from slurm_llm.benching.measuring import measure, new_number
    from slurm_llm.benching.scene import find_tool
    from slurm_llm.cli.benchview import begun_text
    from slurm_llm.observe.benchresults import Series

    made: list[BenchResult] = []
    tool, first = find_tool(scene, programs), 0
    sweep = tuple(load.concurrency or 0 for load in loads) if asked.sweep else ()
    for load in loads:
        for repeat in range(1, asked.repeat + 1):
            number = new_number(scene.paths)
            first = first or number
            spoken = _spoken(load, protocol_of(tool.tool.name, asked))
            click.echo(begun_text(number, tool, spoken, scene.where.place, (repeat, asked.repeat)), err=True)
            made.append(measure(scene, spoken, tool, number, Series(first, sweep, repeat, asked.repeat)))
            if made[-1].server_gone:
                return made
    return made


def _show(scene: Scene, results: list[BenchResult], as_json: bool) -> None:
    from slurm_llm.cli.benchview import results_text
    from slurm_llm.observe.benchresults import result_to_json

    if as_json:
        rows = [json.loads(result_to_json(one)) for one in results]
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        click.echo(results_text(results, str(scene.paths.root)))


@click.command(name="list")
@run_argument
@json_option
def list_(run: str | None, as_json: bool) -> None:
    """List what was measured on RUN, oldest first."""
    from slurm_llm.cli.benchview import list_text
    from slurm_llm.observe.benchresults import load_results, result_to_json

    results = load_results(find_run(run, Surroundings.of_this_process()).paths)
    if as_json:
        click.echo(json.dumps([json.loads(result_to_json(one)) for one in results], indent=1, ensure_ascii=False))
    elif results:
        click.echo(list_text(results))
    else:
        click.echo("nothing was measured yet: slurm-llm bench RUN", err=True)


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@json_option
def diff(first: str, second: str, as_json: bool) -> None:
    """Compare two measurements: A and B are numbers of `bench list`, of another run than the newest one RUN:NUMBER.

    One of several repeats stands for all of them. When the two measured different things the exit code is 11.
    """
    from dataclasses import asdict

    from slurm_llm.benching.comparing import compare
    from slurm_llm.cli.benchview import diff_text

    around = Surroundings.of_this_process()
    sides = [_named(text, around) for text in (first, second)]
    made = compare(sides[0], sides[1])
    click.echo(json.dumps(asdict(made), indent=1, ensure_ascii=False) if as_json else diff_text(made, sides))
    if made.hindrances:
        raise BenchInvalid([Problem("not comparable", why) for why in made.hindrances])


def _named(text: str, around: Surroundings) -> list[BenchResult]:
    """Return the measurement that `[RUN:]NUMBER` names, with its repeats.

    Raises:
        RunNotFound: there is none.
    """
    from slurm_llm.observe.benchresults import load_results

    run, _, number = text.rpartition(":")
    found: FoundRun = find_run(run or None, around)
    results = load_results(found.paths)
    one = next((one for one in results if str(one.number) == number), None)
    if one is None:
        known = ", ".join(str(one.number) for one in results) or "none yet"
        raise RunNotFound(Problem(f"run {found.paths.run_id}", f"has no measurement '{number}'", known))
    return [other for other in results if other.repeats(one)] if one.series.repeats > 1 else [one]
