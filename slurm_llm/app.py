"""Use cases: the only place that wires files, clock, randomness, environment and Slurm together."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_llm import __version__
from slurm_llm.errors import InputError, PlanError, Problem, SetupError, SubmitError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.process import TIMEOUT_RC
from slurm_llm.record import RunRecord, Submission, record_to_json, remember_run
from slurm_llm.render import Target, render
from slurm_llm.rundir import LOG_ROOT, RECORD, SITE, SPEC, TRITON, RunPaths, run_name
from slurm_llm.sites.load import Site, load_site
from slurm_llm.slurm.commands import PartitionFacts, Submitted
from slurm_llm.spec import JobSpec, load_spec
from slurm_llm.surroundings import Surroundings
from slurm_llm.tritonhome import wheel_links
from slurm_llm.yamlio import dump


@dataclass(frozen=True)
class Job:
    """A spec on a site, with its plan."""

    spec: JobSpec
    site: Site
    plan: Plan
    rehearsal_of: str | None = None


@dataclass(frozen=True)
class Rendered:
    """Every file of a run directory: texts and links by relative path; nothing is written yet."""

    paths: RunPaths
    texts: dict[str, str]
    links: dict[str, Path]


def plan_job(
    spec_path: str | Path,
    site_name: str | None,
    settings: Sequence[str],
    around: Surroundings,
    *,
    rehearse: bool = False,
) -> Job:
    """Load spec and site and plan the job; `rehearse` turns the spec into one of the rehearsal engine.

    Raises:
        SpecError, SiteError, PlanError: every problem of the first stage that has any.
    """
    problems: list[Problem] = []
    spec: JobSpec | None = None
    site: Site | None = None
    failure: InputError | None = None
    try:
        spec = load_spec(spec_path, settings)
    except InputError as error:
        problems += error.problems
        failure = error
    try:
        site = load_site(site_name, around.environ)
    except InputError as error:
        problems += error.problems
        failure = failure or error
    if spec is None or site is None:
        raise type(failure)(problems) if failure else InputError(problems)
    return make_job(spec, site, rehearse=rehearse)


def make_job(spec: JobSpec, site: Site, *, rehearse: bool = False) -> Job:
    """Plan `spec` on `site`; see `plan_job`."""
    original = spec.engine
    if rehearse and original != "rehearsal":
        triton = spec.triton.model_copy(update={"extra_args": ()})
        spec = spec.model_copy(update={"engine": "rehearsal", "engine_args": {}, "triton": triton})
    return Job(spec, site, build_plan(spec, site.profile), original if original != spec.engine else None)


def log_root(job: Job, around: Surroundings) -> Path:
    """Return the absolute folder of run directories: spec, then site (with $VARIABLES), then ./logs."""
    text = job.spec.log_root or job.site.profile.storage.logs or LOG_ROOT
    expanded = _expand(text, around.environ)
    return Path(os.path.normpath(around.cwd / expanded))


def _expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace `~` and `$NAME`; Slurm itself expands neither in file names.

    Raises:
        InputError: a variable that is not set.
    """
    if text == "~" or text.startswith("~/"):
        text = environ.get("HOME", "~") + text[1:]
    parts = text.split("$")
    result = parts[0]
    for part in parts[1:]:
        name = part[1 : part.find("}")] if part.startswith("{") and "}" in part else _name_at(part)
        if not name:
            what = f"'{text}' holds a $ that names no variable"
            raise InputError(Problem("log_root", what, "$NAME or ${NAME}; nothing else is expanded"))
        if name not in environ:
            raise InputError(Problem("log_root", f"'{text}' uses ${name}, which is not set", todo=f"export {name}"))
        result += environ[name] + part[len(name) + (2 if part.startswith("{") else 0) :]
    return result


def _name_at(text: str) -> str:
    end = 0
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return text[:end]


