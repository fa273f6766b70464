"""Arguments of tritonserver that every engine gives it in the same way."""

from __future__ import annotations

from slurm_llm.spec import JobSpec


def log_arguments(spec: JobSpec) -> tuple[str, ...]:
    """Return how much tritonserver is to log, nothing where its own default will do."""
    return (f"--log-verbose={spec.triton.log_verbose}",) if spec.triton.log_verbose else ()
