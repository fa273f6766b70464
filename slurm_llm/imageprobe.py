"""Use case: look what the image of a spec holds for serving, here or in a job of a minute, and keep it for checks."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_llm import app, containers, render
from slurm_llm.errors import Problem, RunFailed, SetupError, SlurmError
from slurm_llm.imagefacts import ImageFacts, Place, folder, load, place_of, save
from slurm_llm.ownfiles import write_texts
from slurm_llm.plan.types import Plan
from slurm_llm.rundir import IMAGE_FOUND, IMAGE_SCRIPT
from slurm_llm.sites.load import Site, load_site, overlay_of
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId, format_time, parse_time
from slurm_llm.slurm.reasons import Clears, explain_reason
from slurm_llm.slurm.states import SlurmState, run_state
from slurm_llm.spec import JobSpec, Preflight, Recovery, Resources, load_spec_document, parse_spec
from slurm_llm.surroundings import Surroundings
from slurm_llm.waiting import BELIEVED_AFTER, FIRST_PAUSE_S, GROWTH, LAST_PAUSE_S

NAME = "image"
"""Name of the job, and beginning of its folder's."""
LIMIT_S = 300
"""Time limit of the job; it runs a minute at most."""
HERE_S = 120.0
"""How long a look on this machine may take: the first one of an image may unpack it."""
HERE = "this machine"

Told = Callable[[str], None]
"""Is told what the job does now, once for each look."""


@dataclass(frozen=True)
class ProbePlan:
    """A look into an image: what is looked at, the plan of the job that does it, and what is known of it already."""

    place: Place
    job: app.Job
    kept: ImageFacts | None

    @property
    def can_look_here(self) -> bool:
        """Whether the image's runtime is a program, which this machine may have; srun enters the others."""
        own = self.job.plan.container
        return own is not None and bool(own.program)


def plan_probe(
    spec_path: str | Path, site_name: str | None, settings: Sequence[str], around: Surroundings
) -> ProbePlan:
    """Load spec and site and plan the look; what else is wrong with the spec is of no interest here.

    Raises:
        SpecError, SiteError, PlanError: the spec or the site is wrong in itself; no such job can be planned.
    """
    document = load_spec_document(spec_path, settings)
    spec = parse_spec(document)
    site = load_site(site_name, around.environ, overlay_of(document))
    name = site.profile.partition_name(spec.partition)
    profile = site.profile if name not in site.profile.partitions else _without_mpi(site.profile, name)
    own = Site(profile, site.path, site.document, site.layers)
    job = app.make_job(_small(spec, profile, name), own, around)
    place = place_of(job.plan.container, site.profile.for_partition(name), around.environ)
    return ProbePlan(place, job, load(place, around.environ))


def probe_image(probe: ProbePlan, around: Surroundings, told: Told, *, in_job: bool = False) -> ImageFacts:
    """Look into the image on this machine, else in a job, and keep what was seen.

    Raises:
        SetupError: no folder can be written, or no Slurm; SubmitError: sbatch refused the job;
        RunFailed: the job ended without an answer.
    """
    found, by = None, HERE
    if probe.can_look_here and not in_job:
        found = _look_here(probe.job.plan, around, told)
    if found is None:
        found, by = _look_in_job(probe.job, around, told)
    facts = ImageFacts(probe.place, round(around.now(), 3), by, found)
    try:
        save(facts, around.environ)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise SetupError(Problem(str(folder(around.environ)), what, todo="set XDG_CACHE_HOME")) from None
    return facts


def _without_mpi(profile: SiteProfile, name: str) -> SiteProfile:
    """Return the profile with ranks that need no MPI: one task looks."""
    launcher, partition = profile.for_partition(name).launcher, profile.partitions[name]
    changed = partition.model_copy(update={"launcher": launcher.model_copy(update={"mpi": "none"})})
    return profile.model_copy(update={"partitions": {**profile.partitions, name: changed}})


def _small(spec: JobSpec, profile: SiteProfile, name: str) -> JobSpec:
    """Return a spec with the same place in the queue and the same container, whose job is one short task."""
    limit = LIMIT_S
    if name in profile.partitions:
        rules = profile.partitions[name].time
        most, least = (None if text is None else parse_time(text) for text in (rules.max, rules.min))
        limit = max(least or 0, min(LIMIT_S, most or LIMIT_S))
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "replicas")
    gone = ("moe_tensor_parallel_size", "moe_expert_parallel_size", "launch", "model", "balancer", "service")
    own: dict[str, Any] = {
        **dict.fromkeys(sizes, 1),
        **dict.fromkeys((*gone, "prepare", "bench", "gpu_clocks", "prologue", "epilogue")),
        "name": NAME,
        "engine": "rehearsal",
        "engine_args": {},
        "frontend": "triton",
        "resources": Resources(nodes=1, time=format_time(limit)),
        "preflight": Preflight(mpi=False),
        "recovery": Recovery(),
    }
    return spec.model_copy(update=own)


