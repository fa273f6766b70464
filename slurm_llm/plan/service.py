"""A service: what a job hands over to its successor, when Slurm is to warn it, and what the spec asks for in vain."""

from __future__ import annotations

from slurm_llm.errors import Problem
from slurm_llm.plan.timelimits import MINUTE_S, choose_time
from slurm_llm.plan.types import ServicePlan
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.slurm.formats import format_time, parse_time
from slurm_llm.spec import JobSpec

SPARE_S = 20
"""Seconds that a job needs for its end beyond those that requests in flight have."""
MAX_WARNING_S = 65535
"""Slurm's own limit of --signal's time."""


def build_service(spec: JobSpec) -> ServicePlan | None:
    """Return the plan's part; None of a job that is no service."""
    own = spec.service
    if own is None:
        return None
    successors = None if own.successors == "unlimited" else own.successors
    return ServicePlan(own.handover_s, own.drain_s, successors, own.idle_stop_s)


def service_warning_s(service: ServicePlan) -> int:
    """Return how many seconds ahead of its time limit the job is to be told: time for a successor, then for the end."""
    return service.handover_s + service.drain_s + SPARE_S


def check_service(spec: JobSpec, site: SiteProfile, partition: Partition, nodes: int) -> list[Problem]:
    """Return what the spec asks for in vain; `site` is the profile as it is for the job's partition."""
    service = build_service(spec)
    if service is None or not service.hands_over:
        return []
    if "signal" in {name.lstrip("-") for name in (*site.policies.forbid, *site.sbatch_skip)}:
        what = f"site {site.name} lets no job say --signal: nothing would warn the job of its end"
        return [Problem("service.successors", what, "0", "remove it")]
    warning = service_warning_s(service)
    if warning > MAX_WARNING_S:
        what = f"{warning} s ahead of the end is more than Slurm warns"
        return [Problem("service.handover_s", what, f"handover_s + drain_s at most {MAX_WARNING_S - SPARE_S}")]
    time = choose_time(spec, partition, nodes)
    if time is None:
        what = "a service that hands over must know its time limit, and neither spec nor site says one"
        return [Problem("resources.time", what, todo="set it")]
    limit = parse_time(time) or None
    # A job that is warned as soon as it begins would hand over at once, and so would its successor.
    least = warning + warning // 2 + MINUTE_S
    if limit is not None and limit < least:
        what = f"{time} is too short to be a service with handover_s {service.handover_s} and drain_s {service.drain_s}"
        allowed = f"at least {format_time(-(-least // MINUTE_S) * MINUTE_S)}"
        return [Problem("resources.time", what, allowed, "ask for more, or set a shorter service.handover_s")]
    return []
