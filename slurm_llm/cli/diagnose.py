"""Commands that explain a run: diagnose, bundle."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option, run_argument

if TYPE_CHECKING:
    from slurm_llm.observe.diagnose import RunDiagnosis
    from slurm_llm.observe.facts import Endpoint
    from slurm_llm.observe.replies import Reply
    from slurm_llm.observe.status import RunStatus
    from slurm_llm.runs import FoundRun
    from slurm_llm.surroundings import Surroundings


ASK_S = 5.0
"""How long a model that is called ready has for the answer to one short request."""
ASKED_AT_ONCE = 16


@click.command()
@run_argument
@click.option("--attempt", type=click.IntRange(0), metavar="N", help="Of this start of the job; default: the newest.")
@json_option
def diagnose(run: str | None, attempt: int | None, as_json: bool) -> None:
    """Say why RUN failed: the first cause, what proves it, what to do; or that nothing is wrong.

    A model that is called ready is asked for one token, and has 5 s for it.
    """
    from slurm_llm.cli.diagnoseview import diagnosis_text
    from slurm_llm.cli.text import width
    from slurm_llm.observe.diagnose import diagnosis_to_json
    from slurm_llm.runs import find_run
    from slurm_llm.surroundings import Surroundings

    around = Surroundings.of_this_process()
    own = diagnosed(find_run(run, around), around, attempt)
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
    from slurm_llm.ownfiles import open_new
    from slurm_llm.runs import find_run
    from slurm_llm.surroundings import Surroundings

    around = Surroundings.of_this_process()
    found = find_run(run, around)
    own = diagnosed(found, around)
    path = around.cwd / (output or making.archive_name(found.paths, found.job))
    made = making.collect(found.paths, found.job, reports(own, around), around.environ, log_bytes=log_kib << 10)
    with open_new(path) as stream:
        written = making.write(made, stream, path.name.removesuffix(".tar.gz"))
    click.echo(str(path))
    click.echo(written, err=True)


def diagnosed(found: FoundRun, around: Surroundings, attempt: int | None = None) -> RunDiagnosis:
    """Return the diagnosis of a run's newest attempt, with all that Slurm and the model say, or of an earlier one.

    Raises:
        InputError: there is no attempt of that number.
    """
    from slurm_llm.knownerrors import load_known_errors
    from slurm_llm.observe.diagnose import diagnose_run
    from slurm_llm.observe.slurmwords import SlurmView, ask_about
    from slurm_llm.runs import ask_slurm, evidence_of, status_by

    if attempt is not None and not _is_newest(found, attempt):
        return _earlier(found, around, attempt)
    word = ask_slurm([found], around)[0]
    view = SlurmView(problems=(word.problem,) if word.problem else ())
    if found.job_id is not None and not word.problem:
        view = ask_about(around.slurm(), found.job_id, word.facts)
    status = status_by(found, word, around)
    return diagnose_run(evidence_of(found), status, view, load_known_errors(), _replies(status))


def _is_newest(found: FoundRun, attempt: int) -> bool:
    from slurm_llm.errors import InputError, Problem
    from slurm_llm.runs import current

    job = current(found).job
    numbers = [one.number for one in job.attempts()] if job else []
    if attempt not in numbers:
        there = ", ".join(map(str, numbers)) or "none"
        raise InputError(Problem("--attempt", f"the job has no attempt {attempt}", f"it has: {there}"))
    return attempt == numbers[-1]


def _earlier(found: FoundRun, around: Surroundings, attempt: int) -> RunDiagnosis:
    from slurm_llm.knownerrors import load_known_errors
    from slurm_llm.observe.diagnose import diagnose_earlier
    from slurm_llm.observe.status import SlurmWord
    from slurm_llm.runs import current, evidence_of, status_by

    status = status_by(current(found), SlurmWord(asked=False), around, attempt)
    return diagnose_earlier(evidence_of(found, attempt), status, load_known_errors())


def _replies(status: RunStatus) -> list[Reply]:
    """Ask every instance of a model that is called ready for one token, at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    own = [one for one in status.endpoints if one.instance is not None] if status.ready else []
    if not own:
        return []
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(lambda one: _reply(one, status), own))


def _reply(one: Endpoint, status: RunStatus) -> Reply:
    from slurm_llm.errors import NotReached, NotReady, RequestFailed
    from slurm_llm.observe.keys import headers_of
    from slurm_llm.observe.replies import Reply
    from slurm_llm.triton import Ask, Served, generate

    begun, instance = time.monotonic(), one.instance or 0
    try:
        served = Served(one.url, status.model, status.engine, headers_of(one))
        generate(served, Ask("Hello", max_tokens=1, timeout_s=ASK_S))
    except NotReady as error:
        return Reply(instance, None, str(error), reached=False)
    except NotReached as error:
        return Reply(instance, None, f"{one.url} {error.problems[0].what}", reached=False)
    except RequestFailed as error:
        told = error.problems[0]
        silent = told.what.startswith("no answer within")
        problem = f"a request got {told.what}" if silent else " ".join(f"{one.url} {told.what} {told.allowed}".split())
        return Reply(instance, None, problem)
    return Reply(instance, round(time.monotonic() - begun, 3))


def reports(own: RunDiagnosis, around: Surroundings) -> dict[str, str]:
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
