"""prepare: make what a spec's `prepare` section names and is missing, as Slurm jobs or here; and stages for submit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, spec_options
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.stagerecord import StageRef, StageResult
    from slurm_llm.stages.describing import StageRow
    from slurm_llm.stages.serving import Stages


@click.command()
@spec_options
@click.option("--dry-run", "dry", is_flag=True, help="Print every stage's commands and options; run nothing.")
@click.option("--wait", "waiting", is_flag=True, help="Wait until every stage has ended, or say which one failed.")
@json_option
def prepare(spec: str, site: str | None, settings: tuple[str, ...], dry: bool, waiting: bool, as_json: bool) -> None:
    """Make what SPEC's `prepare` section names and is not there yet."""
    from slurm_llm import app
    from slurm_llm.rundir import stages_folder
    from slurm_llm.stages.chain import submit_stages
    from slurm_llm.stages.describing import describe
    from slurm_llm.stages.serving import find_stages, wait_stages

    around = Surroundings.of_this_process()
    job = app.plan_job(spec, site, settings, around, inspect=False)
    run_dir = app.new_run_dir(job, around)
    stages = find_stages(job, run_dir, around, prepare=True, bench=False)
    if dry:
        rows = describe(job, stages, run_dir, around)
        click.echo(rows_json(rows) if as_json else rows_text(rows))
        return
    refs = submit_stages(job, stages.before, stages_folder(run_dir), around, tell)
    # With --json a waiting `prepare` prints one array, too: the stages as they were submitted.
    click.echo(_told_json(stages, refs) if as_json else _told_text(stages, refs))
    if waiting:
        wait_stages(refs, around, _tell_end)


def tell(text: str) -> None:
    """Print what happens meanwhile to stderr."""
    click.echo(text, err=True)


def _tell_end(ref: StageRef, result: StageResult) -> None:
    took = 0.0 if result.began is None or result.ended is None else result.ended - result.began
    tell(f"stage {ref.name} (job {ref.job_id}): {result.state} after {took:.1f} s")


def _told_text(stages: Stages, refs: Sequence[StageRef]) -> str:
    jobs = {ref.name: ref for ref in refs}
    lines = []
    for one in stages.before:
        product = one.recipe.product.path if one.recipe.product else ""
        state = "made on this machine" if one.needed else f"there already: {one.found.why}".removesuffix(": ")
        ref = jobs.get(one.name)
        lines.append(f"stage {one.name}: " + (f"job {ref.job_id}, in {ref.folder}" if ref else f"{state}, {product}"))
    return "\n".join(lines)


def _told_json(stages: Stages, refs: Sequence[StageRef]) -> str:
    jobs = {ref.name: ref for ref in refs}
    rows = [
        {
            "stage": one.name,
            "product": one.recipe.product.path if one.recipe.product else None,
            "needed": one.needed,
            "job_id": int(jobs[one.name].job_id) if one.name in jobs else None,
            "directory": jobs[one.name].folder if one.name in jobs else None,
        }
        for one in stages.before
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False)


def rows_text(rows: Sequence[StageRow]) -> str:
    """Return every stage's commands and options as people read them."""
    lines = []
    for row in rows:
        lines.append(f"stage {row.stage}: {row.state}")
        named = (
            ("product", row.product),
            ("from", row.source),
            ("where", row.where),
            ("sbatch", shlex.join(row.options)),
            ("inside", shlex.join(row.enter)),
        )
        lines += [f"  {label:<8}{text}" for label, text in named if text]
        lines += [f"  $ {text}" for text in row.commands]
    return "\n".join(lines)


def rows_json(rows: Sequence[StageRow]) -> str:
    """Return the same as JSON."""
    return json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)
