"""vLLM's messages between ranks by Gloo alone."""

from __future__ import annotations

# mypy does not run where vLLM is installed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator  # type: ignore[import-not-found]


class GlooCommunicator(CpuCommunicator):  # type: ignore[misc]
    """Never takes ranks to share a memory."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False
