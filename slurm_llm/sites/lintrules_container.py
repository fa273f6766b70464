"""Lint rules about the container runtime, its images and mounts; runtimes' grammars are known in outline."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_llm.sites.lintrules import Hit, Queue, View, queue_rules, site_rules
from slurm_llm.yamlio import Key

_SPANK = frozenset({"pyxis", "cscs_ce", "shifter"})
_SECTIONS = {
    "pyxis": {"pyxis"},
    "apptainer": {"apptainer", "singularity"},
    "cscs_ce": {"cscs_ce"},
    "shifter": {"shifter"},
    "podman_hpc": {"podman_hpc"},
    "charliecloud": {"charliecloud"},
    "enroot": {"enroot"},
}
"""Section of `container` → the runtimes that read it."""

_PULLED_FIRST = frozenset({"shifter", "podman_hpc"})
"""Runtimes whose images are pulled on a login node and then named as in the registry."""

_FILE = re.compile(r"[/.~$]|.*\.(?:sif|simg|sqsh|sqfs|squashfs|img|tar|tar\.gz|toml)\Z")
_WITH_SCHEME = re.compile(r"(?:docker|oras|library|shub|https?|docker-daemon|podman|dockerd)://")
_SLASH_FORM = re.compile(r"(?:docker://)?([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?)/([^#]+)\Z")


def spank_runtime_without_slurmd(queue: Queue) -> Iterator[Hit]:
    """psslurm takes slurmd's place and loads no SPANK plugins, so srun has no container options there."""
    runtime = queue.site.container.runtime
    if runtime in _SPANK and queue.site.slurm.node_daemon == "psslurm":
        what = f"container.runtime {runtime} is a SPANK plugin, and slurm.node_daemon is psslurm"
        yield Hit(queue.at("container", "runtime"), what, "use apptainer or another runtime that is a program")


def pyxis_image_separator(queue: Queue) -> Iterator[Hit]:
    """pyxis takes REGISTRY#IMAGE: with a slash it looks for the registry's name on Docker Hub."""
    for path, image in _images(queue):
        match = _SLASH_FORM.match(image)
        if queue.site.container.runtime == "pyxis" and match and not _FILE.match(image):
            what = f"'{image}' names a registry the way pyxis does not read it"
            yield Hit(path, what, f"write {match[1]}#{match[2]}")


def pyxis_mount(queue: Queue) -> Iterator[Hit]:
    """pyxis splits mounts at commas and colons and has no escape: such paths cannot be mounted."""
    if queue.site.container.runtime not in ("pyxis", "cscs_ce"):
        return
    for index, mount in enumerate(queue.site.container.mounts):
        if "," in mount or mount.count(":") > 2:
            what = f"'{mount}': {queue.site.container.runtime} cannot mount a path with ',' or ':'"
            yield Hit(queue.at("container", "mounts", index), what, "mount a path without them, such as a link")


def mount_is_relative(queue: Queue) -> Iterator[Hit]:
    """Jobs are submitted from anywhere, and in a container a relative target has no meaning."""
    for index, mount in enumerate(queue.site.container.mounts):
        source, _, rest = mount.partition(":")
        target = rest.partition(":")[0]
        if not source.startswith(("/", "$", "~")) or (target and not target.startswith(("/", "$"))):
            what = f"'{mount}' mounts a relative path"
            yield Hit(queue.at("container", "mounts", index), what, "write SOURCE[:TARGET[:ro]], both with / in front")


def image_without_internet(queue: Queue) -> Iterator[Hit]:
    """Nodes without internet pull nothing: the job would fail after it has waited in the queue."""
    container = queue.site.container
    if queue.site.network.internet != "none" or container.runtime in {*_PULLED_FIRST, "none"}:
        return
    for path, image in _images(queue):
        remote = container.runtime in ("pyxis", "cscs_ce") and not _FILE.match(image)
        if _WITH_SCHEME.match(image) or remote:
            what = f"'{image}' would be pulled from a registry, and compute nodes have no internet"
            yield Hit(path, what, "pull it to a file on a login node, and give its path")


def options_of_another_runtime(view: View) -> Iterator[Hit]:
    """Flags of a runtime that no partition uses are never given to anything."""
    if view.profile.base:
        return
    used = {queue.site.container.runtime for queue in view.queues}
    prefixes: tuple[Key, ...] = (("container",), *(("partitions", queue.name, "container") for queue in view.queues))
    for prefix in prefixes:
        for section, runtimes in _SECTIONS.items():
            if view.given(*prefix, section) and not runtimes & used:
                what = f"container.{section} is never used: container.runtime is {' or '.join(sorted(used))}"
                yield Hit((*prefix, section), what, "remove it, or choose that runtime")


def container_never_used(queue: Queue) -> Iterator[Hit]:
    """Without a runtime ranks run on the node itself, and specs that name an image are refused."""
    if queue.site.container.runtime != "none" or queue.view.profile.base:
        return
    for key in ("image", "images", "mounts", "extra", "pass_env", "program"):
        if getattr(queue.site.container, key):
            what = f"container.{key} is never used: container.runtime is none"
            yield Hit(queue.at("container", key), what, "choose a runtime, or remove it")


def _images(queue: Queue) -> Iterator[tuple[Key, str]]:
    container = queue.site.container
    # An alias of the site may stand in for the name of an image.
    if container.image is not None and container.image not in container.images:
        yield queue.at("container", "image"), container.image
    for alias, image in container.images.items():
        yield queue.at("container", "images", alias), image


RULES = (
    *queue_rules("error", spank_runtime_without_slurmd, pyxis_image_separator, pyxis_mount, mount_is_relative),
    *queue_rules("error", image_without_internet),
    *site_rules("warning", options_of_another_runtime),
    *queue_rules("warning", container_never_used),
)
