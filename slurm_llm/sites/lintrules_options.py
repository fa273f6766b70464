"""Lint rules about options by name: extras, what the site's filter refuses and insists on, what a release knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurm_llm.errors import did_you_mean
from slurm_llm.sites.lintrules import Hit, Queue, queue_rules
from slurm_llm.sites.lintrules_releases import SBATCH_OPTIONS, SRUN_OPTIONS, long_name, refusal
from slurm_llm.slurm.options import option_name
from slurm_llm.yamlio import Key

_DIALECT = {
    "gres": ("gpu_request", "style"),
    "gpus-per-node": ("gpu_request", "style"),
    "gpus": ("gpu_request", "style"),
    "gpus-per-task": ("gpu_request", "style"),
    "cpus-per-gpu": ("cpus", "style"),
    "cpus-per-task": ("cpus", "style"),
    "mem": ("memory", "style"),
    "mem-per-cpu": ("memory", "style"),
    "mem-per-gpu": ("memory", "style"),
}
"""Options of which a partition's style chooses one: the others are never written."""

_JOB_NEEDS = frozenset({"nodes", "output"})
_STEP_NEEDS = frozenset({"nodes", "ntasks", "ntasks-per-node", "overlap"})


def forbidden_extra(queue: Queue) -> Iterator[Hit]:
    """What the site's filter refuses is never written, so an extra of that name has no effect."""
    forbidden = _names(queue.site.policies.forbid)
    for index, option in enumerate(queue.site.sbatch_extra):
        name = long_name(option_name(option))
        if name in forbidden:
            what = f"sbatch_extra has --{name}, which policies.forbid says is refused"
            yield Hit(queue.at("sbatch_extra", index), what, "remove it from one of the two")


def forbidden_and_required(queue: Queue) -> Iterator[Hit]:
    """No job can both have an option and not have it."""
    forbidden, required = _names(queue.site.policies.forbid), queue.site.policies.require
    for index, name in enumerate(required):
        if long_name(name.lstrip("-")) in forbidden:
            what = f"{name} is both required and forbidden"
            yield Hit(queue.at("policies", "require", index), what, "remove it from one of the two")


def required_and_skipped(queue: Queue) -> Iterator[Hit]:
    """An option in `sbatch_skip` is never written, so a job never has what is required."""
    skipped = _names(queue.site.sbatch_skip)
    for index, name in enumerate(queue.site.policies.require):
        if name.lstrip("-") in skipped:
            what = f"{name} is required, and sbatch_skip leaves it out"
            yield Hit(queue.at("policies", "require", index), what, "remove it from one of the two")


def required_never_written(queue: Queue) -> Iterator[Hit]:
    """A partition's style writes one option of several: a job never has the other ones, and would be refused."""
    written = {name for name, _ in _asked_for(queue)}
    for index, option in enumerate(queue.site.policies.require):
        name = option.lstrip("-")
        path = _DIALECT.get(name)
        # A spec's own resources.mem_per_node writes --mem whatever the style.
        if path is None or name in written or name == "mem":
            continue
        style = getattr(getattr(queue.partition, path[0]), path[1])
        if name.startswith("mem") and name.replace("-", "_") == style:
            continue
        if path[0] == "gpu_request" and queue.gpus in (None, 0):
            continue
        what = f"{option} is required, and {queue.label} never has it: {path[0]}.{path[1]} is {style}"
        todo = f"choose the style that writes {option}, or remove it from policies.require"
        yield Hit(queue.at("policies", "require", index), what, todo)


def forbidden_but_asked_for(queue: Queue) -> Iterator[Hit]:
    """What the site's filter refuses is never written: a value for it is silently left out of every job."""
    forbidden = {long_name(name.lstrip("-")): at for at, name in enumerate(queue.site.policies.forbid)}
    for name, path in _asked_for(queue):
        if name in forbidden:
            place = path if queue.view.given(*path) else queue.at("policies", "forbid", forbidden[name])
            what = f"{_said(path)} asks for --{name}, which policies.forbid says is refused"
            value = "the value (or choose style: none)" if name in _DIALECT else "the value"
            yield Hit(place, what, f"remove {value}, or the name from policies.forbid")


