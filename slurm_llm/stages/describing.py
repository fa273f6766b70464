"""Stages as they would be submitted, for a dry run: commands, options, and what is there already. Submits nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.app import Job
from slurm_llm.plan import Plan
from slurm_llm.rundir import RunPaths, stages_folder
from slurm_llm.runs import FoundRun
from slurm_llm.stages.bench import bench_work
from slurm_llm.stages.chain import Work, depend_on, render_work
from slurm_llm.stages.planning import LOGIN, PlannedStage
from slurm_llm.stages.recipe import BENCH
from slurm_llm.stages.runner import run_stage
from slurm_llm.stages.serving import Stages
from slurm_llm.surroundings import Surroundings


@dataclass(frozen=True)
class StageRow:
    """One stage in words: `state` says whether it is needed, `options` are sbatch's, `enter` enters the container."""

    stage: str
    state: str
    product: str
    source: str
    where: str
    options: tuple[str, ...]
    enter: tuple[str, ...]
    commands: tuple[str, ...]


def describe(job: Job, stages: Stages, run_dir: Path, around: Surroundings) -> list[StageRow]:
    """Return a row for each stage, in order, the bench last.

    Raises:
        InputError: a path that no script or container can name.
    """
    return list(_rows(job, stages, run_dir, around))


def _rows(job: Job, stages: Stages, run_dir: Path, around: Surroundings) -> Iterator[StageRow]:
    folder, before = stages_folder(run_dir), ""
    for one in stages.before:
        yield _row(one, folder, before, around)
        if one.needed and one.where != LOGIN:
            before = one.name
    if stages.bench is not None and stages.bench_plan is not None:
        paths = RunPaths(run_dir)
        work = bench_work(stages.bench_plan, stages.bench, FoundRun(paths, None), folder / BENCH)
        options, enter = _job_words(work, ("after", "the serving job"), around)
        texts = (shlex.join(stages.bench.command),)
        yield StageRow(BENCH, "to run once the server is ready", "", str(run_dir), "job", options, enter, texts)


def _row(one: PlannedStage, folder: Path, before: str, around: Surroundings) -> StageRow:
    product, recipe = one.recipe.product, one.recipe
    state = "to be made" if one.needed else f"there already ({one.found.why})" if one.found.why else "there already"
    options: tuple[str, ...] = ()
    enter: tuple[str, ...] = ()
    if one.where != LOGIN:
        work = Work(recipe, one.plan, folder / one.name, run_stage)
        options, enter = _job_words(work, ("afterok", before), around)
    return StageRow(
        stage=one.name,
        state=state,
        product=product.path if product else "",
        source=recipe.source,
        where="in a job" if one.where != LOGIN else "on this machine",
        options=options,
        enter=enter if any(command.inside for command in recipe.commands) else (),
        commands=tuple(command.text for command in recipe.commands),
    )


def _job_words(work: Work, after: tuple[str, str], around: Surroundings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    kind, before = after
    plan: Plan = work.plan
    made = render_work(work, plan.python or sys.executable, around)
    return (*made.options, *(depend_on(f"<{before}>", kind) if before else ())), made.enter
