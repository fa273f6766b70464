"""vLLM's CPU platform, with GPUs of Ray's for its places: Ray only counts them."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]  # not where mypy runs


class RayCpuPlatform(CpuPlatform):  # type: ignore[misc]
    """Takes one GPU of Ray's for each rank, whether there is one or not."""

    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return who carries messages between ranks."""
        return f"{__package__}.gloo.GlooCommunicator"
