"""Commands that start a job or wait for one: submit, rehearse, wait."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.hiding import hiding
from slurm_llm.cli.options import json_option, run_argument, spec_options
from slurm_llm.cli.slurmoptions import slurm_options
from slurm_llm.cli.text import status_text, width
from slurm_llm.errors import RunFailed
from slurm_llm.observe.status import status_to_json
from slurm_llm.rundir import PLAN
from slurm_llm.runs import FoundRun, find_run
from slurm_llm.surroundings import Surroundings
from slurm_llm.waiting import ended_well, failure_problems, wait_end, wait_ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from slurm_llm.app import Job, Rendered
    from slurm_llm.slurm.commands import Submitted
    from slurm_llm.stages.serving import Stages

TimeoutS = float | None

dry_option = click.option("--dry-run", "dry", is_flag=True, help="Print the files instead of writing and submitting.")
then_option = click.option(
    "--then",
    "client",
    metavar="CMD",
    help="Once it serves, run this shell command in the job, and end the job with it and its exit status.",
)
here_option = click.option(
    "--in-allocation",
    "here",
    is_flag=True,
    help="Run in the allocation of this shell (salloc), in the foreground, instead of submitting a job.",
)
wait_option = click.option(
    "--wait", "waiting", is_flag=True, help="Wait until it serves, or says why not; with a client until the end."
)
timeout_option = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), help="Seconds to wait; the job goes on. Default: no limit."
)
fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="TEXT",
    help="Let one rank fail, such as rank=5,at=load,kind=exit:3; may be repeated. docs/rehearsal.md has the kinds.",
)


def _submit_options(command: Callable[..., None]) -> Callable[..., None]:
    own = dry_option(wait_option(timeout_option(json_option(command))))
    return spec_options(then_option(here_option(slurm_options(own))))


def _with_client(settings: tuple[str, ...], client: str | None) -> tuple[str, ...]:
    """Return the settings with the command of `--then` as the spec's client."""
    words = json.dumps(["bash", "-c", client], ensure_ascii=False)
    return settings if client is None else (*settings, f"client.command={words}")


@click.command()
@click.option("--prepare", is_flag=True, help="First make what the spec's `prepare` section names and is missing.")
@click.option("--bench", is_flag=True, help="Run the spec's `bench` command beside the server once it is ready.")
@_submit_options
def submit(
    spec: str,
    site: str | None,
    settings: tuple[str, ...],
    client: str | None,
    here: bool,
    prepare: bool,
    bench: bool,
    dry: bool,
    waiting: bool,
    timeout_s: TimeoutS,
    as_json: bool,
    options: tuple[str, ...],
) -> None:
    """Plan SPEC, write its run directory and submit it."""
    from slurm_llm import app

    around, settings = Surroundings.of_this_process(), _with_client(settings, client)
    job = app.plan_job(spec, site, settings, around, inspect=not prepare)
    rendered = app.render_job(job, app.new_run_dir(job, around), around)
    stages = None
    if prepare or bench:
        from slurm_llm.stages.serving import find_stages

        stages = find_stages(job, rendered.paths.root, around, prepare=prepare, bench=bench)
        if prepare and not stages.needed:
            # Everything is there, and can be looked at.
            job = app.plan_job(spec, site, settings, around)
            rendered = app.render_job(job, rendered.paths.root, around)
    rendered = replace(rendered, options=options)
    begin = _start_here if here else _start
    begin(job, rendered, around, dry=dry, as_json=as_json, stages=stages)(waiting, timeout_s)


@click.command()
@fault_option
@_submit_options
def rehearse(
    spec: str,
    site: str | None,
    settings: tuple[str, ...],
    client: str | None,
    here: bool,
    faults: tuple[str, ...],
    dry: bool,
    waiting: bool,
    timeout_s: TimeoutS,
    as_json: bool,
    options: tuple[str, ...],
) -> None:
    """Submit what SPEC would start, on the same nodes and ranks, with a tiny model in place of its weights."""
    from slurm_llm import app

    around = Surroundings.of_this_process()
    job = app.plan_job(spec, site, _with_client(settings, client), around, rehearse=True)
    if faults:
        job = _with_faults(job, faults, around)
    what = f"rehearsal of engine {job.rehearsal_of}: " if job.rehearsal_of else ""
    same = "same ranks, nodes and launch"
    if job.rehearsed_launch not in (None, job.plan.launch):
        same = f"a rank for each GPU in {job.plan.launch} mode, in place of its {job.rehearsed_launch} launch"
    text = f"{what}{same}; a tiny model on CPU instead of weights; needs mpi4py and numpy"
    click.echo(text + (" in the image" if job.spec.container else " on the nodes"), err=True)
    rendered = replace(app.render_job(job, app.new_run_dir(job, around), around), options=options)
    begin = _start_here if here else _start
    begin(job, rendered, around, dry=dry, as_json=as_json)(waiting, timeout_s)


@click.command()
@run_argument
@click.option("--for", "until", type=click.Choice(["ready", "end"]), default="ready", show_default=True)
@timeout_option
@json_option
def wait(run: str | None, until: str, timeout_s: TimeoutS, as_json: bool) -> None:
    """Wait until RUN serves, and end with an error as soon as it cannot; or until it has ended, however long it serves.

    With `--for end` a run that failed is an error too.
    """
    around = Surroundings.of_this_process()
    _wait(find_run(run, around), around, timeout_s, as_json, until)