def leaves_out_what_jobs_need(queue: Queue) -> Iterator[Hit]:
    """Without --nodes a job has one node, without --output nobody finds its output; steps must state their tasks."""
    site = queue.site
    lists = (
        (("policies", "forbid"), site.policies.forbid, _JOB_NEEDS),
        (("sbatch_skip",), site.sbatch_skip, _JOB_NEEDS),
        (("srun_skip",), site.srun_skip, _STEP_NEEDS),
    )
    for path, names, needed in lists:
        for index, name in enumerate(names):
            if name.lstrip("-") in needed:
                what = f"{name} is left out, and no job runs right without it"
                yield Hit(queue.at(*path, index), what, "remove it from this list")


def unknown_option(queue: Queue) -> Iterator[Hit]:
    """A misspelt name forbids, requires or leaves out nothing."""
    site = queue.site
    lists = (
        (("policies", "forbid"), site.policies.forbid, SBATCH_OPTIONS),
        (("policies", "require"), site.policies.require, SBATCH_OPTIONS),
        (("sbatch_skip",), site.sbatch_skip, SBATCH_OPTIONS),
        (("srun_skip",), site.srun_skip, SRUN_OPTIONS),
    )
    for path, names, known in lists:
        for index, name in enumerate(names):
            bare = name.lstrip("-")
            close = did_you_mean(bare, known)
            # Plugins of a site bring options of their own: only what is nearly one of Slurm's is told.
            if bare not in known and close:
                program = "srun" if path == ("srun_skip",) else "sbatch"
                yield Hit(queue.at(*path, index), f"{program} has no option {name}", close)


def option_of_another_release(queue: Queue) -> Iterator[Hit]:
    """sbatch and srun stop at an option that their release does not know."""
    version = queue.view.version
    for path, option in _extras(queue):
        why = None if version is None else refusal(long_name(option_name(option)), version)
        if why is not None:
            yield Hit(path, f"{option}: {why}; slurm.version is {queue.site.slurm.version}", "remove it")


def key_of_another_release(queue: Queue) -> Iterator[Hit]:
    """--segment and --exclusive=topo came with Slurm 24.05, --cpu-bind=rank went with 24.11."""
    own, version, says = queue.partition, queue.view.version, queue.site.slurm.version
    if version is None:
        return
    if own.segment is not None and not version.supports_segment:
        yield Hit(queue.own("segment"), f"--segment exists since Slurm 24.05; slurm.version is {says}", "remove it")
    if own.exclusive == "topo" and not version.supports_segment:
        what = f"--exclusive=topo exists since Slurm 24.05; slurm.version is {says}"
        yield Hit(queue.own("exclusive"), what, "use true, or remove it")
    if queue.site.launcher.step.cpu_bind == "rank" and version.at_least(24, 11):
        what = f"--cpu-bind=rank is gone since Slurm 24.11; slurm.version is {says}"
        yield Hit(queue.at("launcher", "step", "cpu_bind"), what, "use another value, such as cores")
    channel = "unique-channel-per-segment"
    if channel in (queue.site.network.flags or "") and not version.at_least(25, 11):
        what = f"--network={channel} exists since Slurm 25.11; slurm.version is {says}"
        yield Hit(queue.at("network", "flags"), what, "remove it")


def exclusive_with_oversubscribe(queue: Queue) -> Iterator[Hit]:
    """Slurm 23.02 and later: --exclusive beside --oversubscribe is fatal in the client."""
    version = queue.view.version
    if version is not None and not version.exclusive_conflicts_with_oversubscribe:
        return
    for path, option in _extras(queue):
        shares = long_name(option_name(option)) == "oversubscribe"
        if shares and (queue.partition.exclusive or _has(queue.site.srun_extra, "exclusive")):
            what = f"{option} beside --exclusive in {queue.label} is fatal since Slurm 23.02"
            yield Hit(path, what, "remove one of the two")


