"""Lint rules about how a partition's GPUs, CPUs and memory are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_llm.sites.lintrules import Hit, Queue, queue_rules


def typed_without_type(queue: Queue) -> Iterator[Hit]:
    """A typed request names the GPUs' type as Slurm knows it: without one the first job is malformed."""
    if queue.partition.gpu_request.typed and queue.partition.gpu.slurm_type is None:
        what = f"{queue.label} asks for GPUs by type, and gpu.slurm_type is not set"
        yield Hit(queue.own("gpu_request", "typed"), what, "set gpu.slurm_type (see Gres in `scontrol show node`)")


def type_never_used(queue: Queue) -> Iterator[Hit]:
    """Where the type selects the hardware, a request without it gets any GPU."""
    request = queue.partition.gpu_request
    if queue.partition.gpu.slurm_type and not request.typed and not _is_typed_elsewhere(queue):
        what = f"{queue.label} names a type of GPU, and no request does"
        yield Hit(queue.own("gpu", "slurm_type"), what, "set gpu_request.typed: true, or use gpu.model to describe it")
    if queue.given("gpu_request", "typed") and request.typed and not _asks_for_gpus(queue):
        what = f"{queue.label} asks for GPUs by type, and its style asks for none"
        yield Hit(queue.own("gpu_request", "typed"), what, "remove typed, or choose another gpu_request.style")


def gpus_never_asked_for(queue: Queue) -> Iterator[Hit]:
    """Where nodes are shared, a job that asks for no GPU gets none, or another job's."""
    request, own = queue.partition.gpu_request, queue.partition
    if queue.gpus and request.style == "none" and not own.whole_node and own.exclusive not in (True, "topo"):
        what = f"{queue.label} has {queue.gpus} GPUs a node, asks for none, and its nodes may be shared"
        todo = "set whole_node: true or exclusive: true, or another gpu_request.style"
        yield Hit(queue.own("gpu_request", "style"), what, todo)


def mixed_gpu_dialects(queue: Queue) -> Iterator[Hit]:
    """Slurm 26.05's manual makes --gres=gpu and --gpus-per-node mutually exclusive, and steps inherit the job's."""
    request, version = queue.partition.gpu_request, queue.view.version
    kinds = {request.style, request.style if request.step == "same" else request.step}
    if kinds == {"gres", "gpus_per_node"} and version is not None and version.gres_conflicts_with_gpus_per_node:
        what = f"{queue.label} asks with {request.style}, its steps with {request.step}: exclusive since Slurm 26.05"
        yield Hit(queue.own("gpu_request", "step"), what, "use one dialect: remove gpu_request.step")


def needs_gpu_request(queue: Queue) -> Iterator[Hit]:
    """--cpus-per-gpu and --mem-per-gpu count per requested GPU: Slurm refuses them in a job that asks for none."""
    own = queue.partition
    if own.gpu_request.style != "none" and queue.gpus != 0:
        return
    why = "the partition has no GPUs" if queue.gpus == 0 else "its gpu_request.style asks for none"
    if own.cpus.style == "cpus_per_gpu" and queue.given("cpus", "style"):
        yield Hit(queue.own("cpus", "style"), f"{queue.label} counts CPUs per GPU, and {why}", "use cpus_per_task")
    if own.memory.style == "mem_per_gpu" and queue.given("memory", "style"):
        yield Hit(queue.own("memory", "style"), f"{queue.label} counts memory per GPU, and {why}", "use style: mem")


def cpus_exceed_node(queue: Queue) -> Iterator[Hit]:
    """Slurm never starts a job that wants more CPUs than a node has for jobs: it pends or is refused."""
    cpus = queue.partition.cpus
    ranks = max(1, queue.gpus or 0)
    if cpus.per_rank is None or cpus.per_node is None or cpus.per_rank * ranks <= cpus.per_node:
        return
    need = f"{ranks} ranks × {cpus.per_rank} CPUs = {cpus.per_rank * ranks}"
    what = f"{queue.label}: {need}, and cpus.per_node is {cpus.per_node}"
    most = cpus.per_node // ranks
    todo = f"per_rank may be at most {most}" if most else "correct cpus.per_node or gpus_per_node"
    yield Hit(queue.own("cpus", "per_rank"), what, todo)


