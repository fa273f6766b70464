"""The check between allocation and start, one process a rank through the same srun line: MPI world, GPUs, layout."""

import os
import sys
from typing import List, NamedTuple

from . import interfaces


class Options(NamedTuple):
    """What the job's script tells the check; `gpus` a node, 0 for none."""

    ranks: int
    ranks_per_node: int
    gpus: int
    mpi: bool
    by_srun: bool
    interface: str


def mpi_problems(ranks: int, by_srun: bool) -> List[str]:
    """Join the MPI world and return what is wrong with it; only srun's tasks have a number to compare with."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        return ["mpi4py cannot be imported (%s): set preflight.mpi: false to leave this part out" % error]
    world = MPI.COMM_WORLD
    size = world.Get_size()
    if size != ranks:
        hint = ": each task is alone; is `--mpi` right, and does the MPI library speak that PMI?" if size == 1 else ""
        return ["the MPI world has %d ranks, the plan has %d%s" % (size, ranks, hint)]
    own = os.environ.get("SLURM_PROCID") if by_srun else None
    seen = sorted(world.allgather(int(world.Get_rank() if own is None else own)))
    return [] if seen == list(range(ranks)) else ["MPI ranks and Slurm tasks do not match: %s" % seen]


def layout_problems(ranks: int, ranks_per_node: int) -> List[str]:
    """Return what is wrong with the step's own layout, from Slurm's variables."""
    problems = []
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks and int(tasks) != ranks:
        problems.append("the step has %s tasks, the plan has %d" % (tasks, ranks))
    rank, node = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NODEID", "0"))
    if rank // ranks_per_node != node:
        planned = rank // ranks_per_node
        problems.append("rank %d runs on node %d of the job, the plan has it on %d" % (rank, node, planned))
    return problems


VISIBLE_BY_VENDOR = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}
"""What tells programs which GPUs to use, by vendor; Slurm itself sets the first of each (gres.conf(5))."""
VISIBLE = tuple(names[0] for names in VISIBLE_BY_VENDOR.values())
VISIBLE_ALL = tuple(sorted({name for names in VISIBLE_BY_VENDOR.values() for name in names}))


def gpu_problems(gpus: int) -> List[str]:
    """Return what is wrong with the GPUs that this rank may see; every rank sees all of the job's on its node."""
    if not gpus:
        return []
    given = [(name, os.environ[name]) for name in VISIBLE if name in os.environ]
    if not given:
        return ["none of %s is set, the job has %d GPUs a node" % (", ".join(VISIBLE), gpus)]
    name, text = given[0]
    seen = [one for one in text.split(",") if one and one != "NoDevFiles"]
    if len(seen) == gpus:
        return []
    return ["%d GPUs visible (%s=%s), the job has %d a node" % (len(seen), name, text, gpus)]


def interface_problems(interface: str) -> List[str]:
    """Return what is wrong with the network interface that the site names: a wrong name is only a warning to MPI."""
    if not interface or interface in interfaces.names():
        return []
    known = ", ".join(interfaces.names())
    return ["no interface %s here (network.interface in the site profile): there are %s" % (interface, known)]


def main(options: Options) -> int:
    """Print every problem of this rank and return 1 when there is one."""
    problems = gpu_problems(options.gpus) + interface_problems(options.interface)
    if options.by_srun:
        problems += layout_problems(options.ranks, options.ranks_per_node)
    if options.mpi:
        problems += mpi_problems(options.ranks, options.by_srun)
    for problem in problems:
        node = os.environ.get("SLURMD_NODENAME", "?")
        print("preflight: rank %s on node %s: %s" % (os.environ.get("SLURM_PROCID", "?"), node, problem), flush=True)
    # Leaving without MPI_Finalize would make PMIx call the step failed; a normal exit runs it.
    return sys.exit(1) if problems else 0
