"""One module an engine: what it checks, how its ranks start, its model repository and its readiness probe."""

from __future__ import annotations

from slurm_llm.engines import rehearsal
from slurm_llm.engines.types import Engine

_ENGINES: dict[str, Engine] = {"rehearsal": rehearsal.ENGINE}


def engine_names() -> tuple[str, ...]:
    """Return the engines that this release can start."""
    return tuple(_ENGINES)


def find_engine(name: str) -> Engine | None:
    """Return the engine called `name`, or None when this release cannot start it."""
    return _ENGINES.get(name)
