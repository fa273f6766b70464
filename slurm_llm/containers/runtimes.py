"""Every container runtime by name."""

from __future__ import annotations

from slurm_llm.containers.apptainer import APPTAINER, SINGULARITY
from slurm_llm.containers.charliecloud import RUNTIME as CHARLIECLOUD
from slurm_llm.containers.cscs_ce import RUNTIME as CSCS_CE
from slurm_llm.containers.enroot import RUNTIME as ENROOT
from slurm_llm.containers.podman_hpc import RUNTIME as PODMAN_HPC
from slurm_llm.containers.pyxis import RUNTIME as PYXIS
from slurm_llm.containers.runtime import Runtime
from slurm_llm.containers.shifter import RUNTIME as SHIFTER

RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (PYXIS, CSCS_CE, APPTAINER, SINGULARITY, SHIFTER, PODMAN_HPC, CHARLIECLOUD, ENROOT)
}


def find_runtime(name: str) -> Runtime | None:
    """Return the runtime called `name`; None for `none`, the nodes themselves."""
    return RUNTIMES.get(name)
