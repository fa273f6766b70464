"""A job's time limit against the partition's: one limit, limits by the number of nodes, node-hours."""

from __future__ import annotations

from slurm_llm.errors import Problem
from slurm_llm.sites.profile import Partition
from slurm_llm.slurm.formats import format_time, parse_time
from slurm_llm.spec import JobSpec

HOUR_S, MINUTE_S = 3600, 60
"""Slurm counts limits in whole minutes, rounded up."""


def choose_time(spec: JobSpec, partition: Partition, nodes: int) -> str | None:
    """Return the job's time limit: the spec's, else the partition's default as far as so many nodes may run."""
    if spec.resources.time is not None or partition.time.default is None:
        return spec.resources.time
    longest, _ = longest_time(partition, nodes)
    wanted = parse_time(partition.time.default) or None
    if longest is not None and (wanted is None or wanted > longest):
        return format_time(longest)
    return partition.time.default


def check_time(spec: JobSpec, partition: Partition, nodes: int | None) -> list[Problem]:
    """Return what is wrong with the spec's time on so many nodes, when they are known."""
    given = spec.resources.time
    if given is None:
        return []
    # Slurm takes a limit of zero for none at all.
    asked = parse_time(given) or None
    shortest = None if partition.time.min is None else parse_time(partition.time.min)
    if asked is not None and shortest is not None and asked < shortest:
        allowed = f"at least {partition.time.min} in this partition"
        return [Problem("resources.time", f"{given} asked for", allowed, "ask for more")]
    longest, of_what = longest_time(partition, nodes)
    if longest is None or (asked is not None and asked <= longest):
        return []
    what = f"{given} asked for" if asked is not None else "no limit asked for"
    todo = "ask for less, or choose another partition"
    return [Problem("resources.time", what, f"at most {format_time(longest)} {of_what}", todo)]


def longest_time(partition: Partition, nodes: int | None) -> tuple[int | None, str]:
    """Return the longest time in seconds for a job of `nodes` nodes, and where that limit holds, in words."""
    rules = partition.time
    limits: list[tuple[int | None, str]] = []
    if rules.max is not None:
        limits.append((parse_time(rules.max), "in this partition"))
    fitting = [] if nodes is None else [rule for rule in rules.by_nodes if nodes <= rule.max_nodes]
    if fitting:
        first = min(fitting, key=lambda rule: rule.max_nodes)
        limits.append((parse_time(first.max), f"for up to {first.max_nodes} nodes"))
    if nodes is not None and rules.node_hours is not None:
        whole = max(1, int(rules.node_hours * HOUR_S / nodes) // MINUTE_S) * MINUTE_S
        limits.append((whole, f"for {rules.node_hours:g} node-hours"))
    finite = [(seconds, where) for seconds, where in limits if seconds is not None]
    return min(finite) if finite else (None, "")
