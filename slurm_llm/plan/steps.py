"""Options of sbatch and of every srun step, as words: the GPU dialects, and what each step must say.

srun reads the job's environment as options and releases differ in which, so every step states nodes, tasks, tasks a
node, CPUs, GPUs and MPI itself, and `JOB_OPTIONS` are taken out of the environment first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from slurm_llm.containers import sbatch_options as container_directives
from slurm_llm.containers import step_options as container_options
from slurm_llm.containers import wrap
from slurm_llm.plan.service import service_warning_s
from slurm_llm.plan.types import Allocation, InstancePlan, Plan
from slurm_llm.slurm.formats import parse_time
from slurm_llm.slurm.options import option_name
from slurm_llm.slurm.versions import SlurmVersion, parse_version

STOP_WARNING_S, LEAST_WARNING_S = 90, 10
"""How long before the time limit the job is told (Slurm may be up to a minute early); a fifth of a short limit."""

JOB_OPTIONS = (
    *("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_TRES_PER_TASK", "SLURM_EXPORT_ENV"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_CPUS_PER_GPU"),
    *("SRUN_CPUS_PER_TASK", "SLURM_GRES"),
    *("SLURM_EXCLUSIVE", "SLURM_EXACT", "SLURM_OVERLAP", "SLURM_WHOLE", "SLURM_NTASKS_PER_GPU"),
)
"""Variables of the job that srun would read as options of a step, beside those that every step states.

Measured on Slurm 22.05.8 for every GPU dialect (docs/devcluster.md): with SLURM_GPUS_PER_TASK each task sees one GPU
whatever its step says, with SLURM_CPUS_PER_GPU a helper holds GPUs that it did not ask for.
"""

ALL_NODES, LIVING_NODES = "nodes", "living"
"""Variables of a job with spare nodes: those of an attempt, and those that are left of them at its end."""


class Expanded(str):
    """A word that the job's shell is to expand: it is written as it stands."""


def shell_line(words: Iterable[str]) -> str:
    """Return words as a line of a shell script, all quoted but those that are `Expanded`."""
    return " ".join(word if isinstance(word, Expanded) else shlex.quote(word) for word in words)


def step_lines(plan: Plan, run_dir: str) -> dict[str, object]:
    """Return the lines that start a job's steps, up to their own commands, by the templates' names for them."""
    helper = shell_line(helper_step(plan))
    return {
        "helper_step": helper,
        "agents_step": shell_line(helper_step(plan, sees_gpus=True)),
        "clean_step": shell_line(helper_step(plan, living=True)),
        "preflight_step": shell_line(world_step(plan, run_dir)),
        "server_steps": [(one, shell_line(world_step(plan, run_dir, one))) for one in plan.instances],
        "staging_step": shell_line(staging_step(plan)),
        "unstaging_step": helper,
    }


_LIKE_MPIRUN = {
    "ibrun": ("ibrun", "-n", "{ntasks}"),
    "mpirun": ("mpirun", "-np", "{ntasks}", "--map-by", "ppr:{ntasks_per_node}:node"),
}


def launcher_words(command: str) -> tuple[str, ...]:
    """Return the words of `launcher.command`: known programs get their usual ones."""
    words = tuple(command.split())
    return _LIKE_MPIRUN.get(words[0], words) if len(words) == 1 else words


def version_of(plan: Plan) -> SlurmVersion | None:
    """Return the release of Slurm that the plan is for; None when nobody knows."""
    return None if plan.slurm is None else parse_version(f"slurm {plan.slurm}")


def sbatch_options(plan: Plan, output: str) -> tuple[str, ...]:
    """Return the job's `#SBATCH` options; `output` is a Slurm file name pattern, `%` already doubled."""
    own = plan.allocation
    named = (
        ("time", own.time),
        ("partition", own.partition),
        ("account", own.account),
        ("qos", own.qos),
        ("constraint", own.constraint),
        ("reservation", own.reservation),
        ("exclude", own.exclude),
    )
    options = (
        f"--job-name={plan.name}",
        f"--nodes={own.asked_nodes}",
        f"--ntasks={own.asked_nodes * own.ranks_per_node}",
        f"--ntasks-per-node={own.ranks_per_node}",
        *_cpus(own),
        *_gpus(own),
        *(f"--{name}={value}" for name, value in named if value is not None),
        *(() if own.memory is None else (own.memory,)),
        *own.others,
        *(() if plan.container is None else container_directives(plan.container)),
        f"--signal=B:USR1@{_warning_s(plan)}",
        "--requeue" if plan.recovery.requeue else "--no-requeue",
        # The job outlives a node that it loses; without it Slurm ends the job, or requeues it.
        *(("--no-kill",) if own.spare_nodes else ()),
        "--open-mode=append",
        f"--output={output}",
        *own.extra,
    )
    return _without(options, own.skip)