def one_cpu_a_rank(queue: Queue) -> Iterator[Hit]:
    """A rank that gets one CPU loads weights, tokenizes and answers on it, whatever the node has to give."""
    cpus = queue.partition.cpus
    if queue.view.profile.base or not queue.gpus or cpus.style == "none":
        return
    if cpus.per_rank is None and cpus.per_node is None:
        what = f"{queue.label}: a rank gets 1 CPU, as neither cpus.per_rank nor cpus.per_node is given"
        place = queue.own("cpus") if queue.given("cpus") else queue.own("gpus_per_node")
        yield Hit(place, what, "set cpus.per_node (see %c of `sinfo -o '%P %c'`): its GPUs share the CPUs")


def hint_with_threads_per_core(queue: Queue) -> Iterator[Hit]:
    """Slurm refuses --hint beside --threads-per-core: nomultithread is threads_per_core 1 by another name."""
    cpus = queue.partition.cpus
    if cpus.hint is not None and cpus.threads_per_core is not None:
        what = f"{queue.label} sets both cpus.hint and cpus.threads_per_core, which exclude each other"
        yield Hit(queue.own("cpus", "hint"), what, "remove one of the two")


def cpus_never_used(queue: Queue) -> Iterator[Hit]:
    """With style none no CPUs are asked for, so numbers of a rank change nothing."""
    if queue.partition.cpus.style == "none" and queue.given("cpus", "per_rank"):
        what = f"{queue.label}: cpus.per_rank is never used with style none"
        yield Hit(queue.own("cpus", "per_rank"), what, "remove it, or choose another cpus.style")


def memory_never_used(queue: Queue) -> Iterator[Hit]:
    """Each style of memory reads keys of its own: what another one reads is silently left out."""
    style = queue.partition.memory.style
    unused = {
        "mem": ("per_cpu",),
        "mem_per_gpu": ("per_cpu",),
        "mem_per_cpu": ("per_rank",),
        "none": ("per_rank", "per_cpu", "whole_node"),
    }[style]
    for key in unused:
        if queue.given("memory", key) and getattr(queue.partition.memory, key) is not None:
            what = f"{queue.label}: memory.{key} is never used with style {style}"
            yield Hit(queue.own("memory", key), what, "remove it, or choose another memory.style")


def style_without_value(queue: Queue) -> Iterator[Hit]:
    """A style of memory that was chosen but has no value asks for nothing: Slurm's own default counts."""
    own = queue.partition.memory
    needed = {"mem_per_gpu": "per_rank", "mem_per_cpu": "per_cpu"}.get(own.style)
    if needed and queue.given("memory", "style") and getattr(own, needed) is None and own.whole_node is None:
        what = f"{queue.label}: memory.style {own.style} has no memory.{needed}, so no memory is asked for"
        yield Hit(queue.own("memory", "style"), what, f"set memory.{needed}, or style: none")


def grace_without_preemption(queue: Queue) -> Iterator[Hit]:
    """A grace time tells nothing about jobs that are never preempted."""
    own = queue.partition.preempt
    if own.grace_s is not None and not own.possible and queue.given("preempt", "grace_s"):
        what = f"{queue.label} has a grace time, and jobs are never preempted"
        yield Hit(queue.own("preempt", "grace_s"), what, "set preempt.possible: true, or remove it")


def _is_typed_elsewhere(queue: Queue) -> bool:
    """Whether the type stands in partition_defaults, and some other partition's requests name it."""
    return not queue.given("gpu", "slurm_type") and any(
        other.partition.gpu_request.typed for other in queue.view.queues
    )


def _asks_for_gpus(queue: Queue) -> bool:
    request = queue.partition.gpu_request
    return request.style != "none" or request.step not in ("same", "none")


RULES = (
    *queue_rules("error", typed_without_type, gpus_never_asked_for, needs_all=True),
    *queue_rules("error", mixed_gpu_dialects, needs_gpu_request, cpus_exceed_node, hint_with_threads_per_core),
    *queue_rules("warning", one_cpu_a_rank, style_without_value, needs_all=True),
    *queue_rules("warning", type_never_used, cpus_never_used, memory_never_used, grace_without_preemption),
)
