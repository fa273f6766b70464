"""The client that a job runs beside its server and ends with: its part of the plan, and what contradicts it."""

from __future__ import annotations

from slurm_llm.errors import Problem
from slurm_llm.plan.environment import texts
from slurm_llm.plan.types import ClientPlan
from slurm_llm.spec import JobSpec


def build_client(spec: JobSpec) -> ClientPlan | None:
    """Return the plan's part; None of a job that goes on until it is ended."""
    own = spec.client
    if own is None:
        return None
    return ClientPlan(own.command, tuple(texts(own.env).items()), own.in_image, own.cpus, own.restart, own.grace_s)


def check_client(spec: JobSpec, *, container: bool) -> list[Problem]:
    """Return what the spec asks for in vain; `container` tells whether the ranks run in an image."""
    own = spec.client
    if own is None:
        return []
    problems = []
    if spec.service is not None:
        what = "a service goes on in other jobs, or ends for want of requests; a job with a client ends with the client"
        problems.append(Problem("client", what, todo="remove `client` or `service`"))
    if own.in_image and not container:
        what = "the ranks run in no image"
        problems.append(Problem("client.in_image", what, "false", "remove it, or set container.image"))
    return problems
