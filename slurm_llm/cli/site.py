"""Commands of `site`: which module holds which, and those that look at profiles (list, show, detect, diff, schema)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from slurm_llm.cli import LazyGroup
from slurm_llm.cli.options import json_option

if TYPE_CHECKING:
    from slurm_llm.errors import Problem
    from slurm_llm.sites.load import Site
    from slurm_llm.sites.view import Leaf

# Name → module and one line for --help, as in slurm_llm.cli.
SITE_COMMANDS = {
    "list": ("site", "List the profiles; * marks the one of this machine."),
    "show": ("site", "Show a profile's values, and the file that each is from."),
    "detect": ("site", "Say which profile fits this machine, and why."),
    "diff": ("site", "Show where two profiles differ."),
    "lint": ("sitetools", "Name every fault of profile files."),
    "init": ("sitetools", "Draft a profile from the live cluster."),
    "check": ("sitecheck", "Try a profile on the cluster: sbatch --test-only, a probe, a rehearsal."),
    "epilog": ("siteepilog", "Print the Slurm epilog script that removes leftovers."),
    "schema": ("site", "Print the JSON Schema of profile files, for editors."),
}


class SiteGroup(LazyGroup):
    """The commands of `site`."""

    table = SITE_COMMANDS


@click.group(cls=SiteGroup)
def site() -> None:
    """Site profiles: what there is, what is in them, whether they are right.

    NAME is a site's name or the path of a profile.
    """


@click.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the profiles that --site can name, and whose folder each is from; * marks the one of this machine."""
    from slurm_llm.cli.siteview import listed, listed_text
    from slurm_llm.cli.text import width
    from slurm_llm.sites.detect import detect as detect_sites
    from slurm_llm.surroundings import Surroundings

    detection = detect_sites(Surroundings.of_this_process().environ)
    _warn(detection.problems)
    rows = [listed(one, one.name in detection.matches) for one in detection.sites]
    if as_json:
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    tty = sys.stdout.isatty()
    click.echo(listed_text(rows, width(tty), tty))


@click.command()
@click.argument("name", required=False, metavar="[NAME][:PARTITION]")
@click.option("--origin", is_flag=True, help="A line for each value: key = value  # file:line.")
@click.option("--all", "everything", is_flag=True, help="Also defaults that are null or empty.")
@json_option
def show(name: str | None, origin: bool, everything: bool, as_json: bool) -> None:
    """Show the profile NAME, merged from all its files, as one that can be loaded; JSON always has every key.

    With :PARTITION it is what a job there finds: what the partition changes is laid over the rest. Without a name it
    is the profile that a job would take here.
    """
    from slurm_llm.cli.siteview import origin_text, shown_text
    from slurm_llm.observe.redact import Redactor
    from slurm_llm.sites.view import by_item, tree_of

    loaded, partition, rows = _loaded(name)
    hide = Redactor()
    hide.learn_tree(tree_of(rows))
    if as_json and origin:
        found = [{"key": leaf.name, "value": leaf.value, "origin": leaf.origin or "default"} for leaf in rows]
        click.echo(json.dumps(hide.tree(found), indent=1, ensure_ascii=False))
    elif as_json:
        click.echo(json.dumps(hide.tree(tree_of(rows)), indent=1, ensure_ascii=False))
    else:
        kept = [leaf for leaf in rows if everything or not leaf.is_silent]
        if origin:
            kept = [item for leaf in kept for item in by_item(leaf, loaded.document)]
        text = origin_text(loaded, partition, kept) if origin else shown_text(loaded, partition, kept, everything)
        click.echo(hide.text(text), nl=False)


@click.command()
@click.option("--explain", "explained", is_flag=True, help="Every profile's `match`, entry by entry.")
@json_option
@click.pass_context
def detect(context: click.Context, explained: bool, as_json: bool) -> None:
    """Print the name of the one profile whose `match` fits this machine; exit status 3 when none or several do."""
    from slurm_llm.cli.siteview import detection_json, explained_text
    from slurm_llm.errors import SiteError
    from slurm_llm.sites.detect import detect as detect_sites
    from slurm_llm.sites.detect import detected_site, facts_of_this_machine
    from slurm_llm.surroundings import Surroundings

    environ = Surroundings.of_this_process().environ
    facts = facts_of_this_machine(environ)
    detection = detect_sites(environ, facts)
    if as_json:
        click.echo(json.dumps(detection_json(detection, facts), indent=1, ensure_ascii=False))
        context.exit(0 if len(detection.matches) == 1 else SiteError.exit_code)
    if explained:
        click.echo(explained_text(detection, facts))
    found = detected_site(detection, asked="")
    _warn(detection.problems)
    click.echo(found)


@click.command()
@click.argument("first", metavar="A[:PARTITION]")
@click.argument("second", metavar="B[:PARTITION]")
@json_option
def diff(first: str, second: str, as_json: bool) -> None:
    """Show the keys in which two profiles, or partitions of them, differ once they are merged.

    Of two sites, what only says which site it is (name, description, sources, match, ...) is left out.
    """
    from slurm_llm.cli.siteview import diff_json, diff_text
    from slurm_llm.cli.text import width
    from slurm_llm.sites.diff import compare, of_partition

    sides = []
    for target in (first, second):
        _, partition, rows = _loaded(target)
        sides.append(rows if partition is None else of_partition(rows))
    found = compare(*sides)
    if as_json:
        click.echo(json.dumps(diff_json(found), indent=1, ensure_ascii=False))
    elif found:
        click.echo(diff_text(found, first, second, width(sys.stdout.isatty())))
    else:
        click.echo("no difference", err=True)


@click.command()
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of profile files: sites, bases and users' overlays.

    An editor that speaks YAML reads it after `# yaml-language-server: $schema=FILE` on a profile's first line.
    """
    from slurm_llm.sites.jsonschema import profile_schema

    click.echo(json.dumps(profile_schema(), indent=1, ensure_ascii=False))


def _loaded(target: str | None) -> tuple[Site, str | None, list[Leaf]]:
    """Return the site that `target` names, its partition if it names one, and its values."""
    from slurm_llm.sites.find import split_target
    from slurm_llm.sites.load import load_site
    from slurm_llm.sites.view import leaves
    from slurm_llm.surroundings import Surroundings

    name, partition = split_target(target)
    loaded = load_site(name, Surroundings.of_this_process().environ, asked="")
    return loaded, partition, leaves(loaded, partition)


def _warn(problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        click.echo(f"warning: {problem}", err=True)