def _warning_s(plan: Plan) -> int:
    service = plan.service
    hands_over = service is not None and service.hands_over
    if service is not None and hands_over:
        return service_warning_s(service)
    return stop_warning_s(plan.allocation.time) + grace_s(plan)


def grace_s(plan: Plan) -> int:
    """Return how many seconds a client has to end before the server is told to."""
    return 0 if plan.client is None else plan.client.grace_s


def stop_warning_s(time: str | None) -> int:
    """Return how many seconds ahead of the time limit the job is to be told."""
    limit = (None if time is None else parse_time(time)) or None
    return STOP_WARNING_S if limit is None else min(STOP_WARNING_S, max(LEAST_WARNING_S, limit // 5))


def world_step(plan: Plan, run_dir: str, instance: InstancePlan | None = None) -> tuple[str, ...]:
    """Return the words that start one task a rank, up to the task's own command.

    The ranks are those of one instance, or of all instances together; inside the container where there is one.
    """
    container = plan.container
    inside = () if container is None else wrap(container, run_dir)
    return (*_launcher(plan, run_dir, instance), *inside)


def _launcher(plan: Plan, run_dir: str, instance: InstancePlan | None) -> tuple[str, ...]:
    own = plan.allocation
    nodes = own.nodes if instance is None else instance.nodes
    each = own.ranks_per_node if instance is None else own.instance_ranks_per_node
    apart = instance is not None and own.instances_per_node > 1 and not own.spare_nodes
    if not plan.step.by_srun:
        numbers = {
            "{ntasks}": str(nodes * each),
            "{ntasks_per_node}": str(each),
            "{nodes}": str(nodes),
        }
        return tuple(_filled(word, numbers) for word in plan.step.command)
    options = [
        *(() if plan.step.mpi is None else (f"--mpi={plan.step.mpi}",)),
        f"--nodes={nodes}",
        f"--ntasks={nodes * each}",
        f"--ntasks-per-node={each}",
        *(() if own.cpu_style == "none" and not apart else (f"--cpus-per-task={own.cpus_per_rank}",)),
        *_step_gpus(own, own.instance_gpus_per_node if apart else own.gpus.per_node),
        "--distribution=block",
        "--kill-on-bad-exit=1",
        f"--wait={plan.step.wait_s}",
        "--unbuffered",
        "--label",
        "--export=ALL",
    ]
    if own.spare_nodes:
        # Until Slurm gives up a node that is lost, a step that was there holds the GPUs of all its nodes: share them.
        options += ["--overlap", _nodelist(None if plan.replicas == 1 else instance)]
    elif instance is not None and plan.replicas > 1:
        options.append(f"--relative={instance.first_node}")
    if apart:
        # Instances that share a node get CPUs and GPUs of their own from Slurm.
        options.append("--exact")
    options += [f"--{name}={value}" for name, value in _bindings(plan) if value is not None]
    version = version_of(plan)
    if version is not None and version.supports_oom_kill_step:
        # The kernel kills one process of a rank: without this the others of its step hang on.
        options.append("--oom-kill-step=1")
    options += () if plan.container is None else container_options(plan.container, run_dir)
    return ("srun", *_without((*options, *plan.step.extra), plan.step.skip))


def _nodelist(instance: InstancePlan | None) -> Expanded:
    """Return the option that names a step's nodes: all of the attempt's, or those of one instance."""
    if instance is None:
        return Expanded(f'--nodelist="${ALL_NODES}"')
    first, last = instance.first_node + 1, instance.first_node + instance.nodes
    return Expanded(f'--nodelist="$(cut -d, -f{first}-{last} <<<"${ALL_NODES}")"')


def _bindings(plan: Plan) -> tuple[tuple[str, str | None], ...]:
    return (("cpu-bind", plan.step.cpu_bind), ("gpu-bind", plan.step.gpu_bind))


def helper_step(plan: Plan, *, living: bool = False, sees_gpus: bool = False) -> tuple[str, ...]:
    """Return the srun words of a step with one light task a node beside the server's, on the host.

    `living` leaves out nodes that were lost, in a job that can tell. `sees_gpus` shares the server's GPUs with it where
    this Slurm can: device cgroups would hide them from whom is to watch them.
    """
    own, version = plan.allocation, version_of(plan)
    # Before 22.05 `--overlap` shares CPUs only: a step that asks for memory or GPUs waits for the server's.
    shares_all = version is None or version.overlap_shares_gres
    options = (
        "--overlap",
        "--mpi=none",
        *_helper_nodes(own, living=living),
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        *_helper_gpus(own, share=sees_gpus and shares_all),
        *(() if shares_all else ("--mem=0",)),
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--unbuffered",
        "--export=ALL",
    )
    return ("srun", *_without(options, plan.step.skip))


def staging_step(plan: Plan) -> tuple[str, ...]:
    """Return the srun words of the step that copies weights: a helper with a CPU for each stream, as far as there are.

    The first node that cannot have its copy ends it for all.
    """
    own, streams = plan.allocation, 1 if plan.staging is None else plan.staging.streams
    cpus = max(1, min(streams, own.cpus_per_rank * own.ranks_per_node))
    changed = {"--cpus-per-task=1": f"--cpus-per-task={cpus}", "--kill-on-bad-exit=0": "--kill-on-bad-exit=1"}
    return tuple(changed.get(word, word) for word in helper_step(plan))


def client_step(plan: Plan, run_dir: str) -> tuple[str, ...]:
    """Return the srun words of the client's step on the job's first node; none where it runs beside the script."""
    client, version = plan.client, version_of(plan)
    if client is None or not client.as_step:
        return ()
    container = plan.container if client.in_image else None
    shares_all = version is None or version.overlap_shares_gres
    options = (
        "--overlap",
        "--mpi=none",
        "--nodes=1",
        "--ntasks=1",
        "--relative=0",
        f"--cpus-per-task={client.cpus or 1}",
        *_helper_gpus(plan.allocation, share=False),
        *(() if shares_all else ("--mem=0",)),
        "--unbuffered",
        "--export=ALL",
        *(() if container is None else container_options(container, run_dir)),
    )
    inside = () if container is None else wrap(container, run_dir)
    return ("srun", *_without(options, plan.step.skip), *inside)


def side_step(plan: Plan, job: str, node: str, *, inside: str = "", pty: bool = False) -> tuple[str, ...]:
    """Return the srun words of one task on `node` beside the ranks of job `job`, started from outside the job.

    It shares the server's GPUs where this Slurm can, and holds none. `inside` is the run directory of a task that goes
    into the container, where srun enters that; `pty` gives it a terminal.
    """
    version = version_of(plan)
    shares_all = version is None or version.overlap_shares_gres
    container = plan.container if inside else None
    options = (
        f"--jobid={job}",
        "--overlap",
        "--mpi=none",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--cpus-per-task=1",
        *_helper_gpus(plan.allocation, share=shares_all),
        *(() if shares_all else ("--mem=0",)),
        "--kill-on-bad-exit=0",
        "--export=ALL",
        *(("--pty",) if pty else ("--quit-on-interrupt",)),
        *(() if container is None else container_options(container, inside)),
    )
    return ("srun", *_without(options, plan.step.skip))


def _helper_gpus(own: Allocation, *, share: bool) -> tuple[str, ...]:
    if not own.gpus.per_node:
        return ()
    return _step_gpus(own, own.gpus.per_node) if share else ("--gres=none",)


def _helper_nodes(own: Allocation, *, living: bool) -> tuple[str, ...]:
    if living and own.spare_nodes:
        name = LIVING_NODES
        return tuple(Expanded(f"--{one}") for one in ('nodes="$count"', 'ntasks="$count"', f'nodelist="${name}"'))
    named = (Expanded(f'--nodelist="${ALL_NODES}"'),) if own.spare_nodes else ()
    return (f"--nodes={own.nodes}", f"--ntasks={own.nodes}", *named)


def _cpus(own: Allocation) -> tuple[str, ...]:
    if own.cpu_style == "cpus_per_gpu":
        return (f"--cpus-per-gpu={max(1, own.cpus_per_rank // own.gpus_per_rank)}",)
    return () if own.cpu_style == "none" else (f"--cpus-per-task={own.cpus_per_rank}",)


def _gpus(own: Allocation) -> tuple[str, ...]:
    count, kind, style = own.gpus.per_node, _kind(own), own.gpus.style
    if not count or style == "none":
        return ()
    total = f"--gpus={kind}{count * own.asked_nodes}"
    words = {
        "gres": (f"--gres={own.gpus.name}:{kind}{count}",),
        "gpus_per_node": (f"--gpus-per-node={kind}{count}",),
        # A total over several nodes is dealt out unevenly (3 + 1 for 4 on two nodes) unless it is said per node too.
        "gpus": (total,) if own.asked_nodes == 1 else (total, f"--gpus-per-node={kind}{count}"),
        "gpus_per_task": (f"--gpus-per-task={kind}{own.gpus_per_rank}",),
    }
    return words[style]


def _step_gpus(own: Allocation, count: int) -> tuple[str, ...]:
    """Return what shows every task `count` of the job's GPUs on its node; a step is typed exactly when its job is."""
    kind = _kind(own)
    if not own.gpus.per_node or own.gpus.step == "none":
        return ()
    gres = own.gpus.step == "gres"
    return (f"--gres={own.gpus.name}:{kind}{count}",) if gres else (f"--gpus-per-node={kind}{count}",)


def _kind(own: Allocation) -> str:
    return f"{own.gpus.type}:" if own.gpus.type else ""


def _without(options: Iterable[str], skip: tuple[str, ...]) -> tuple[str, ...]:
    names = {name.lstrip("-") for name in skip}
    return tuple(option for option in options if option_name(option) not in names)


def _filled(word: str, numbers: dict[str, str]) -> str:
    for name, number in numbers.items():
        word = word.replace(name, number)
    return word