def tasks_by_gpu(queue: Queue) -> Iterator[Hit]:
    """--ntasks-per-gpu is fatal beside the --ntasks-per-node that every step states, and hides GPUs from ranks."""
    for path, option in _extras(queue):
        if option_name(option) in ("ntasks-per-gpu", "gpus-per-task"):
            todo = "remove it; gpu_request.style says how GPUs are asked for"
            yield Hit(path, f"{option} contradicts the tasks and GPUs that every step states itself", todo)


def _asked_for(queue: Queue) -> Iterator[tuple[str, Key]]:
    """Yield each option that the profile's own values make sbatch get, with the path of the value."""
    own, site = queue.partition, queue.site
    if queue.gpus and own.gpu_request.style != "none":
        yield own.gpu_request.style.replace("_", "-"), queue.own("gpu_request", "style")
    if own.cpus.style != "none":
        yield own.cpus.style.replace("_", "-"), queue.own("cpus", "style")
    if own.memory.style != "none":
        if own.memory.whole_node is not None:
            yield "mem", queue.own("memory", "whole_node")
        key = "per_cpu" if own.memory.style == "mem_per_cpu" else "per_rank"
        if getattr(own.memory, key) is not None:
            yield own.memory.style.replace("_", "-"), queue.own("memory", key)
    values = (
        ("partition", own.slurm_partition, queue.own("slurm_partition")),
        ("qos", own.qos, queue.own("qos")),
        ("constraint", own.constraint, queue.own("constraint")),
        ("reservation", own.reservation, queue.own("reservation")),
        ("time", own.time.default, queue.own("time", "default")),
        ("exclusive", own.exclusive or None, queue.own("exclusive")),
        ("segment", own.segment, queue.own("segment")),
        ("licenses", own.licenses, queue.own("licenses")),
        ("switches", own.switches, queue.own("switches")),
        ("core-spec", own.core_spec, queue.own("core_spec")),
        ("distribution", own.distribution, queue.own("distribution")),
        ("wait-all-nodes", own.wait_all_nodes or None, queue.own("wait_all_nodes")),
        ("threads-per-core", own.cpus.threads_per_core, queue.own("cpus", "threads_per_core")),
        ("hint", own.cpus.hint, queue.own("cpus", "hint")),
        ("account", site.account.default, queue.at("account", "default")),
        ("account", site.account.required or None, queue.at("account", "required")),
        ("exclude", site.exclude_nodes, queue.at("exclude_nodes")),
        ("network", site.network.flags, queue.at("network", "flags")),
        ("clusters", site.slurm.clusters, ("slurm", "clusters")),
    )
    yield from ((name, path) for name, value, path in values if value is not None)


def _extras(queue: Queue) -> Iterator[tuple[Key, str]]:
    for key in ("sbatch_extra", "srun_extra"):
        for index, option in enumerate(getattr(queue.site, key)):
            yield queue.at(key, index), option


def _has(options: Iterable[str], name: str) -> bool:
    return any(option_name(option) == name for option in options)


def _names(options: Iterable[str]) -> frozenset[str]:
    return frozenset(long_name(option.lstrip("-")) for option in options)


def _said(path: Key) -> str:
    return ".".join(str(step) for step in path)


RULES = (
    *queue_rules("error", forbidden_extra, forbidden_and_required, required_and_skipped),
    *queue_rules("error", required_never_written, needs_all=True),
    *queue_rules("error", forbidden_but_asked_for, leaves_out_what_jobs_need, option_of_another_release),
    *queue_rules("error", key_of_another_release, exclusive_with_oversubscribe, tasks_by_gpu),
    *queue_rules("warning", unknown_option),
)
