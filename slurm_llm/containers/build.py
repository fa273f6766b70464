"""plan_container: from spec and site to a ContainerPlan, with every fault named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_llm.containers.images import choose_image, image_wanted
from slurm_llm.containers.mounts import gather_mounts
from slurm_llm.containers.references import is_path
from slurm_llm.containers.runtime import Runtime
from slurm_llm.containers.runtimes import find_runtime
from slurm_llm.containers.types import ContainerPlan
from slurm_llm.errors import Problem
from slurm_llm.schema import Section
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec

OF_THE_IMAGE = frozenset({"PATH", "HOME", "PWD", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME"})
"""Variables that a container starts badly with when they are another system's; rank.sh sets them inside."""


def plan_container(
    spec: JobSpec, site: SiteProfile, gpus: bool, env_names: Sequence[str], problems: list[Problem]
) -> ContainerPlan | None:
    """Return the container of the ranks of `spec`, None when they run on the nodes themselves.

    `site` is the profile as it is for the partition, `gpus` tells whether ranks have any, `env_names` are the variables
    that rank.sh sets. What cannot be is appended to `problems`.
    """
    rules = site.container
    runtime = find_runtime(rules.runtime)
    if runtime is None:
        problems += _of_no_runtime(spec, site)
        return None
    if not image_wanted(spec, site):
        problems += _of_no_image(spec)
        return None
    problems += _of_site(site, runtime)
    image = choose_image(spec, site, runtime, problems)
    mounts = gather_mounts(spec, site, runtime, problems)
    vendor = next(iter(site.partitions.values())).gpu.vendor if gpus else None
    names = (name for name in env_names if name not in OF_THE_IMAGE)
    home = () if site.storage.hf_home is None else ("HF_HOME",)
    return ContainerPlan(
        runtime=runtime.name,
        program=rules.program or runtime.program,
        image=image,
        mounts=(*runtime.own_mounts(rules), *mounts),
        workdir=_workdir(spec, problems),
        env=tuple(dict.fromkeys((*home, *names, *rules.pass_env))),
        python=rules.python,
        options=(*runtime.flags(rules, vendor), *rules.extra),
        sbatch=runtime.directives(rules),
        edf=runtime.definition(rules),
    )


def _of_no_runtime(spec: JobSpec, site: SiteProfile) -> Iterator[Problem]:
    own = spec.container
    if own is None:
        return
    given = "an image is" if own.image is not None else "mounts or a folder are"
    where = "container.image" if own.image is not None else "container"
    what = f"{given} given, but site {site.name} has no container runtime"
    yield Problem(where, what, todo="remove `container`, or choose another site")


def _of_no_image(spec: JobSpec) -> Iterator[Problem]:
    if spec.container is not None and (spec.container.mounts or spec.container.workdir):
        what = "mounts or a folder are given, but no image, and the site has none of its own"
        yield Problem("container.image", what, todo="name an image, or remove `container`")


def _of_site(site: SiteProfile, runtime: Runtime) -> Iterator[Problem]:
    rules = site.container
    for key, value in rules:
        if isinstance(value, Section) and key != runtime.section and value != type(value)():
            what = f"options of another runtime: site {site.name} uses {runtime.name} here"
            todo = "move them to the partitions that use it, or remove them"
            yield Problem(f"container.{key}", what, f"container.{runtime.section}", todo)
    if not runtime.program:
        yield from _of_srun(site, runtime)
    fault = runtime.check_rules(rules)
    if fault is not None:
        yield Problem(f"container.{runtime.section}", fault.what, fault.allowed, fault.todo)


def _of_srun(site: SiteProfile, runtime: Runtime) -> Iterator[Problem]:
    if site.container.program is not None:
        what = f"{runtime.name} has no program: srun enters the container"
        yield Problem("container.program", what, todo="leave it out")
    if not site.launcher.by_srun:
        what = f"'{site.launcher.command}' starts the ranks, and {runtime.name} is entered through options of srun"
        yield Problem("launcher.command", what, "srun", "use it, or another container runtime")


def _workdir(spec: JobSpec, problems: list[Problem]) -> str | None:
    folder = None if spec.container is None else spec.container.workdir
    if folder is not None and not is_path(folder):
        what = f"'{folder}' is no absolute path"
        problems.append(Problem("container.workdir", what, "a folder inside the container, as /workspace"))
    return folder
