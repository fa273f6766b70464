"""Container runtimes as adapters: which container the ranks of a job get, and how they are put into it.

A pure layer: from spec and site to a ContainerPlan, from that to words of srun and sbatch and to texts of the run
directory. Each runtime's grammar is in a module of its own, with the source that it is from.
"""

from slurm_llm.containers.build import plan_container
from slurm_llm.containers.emit import enter_variables, expand, files, sbatch_options, step_options, wrap
from slurm_llm.containers.types import ContainerPlan, Mount

__all__ = [
    "ContainerPlan",
    "Mount",
    "enter_variables",
    "expand",
    "files",
    "plan_container",
    "sbatch_options",
    "step_options",
    "wrap",
]
