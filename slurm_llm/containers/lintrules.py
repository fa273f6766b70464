"""Lint rules that need the runtimes' own grammar: whether they can take a profile's images and mounts."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_llm.containers.images import find_fault
from slurm_llm.containers.mounts import read_mount
from slurm_llm.containers.runtime import Fault
from slurm_llm.containers.runtimes import find_runtime
from slurm_llm.sites.lintrules import Hit, Queue, queue_rules
from slurm_llm.yamlio import Key


def image_not_taken(queue: Queue) -> Iterator[Hit]:
    """An image in the form of another runtime fails on the node, after the job has waited in the queue."""
    runtime = find_runtime(queue.site.container.runtime)
    if runtime is None:
        return
    for path, image in _images(queue):
        fault = find_fault(image, queue.site, runtime)
        if fault is not None:
            yield _hit(path, fault)


def mount_not_taken(queue: Queue) -> Iterator[Hit]:
    """Each runtime has paths that it cannot mount, and all of them want absolute ones."""
    runtime = find_runtime(queue.site.container.runtime)
    if runtime is None:
        return
    for index, text in enumerate(queue.site.container.mounts):
        found = read_mount(text, runtime)
        if isinstance(found, Fault):
            yield _hit(queue.at("container", "mounts", index), found)


def _images(queue: Queue) -> Iterator[tuple[Key, str]]:
    container = queue.site.container
    # An alias of the site may stand in for the name of an image.
    if container.image is not None and container.image not in container.images:
        yield queue.at("container", "image"), container.image
    for alias, image in container.images.items():
        yield queue.at("container", "images", alias), image


def _hit(path: Key, fault: Fault) -> Hit:
    return Hit(path, fault.what, ": ".join(part for part in (fault.allowed, fault.todo) if part))


RULES = (*queue_rules("error", image_not_taken, needs_all=True), *queue_rules("error", mount_not_taken))
