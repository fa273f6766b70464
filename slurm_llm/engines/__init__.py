"""One module an engine: what it checks, how its ranks start, its model repository and its readiness probe."""

from __future__ import annotations

from slurm_llm.engines import llmapi, rehearsal, tensorrtllm, vllm
from slurm_llm.engines.types import Engine
from slurm_llm.spec import EngineName

_ENGINES: dict[EngineName, Engine] = {
    "rehearsal": rehearsal.ENGINE,
    "llmapi": llmapi.ENGINE,
    "vllm": vllm.ENGINE,
    "tensorrtllm": tensorrtllm.ENGINE,
}


def find_engine(name: EngineName) -> Engine:
    """Return the engine called `name`."""
    return _ENGINES[name]
