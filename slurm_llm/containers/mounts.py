"""What is mounted into a container: read from SOURCE[:TARGET[:ro]], gathered, put in order when a job is rendered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurm_llm.containers.references import is_path
from slurm_llm.containers.runtime import Fault, Runtime
from slurm_llm.containers.types import ContainerPlan, Mount
from slurm_llm.errors import InputError, Problem
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec

FORM = "SOURCE[:TARGET[:ro]] with absolute paths, as /data:/data:ro"


def parse_mount(text: str) -> Mount | Fault:
    """Return the mount that `text` describes."""
    source, *rest = text.split(":")
    target = rest[0] if rest else source
    if len(rest) > 2 or (len(rest) == 2 and rest[1] not in ("ro", "rw")):
        return Fault(f"'{text}' is no mount", FORM, "a path cannot hold ':'")
    for path in (source, target):
        if not is_path(path):
            return Fault(f"'{path}' in '{text}' is no absolute path", FORM)
    if not target.strip("/"):
        return Fault(f"'{text}' would hide the container's own root", FORM)
    return Mount(_plain(source), _plain(target), rest[1:] == ["ro"])


def _plain(path: str) -> str:
    return path.rstrip("/") or "/"


def gather_mounts(spec: JobSpec, site: SiteProfile, runtime: Runtime, problems: list[Problem]) -> tuple[Mount, ...]:
    """Return what the site and the spec want mounted; append to `problems` what the runtime cannot take.

    Later ones win: the spec's over the site's, those over what the site's storage and the model imply.
    """
    mounts = [*_implied(spec, site, runtime)]
    asked = [(f"container.mounts[{i}] of site {site.name}", text) for i, text in enumerate(site.container.mounts)]
    if spec.container is not None:
        asked += [(f"container.mounts[{i}]", text) for i, text in enumerate(spec.container.mounts)]
    for where, text in asked:
        found = read_mount(text, runtime)
        if isinstance(found, Fault):
            problems.append(Problem(where, found.what, found.allowed, found.todo))
        else:
            mounts.append(found)
    return tuple(mounts)


def read_mount(text: str, runtime: Runtime) -> Mount | Fault:
    """Return the mount that `text` describes, or what is wrong with it for `runtime`."""
    found = parse_mount(text)
    return found if isinstance(found, Fault) else _fault_of(found, runtime) or found


def _fault_of(mount: Mount, runtime: Runtime) -> Fault | None:
    # A path with $NAME is looked at again when it is known.
    looked_at = (mount.source, mount.target) if runtime.in_place or not mount.in_place else ()
    known = [path for path in looked_at if "$" not in path]
    return next((fault for path in known if (fault := runtime.check_path(path))), None) or runtime.check_mount(mount)


def _implied(spec: JobSpec, site: SiteProfile, runtime: Runtime) -> Iterator[Mount]:
    storage = site.storage
    yield _same(storage.local)
    if spec.staging is not None and storage.staging is not None:
        yield _same(storage.staging)
    # A model that is no path is a name in a registry of models.
    model = spec.model if spec.model is not None and spec.model.startswith("/") else None
    # A Triton home that a stage makes lies on the node; its links lead into the image.
    home = spec.prepare.vllm.to if spec.engine == "vllm" and spec.prepare and spec.prepare.vllm else None
    for path, read_only in ((storage.models, True), (model, True), (storage.hf_home, False), (home, True)):
        if path is not None:
            yield _same(path, read_only and runtime.read_only)


def _same(path: str, read_only: bool = False) -> Mount:
    return Mount(_plain(path), _plain(path), read_only)


def final_mounts(plan: ContainerPlan, runtime: Runtime, run_dir: str | None) -> tuple[Mount, ...]:
    """Return the mounts of a rendered run: the run directory among them, one a target, parents before children.

    What another mount, or the runtime itself, shows at the same place anyway is left out.

    Raises:
        InputError: a path that the runtime cannot mount.
    """
    own = () if run_dir is None else (_same(run_dir),)
    by_target = {mount.target: mount for mount in (*plan.mounts, *own) if runtime.in_place or not mount.in_place}
    mounts = sorted(by_target.values(), key=lambda mount: mount.target.count("/"))
    problems = list(_problems_of(mounts, runtime, run_dir))
    if problems:
        raise InputError(problems)
    kept: list[Mount] = [_same(path) for path in runtime.shown_by(plan)]
    shown = len(kept)
    for mount in mounts:
        if not _covered(mount, kept):
            kept.append(mount)
    return tuple(kept[shown:])


def _problems_of(mounts: Iterable[Mount], runtime: Runtime, run_dir: str | None) -> Iterator[Problem]:
    for mount in mounts:
        where = "log_root or storage.logs" if mount.source == run_dir else "container.mounts"
        for path in dict.fromkeys((mount.source, mount.target)):
            # Before a job is rendered `$NAME` is not replaced yet.
            fault = None if run_dir is None and "$" in path else runtime.check_path(path)
            if fault is not None:
                yield Problem(where, fault.what, fault.allowed, fault.todo)


def _covered(mount: Mount, kept: Iterable[Mount]) -> bool:
    """Tell whether the nearest mount above shows the same thing with the same rights."""
    above = [one for one in kept if f"{mount.target}/".startswith(f"{one.target}/")]
    nearest = max(above, key=lambda one: len(one.target), default=None)
    if nearest is None or nearest.read_only != mount.read_only:
        return False
    return mount.source == nearest.source + mount.target[len(nearest.target) :]
