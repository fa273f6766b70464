"""Copies of weights on the nodes' own disks: where they lie, what reads them there, and what cannot be copied."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from slurm_llm.errors import Problem
from slurm_llm.modelfiles import ModelFiles
from slurm_llm.plan.types import StagedFolder, StagingPlan
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec
from slurm_llm.yamlio import Tree

FOLDER = "llmstage"
"""Begins the name of a user's folder of copies; the user's number follows."""
ENGINES = ("engine_dir", "encoder_engine_dir")
"""Arguments that name folders of compiled engines."""
NAME_LENGTH = 40
GB = 1_000_000_000


def staging_root(site: SiteProfile) -> str:
    """Return the site's node-local folder for copies."""
    return (site.storage.staging or site.storage.local).rstrip("/")


def at_home(spec: JobSpec, site: SiteProfile, files: ModelFiles, user: int) -> JobSpec:
    """Return the spec with what this machine adds: a folder of the user's own, and where a model of the hub lies.

    `user` is the user's number. An id whose files are not in the cache here stays, and is refused.
    """
    own, model = spec.staging, spec.model
    if own is None:
        return spec
    name = site.partition_name(spec.partition)
    root = staging_root(site.for_partition(name) if name in site.partitions else site)
    found = None if model is None or model.startswith("/") else files.folder(model)
    to = _folder(own.to or root, f"{FOLDER}-{user}")
    changes = {"staging": own.model_copy(update={"to": to}), "model": found if found and found[0] == "/" else model}
    return spec.model_copy(update=changes)


def check_room(spec: JobSpec, site: SiteProfile, files: ModelFiles) -> list[Problem]:
    """Return that the copies do not fit the site's disks, as far as the folders can be seen here."""
    name = site.partition_name(spec.partition)
    limit = (site.for_partition(name) if name in site.partitions else site).storage.staging_gb
    if limit is None:
        return []
    found = ((folder, one) for folder in sources(spec) for one in files.names(folder) or ())
    size = sum(files.size(f"{folder}/{one}") or 0 for folder, one in found)
    if size <= limit * GB:
        return []
    what = f"the folders hold {size / GB:.0f} GB, and a node of site {site.name} takes {limit} GB (storage.staging_gb)"
    return [Problem("staging", what, todo="leave out files with staging.exclude, or read the weights where they are")]


def sources(spec: JobSpec) -> tuple[str, ...]:
    """Return the folders that are to be copied, each once; what lies in another one goes with that."""
    own = spec.staging
    if own is None:
        return ()
    named = [value for key in ENGINES if isinstance(value := spec.engine_args.get(key), str)]
    wanted = own.folders or [path for path in (spec.model, *named) if path is not None and path.startswith("/")]
    paths = sorted({path.rstrip("/") for path in wanted})
    return tuple(path for path in paths if not any(path.startswith(f"{other}/") for other in paths))


def build_staging(spec: JobSpec, site: SiteProfile) -> StagingPlan | None:
    """Return the plan's part; None of a job that reads its weights where they are."""
    own = spec.staging
    if own is None:
        return None
    to = _folder(own.to or staging_root(site), FOLDER)
    folders = tuple(StagedFolder(path, f"{to}/{_name(path)}") for path in sources(spec))
    return StagingPlan(to, folders, own.exclude, own.streams, own.keep)


def _folder(place: str, name: str) -> str:
    """Return the folder of copies in `place`: one of their own, so that whoever clears it clears nothing else."""
    place = place.rstrip("/")
    return place if place.rpartition("/")[2].startswith(FOLDER) else f"{place}/{name}"


def _name(path: str) -> str:
    """Return a name that tells which folder it is a copy of, in plain letters."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", path.rpartition("/")[2])[:NAME_LENGTH].strip("-.") or "model"
    return f"{word}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def staged(spec: JobSpec, plan: StagingPlan | None) -> JobSpec:
    """Return the spec as the servers get it: every path in a copied folder is that of the copy."""
    if plan is None:
        return spec

    def moved(value: Tree) -> Tree:
        if isinstance(value, str):
            return next((_below(value, one) for one in plan.folders if _is_in(value, one.source)), value)
        if isinstance(value, list):
            return [moved(item) for item in value]
        return {key: moved(item) for key, item in value.items()} if isinstance(value, dict) else value

    triton = spec.triton.model_copy(update={"tokenizer": moved(spec.triton.tokenizer)})
    changes = {"model": moved(spec.model), "engine_args": moved(dict(spec.engine_args)), "triton": triton}
    return spec.model_copy(update=changes)


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _below(path: str, one: StagedFolder) -> str:
    return one.target + path[len(one.source) :]


def check_staging(spec: JobSpec, site: SiteProfile, *, container: bool) -> Iterator[Problem]:
    """Yield what the spec asks for in vain."""
    own = spec.staging
    if own is None:
        return
    if not sources(spec):
        what = "there is no folder to copy" + ("" if spec.model is None else f": '{spec.model}' is no path")
        todo = "give the model's path (`prepare.weights.to` downloads it once), or name `staging.folders`"
        yield Problem("staging", what, "folders that all nodes see", todo)
    shown = (site.storage.local.rstrip("/"), staging_root(site))
    if own.to is not None and container and not any(_is_in(own.to, folder) for folder in shown):
        what = f"'{own.to}' is not mounted into the container"
        yield Problem("staging.to", what, "below " + " or ".join(dict.fromkeys(shown)), "leave it out")
