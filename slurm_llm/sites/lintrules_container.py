"""Lint rules about which container runtime a profile has; what needs its grammar is in `containers.lintrules`."""

from __future__ import annotations

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


def spank_runtime_without_slurmd(queue: Queue) -> Iterator[Hit]:
    """psslurm takes slurmd's place and loads no SPANK plugins, so srun has no container options there."""
    runtime = queue.site.container.runtime
    if runtime in _SPANK and queue.site.slurm.node_daemon == "psslurm":
        what = f"container.runtime {runtime} is a SPANK plugin, and slurm.node_daemon is psslurm"
        yield Hit(queue.at("container", "runtime"), what, "use apptainer or another runtime that is a program")


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


RULES = (
    *queue_rules("error", spank_runtime_without_slurmd),
    *site_rules("warning", options_of_another_runtime, needs_all=True),
    *queue_rules("warning", container_never_used, needs_all=True),
)
