"""SiteProfile: the schema of a site's YAML file. `null` always means "do not emit"."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from slurm_llm.errors import did_you_mean
from slurm_llm.fields import (
    Environment,
    Line,
    NonEmpty,
    Options,
    PortRange,
    Positive,
    SbatchOptions,
    SlurmMemory,
    SlurmTime,
    Variables,
)
from slurm_llm.schema import Section


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


Regex = Annotated[str, AfterValidator(_regex)]


class Slurm(Section):
    """Facts of the cluster's slurm.conf that decide what is rendered."""

    version: Annotated[str, Field(pattern=r"^\d\d\.\d\d(\.\d+)?$")] | None = None
    kill_wait_s: Positive = 30
    """Seconds between SIGTERM and SIGKILL (`scontrol show config`, KillWait)."""


class Account(Section):
    """Rules for `--account`."""

    required: bool = False
    default: NonEmpty | None = None
    pattern: Regex | None = None
    list_command: NonEmpty | None = None


class GpuRequest(Section):
    """How the site wants GPUs asked for; `none` where whole nodes are given without a request."""

    style: Literal["gres", "gpus_per_node", "none"] = "gpus_per_node"
    type: NonEmpty | None = None


class TimeRules(Section):
    """Limits of wall-clock time, in Slurm's own formats."""

    max: SlurmTime | None = None
    default: SlurmTime | None = None


class Limits(Section):
    """Largest job that the partition takes."""

    max_nodes: Positive | None = None


class Partition(Section):
    """One logical queue that users name; `slurm_partition: null` emits no `--partition` at all."""

    slurm_partition: NonEmpty | None = None
    qos: NonEmpty | None = None
    constraint: NonEmpty | None = None
    reservation: NonEmpty | None = None
    nodes: Positive | None = None
    """Number of nodes in the partition, to refuse what can never start."""
    gpus_per_node: Annotated[int, Field(ge=0)]
    cpus_per_node: Positive | None = None
    gpu_request: GpuRequest = GpuRequest()
    cpus_per_rank: Positive | None = None
    mem_per_node: SlurmMemory | None = None
    exclusive: bool = False
    time: TimeRules = TimeRules()
    limits: Limits = Limits()


class Step(Section):
    """Options of the steps that start ranks."""

    cpu_bind: NonEmpty | None = None
    wait_s: Annotated[int, Field(ge=0)] = 60


class Launcher(Section):
    """How ranks are started; `mpi` is required for every engine that forms an MPI world."""

    mpi: NonEmpty | None = None
    step: Step = Step()


class Network(Section):
    """Ports that jobs may take."""

    ports: PortRange = "20000-29999"


class ContainerRules(Section):
    """The container runtime; `none` runs the ranks on the node itself."""

    runtime: Literal["none"] = "none"


class Storage(Section):
    """Paths; `logs` is where run directories go when the spec names none."""

    logs: NonEmpty | None = None
    local: NonEmpty = "/tmp"

    @field_validator("local")
    @classmethod
    def _plain(cls, value: str) -> str:
        # Triton's Python backend hands the repository path to a shell, so the path may hold nothing special.
        if not re.match(r"/[A-Za-z0-9._/-]*\Z", value):
            raise ValueError("must be an absolute path of letters, digits, '.', '_', '-' and '/'")
        return value


class SiteEnvironment(Section):
    """Variables of every rank on this site."""

    set: Environment = {}  # noqa: RUF012
    unset: Variables = ()


class SitePreflight(Section):
    """`mpi: false` leaves out the MPI part of the check, for images without mpi4py."""

    mpi: bool = True


class SiteTriton(Section):
    """Where tritonserver lies on the nodes or in the images, when not in /opt/tritonserver."""

    server: NonEmpty | None = None


class SiteProfile(Section):
    """One cluster."""

    schema_version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    description: Line = ""
    docs_url: Line | None = None
    contact: Line | None = None
    slurm: Slurm = Slurm()
    account: Account = Account()
    partitions: Annotated[dict[NonEmpty, Partition], Field(min_length=1)]
    default_partition: NonEmpty | None = None
    launcher: Launcher = Launcher()
    network: Network = Network()
    container: ContainerRules = ContainerRules()
    storage: Storage = Storage()
    env: SiteEnvironment = SiteEnvironment()
    preflight: SitePreflight = SitePreflight()
    triton: SiteTriton = SiteTriton()
    python: NonEmpty | None = None
    """Python on the compute nodes that runs the agent (3.6 or newer); the submitting one when left out."""
    sbatch_extra: SbatchOptions = ()
    srun_extra: Options = ()
    prologue: str | None = None
    epilogue: str | None = None

    @field_validator("default_partition")
    @classmethod
    def _known(cls, value: str | None, info: ValidationInfo) -> str | None:
        # Partitions that are wrong themselves are not in `data`: their own faults are told.
        known = info.data.get("partitions")
        if value is not None and known is not None and value not in known:
            hint = did_you_mean(value, known)
            raise ValueError(f"must be one of {', '.join(known)}" + (f"; {hint}" if hint else ""))
        return value
