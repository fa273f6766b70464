"""A platform for vLLM on which its Ray executor takes CPUs of several nodes, as it takes GPUs.

vLLM itself names no resource of Ray for its CPU platform, and refuses Ray there; its messages between ranks go through
shared memory, which two nodes do not have in common. Only these two things are changed here.
"""

from __future__ import annotations


def platform() -> str:
    """Return the class that takes the place of vLLM's CPU platform (entry point `vllm.platform_plugins`)."""
    return f"{__name__}.platform.RayCpuPlatform"
