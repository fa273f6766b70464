"""The check between allocation and start, one process a rank through the same srun line: MPI world, GPUs, layout."""

import os
import sys
from typing import List, NamedTuple, Optional, Tuple

from . import gpus as node_gpus
from . import interfaces, journal, visible


class Options(NamedTuple):
    """What the job's script tells the check; `gpus` a node, 0 for none."""

    ranks: int
    ranks_per_node: int
    gpus: int
    mpi: bool
    by_srun: bool
    interface: str


class Findings(NamedTuple):
    """What is wrong, and what should only be known."""

    problems: List[str]
    warnings: List[str]


def mpi_problems(ranks: int, by_srun: bool, shown: Optional[List[visible.Shown]] = None) -> List[str]:
    """Join the MPI world and return what is wrong with it; only srun's tasks have a number to compare with.

    In a world that is well, `shown` (what this rank sees of GPUs, alone) is completed by what all others see.
    """
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
    if shown is not None:
        shown[:] = [
            visible.Shown(*one) for all_of_one in world.allgather(list(map(tuple, shown))) for one in all_of_one
        ]
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
    name, text = _given()
    if not name:
        return ["none of %s is set, the job has %d GPUs a node" % (", ".join(VISIBLE), gpus)]
    seen = visible.names_in(text)
    if len(seen) == gpus:
        return []
    return ["%d GPUs visible (%s=%s), the job has %d a node" % (len(seen), name, text, gpus)]


def _given() -> Tuple[str, str]:
    """Return the variable that names this rank's GPUs, and its value; empty where there is none."""
    return next(((name, os.environ[name]) for name in VISIBLE if name in os.environ), ("", ""))


def driver_findings(gpus: int, known: Optional[List[visible.Device]]) -> Findings:
    """Return what is wrong with this rank's GPUs as the driver sees them; nothing where there is no NVIDIA driver."""
    if known is None:
        return Findings([], ["the GPU driver has not answered within %d s" % visible.DRIVER_S])
    name, text = _given()
    if not known or name != VISIBLE[0]:
        return Findings([], [])
    mine = [own for own in visible.resolve(visible.names_in(text), known).values() if own is not None]
    # Where every rank sees all of the node's GPUs, one of them telling is enough.
    tell = len(mine) == 1 or os.environ.get("SLURM_LOCALID", "0") == "0"
    return Findings(visible.problems(name, text, known, gpus), visible.busy(mine) if tell else [])


def look_at_gpus(gpus: int) -> Tuple[Findings, List[visible.Shown]]:
    """Ask the driver what this rank sees, write that down, and return what is wrong.

    Where Slurm was not asked for GPUs, what somebody else shows the rank is only written down.
    """
    name, text = _given()
    if not (gpus or name) or not os.path.exists(node_gpus.CONTROL):
        return Findings([], []), []
    known = visible.devices()
    found = driver_findings(gpus, known) if gpus else Findings([], [])
    shown = visible.Shown(_node(), int(_rank()) if _rank().isdigit() else -1, ())
    if known and name == VISIBLE[0]:
        shown = shown._replace(uuids=visible.uuids(visible.names_in(text), known))
    write_down(shown, found)
    return found, [shown]


def write_down(shown: visible.Shown, found: Findings) -> None:
    """Leave for status and diagnosis what this rank is shown, where the job says in which folder."""
    folder = os.environ.get("LLMRUN_ATTEMPT", "")
    if folder:
        item = journal.record("sees", gpus=list(shown.uuids), node=shown.node, rank=shown.rank, busy=found.warnings)
        journal.append(os.path.join(folder, "journal", "sees-%d.jsonl" % shown.rank), item)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME", "?")


def _rank() -> str:
    """Return this rank's number: a launcher other than srun tells it itself, as in rank.sh."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
    return next((os.environ[name] for name in names if name in os.environ), "?")


def interface_problems(interface: str) -> List[str]:
    """Return what is wrong with the network interface that the site names: a wrong name is only a warning to MPI."""
    if not interface or interface in interfaces.names():
        return []
    known = ", ".join(interfaces.names())
    return ["no interface %s here (network.interface in the site profile): there are %s" % (interface, known)]


def main(options: Options) -> int:
    """Print every problem of this rank and return 1 when there is one."""
    problems = gpu_problems(options.gpus) + interface_problems(options.interface)
    found, shown = look_at_gpus(options.gpus)
    problems, warnings = problems + found.problems, list(found.warnings)
    if options.by_srun:
        problems += layout_problems(options.ranks, options.ranks_per_node)
    if options.mpi:
        mine = shown[0] if shown else None
        problems += mpi_problems(options.ranks, options.by_srun, shown)
        same = [] if mine is None else visible.shared(mine, shown)
        # Fewer GPUs than ranks are the plan's own choice.
        if options.gpus >= options.ranks_per_node:
            problems += same
        else:
            warnings += same
    for label, texts in (("warning: ", warnings), ("", problems)):
        for text in texts:
            print("preflight: %srank %s on node %s: %s" % (label, _rank(), _node(), text), flush=True)
    # Leaving without MPI_Finalize would make PMIx call the step failed; a normal exit runs it.
    return sys.exit(1) if problems else 0