def _look_here(plan: Plan, around: Surroundings, told: Told) -> dict[str, Any] | None:
    """Return what is found in the image by this machine's own runtime; None, and why is told, where it cannot."""
    own = plan.container
    if own is None:
        return None
    # What jobs mount may be on their nodes only, and the image is the same without.
    bare = replace(own, mounts=(), workdir=None)
    if shutil.which(own.program, path=around.environ.get("PATH")) is None:
        told(f"no {own.program} here: a job looks")
        return None
    # Most runtimes show the machine's /tmp, and the others mount what they are told.
    with _written(replace(plan, container=bare), Path("/tmp") / f"slurm_llm-{around.run_id()}", around) as place:
        looking = (own.python, "-I", f"{place}/agent", "image", "--out", f"{place}/{IMAGE_FOUND}")
        enter = containers.wrap(bare, str(place))
        done = around.runner((*enter, *looking), env=around.environ, timeout_s=HERE_S)
        found = _read(place)
    if found is None:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        told(f"{own.program} cannot look here: {said[-1]}: a job looks")
    return found


def _look_in_job(job: app.Job, around: Surroundings, told: Told) -> tuple[dict[str, Any], str]:
    app.check_place(job, around)
    slurm = around.slurm()
    with _written(job.plan, app.log_root(job, around) / f"{NAME}-{around.run_id()}", around) as place:
        job_id = slurm.submit(str(place / IMAGE_SCRIPT)).job_id
        try:
            facts = _await_end(job_id, place, around, told)
        except BaseException:
            slurm.cancel(job_id)
            raise
        found = _read(place)
        if found is None:
            raise RunFailed(_why(facts, place, job_id))
    return found, f"job {job_id}"


@contextmanager
def _written(plan: Plan, place: Path, around: Surroundings) -> Iterator[Path]:
    """Write the files of a look, and remove them afterwards.

    Raises:
        SetupError: the file system refuses.
    """
    texts = render.render_image(plan, render.Target(place, plan.python or sys.executable, around.environ))
    try:
        try:
            place.mkdir(mode=0o700, parents=True)
            write_texts(place, texts)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise SetupError(Problem(str(place), what, todo="set log_root to a folder of yours")) from None
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _read(place: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((place / IMAGE_FOUND).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _await_end(job_id: JobId, place: Path, around: Surroundings, told: Told) -> JobFacts | None:
    """Return what Slurm says last of the job, once it has answered or ended; one that never starts is cancelled."""
    pause, endings, last = FIRST_PAUSE_S, 0, ""
    while True:
        try:
            facts = around.slurm().query([job_id]).get(job_id)
        except SlurmError:
            facts = None
        stage = "Slurm does not tell" if facts is None else _stage(facts)
        told(f"job {job_id}: {stage}")
        over = facts is None or (run_state(facts.state).is_terminal and facts.state is not SlurmState.COMPLETING)
        endings = endings + 1 if over else 0
        never = facts is not None and facts.state is SlurmState.PENDING and _never(facts)
        if never:
            around.slurm().cancel(job_id)
        # What the job wrote last may show late here.
        if never or _read(place) is not None or endings >= BELIEVED_AFTER:
            return facts
        pause = FIRST_PAUSE_S if stage != last or over else min(LAST_PAUSE_S, pause * GROWTH)
        last = stage
        around.pause(pause)


def _stage(facts: JobFacts) -> str:
    if facts.state is SlurmState.PENDING:
        return f"queued: {explain_reason(facts.reason).text}"
    return str(facts.state.value).lower()


def _never(facts: JobFacts) -> bool:
    return explain_reason(facts.reason).clears is Clears.NEVER


def _why(facts: JobFacts | None, place: Path, job_id: JobId) -> Problem:
    """Return why a job has not told what it saw: Slurm's state, and the end of its output."""
    output = place / f"slurm-{job_id.number}.out"
    said = output.read_text(encoding="utf-8", errors="replace").strip().splitlines() if output.is_file() else []
    state = "it is gone" if facts is None else _stage(facts)
    todo = "" if said else f"is {place.parent} on a disk that all nodes share? (log_root)"
    return Problem(f"job {job_id}", f"the image was not looked into: {state}", " / ".join(said[-3:]), todo)
