"""Whether an allocation that is there already has what a plan needs, and the plan as it is for that allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_llm.errors import Problem
from slurm_llm.plan.types import Allocation, GuestPlan, Plan
from slurm_llm.slurm.formats import parse_mem_mib
from slurm_llm.slurm.held import NodeShare
from slurm_llm.spec import JobSpec

MOST_SHOWN = 4


@dataclass(frozen=True)
class Need:
    """What a plan needs on each of its nodes; `mem_mib` None is what is there."""

    nodes: int
    cpus: int
    gpus: int
    mem_mib: int | None

    def fits(self, share: NodeShare, gres: str) -> bool:
        """Return whether one node gives it."""
        enough_memory = not (self.mem_mib and share.mem_mib) or share.mem_mib >= self.mem_mib
        return share.cpus >= self.cpus and share.count(gres) >= self.gpus and enough_memory

    def __str__(self) -> str:
        return f"{counted(self.nodes, 'node')} with {amounts(self.cpus, self.gpus, self.mem_mib or 0)}"


def counted(number: int, word: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def amounts(cpus: int, gpus: int, mem_mib: int) -> str:
    """Return what one node gives, or is to give."""
    memory = [f"{mem_mib} MiB"] if mem_mib else []
    return ", ".join([counted(cpus, "CPU"), counted(gpus, "GPU"), *memory])


def need_of(plan: Plan) -> Need:
    """Return what the plan's ranks need; memory only where it is asked for by the node."""
    own = plan.allocation
    cpus = 1 if own.cpu_style == "none" else own.cpus_per_rank * own.ranks_per_node
    return Need(own.asked_nodes, cpus, own.gpus.per_node, _memory(own))


def _memory(own: Allocation) -> int | None:
    name, _, value = (own.memory or "").partition("=")
    return parse_mem_mib(value) if name == "--mem" and value else None


def choose_nodes(plan: Plan, shares: Sequence[NodeShare]) -> tuple[str, ...]:
    """Return the nodes that give what the plan needs, the first ones first; fewer than it needs when there are not."""
    need = need_of(plan)
    fitting = [share.name for share in shares if need.fits(share, plan.allocation.gpus.name)]
    return tuple(fitting[: need.nodes])


def misfit(plan: Plan, shares: Sequence[NodeShare], job_id: int) -> list[Problem]:
    """Return that the allocation has not got what the plan needs, with the figures of both."""
    gres, more = plan.allocation.gpus.name, len(shares) - MOST_SHOWN
    what = f"the plan needs {need_of(plan)} each; job {job_id} has {counted(len(shares), 'node')}"
    rows = [f"  {one.name}  {amounts(one.cpus, one.count(gres), one.mem_mib)}" for one in shares[:MOST_SHOWN]]
    rows += [f"  and {more} more"] if more > 0 else []
    todo = "allocate more, or ask for less in `resources`"
    return [Problem("--in-allocation", what), *(Problem("", row) for row in rows), Problem("do", todo)]


def check_guest(spec: JobSpec) -> list[Problem]:
    """Return what a run in somebody's allocation cannot have."""
    problems = []
    if spec.recovery.requeue:
        what = "a requeue would end the allocation that the run is a guest of"
        problems.append(Problem("recovery.requeue", what, "0", "remove it"))
    if spec.service is not None and spec.service.successors != 0:
        what = "a successor would be a job of its own"
        problems.append(Problem("service.successors", what, "0", "remove it, or submit the job"))
    return problems


def as_guest(plan: Plan, shares: Sequence[NodeShare], job_id: int, first_attempt: int, *, here: bool) -> Plan:
    """Return the plan for the nodes that `choose_nodes` finds.

    Its steps share the nodes with whatever else the user runs there. `here` tells whether the script runs on the first
    of them; else what is found out on the script's node must be said beforehand.
    """
    chosen, own = choose_nodes(plan, shares), plan.allocation
    beside = len(shares) - own.asked_nodes
    # A job with spare nodes names the nodes of each step.
    allocation = replace(own, spare_nodes=own.spare_nodes + (1 if beside and not own.spare_nodes else 0))
    step = replace(plan.step, extra=("--overlap", *plan.step.extra)) if not allocation.spare_nodes else plan.step
    env, master = plan.env, plan.master
    if master is not None and not here and master.interface is None:
        env = replace(env, set=(*env.set, ("MASTER_ADDR", chosen[0] + master.suffix)))
        master = None
    guest = GuestPlan(job_id, first_attempt)
    return replace(plan, allocation=allocation, step=step, env=env, master=master, guest=guest)
