"""Options of sbatch and of every srun step, as words. One place for the GPU dialects and for what each step must say.

srun reads the job's environment as options and releases differ in which, so every step states nodes, tasks, tasks a
node, CPUs, GPUs and MPI itself.
"""

from __future__ import annotations

from slurm_llm.plan.types import Allocation, InstancePlan, Plan
from slurm_llm.slurm.formats import parse_time

STOP_WARNING_S, LEAST_WARNING_S = 90, 10
"""How long before the time limit the job is told (Slurm may be up to a minute early); a fifth of a short limit."""


def sbatch_options(plan: Plan, output: str) -> tuple[str, ...]:
    """Return the job's `#SBATCH` options; `output` is a Slurm file name pattern, `%` already doubled."""
    own = plan.allocation
    options = [
        f"--job-name={plan.name}",
        f"--nodes={own.nodes}",
        f"--ntasks={own.nodes * own.ranks_per_node}",
        f"--ntasks-per-node={own.ranks_per_node}",
        f"--cpus-per-task={own.cpus_per_rank}",
        *_gpus(own, own.gpus_per_node),
    ]
    for name in ("time", "partition", "account", "qos", "constraint", "reservation"):
        value = getattr(own, name)
        if value is not None:
            options.append(f"--{name}={value}")
    if own.mem_per_node is not None:
        options.append(f"--mem={own.mem_per_node}")
    if own.exclusive:
        options.append("--exclusive")
    options += [
        f"--signal=B:USR1@{stop_warning_s(own.time)}",
        "--no-requeue",
        "--open-mode=append",
        f"--output={output}",
    ]
    return (*options, *own.extra)


def stop_warning_s(time: str | None) -> int:
    """Return how many seconds ahead of the time limit the job is to be told."""
    limit = None if time is None else parse_time(time)
    return STOP_WARNING_S if limit is None else min(STOP_WARNING_S, max(LEAST_WARNING_S, limit // 5))


def world_step(plan: Plan, instance: InstancePlan | None = None) -> tuple[str, ...]:
    """Return the srun options of a step with one task a rank: of one instance, or of all ranks together."""
    own = plan.allocation
    nodes = own.nodes if instance is None else instance.nodes
    options = [
        *(() if plan.step.mpi is None else (f"--mpi={plan.step.mpi}",)),
        f"--nodes={nodes}",
        f"--ntasks={nodes * own.ranks_per_node}",
        f"--ntasks-per-node={own.ranks_per_node}",
        f"--cpus-per-task={own.cpus_per_rank}",
        *_gpus(own, own.gpus_per_node),
        "--distribution=block",
        "--kill-on-bad-exit=1",
        f"--wait={plan.step.wait_s}",
        "--unbuffered",
        "--label",
        "--export=ALL",
    ]
    if instance is not None and plan.replicas > 1:
        options.append(f"--relative={instance.first_node}")
    if plan.step.cpu_bind is not None:
        options.append(f"--cpu-bind={plan.step.cpu_bind}")
    return (*options, *plan.step.extra)


def helper_step(plan: Plan) -> tuple[str, ...]:
    """Return the srun options of a step with one light task a node beside the server's."""
    own = plan.allocation
    return (
        "--overlap",
        "--mpi=none",
        f"--nodes={own.nodes}",
        f"--ntasks={own.nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        # `--gres=none` is refused in a job that asked with --gpus-per-node; 0 works in both (Slurm 22.05.8).
        *(("--gpus-per-node=0",) if own.gpus_per_node else ()),
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--unbuffered",
        "--export=ALL",
    )


def _gpus(own: Allocation, count: int) -> tuple[str, ...]:
    if not count:
        return ()
    kind = f"{own.gpu_type}:" if own.gpu_type else ""
    return (f"--gres=gpu:{kind}{count}",) if own.gpu_style == "gres" else (f"--gpus-per-node={kind}{count}",)
