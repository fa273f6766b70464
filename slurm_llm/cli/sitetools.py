"""Commands of `site` for those who write profiles: lint checks files, init drafts one from the live cluster."""

from __future__ import annotations

import getpass
import json
import re
import shlex
import socket
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option
from slurm_llm.errors import InputError, Problem
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_llm.sites.lint import Finding

STDOUT = "-"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Exit with an error for warnings too.")
@json_option
@click.pass_context
def lint(context: click.Context, files: tuple[Path, ...], strict: bool, as_json: bool) -> None:
    """Check site profiles: every finding about every FILE, each with its place and what to do.

    Exit status 3 when there is an error (with --strict also a warning), else 0.
    """
    from slurm_llm.containers.lintrules import RULES
    from slurm_llm.sites.lint import lint_file

    around = Surroundings.of_this_process()
    today = date.fromtimestamp(around.now())
    # A base that several profiles extend is told of once.
    findings = list(dict.fromkeys(one for path in files for one in lint_file(path, around.environ, today, RULES)))
    errors = sum(one.severity == "error" for one in findings)
    if as_json:
        click.echo(_json(files, findings))
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(
            f"{_count(len(files), 'file')}: {_count(errors, 'error')}, {_count(len(findings) - errors, 'warning')}"
        )
    context.exit(InputError.exit_code if errors or (strict and findings) else 0)


@click.command()
@click.option("--name", metavar="NAME", help="Name of the profile. Default: the cluster's own.")
@click.option("--out", metavar="FILE", help="File to write, - for standard output. Default: your own site folder.")
def init(name: str | None, out: str | None) -> None:
    """Draft a profile from the cluster that this host submits to: what was read, and what was guessed.

    Nothing is submitted, and no file is overwritten.
    """
    from slurm_llm.sites.draft import draft_profile, site_name
    from slurm_llm.sites.find import Library, site_folders
    from slurm_llm.slurm.survey import survey

    around = Surroundings.of_this_process()
    found = survey(around.slurm(), user=getpass.getuser(), host=socket.gethostname(), environ=around.environ)
    chosen = _checked_name(name or (Path(out).stem if out not in (None, STDOUT) else "") or site_name(found))
    path = None if out == STDOUT else Path(out) if out else site_folders(around.environ)[0].path / f"{chosen}.yaml"
    if path is not None and path.exists():
        raise InputError(Problem(str(path), "this file exists", todo="remove it, or give another --name or --out"))
    known = chosen in Library(around.environ).files
    text = draft_profile(found, name=chosen, today=date.fromtimestamp(around.now()), standalone=known)
    if path is None:
        click.echo(text, nl=False)
        return
    if path.stem != chosen:
        what = f"--name is {chosen}, and --out is called {path.name}"
        click.echo(f"warning: {what}: in a folder of profiles the file must be called {chosen}.yaml", err=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    # x: never over a file that came into being meanwhile.
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)
    _say_next(path, _as_site(out) if out else chosen)


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        allowed = "letters, digits, '.', '_' and '-', a letter or digit first"
        raise InputError(Problem("--name", f"'{name}' cannot be the name of a profile", allowed, "give another --name"))
    return name


def _as_site(out: str) -> str:
    """Return a file's name as --site takes it for a file, not for a profile's name."""
    return out if "/" in out or out.endswith(".yaml") else f"./{out}"


def _say_next(path: Path, site: str) -> None:
    click.echo(f"wrote {path}")
    click.echo("Read it: what is guessed is marked. Then:")
    click.echo(f"  slurm-llm site lint {shlex.quote(str(path))}")
    click.echo(f"  slurm-llm site check {shlex.quote(site)}")
    click.echo(f"  slurm-llm rehearse SPEC --site {shlex.quote(site)} --wait")


def _json(files: Sequence[Path], findings: Sequence[Finding]) -> str:
    value = {"files": [str(path) for path in files], "findings": [one.to_dict() for one in findings]}
    return json.dumps(value, indent=1, ensure_ascii=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
