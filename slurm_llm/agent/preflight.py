"""The check between allocation and start, one process a rank through the same srun line: MPI world, GPUs, layout."""

import os
import sys
from typing import List


def mpi_problems(ranks: int) -> List[str]:
    """Join the MPI world and return what is wrong with it."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        return ["mpi4py cannot be imported (%s): set preflight.mpi: false to leave this part out" % error]
    world = MPI.COMM_WORLD
    size = world.Get_size()
    if size != ranks:
        hint = ": each task is alone; is `--mpi` right, and does the MPI library speak that PMI?" if size == 1 else ""
        return ["the MPI world has %d ranks, the plan has %d%s" % (size, ranks, hint)]
    seen = sorted(world.allgather(int(os.environ.get("SLURM_PROCID", world.Get_rank()))))
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


def gpu_problems(gpus: int) -> List[str]:
    """Return what is wrong with the GPUs that this rank may see; every rank sees all of the job's on its node."""
    if not gpus:
        return []
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return ["CUDA_VISIBLE_DEVICES is not set, the job has %d GPUs a node" % gpus]
    names = [name for name in text.split(",") if name and name != "NoDevFiles"]
    return [] if len(names) == gpus else ["%d GPUs visible (%s), the job has %d a node" % (len(names), text, gpus)]


def main(ranks: int, ranks_per_node: int, gpus: int, mpi: bool) -> int:
    """Print every problem of this rank and return 1 when there is one."""
    problems = layout_problems(ranks, ranks_per_node) + gpu_problems(gpus)
    if mpi:
        problems += mpi_problems(ranks)
    for problem in problems:
        node = os.environ.get("SLURMD_NODENAME", "?")
        print("preflight: rank %s on node %s: %s" % (os.environ.get("SLURM_PROCID", "?"), node, problem), flush=True)
    # Leaving without MPI_Finalize would make PMIx call the step failed; a normal exit runs it.
    return sys.exit(1) if problems else 0
