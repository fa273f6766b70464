"""What the stand-in model needs of TensorRT-LLM: who leads, a session with the other ranks, LLM()'s own checks."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Client
from typing import Any

KNOWN = frozenset(
    """model backend tensor_parallel_size pipeline_parallel_size context_parallel_size moe_expert_parallel_size
    moe_tensor_parallel_size gpus_per_node kv_cache_config cuda_graph_config enable_chunked_prefill max_batch_size
    max_seq_len max_num_tokens enable_lora lora_config dtype revision""".split()  # noqa: SIM905
)
STOP = 7


class LLM:
    """Checks its arguments and its ranks as LLM() does, then echoes."""

    def __init__(self, **arguments: Any) -> None:
        unknown = sorted(set(arguments) - KNOWN)
        if unknown:
            raise ValueError(f"unknown arguments: {', '.join(unknown)}")
        self.arguments = arguments
        world = arguments["tensor_parallel_size"] * arguments["pipeline_parallel_size"]
        world *= arguments.get("context_parallel_size", 1)
        if os.environ.get("TLLM_SPAWN_PROXY_PROCESS") == "1":
            self._join_launcher(world)
        elif size() != world:
            raise RuntimeError(f"n_workers {world} should be equal to the MPI world size {size()}")

    @staticmethod
    def _join_launcher(world: int) -> None:
        kind, _, rest = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"].partition("://")
        key = bytes.fromhex(os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY"])
        host, _, port = rest.partition(":")
        deadline = time.monotonic() + 30
        while True:
            try:
                with Client(rest if kind == "ipc" else (host, int(port)), authkey=key) as client:
                    client.send(world)
                    refusal = client.recv()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if refusal:
            raise RuntimeError(refusal)

    def generate(self, prompt: str, most: int) -> list[str]:
        """Return the prompt's first words, a blank before each."""
        return [" " + word for word in prompt.split()][:most]


def rank() -> int:
    """Return this process's rank in the MPI world; the launcher's task is none of its ranks."""
    return 0 if os.environ.get("TLLM_SPAWN_PROXY_PROCESS") == "1" else _world().Get_rank()


def size() -> int:
    """Return the size of the MPI world."""
    return 1 if os.environ.get("TLLM_SPAWN_PROXY_PROCESS") == "1" else _world().Get_size()


def wait_for_leader() -> None:
    """Block a worker, without spinning, until the leader closes."""
    while not _world().Iprobe(source=0):
        time.sleep(0.05)
    _world().recv(source=0)


def release_workers() -> None:
    """Let every worker go."""
    for other in range(1, size()):
        _world().send(STOP, other)


def _world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD
