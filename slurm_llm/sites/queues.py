"""Partition: one logical queue of a site's profile, and how the site wants its nodes, GPUs, CPUs and memory asked for.

`null` always means "do not emit". The keys and the clusters that need each are those of docs/sites/README.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slurm_llm.fields import (
    AtLeastZero,
    Name,
    NodeSet,
    NonEmpty,
    OptionNames,
    Positive,
    SbatchOptions,
    Shell,
    SlurmMemory,
    SlurmTime,
    SrunOptions,
    Texts,
)
from slurm_llm.schema import Section
from slurm_llm.sites.containers import ContainerRules
from slurm_llm.sites.rules import (
    Account,
    Launcher,
    Modules,
    Network,
    Policies,
    Security,
    SiteEnvironment,
    SiteMetrics,
    SitePreflight,
    SiteTriton,
    Startup,
    Storage,
    Ulimits,
)


class Gpu(Section):
    """The GPUs of a node; `slurm_type` is the type in GRES requests, `memory_gb` is of one GPU as Slurm counts them."""

    vendor: Literal["nvidia", "amd", "intel"] = "nvidia"
    model: NonEmpty | None = None
    memory_gb: Positive | None = None
    slurm_type: Name | None = None


class GpuRequest(Section):
    """The dialect of GPU requests.

    `none` asks for nothing, as where whole nodes are given. `typed` puts `gpu.slurm_type` into the request. `step` is
    the dialect of the steps where it is another one, as where whole nodes are given but steps must ask.
    """

    style: Literal["gres", "gpus_per_node", "gpus", "gpus_per_task", "none"] = "gpus_per_node"
    typed: bool = False
    name: Name = "gpu"
    """Name of the GRES in the `gres` dialect."""
    step: Literal["same", "gres", "gpus_per_node", "none"] = "same"


class Cpus(Section):
    """CPUs; `per_rank` counts for every rank (one GPU each), `per_node` is what a node has for jobs."""

    style: Literal["cpus_per_task", "cpus_per_gpu", "none"] = "cpus_per_task"
    per_rank: Positive | None = None
    per_node: Positive | None = None
    threads_per_core: Positive | None = None
    hint: Literal["compute_bound", "memory_bound", "multithread", "nomultithread"] | None = None


class Memory(Section):
    """Memory; `whole_node` is the value of `--mem` for a job that takes every GPU of its nodes."""

    style: Literal["mem", "mem_per_gpu", "mem_per_cpu", "none"] = "mem"
    per_rank: SlurmMemory | None = None
    per_cpu: SlurmMemory | None = None
    whole_node: SlurmMemory | None = None


class TimeByNodes(Section):
    """Longest time for jobs of at most `max_nodes` nodes."""

    max_nodes: Positive
    max: SlurmTime


class TimeRules(Section):
    """Limits of wall-clock time, in Slurm's own formats; `node_hours` bounds time × nodes."""

    max: SlurmTime | None = None
    min: SlurmTime | None = None
    default: SlurmTime | None = None
    by_nodes: Annotated[tuple[TimeByNodes, ...], Field(strict=False)] = ()
    node_hours: Annotated[float, Field(gt=0, le=1e9)] | None = None


class Limits(Section):
    """Smallest and largest job that the partition takes."""

    min_nodes: Positive | None = None
    max_nodes: Positive | None = None
    max_gpus: Positive | None = None


class Preempt(Section):
    """Whether jobs may be preempted, and how many seconds pass between the warning and the end."""

    possible: bool = False
    grace_s: AtLeastZero | None = None


class Overrides(Section):
    """Sections of the profile that a partition may change: what stands here wins over the site's own."""

    account: Account | None = None
    launcher: Launcher | None = None
    network: Network | None = None
    security: Security | None = None
    container: ContainerRules | None = None
    storage: Storage | None = None
    env: SiteEnvironment | None = None
    modules: Modules | None = None
    ulimits: Ulimits | None = None
    policies: Policies | None = None
    startup: Startup | None = None
    preflight: SitePreflight | None = None
    metrics: SiteMetrics | None = None
    triton: SiteTriton | None = None
    python: NonEmpty | None = None
    exclude_nodes: NodeSet | None = None
    sbatch_extra: SbatchOptions | None = None
    sbatch_skip: OptionNames | None = None
    srun_extra: SrunOptions | None = None
    srun_skip: OptionNames | None = None
    prologue: Shell | None = None
    step_prologue: Shell | None = None
    epilogue: Shell | None = None


class PartitionDefaults(Overrides):
    """Keys that every partition of a profile has unless it says otherwise."""

    slurm_partition: Annotated[Texts, Field(min_length=1)] | NonEmpty | None = None
    """One Slurm partition, or several of which Slurm takes the first free one; null emits no `--partition`."""
    qos: NonEmpty | None = None
    constraint: NonEmpty | None = None
    reservation: NonEmpty | None = None
    nodes: Positive | None = None
    """Number of nodes in the partition, to refuse what can never start."""
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    gpus_per_node: AtLeastZero | None = None
    gpu: Gpu = Gpu()
    gpu_request: GpuRequest = GpuRequest()
    whole_node: bool = False
    """Only whole nodes are given: a job asks for all GPUs of its nodes; one that uses fewer gets a warning."""
    exclusive: bool | Literal["user", "topo"] = False
    cpus: Cpus = Cpus()
    memory: Memory = Memory()
    time: TimeRules = TimeRules()
    limits: Limits = Limits()
    segment: Positive | Literal["all"] | None = None
    preempt: Preempt = Preempt()
    licenses: NonEmpty | None = None
    wait_all_nodes: bool = False
    core_spec: AtLeastZero | None = None
    distribution: NonEmpty | None = None
    switches: NonEmpty | None = None


class Partition(PartitionDefaults):
    """One logical queue that users name."""

    gpus_per_node: AtLeastZero