def render_job(job: Job, run_dir: Path, around: Surroundings) -> Rendered:
    """Return every file of the run directory, without writing any."""
    paths = RunPaths(run_dir)
    python = job.plan.python or sys.executable
    texts = render(job.plan, Target(run_dir, python))
    texts[SPEC] = dump(job.spec.model_dump(mode="json", exclude_defaults=True))
    texts[SITE] = dump(job.site.profile.model_dump(mode="json", exclude_unset=True))
    record = RunRecord(
        run_id=paths.run_id,
        name=job.spec.name,
        engine=job.plan.engine,
        model=job.spec.model,
        site=job.plan.site,
        created=round(around.now(), 3),
        user=getpass.getuser(),
        host=socket.gethostname(),
        version=__version__,
        ranks=len(job.plan.ranks),
        nodes=job.plan.allocation.nodes,
        world_size=job.plan.world_size,
        rehearsal_of=job.rehearsal_of,
    )
    texts[RECORD] = record_to_json(record)
    links = {f"{TRITON}/{name}": target for name, target in _triton_links(job).items()}
    return Rendered(paths, texts, links)


def _triton_links(job: Job) -> dict[str, Path]:
    # A home that the site or the spec names, or an image, brings its own Triton.
    if job.plan.server.home is not None or job.spec.container is not None:
        return {}
    return wheel_links()


def new_run_dir(job: Job, around: Surroundings) -> Path:
    """Return the path of a run directory that does not exist yet."""
    return log_root(job, around) / run_name(job.plan.slug, around.run_id())


def write_run(rendered: Rendered) -> None:
    """Write a run directory, whole or not at all.

    Raises:
        SetupError: the file system refuses.
    """
    final = rendered.paths.root
    draft = final.with_name(f".{final.name}.tmp")
    try:
        draft.mkdir(parents=True)
        for name, text in rendered.texts.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for name, target in rendered.links.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        rendered.paths.script_in(draft).chmod(0o755)
        draft.rename(final)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise SetupError(Problem(str(final), what, todo="set log_root to a folder of yours")) from None
    finally:
        # Also after an interrupt; there is nothing to remove once it has been renamed.
        shutil.rmtree(draft, ignore_errors=True)


def submit_job(job: Job, rendered: Rendered, around: Surroundings) -> Submitted:
    """Write the run directory and submit its script; on a refusal nothing is left behind.

    Returns the job's id, and what sbatch had to say besides, for the user to see.

    Raises:
        SubmitError: sbatch refused; SetupError: no Slurm, or the directory cannot be written;
        PlanError: the job can never start on this cluster as it is now.
    """
    slurm = around.slurm()
    check_cluster(job, slurm.partitions())
    write_run(rendered)
    try:
        submitted = slurm.submit(str(rendered.paths.script))
    except (SubmitError, SetupError) as error:
        # Without an answer there may be a job all the same, and it needs its files.
        if not isinstance(error, SubmitError) or error.returncode not in (0, TIMEOUT_RC):
            shutil.rmtree(rendered.paths.root, ignore_errors=True)
        raise
    job_id = submitted.job_id
    job_paths = rendered.paths.job(job_id.number)
    job_paths.root.mkdir(exist_ok=True)
    submission = Submission(str(job_id.number), job_id.cluster or "", round(around.now(), 3), "submit")
    try:
        with job_paths.submission.open("x", encoding="utf-8") as stream:
            stream.write(record_to_json(submission))
    except FileExistsError:
        # The job started at once and has written the same.
        pass
    remember_run(rendered.paths.root, around.environ)
    return submitted


def check_cluster(job: Job, partitions: Sequence[PartitionFacts]) -> None:
    """Refuse what Slurm would accept and then leave pending for ever.

    Raises:
        PlanError: more nodes than the partition has (Slurm 22.05.8 answers with PartitionNodeLimit, for ever).
    """
    name = job.plan.allocation.partition
    own = [part for part in partitions if (part.name == name if name else part.is_default)]
    if not own:
        if name and partitions:
            known = ", ".join(sorted({part.name for part in partitions}))
            what = f"this cluster has no partition '{name}' (site {job.plan.site})"
            raise PlanError(Problem("partition", what, known, "is this the right site for this cluster?"))
        return
    total = sum(part.nodes for part in own)
    if job.plan.allocation.nodes > total:
        what = f"the job needs {job.plan.allocation.nodes} nodes, partition {own[0].name} has {total}"
        raise PlanError(Problem("resources.nodes", what, todo="ask for fewer ranks or another partition"))
