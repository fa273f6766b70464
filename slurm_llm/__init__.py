"""Serve large language models with NVIDIA Triton on a Slurm cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from slurm_llm.api import Run, build_plan, find_run, load_site, load_spec, render_run, submit

__all__ = ["Run", "__version__", "build_plan", "find_run", "load_site", "load_spec", "render_run", "submit"]


def __getattr__(name: str) -> object:
    """Load the Python interface when it is first used: `status` and the job's own parts never need it."""
    if name not in __all__:
        raise AttributeError(f"module 'slurm_llm' has no attribute '{name}'")
    from slurm_llm import api

    return getattr(api, name)
