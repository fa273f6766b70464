"""Slurm's known words of refusal, each with the key of the profile to look at, and the value that it has there.

From `slurm_errno.c` and `slurm_opt.c`, 20.11 to 26.05, and from what 22.05.8 answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_llm.plan.types import Plan
from slurm_llm.slurm.options import MANAGED_SBATCH, MANAGED_SRUN
from slurm_llm.yamlio import Document


@dataclass(frozen=True)
class Hint:
    """A key of the profile, and what to do about it."""

    key: str
    todo: str


_SHAPE = "partitions.{name}.gpus_per_node, .gpu, .gpu_request, .cpus, .memory, .constraint"

_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (r"invalid partition|no partition specified", "partitions.{name}.slurm_partition", "`sinfo` lists the partitions"),
    (
        r"invalid account|invalid or unknown association",
        "account",
        "name one with --account, or as account.default; it must be allowed in this partition",
    ),
    (r"invalid qos|qos specification", "partitions.{name}.qos", "`sacctmgr show qos` lists them"),
    (
        r"accounting/qos policy|qos usage threshold",
        "partitions.{name}.limits, .time, .qos",
        "a limit of the account or the QOS",
    ),
    (
        r"invalid (preferred )?feature|constraint",
        "partitions.{name}.constraint",
        "`sinfo -o '%P %f'` lists the features of each partition's nodes",
    ),
    (
        r"reservation",
        "partitions.{name}.reservation",
        "`scontrol show reservation` lists them; it must exist and be open to you",
    ),
    (r"licen[sc]e", "partitions.{name}.licenses", "`scontrol show licenses` lists them"),
    (
        r"node configuration is not available|partition configuration not available",
        _SHAPE,
        "no node of the partition has all of that at once: compare with `scontrol show node`",
    ),
    (r"topology", "partitions.{name}.segment, .switches", "the cluster's topology cannot give that"),
    (
        r"mutually exclusive",
        "partitions.{name}.gpu_request.style, .cpus.style, .memory.style",
        "two options of the job exclude each other: change one of the styles, or sbatch_extra",
    ),
    (
        r"generic resource|gres|trackable resource",
        "partitions.{name}.gpu_request, .gpu.slurm_type",
        "`sinfo -o '%P %G'` shows how this Slurm names its GPUs; style none asks for nothing",
    ),
    (
        r"processors requested|cpu count|cpus? .*not available|threads per core",
        "partitions.{name}.cpus, .limits",
        "fewer CPUs a rank, or another style",
    ),
    (
        r"partitionconfig|partition's configuration",
        "partitions.{name}",
        "`scontrol show partition` against time, limits, nodes and account",
    ),
    (
        r"node count|more nodes than",
        "partitions.{name}.limits.min_nodes, .limits.max_nodes",
        "`scontrol show partition`",
    ),
    (r"time limit|--time|time-min", "partitions.{name}.time", "`scontrol show partition` has MaxTime"),
    (r"memory|--mem", "partitions.{name}.memory", "`sinfo -o '%P %m'` shows a node's memory; style none asks for none"),
    (r"task distribution|task count", "partitions.{name}.distribution", "remove it, or look at limits"),
    (r"node name|nodes not in this partition", "exclude_nodes", "these nodes are not in the partition"),
    (r"work(ing)? dir", "storage.submit_from", "submit from another folder"),
    (
        r"group not permitted|permission denied|access denied",
        "partitions.{name}.slurm_partition, account",
        "you, or this account, may not use the partition",
    ),
    (r"partition (not available|in down state)|submissions disabled", "", "ask the admins: the partition is closed"),
    (
        r"unable to contact|communication|timed out|rate limit|connection refused",
        "",
        "Slurm does not answer: try again later",
    ),
)

_UNKNOWN_OPTION = re.compile(r"(?:unrecognized|unknown|invalid) option (?:--\s*)?['\"`]?-{0,2}([a-z][a-z0-9-]*)")


def explain_refusal(said: str, partition: str) -> Hint:
    """Return the key of logical partition `partition` that sbatch's words point at."""
    option = _UNKNOWN_OPTION.search(said)
    if option is not None:
        owner = MANAGED_SBATCH.get(option[1], "")
        key = f"{owner}; sbatch_extra, sbatch_skip" if owner else "sbatch_extra, sbatch_skip"
        return Hint(key, f"this Slurm knows no --{option[1]}")
    for pattern, key, todo in _REFUSALS:
        if re.search(pattern, said, re.IGNORECASE):
            return Hint(key.format(name=partition), todo)
    todo = "the words of the site's own submit filter, or of a release not known here: see the site's documentation"
    return Hint("policies.forbid, policies.require", todo)


_VALUES = (
    ("account", "account", ("account", "default")),
    ("qos", "qos", ("qos",)),
    ("constraint", "constraint", ("constraint",)),
    ("reservation", "reservation", ("reservation",)),
    ("slurm_partition", "partition", ("slurm_partition",)),
)
"""Word of a hint's key → field of the allocation, and where the profile has it."""


def refused_values(
    hint: Hint, plan: Plan, partition: str, document: Document, flags: Mapping[str, str]
) -> tuple[str, str]:
    """Return the values that a refusal is about, and where they are from; empty texts where it names none.

    `flags` are fields of the allocation that a flag gave, `document` is the profile's.
    """
    words = re.findall(r"\w+", hint.key.replace(f"partitions.{partition}", ""))
    values, places = [], []
    for word, field, path in _VALUES:
        if word not in words:
            continue
        value = getattr(plan.allocation, field)
        if not value and "," in hint.key:
            # One key of several that it may be about.
            continue
        values.append(f"{field} {value}" if value else f"no {field}")
        known = (document.origin(one) for one in (("partitions", partition, *path), path))
        place = flags.get(field) or next((one for one in known if one), "")
        places += [place] if value and place else []
    return ", ".join(values), ", ".join(places)


def explain_step(said: str, mpi_types: tuple[str, ...]) -> Hint:
    """Return the key that srun's words about a step of ranks point at."""
    offers = f"srun --mpi=list offers {', '.join(mpi_types)}" if mpi_types else "see `srun --mpi=list`"
    option = _UNKNOWN_OPTION.search(said)
    if option is not None:
        owner = MANAGED_SRUN.get(option[1], "") or ("container" if option[1].startswith("container") else "")
        return Hint(f"{owner}; srun_extra, srun_skip".lstrip("; "), f"this srun knows no --{option[1]}")
    table = (
        (r"cannot source", Hint("env.source", "the file must be there where ranks run, in the image too")),
        (r"pyxis|enroot|container|image|apptainer|singularity|shifter|podman|ch-run", Hint("container", "")),
        (r"mpi[ /]|mpi_type|pmix", Hint("launcher.mpi", offers)),
        (r"python\S*: .*(no such file|not found)", Hint("python, container.python", "Python 3.6 or newer is needed")),
        (r"generic resource|gres|trackable|gpus", Hint("gpu_request.step of the partition", "the dialect of steps")),
        (r"cpu[ -]bind|affinity", Hint("launcher.step.cpu_bind", "")),
        (r"memory", Hint("memory of the partition", "")),
        (r"command not found|no such file", Hint("launcher.command, python", "a program is not on the nodes' PATH")),
        (r"busy|unable to create step", Hint("srun_extra, srun_skip", "two steps cannot run side by side")),
    )
    return next((hint for pattern, hint in table if re.search(pattern, said, re.IGNORECASE)), Hint("", ""))
