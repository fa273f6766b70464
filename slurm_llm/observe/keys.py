"""The key of a served model: the header that its inference needs. It is read where it is used, and never printed."""

from __future__ import annotations

from slurm_llm.agent import keys
from slurm_llm.errors import NotReady, Problem
from slurm_llm.observe.facts import Endpoint

GRPC_PREFIX = "triton-grpc-protocol-"
"""What Triton wants before the header's name in the metadata of gRPC (its documentation of restricted protocols)."""


def headers_of(endpoint: Endpoint) -> dict[str, str]:
    """Return the HTTP headers that a request for inference needs; empty where there is no key.

    Raises:
        NotReady: the key's file cannot be read by this user.
    """
    if not endpoint.key_file:
        return {}
    try:
        return keys.read(endpoint.key_file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise NotReady(Problem(endpoint.key_file, f"the key of the endpoint cannot be read: {reason}")) from None