def _with_faults(job: Job, faults: tuple[str, ...], around: Surroundings) -> Job:
    """Plan the rehearsal once more, with the flags' faults in place of the spec's."""
    from slurm_llm import app

    spec = job.spec.model_copy(update={"engine_args": {**job.spec.engine_args, "fault": list(faults)}})
    again = app.make_job(spec, job.site, around)
    return replace(again, rehearsal_of=job.rehearsal_of, rehearsed_launch=job.rehearsed_launch)


def _start(
    job: Job, rendered: Rendered, around: Surroundings, *, dry: bool, as_json: bool, stages: Stages | None = None
) -> Callable[[bool, TimeoutS], None]:
    """Submit the job with its stages, or print it with `dry`; return what waits for it when asked to."""
    from slurm_llm.cli.spec import warn

    warn(job.plan, rendered.paths.root)
    if dry:
        if stages is not None and not as_json:
            click.echo(_dry_stages(job, stages, rendered, around))
        if rendered.options:
            click.echo(f"sbatch would get besides: {' '.join(rendered.options)}", err=True)
        click.echo(_dry_json(rendered) if as_json else _dry_text(rendered), nl=as_json)
        return lambda _waiting, _timeout_s: None
    submitted = _submit(job, rendered, stages, around)
    for warning in submitted.warnings:
        click.echo(f"sbatch: {warning}", err=True)
    job_id = submitted.job_id
    paths = rendered.paths
    told = {"job_id": job_id.number, "run_id": paths.run_id, "directory": str(paths.root)}
    text = json.dumps(told) if as_json else f"submitted job {job_id}, run {paths.run_id}, in {paths.root}"
    found = FoundRun(paths, paths.job(job_id.number))

    def then(waiting: bool, timeout_s: TimeoutS) -> None:
        # With --json a waiting submit prints one object, the status at the end.
        click.echo(text, err=waiting and (as_json or job.plan.client is not None))
        if waiting and job.plan.client is not None:
            from slurm_llm.cli.clientwait import wait_for_client

            sys.exit(wait_for_client(found, around, timeout_s, as_json))
        if waiting:
            _wait(found, around, timeout_s, as_json)

    return then


def _start_here(
    job: Job, rendered: Rendered, around: Surroundings, *, dry: bool, as_json: bool, stages: Stages | None = None
) -> Callable[[bool, TimeoutS], None]:
    """Plan the job for the allocation of this shell; return what runs it, or print it with `dry`."""
    from slurm_llm.cli.here import plan_here, run_here

    if stages is not None or rendered.options:
        raise click.UsageError("--in-allocation submits no job: leave --prepare, --bench and options of sbatch out")
    job, rendered, held = plan_here(job, around)
    if dry:
        click.echo(_dry_json(rendered) if as_json else _dry_text(rendered), nl=as_json)
        return lambda _waiting, _timeout_s: None
    return lambda _waiting, _timeout_s: sys.exit(run_here(job, rendered, held, around, as_json=as_json))


def _submit(job: Job, rendered: Rendered, stages: Stages | None, around: Surroundings) -> Submitted:
    """Submit the job, between its stages where there are any, and tell of those."""
    from slurm_llm import app

    if stages is None:
        return app.submit_job(job, rendered, around)
    from slurm_llm.cli.prepare import tell
    from slurm_llm.stages.serving import submit_chain

    submitted, refs = submit_chain(job, rendered, stages, around, tell)
    for ref in refs:
        tell(f"stage {ref.name}: job {ref.job_id}, in {ref.folder}")
    return submitted


def _dry_stages(job: Job, stages: Stages, rendered: Rendered, around: Surroundings) -> str:
    from slurm_llm.cli.prepare import rows_text
    from slurm_llm.stages.describing import describe

    return rows_text(describe(job, stages, rendered.paths.root, around)) + "\n"


def _wait(found: FoundRun, around: Surroundings, timeout_s: TimeoutS, as_json: bool, until: str = "ready") -> None:
    from slurm_llm.cli.progress import Progress

    with Progress(around) as progress:
        waiting = wait_ready if until == "ready" else wait_end
        status = waiting(found, around, timeout_s, progress.tell)
    if until == "end" and not ended_well(status):
        raise RunFailed(failure_problems(status))
    tty = sys.stdout.isatty()
    click.echo(status_to_json(status) if as_json else status_text(status, around.now(), width(tty), tty))


def _dry_text(rendered: Rendered) -> str:
    """Return every file's name, and the texts of those that differ from job to job; `--json` has them all."""
    hide = hiding(rendered.texts[PLAN])
    names = [*sorted(rendered.texts), *(f"{name} -> {target}" for name, target in sorted(rendered.links.items()))]
    parts = [f"{rendered.paths.root}/", *(f"  {name}" for name in names)]
    for name, text in sorted(rendered.texts.items()):
        if not name.endswith(".py") and not name.startswith("agent/") and name != PLAN:
            parts += ["", f"==> {name} <==", hide(text).removesuffix("\n")]
    return "\n".join(parts) + "\n"


def _dry_json(rendered: Rendered) -> str:
    links = {name: str(target) for name, target in rendered.links.items()}
    hide = hiding(rendered.texts[PLAN])
    files = {name: text if name.startswith("agent/") else hide(text) for name, text in rendered.texts.items()}
    value = {"directory": str(rendered.paths.root), "files": files, "links": links}
    return json.dumps(value, indent=1, ensure_ascii=False)
