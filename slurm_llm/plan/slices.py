"""MIG slices as GPUs: one slice a server, since a process uses one of them.

CUDA shows a process a single MIG device, and slices have neither peer access nor CUDA IPC (NVIDIA's MIG User Guide,
deployment considerations), which tensor parallel ranks need.
"""

from __future__ import annotations

import re

from slurm_llm.errors import Problem
from slurm_llm.plan.layout import Layout
from slurm_llm.sites.profile import Partition
from slurm_llm.spec import JobSpec

_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb", re.IGNORECASE)
"""A slice as the driver names it, such as 1g.10gb or 1c.3g.20gb: Slurm takes it into the GPU's type (gres.conf(5)),
and NSC's Berzelius names reservations after it."""

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def find_slice(spec: JobSpec, partition: Partition) -> str | None:
    """Return the profile of the MIG slices that the job gets in place of whole GPUs, None where it gets whole ones."""
    names = (partition.gpu.slurm_type, partition.gpu.model, spec.reservation or partition.reservation)
    found = (_PROFILE.search(name) for name in names if name)
    return next((match[0] for match in found if match), None)


def check_slices(spec: JobSpec, partition: Partition, layout: Layout) -> list[Problem]:
    """Return what is wrong with a server on several slices; the rehearsal engine computes on CPUs."""
    taken = layout.gpus_per_instance_node * layout.nodes_per_instance
    kind = find_slice(spec, partition)
    if kind is None or taken == 1 or spec.engine == "rehearsal":
        return []
    where = next((name for name in _SIZES if getattr(spec, name) > 1), "engine_args.gpu_device_ids")
    what = f"a server on {taken} GPUs, and those of this partition are MIG slices ({kind}): a process uses one"
    todo = "use `replicas` for more servers, a larger slice, or whole GPUs for a larger model"
    return [Problem(where, what, "one slice a server", todo)]
