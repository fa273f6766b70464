"""Lint rules about a partition's times, numbers of nodes and GPUs, and segments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from slurm_llm.sites.lintrules import Hit, Queue, queue_rules
from slurm_llm.slurm.formats import parse_time


def time_above_max(queue: Queue) -> Iterator[Hit]:
    """Slurm refuses a job, or lets it pend for ever (PartitionTimeLimit), whose time is above the partition's."""
    time = queue.partition.time
    longest = _seconds(time.max)
    for key in ("default", "min"):
        text = getattr(time, key)
        if text is not None and _seconds(text) > longest:
            what = f"{queue.label}: time.{key} {text} is above time.max {time.max}"
            yield Hit(queue.own("time", key), what, "lower it, or raise time.max")


def default_below_min(queue: Queue) -> Iterator[Hit]:
    """Jobs that name no time get the default, and are refused below the minimum."""
    time = queue.partition.time
    if time.default is not None and time.min is not None and _seconds(time.default) < _seconds(time.min):
        what = f"{queue.label}: time.default {time.default} is below time.min {time.min}"
        yield Hit(queue.own("time", "default"), what, "raise it, or lower time.min")


def times_by_nodes(queue: Queue) -> Iterator[Hit]:
    """The first entry that has room for a job's nodes gives its limit: unordered entries are never reached."""
    time = queue.partition.time
    for index, rule in enumerate(time.by_nodes):
        if _seconds(rule.max) > _seconds(time.max):
            what = f"{queue.label}: {rule.max} for up to {rule.max_nodes} nodes is above time.max {time.max}"
            yield Hit(queue.own("time", "by_nodes", index, "max"), what, "lower it, or raise time.max")
    for index, (one, other) in enumerate(pairwise(time.by_nodes), 1):
        if other.max_nodes <= one.max_nodes:
            what = f"{queue.label}: {other.max_nodes} nodes stand after {one.max_nodes} nodes"
            todo = "order time.by_nodes by max_nodes, each once"
            yield Hit(queue.own("time", "by_nodes", index, "max_nodes"), what, todo)


def more_nodes_than_there_are(queue: Queue) -> Iterator[Hit]:
    """A job that is larger than its partition is accepted and pends for ever (PartitionNodeLimit)."""
    own, limits = queue.partition, queue.partition.limits
    if own.nodes is None:
        return
    for key in ("max_nodes", "min_nodes"):
        number = getattr(limits, key)
        if number is not None and number > own.nodes:
            what = f"{queue.label}: limits.{key} is {number}, and there are {own.nodes} nodes"
            yield Hit(queue.own("limits", key), what, "lower it, or correct nodes")


def least_above_most(queue: Queue) -> Iterator[Hit]:
    """No job fits between a smallest size and a largest one below it."""
    limits = queue.partition.limits
    if limits.min_nodes is not None and limits.max_nodes is not None and limits.min_nodes > limits.max_nodes:
        what = f"{queue.label}: limits.min_nodes {limits.min_nodes} is above limits.max_nodes {limits.max_nodes}"
        yield Hit(queue.own("limits", "min_nodes"), what, "lower it, or raise max_nodes")


def gpu_limit_below_node(queue: Queue) -> Iterator[Hit]:
    """Where only whole nodes are given, a job has all GPUs of at least one."""
    own, most = queue.partition, queue.partition.limits.max_gpus
    nodes = own.limits.min_nodes or 1
    if most is not None and queue.gpus and own.whole_node and most < queue.gpus * nodes:
        size = f"{nodes} whole nodes have" if nodes > 1 else "a whole node has"
        what = f"{queue.label}: limits.max_gpus is {most}, and {size} {queue.gpus * nodes} GPUs"
        yield Hit(queue.own("limits", "max_gpus"), what, "raise it, or remove whole_node")


def gpu_limit_never_reached(queue: Queue) -> Iterator[Hit]:
    """A limit above what the nodes have is a sign of GPUs that are counted in two ways (boards and their dies)."""
    own, most = queue.partition, queue.partition.limits.max_gpus
    if most is None or queue.gpus is None or not queue.given("limits", "max_gpus"):
        return
    nodes = min((number for number in (own.nodes, own.limits.max_nodes) if number is not None), default=None)
    if queue.gpus == 0:
        what = f"{queue.label}: limits.max_gpus is {most}, and its nodes have no GPUs"
        yield Hit(queue.own("limits", "max_gpus"), what, "remove it, or correct gpus_per_node")
    elif nodes is not None and most > nodes * queue.gpus:
        what = f"{queue.label}: limits.max_gpus is {most}, and {nodes} nodes × {queue.gpus} = {nodes * queue.gpus}"
        yield Hit(queue.own("limits", "max_gpus"), what, "lower it, or correct nodes and gpus_per_node")


def segment_too_large(queue: Queue) -> Iterator[Hit]:
    """The nodes of a job must be divisible by its segments, so a segment is no larger than the largest job."""
    own = queue.partition
    most = min((number for number in (own.nodes, own.limits.max_nodes) if number is not None), default=None)
    if isinstance(own.segment, int) and most is not None and own.segment > most:
        what = f"{queue.label}: segments of {own.segment} nodes, and a job has at most {most}"
        yield Hit(queue.own("segment"), what, "lower it")


def _seconds(text: str | None) -> float:
    """Return the seconds of a limit; none, and Slurm's zero, is without end."""
    seconds = None if text is None else parse_time(text)
    return seconds or float("inf")


RULES = (
    *queue_rules("error", time_above_max, default_below_min, times_by_nodes, more_nodes_than_there_are),
    *queue_rules("error", least_above_most, gpu_limit_below_node, segment_too_large),
    *queue_rules("warning", gpu_limit_never_reached),
)
