"""Commands that stop before Slurm: validate, plan, render."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from slurm_llm import app
from slurm_llm.cli.hiding import shown_plan
from slurm_llm.cli.options import json_option, spec_options
from slurm_llm.cli.text import width
from slurm_llm.errors import InputError, Problem
from slurm_llm.plan.asjson import plan_to_json
from slurm_llm.plan.types import Plan
from slurm_llm.record import remember_run
from slurm_llm.surroundings import Surroundings


@click.command()
@spec_options
@json_option
def validate(spec: str, site: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Check SPEC against a site and against itself, without Slurm; every problem is printed."""
    job = app.plan_job(spec, site, settings, Surroundings.of_this_process())
    plan = job.plan
    if as_json:
        click.echo(json.dumps({"valid": True, "name": plan.name, "site": plan.site, "warnings": plan.warnings}))
        return
    warn(plan)
    click.echo(f"valid: {plan.name}, {plan.engine} on {plan.site}: {size_text(plan)}")


@click.command()
@spec_options
@json_option
def plan(spec: str, site: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Show what SPEC becomes: what Slurm is asked for, and where every rank runs."""
    job = app.plan_job(spec, site, settings, Surroundings.of_this_process())
    if as_json:
        click.echo(shown_plan(plan_to_json(job.plan)), nl=False)
        return
    warn(job.plan)
    from slurm_llm.cli.planview import show_plan

    show_plan(job.plan, width(sys.stdout.isatty()))


@click.command()
@spec_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Run directory to write: new or empty.")
@json_option
def render(spec: str, site: str | None, settings: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Write SPEC's run directory to DIR, ready for `sbatch DIR/job.sub`; nothing is submitted."""
    around = Surroundings.of_this_process()
    folder = around.cwd / out.expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(Problem(f"--out {out}", "exists and is not empty", todo="give a new folder"))
    job = app.plan_job(spec, site, settings, around)
    rendered = app.render_job(job, Path(str(folder.resolve())), around)
    app.write_run(rendered)
    remember_run(rendered.paths.root, around.environ)
    warn(job.plan)
    if as_json:
        click.echo(json.dumps({"directory": str(rendered.paths.root), "files": sorted(rendered.texts)}))
    else:
        click.echo(rendered.paths.script)


def warn(plan: Plan, run_dir: Path | None = None) -> None:
    """Print the plan's warnings to stderr, and one on a run directory that other nodes cannot see."""
    texts = list(plan.warnings)
    if run_dir is not None and Path(plan.local_dir) in run_dir.parents:
        where = f"{plan.local_dir} is each node's own: the job will not find its files there"
        texts.append(f"run directory {run_dir}: {where}; set log_root to a folder that all nodes share")
    for text in texts:
        click.echo(f"warning: {text}", err=True)


def size_text(plan: Plan) -> str:
    """Return how large the job is, in words."""
    own = plan.allocation
    ranks = _count(plan.world_size, "rank")
    ranks = f"{plan.replicas} instances of {ranks}" if plan.replicas > 1 else ranks
    spare = f", {own.spare_nodes} spare" if own.spare_nodes else ""
    return f"{ranks} on {_count(own.nodes, 'node')} × {own.ranks_per_node}{spare}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
