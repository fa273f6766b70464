"""Use cases: the only place that wires files, clock, randomness, environment and Slurm together."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from slurm_llm import __version__, containers
from slurm_llm.containers import ContainerPlan
from slurm_llm.engines import find_engine
from slurm_llm.engines.types import Gpu, Known
from slurm_llm.errors import InputError, PlanError, Problem, SetupError, SlurmError, SubmitError
from slurm_llm.expansion import expand
from slurm_llm.imagefacts import known_of, place_of
from slurm_llm.imagefacts import load as load_facts
from slurm_llm.modelfiles import ModelFiles
from slurm_llm.observe.refusals import explain_refusal
from slurm_llm.ownfiles import FOLDER_MODE, SCRIPT_MODE, make_folder, write_new, write_texts
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.layout import build_sizes
from slurm_llm.plan.prepared import with_paths
from slurm_llm.plan.staging import at_home, check_room
from slurm_llm.process import TIMEOUT_RC
from slurm_llm.record import RunRecord, Submission, record_to_json, remember_run
from slurm_llm.render import Target, render
from slurm_llm.rundir import LOG_ROOT, RECORD, SITE, SPEC, TRITON, RunPaths, run_name
from slurm_llm.sites.find import site_folders
from slurm_llm.sites.load import Site, load_site, overlay_of
from slurm_llm.slurm.commands import PartitionFacts, Submitted
from slurm_llm.slurm.dependencies import joined
from slurm_llm.slurm.versions import SlurmVersion
from slurm_llm.spec import Container, JobSpec, load_spec_document, parse_spec
from slurm_llm.surroundings import Surroundings
from slurm_llm.tritonhome import wheel_links
from slurm_llm.yamlio import Document, dump


@dataclass(frozen=True)
class Job:
    """A spec on a site, with its plan."""

    spec: JobSpec
    site: Site
    plan: Plan
    rehearsal_of: str | None = None
    rehearsed_launch: str | None = None
    """How the ranks of the engine that is rehearsed would start."""


@dataclass(frozen=True)
class Rendered:
    """Every file of a run directory: texts and links by relative path; nothing is written yet."""

    paths: RunPaths
    texts: dict[str, str]
    links: dict[str, Path]
    if_refused: str = "set log_root to a folder of yours"
    """What to do when the file system refuses the directory."""
    options: tuple[str, ...] = ()
    """Options of sbatch for this submission alone: the script may be submitted again."""


def plan_job(
    spec_path: str | Path,
    site_name: str | None,
    settings: Sequence[str],
    around: Surroundings,
    *,
    rehearse: bool = False,
    inspect: bool = True,
) -> Job:
    """Load spec and site and plan the job; `rehearse` turns the spec into one of the rehearsal engine.

    Without `inspect` the model's files are not looked at: they may still have to be made.

    Raises:
        SpecError, SiteError, PlanError: every problem of the first stage that has any.
    """
    problems: list[Problem] = []
    failure: InputError | None = None
    spec: JobSpec | None = None
    site: Site | None = None
    overlay: Document | None = None
    try:
        document = load_spec_document(spec_path, settings)
        overlay = overlay_of(document)
        spec = parse_spec(document)
    except InputError as error:
        problems += error.problems
        failure = error
    try:
        site = load_site(site_name, around.environ, overlay)
    except InputError as error:
        problems += error.problems
        failure = failure or error
    if spec is None or site is None:
        raise type(failure)(problems) if failure else InputError(problems)
    return make_job(spec, site, around, rehearse=rehearse, inspect=inspect)


def make_job(
    spec: JobSpec,
    site: Site,
    around: Surroundings | None = None,
    *,
    rehearse: bool = False,
    inspect: bool = True,
) -> Job:
    """Plan `spec` on `site`; see `plan_job`.

    What the profile leaves to the surroundings (account, Slurm's release) is looked up there, when there are any.
    """
    original, launch = spec.engine, None
    if rehearse and original != "rehearsal":
        launch = find_engine(original).launch(spec, build_sizes(spec, [])).name
        triton = spec.triton.model_copy(update={"extra_args": ()})
        own: dict[str, object] = {"engine": "rehearsal", "engine_args": {}, "launch": None, "frontend": "triton"}
        spec = spec.model_copy(update={**own, "triton": triton})
    version = None
    if around is not None:
        spec = _with_account(spec, site, around.environ)
        spec = with_paths(_with_model(spec, around), around.environ)
        spec = at_home(spec, site.profile, ModelFiles(around.environ, around.cwd), os.getuid())
        version = _slurm_version(site, around)
    if around is None:
        plan = build_plan(spec, site.profile, version)
    else:
        # Planning and inspection ask for the same; it is a file.
        known = cache(partial(known_there, spec, site, around.environ))
        plan = build_plan(spec, site.profile, version, known)
        plan = _inspected(plan, spec, site, around, known(plan.container)) if inspect else plan
    return Job(spec, site, plan, original if original != spec.engine else None, launch)


def known_there(spec: JobSpec, site: Site, environ: Mapping[str, str], container: ContainerPlan | None) -> Known | None:
    """Return what `image` has read of the spec's engine where its ranks run; None where it has not."""
    if spec.triton.server is not None or (spec.prepare is not None and spec.prepare.vllm is not None):
        # A Triton of the spec's own may bring an engine of its own.
        return None
    name = site.profile.partition_name(spec.partition)
    if name not in site.profile.partitions:
        return None
    facts = load_facts(place_of(container, site.profile.for_partition(name), environ), environ)
    return None if facts is None else known_of(facts, spec.engine)


def _inspected(plan: Plan, spec: JobSpec, site: Site, around: Surroundings, known: Known | None) -> Plan:
    """Return the plan with what the engine finds in its model's files, as far as this machine has them.

    Raises:
        PlanError: the model does not fit the spec, the image or the GPUs.
    """
    engine = find_engine(spec.engine)
    mounts = None if plan.container is None else _mounts(plan.container, around.environ)
    files = ModelFiles(around.environ, around.cwd, mounts)
    gpu = site.profile.for_partition(name := site.profile.partition_name(spec.partition)).partitions[name].gpu
    if plan.container is not None and plan.container.image:
        # The site's own image, or what its alias stands for.
        image = (spec.container or Container()).model_copy(update={"image": plan.container.image})
        spec = spec.model_copy(update={"container": image})
    own = Gpu(gpu.memory_gb, gpu.model, plan.allocation.instance_gpus_per_node)
    found = engine.inspect(spec, plan.sizes, files, own, known)
    problems = (*found.problems, *check_room(spec, site.profile, ModelFiles(around.environ, around.cwd)))
    if problems:
        raise PlanError(problems)
    read = () if known is None else (("arguments", f"as read in {known.place}"),)
    return replace(plan, warnings=(*plan.warnings, *found.warnings), facts=(*found.facts, *read))


def _mounts(container: ContainerPlan, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return target and source of every mount; a variable that is not set is told when the job is rendered."""
    try:
        own = containers.expand(container, lambda text: expand(text, environ, "container"))
    except InputError:
        return []
    return [(mount.target, mount.source) for mount in own.mounts]


def _with_model(spec: JobSpec, around: Surroundings) -> JobSpec:
    """Return `spec` with its model's path as every rank can use it: `~` and `$NAME` replaced, and absolute.

    Raises:
        InputError: a variable that is not set.
    """
    if spec.model is None:
        return spec
    model = expand(spec.model, around.environ, "model")
    if model.startswith(("./", "../")) or (around.cwd / model).is_dir():
        model = os.path.normpath(around.cwd / model)
    return spec.model_copy(update={"model": model})


def _with_account(spec: JobSpec, site: Site, environ: Mapping[str, str]) -> JobSpec:
    """Return `spec` with the account that the user's environment names, where the site has variables for it."""
    name = site.profile.partition_name(spec.partition)
    if spec.account is not None or name not in site.profile.partitions:
        return spec
    variables = site.profile.for_partition(name).account.env
    found = next((environ[variable] for variable in variables if environ.get(variable)), None)
    return spec if found is None else spec.model_copy(update={"account": found})


def _slurm_version(site: Site, around: Surroundings) -> SlurmVersion | None:
    """Return the release of this machine's Slurm, where the profile names none; None without Slurm."""
    if site.profile.slurm.version is not None:
        return None
    try:
        return around.slurm().version()
    except (SlurmError, SetupError):
        return None


def log_root(job: Job, around: Surroundings) -> Path:
    """Return the absolute folder of run directories: spec, then site (with $VARIABLES), then ./logs."""
    logs, place = site_logs(job)
    text = job.spec.log_root or logs or LOG_ROOT
    where = "log_root" if job.spec.log_root or not logs else ": ".join(filter(None, (place, "storage.logs")))
    return Path(os.path.normpath(around.cwd / expand(text, around.environ, where)))


def site_logs(job: Job) -> tuple[str | None, str]:
    """Return the profile's `storage.logs` for the job's partition, and its file and line where they are known."""
    name = job.site.profile.partition_name(job.spec.partition)
    logs, document = job.site.profile.for_partition(name).storage.logs, job.site.document
    paths = (("partitions", name, "storage", "logs"), ("storage", "logs"))
    return logs, next((where for path in paths if (where := document.origin(path))), "")


def _if_refused(job: Job) -> str:
    logs, place = site_logs(job)
    if job.spec.log_root or not logs:
        return Rendered.if_refused
    return f"{Rendered.if_refused}, or correct storage.logs" + (f" ({place})" if place else "")


def render_job(job: Job, run_dir: Path, around: Surroundings) -> Rendered:
    """Return every file of the run directory, without writing any."""
    paths = RunPaths(run_dir)
    python = job.plan.python or sys.executable
    texts = render(job.plan, Target(run_dir, python, around.environ))
    # What the spec lays over the site stands in the site's file.
    texts[SPEC] = dump(job.spec.model_dump(mode="json", exclude_defaults=True, exclude={"site"}))
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
    return Rendered(paths, texts, links, _if_refused(job))


def _triton_links(job: Job) -> dict[str, Path]:
    # A home that the site or the spec names, or an image, brings its own Triton.
    if job.plan.server.home is not None or job.plan.container is not None:
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
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=FOLDER_MODE)
        write_texts(draft, rendered.texts)
        for name, target in rendered.links.items():
            path = draft / name
            make_folder(path.parent)
            path.symlink_to(target)
        rendered.paths.script_in(draft).chmod(SCRIPT_MODE)
        draft.rename(final)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise SetupError(Problem(str(final), what, todo=rendered.if_refused)) from None
    finally:
        # Also after an interrupt; there is nothing to remove once it has been renamed.
        shutil.rmtree(draft, ignore_errors=True)


def submit_job(job: Job, rendered: Rendered, around: Surroundings, options: Sequence[str] = ()) -> Submitted:
    """Write the run directory and submit its script; on a refusal nothing is left behind.

    `options` are further ones of sbatch for this submission alone, as the dependency on a stage's job.

    Returns the job's id, and what sbatch had to say besides, for the user to see.

    Raises:
        SubmitError: sbatch refused; SetupError: no Slurm, or the directory cannot be written;
        PlanError: the job can never start on this cluster as it is now.
    """
    try:
        options = joined(rendered.options, tuple(options))
    except ValueError as error:
        raise InputError(Problem("--dependency", str(error))) from None
    check_place(job, around)
    slurm = around.slurm()
    clusters = job.site.profile.slurm.clusters
    check_cluster(job, slurm.partitions(clusters=clusters))
    write_run(rendered)
    try:
        submitted = slurm.submit(str(rendered.paths.script), options)
    except (SubmitError, SetupError) as error:
        # Without an answer there may be a job all the same, and it needs its files.
        if not isinstance(error, SubmitError) or error.returncode not in (0, TIMEOUT_RC):
            shutil.rmtree(rendered.paths.root, ignore_errors=True)
        raise _advised(error, job, around) from None
    job_id = submitted.job_id
    job_paths = rendered.paths.job(job_id.number)
    make_folder(job_paths.root)
    submission = Submission(str(job_id.number), job_id.cluster or "", round(around.now(), 3), "submit")
    # A job that started at once has written the same.
    with suppress(FileExistsError):
        write_new(job_paths.submission, record_to_json(submission))
    remember_run(rendered.paths.root, around.environ)
    return submitted


def _advised(error: SubmitError | SetupError, job: Job, around: Surroundings) -> SubmitError | SetupError:
    """Return the error; where sbatch's words are about a key, it ends with the command that says which."""
    name = job.site.profile.partition_name(job.spec.partition)
    if isinstance(error, SubmitError) and error.returncode and explain_refusal(error.stderr, name).key:
        own = job.site.path.parent in {folder.path for folder in site_folders(around.environ)}
        target = f"{job.site.profile.name if own else job.site.path}:{name}"
        advice = Problem("", f"`slurm-llm site check {target}` says which key of the profile that is about")
        error.problems = (*error.problems, advice)
    return error


def check_place(job: Job, around: Surroundings) -> None:
    """Refuse what the site's submit filter would refuse because of the folder of submission.

    Raises:
        PlanError: the site takes jobs from other folders only.
    """
    rule = job.site.profile.for_partition(job.site.profile.partition_name(job.spec.partition)).storage.submit_from
    if rule is not None and not re.fullmatch(rule, str(around.cwd)):
        what = f"site {job.plan.site} takes no jobs that are submitted here"
        raise PlanError(Problem(str(around.cwd), what, f"a folder whose whole path matches {rule}", "cd there"))


def check_cluster(job: Job, partitions: Sequence[PartitionFacts]) -> None:
    """Refuse what Slurm would accept and then leave pending for ever.

    Raises:
        PlanError: more nodes than the partition has (Slurm 22.05.8 answers with PartitionNodeLimit, for ever).
    """
    asked = job.plan.allocation.partition
    names = asked.split(",") if asked else []
    own = [part for part in partitions if (part.name in names if names else part.is_default)]
    missing = [name for name in names if name not in {part.name for part in own}]
    if missing and partitions:
        known = ", ".join(sorted({part.name for part in partitions}))
        what = f"this cluster has no partition '{missing[0]}' (site {job.plan.site})"
        raise PlanError(Problem("partition", what, known, "is this the right site for this cluster?"))
    total = sum(part.nodes for part in own)
    if own and job.plan.allocation.asked_nodes > total:
        what = f"the job needs {job.plan.allocation.asked_nodes} nodes, partition {own[0].name} has {total}"
        raise PlanError(Problem("resources.nodes", what, todo="ask for fewer ranks or another partition"))
