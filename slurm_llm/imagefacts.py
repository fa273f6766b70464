"""What was seen in images, kept on this machine: which image it was, what it holds, and that as checks want it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm.agent.image import SCHEMA
from slurm_llm.containers import ContainerPlan
from slurm_llm.engines.types import Known
from slurm_llm.errors import InputError
from slurm_llm.expansion import expand
from slurm_llm.sites.profile import SiteProfile

NODE = "a node of site "
PACKAGES = {"llmapi": "tensorrt_llm", "tensorrtllm": "tensorrt_llm", "vllm": "vllm"}
"""Engine → the Python package that has it."""


@dataclass(frozen=True)
class Place:
    """Where ranks run: an image, or a site's nodes without one. `stamp` differs once the image is another one."""

    name: str
    stamp: str

    @property
    def words(self) -> str:
        """What messages call it."""
        return self.name if self.name.startswith(NODE) else f"image {self.name}"


@dataclass(frozen=True)
class ImageFacts:
    """What `agent/image.py` found, when (seconds since the epoch) and where it ran: `login`, or a job's number."""

    place: Place
    seen: float
    by: str
    found: dict[str, Any]


def place_of(container: ContainerPlan | None, site: SiteProfile, environ: Mapping[str, str]) -> Place:
    """Return where ranks run; `site` is the profile as it is for the partition.

    An image of a registry is known by its reference, which holds its digest or a tag; a file or folder by its path,
    time of change and size. Without an image it is what the profile says of a rank's environment.
    """
    if container is None:
        ways = (site.python, site.modules, site.env, site.step_prologue)
        return Place(f"{NODE}{site.name}", " ".join(map(repr, ways)))
    image = container.image or f"environment {container.edf}"
    if not image.startswith(("/", "~", "$")):
        return Place(image, "")
    try:
        path = os.path.realpath(expand(image, environ, "container.image"))
        facts = Path(path).stat()
    except (InputError, OSError):
        # It may be there where the job runs.
        return Place(image, "not seen here")
    return Place(image, f"{path} {facts.st_mtime_ns} {facts.st_size}")


def save(facts: ImageFacts, environ: Mapping[str, str]) -> Path:
    """Keep what was seen, in place of what was seen there before, and return the file.

    Raises:
        OSError: the user's cache cannot be written.
    """
    path = _path(facts.place, environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    own = {"image": facts.place.name, "stamp": facts.place.stamp, "seen": facts.seen, "by": facts.by}
    draft.write_text(json.dumps({**own, "found": facts.found}, indent=1) + "\n", encoding="utf-8")
    draft.rename(path)
    return path


def load(place: Place, environ: Mapping[str, str]) -> ImageFacts | None:
    """Return what was seen there last; None when nothing was, or by a release that wrote it otherwise."""
    try:
        kept = json.loads(_path(place, environ).read_text(encoding="utf-8"))
        if kept["found"]["schema"] != SCHEMA or (kept["image"], kept["stamp"]) != (place.name, place.stamp):
            return None
        return ImageFacts(place, float(kept["seen"]), str(kept["by"]), kept["found"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def known_of(facts: ImageFacts, engine: str) -> Known | None:
    """Return what checks of `engine` want to know; None for an engine whose arguments could not be read there."""
    package = PACKAGES.get(engine)
    if package is None:
        return None
    own = facts.found["engines"].get(package)
    templates = {name: frozenset(names) for name, names in facts.found["templates"].items()}
    version = facts.found["versions"].get(package)
    if own is None:
        return Known(facts.place.words, present=False, templates=templates)
    if "error" in own and engine != "tensorrtllm":
        return None
    sections = {name: frozenset(keys) for name, keys in own.get("sections", {}).items()}
    names = frozenset(own.get("names", ()))
    models = frozenset(name for own in facts.found["models"].values() for name in own)
    launcher = facts.found["launcher"] is not None
    return Known(facts.place.words, True, version, names, sections, templates, models, launcher)


def folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's cache that they are kept in."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/")) / ".cache")
    return Path(cache) / "slurm_llm" / "images"


def _path(place: Place, environ: Mapping[str, str]) -> Path:
    mark = hashlib.sha256(f"{place.name}\n{place.stamp}".encode()).hexdigest()[:20]
    return folder(environ) / f"{mark}.json"
