"""Commands that explain a run: diagnose, bundle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, run_argument

if TYPE_CHECKING:
    from slurm_llm.observe.diagnose import RunDiagnosis
    from slurm_llm.runs import FoundRun
    from slurm_llm.surroundings import Surroundings


@click.command()
@run_argument
@json_option
def diagnose(run: str | None, as_json: bool) -> None:
    """Say why RUN failed: the first cause, what proves it, what to do; or that nothing is wrong."""
    from slurm_llm.cli.diagnoseview import diagnosis_text
    from slurm_llm.cli.text import width
    from slurm_llm.observe.diagnose import diagnosis_to_json
    from slurm_llm.runs import find_run
    from slurm_llm.surroundings import Surroundings

    around = Surroundings.of_this_process()
    own = diagnosed(find_run(run, around), around)
    click.echo(diagnosis_to_json(own) if as_json else diagnosis_text(own, width(sys.stdout.isatty())))


@click.command()
@run_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; it must not exist.")
@click.option("--log-kib", type=click.IntRange(16), default=1024, show_default=True, help="KiB of a log at most.")
def bundle(run: str | None, output: Path | None, log_kib: int) -> None:
    """Write one archive of RUN for a support ticket: scripts, plan, journals, logs, diagnosis; without secrets.

    Of a log that is longer the middle is left out. Names of users, hosts and folders stay: look before you send it.
    """
    from slurm_llm.observe import bundle as making
    from slurm_llm.runs import find_run
    from slurm_llm.surroundings import Surroundings

    around = Surroundings.of_this_process()
    found = find_run(run, around)
    own = diagnosed(found, around)
    path = around.cwd / (output or making.archive_name(found.paths, found.job))
    made = making.collect(found.paths, found.job, _reports(own, around), around.environ, log_bytes=log_kib << 10)
    with path.open("xb") as stream:
        path.chmod(0o600)
        written = making.write(made, stream, path.name.removesuffix(".tar.gz"))
    click.echo(str(path))
    click.echo(written, err=True)


def diagnosed(found: FoundRun, around: Surroundings) -> RunDiagnosis:
    """Return the diagnosis of a run, with all that Slurm says of it."""
    from slurm_llm.knownerrors import load_known_errors
    from slurm_llm.observe.diagnose import diagnose_run
    from slurm_llm.observe.slurmwords import SlurmView, ask_about
    from slurm_llm.runs import ask_slurm, evidence_of, status_by

    word = ask_slurm([found], around)[0]
    view = SlurmView(problems=(word.problem,) if word.problem else ())
    if found.job_id is not None and not word.problem:
        view = ask_about(around.slurm(), found.job_id, word.facts)
    return diagnose_run(evidence_of(found), status_by(found, word, around), view, load_known_errors())


def _reports(own: RunDiagnosis, around: Surroundings) -> dict[str, str]:
    """Return name → text of what is not in the run directory."""
    from slurm_llm.cli.diagnoseview import diagnosis_text
    from slurm_llm.cli.text import NARROW, status_text
    from slurm_llm.observe.diagnose import diagnosis_to_json
    from slurm_llm.observe.status import status_to_json

    return {
        "diagnosis.txt": click.unstyle(diagnosis_text(own, NARROW)) + "\n",
        "diagnosis.json": diagnosis_to_json(own) + "\n",
        "status.txt": click.unstyle(status_text(own.status, around.now(), NARROW, False)) + "\n",
        "status.json": status_to_json(own.status) + "\n",
    }
