"""From a run's status to the server that is asked: its address, key and dialect, and where a request is stopped."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slurm_llm import triton
from slurm_llm.errors import NotReached, Problem
from slurm_llm.observe.endpoint import choose, is_inward
from slurm_llm.observe.keys import headers_of

if TYPE_CHECKING:
    from slurm_llm.observe.status import RunStatus


def served_of(status: RunStatus, environ: Mapping[str, str], instance: int | None = None) -> triton.Served:
    """Return the server to ask: the balancer, or the first instance, unless one is named.

    A balancer does not know which instance has a request, so a stop goes to all of them.

    Raises:
        NotReady: the run does not serve, has no such instance, or its key cannot be read;
        NotReached: it listens on its node's loopback alone. Whoever has that port here would get prompt and key.
    """
    one = choose(status, instance)
    if is_inward(one) and not _is_there(status, environ):
        todo = f"`slurm-llm tunnel {status.run_id}` opens it here, as curl needs it"
        raise NotReached(Problem(one.url, "the server listens on its node alone, not here", todo=todo))
    stops = tuple(other.url for other in status.endpoints if other.instance is not None) if one.balancer else (one.url,)
    return triton.Served(one.url, status.model, status.engine, headers_of(one), stops)


def _is_there(status: RunStatus, environ: Mapping[str, str]) -> bool:
    """Return whether this is the node of a run with one node, inside its job or not."""
    return environ.get("SLURM_JOB_ID") == str(status.job_id) or platform.node().partition(".")[0] == status.node_list
