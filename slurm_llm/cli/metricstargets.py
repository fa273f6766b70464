"""What `metrics --sd` does: find the running jobs, and write where their metrics pages are."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_llm.observe.facts import has_result
from slurm_llm.observe.metricstargets import Target, load_target, targets_json
from slurm_llm.observe.status import SlurmWord
from slurm_llm.observe.text import clean
from slurm_llm.ownfiles import replacing, told_of
from slurm_llm.runs import FoundRun, all_runs, ask_slurm
from slurm_llm.slurm.states import RunState, run_state
from slurm_llm.surroundings import Surroundings

NOT_RUNNING = frozenset({RunState.PENDING, RunState.UNKNOWN})


def show_targets(output: str | None, every_s: float | None, around: Surroundings) -> None:
    """Write the list to the file `output`, or print it; with `every_s` again and again, whenever it has changed."""
    before = None
    while True:
        targets, problem = find_targets(around)
        if problem:
            click.echo(f"warning: {clean(problem)}; every job that has not told its end is listed", err=True)
        text = targets_json(targets)
        if output is None:
            click.echo(text, nl=False)
        elif text != before:
            _write(Path(output), text)
            before = text
        if every_s is None:
            return
        around.pause(every_s)


def find_targets(around: Surroundings) -> tuple[list[Target], str]:
    """Return the pages of this user's running jobs, and what Slurm's trouble is if it did not answer.

    Files say which jobs have not ended; one call asks Slurm about those, since a node can die with its job.
    """
    found = [
        (FoundRun(paths, job, pinned=True), target)
        for paths in all_runs(around)
        for job in paths.jobs()
        if not has_result(job) and (target := load_target(paths, job)) is not None
    ]
    words = ask_slurm([run for run, _ in found], around)
    targets = [target for (_, target), word in zip(found, words, strict=True) if _may_run(word)]
    return targets, next((word.problem for word in words if word.problem), "")


def _may_run(word: SlurmWord) -> bool:
    if word.problem:
        return True
    state = run_state(word.facts.state) if word.facts else RunState.UNKNOWN
    return not state.is_terminal and state not in NOT_RUNNING


def _write(path: Path, text: str) -> None:
    """Replace the file as a whole: Prometheus reads it whenever it changes."""
    with told_of(path), replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
