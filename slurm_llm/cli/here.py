"""What `submit --in-allocation` does: plan for the allocation of this shell, and run the script here until it ends."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from slurm_llm import app, inallocation
from slurm_llm.cli.spec import warn
from slurm_llm.cli.text import status_text, width
from slurm_llm.observe.status import status_to_json
from slurm_llm.observe.text import clean
from slurm_llm.runs import status_of

if TYPE_CHECKING:
    from slurm_llm.app import Job, Rendered
    from slurm_llm.inallocation import Held
    from slurm_llm.surroundings import Surroundings


def plan_here(job: Job, around: Surroundings) -> tuple[Job, Rendered, Held]:
    """Return the job as it is for the allocation of this shell, and its files.

    Raises:
        SetupError: there is no allocation; PlanError: it has not got what the job needs.
    """
    held = inallocation.find_held(around)
    job = inallocation.fit(job, held, around)
    rendered = app.render_job(job, app.new_run_dir(job, around), around)
    warn(job.plan, rendered.paths.root)
    return job, rendered, held


def note(text: str) -> None:
    """Tell what is done here, beside the script's own words."""
    click.echo(text, err=True)


def run_here(job: Job, rendered: Rendered, held: Held, around: Surroundings, *, as_json: bool) -> int:
    """Run the script until it ends, and return its exit status; its words go to stdout, with `as_json` to stderr.

    Raises:
        SetupError: another run is in the allocation, or files cannot be written.
    """
    with inallocation.alone(held, around):
        found = inallocation.begin(rendered, held, around)
        until = inallocation.limits(held, around)
        nodes = f"in job {held.job_id}" + (f", which {until}" if until else "")
        note(f"run {rendered.paths.run_id} {nodes}; Ctrl-C ends the server")

        def say(text: str) -> None:
            click.echo(clean(text) if sys.stdout.isatty() else text, err=as_json)

        code = inallocation.start(job, found, held, around, say, note).follow()
    # Its files say how it ended; the job goes on, and Slurm has nothing to add.
    status = replace(status_of(found, around), guest=True)
    tty = sys.stderr.isatty()
    click.echo(
        status_to_json(status) if as_json else status_text(status, around.now(), width(tty), tty), err=not as_json
    )
    return code
