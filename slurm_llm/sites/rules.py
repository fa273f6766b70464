"""Sections of a site's profile that hold for the whole site, and that a partition may change."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from slurm_llm.fields import (
    AtLeastZero,
    Environment,
    Line,
    Lines,
    NonEmpty,
    OptionNames,
    PortRange,
    Positive,
    Regex,
    SlurmVersionText,
    Texts,
    TritonApis,
    VariableName,
    Variables,
    Words,
)
from slurm_llm.schema import Section


class Verified(Section):
    """How far the profile can be trusted: `documentation` was read but never run, `run` was run on the cluster."""

    state: Literal["documentation", "run"]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    slurm: SlurmVersionText | None = None
    by: Line | None = None
    note: Line | None = None


class Match(Section):
    """How `site detect` knows the cluster: every kind that is given must match, any of its entries does.

    Regular expressions match the whole of a host name (short or full), of a variable's value, of a file's text.
    """

    hostnames: Annotated[tuple[Regex, ...], Field(strict=False)] = ()
    env: dict[VariableName, Regex] = {}  # noqa: RUF012
    files: dict[NonEmpty, Regex] = {}  # noqa: RUF012


class Slurm(Section):
    """Facts of the cluster's Slurm that decide what is rendered."""

    version: SlurmVersionText | None = None
    """Null asks `sbatch --version` when a job is planned."""
    kill_wait_s: Positive = 30
    """Seconds between SIGTERM and SIGKILL (`scontrol show config`, KillWait)."""
    clusters: NonEmpty | None = None
    node_daemon: Literal["slurmd", "psslurm"] = "slurmd"


class Account(Section):
    """Rules for `--account`; `env` are variables of the submitting shell that may name it, the first set one counts."""

    required: bool = False
    default: NonEmpty | None = None
    env: Variables = ()
    pattern: Regex | None = None
    list_command: NonEmpty | None = None


class Step(Section):
    """Options of the steps that start ranks."""

    cpu_bind: NonEmpty | None = None
    gpu_bind: NonEmpty | None = None
    wait_s: AtLeastZero = 60


class Launcher(Section):
    """How ranks are started; `mpi` is required for every engine that forms an MPI world and is started by srun.

    `command` is srun, or another program that starts the ranks: `{ntasks}`, `{ntasks_per_node}` and `{nodes}` in its
    words are replaced; `ibrun` and `mpirun` alone get their usual words.
    """

    command: Words = "srun"
    mpi: NonEmpty | None = None
    step: Step = Step()

    @property
    def by_srun(self) -> bool:
        """Whether srun starts the ranks."""
        return self.command == "srun"


class Rendezvous(Section):
    """What MASTER_ADDR is: the first node's name with `suffix`, or the address of `network.interface` there."""

    source: Literal["hostname", "interface_ip"] = "hostname"
    suffix: Line = ""
    family: Literal["any", "ipv4"] = "any"


class Proxy(Section):
    """Proxies of the compute nodes."""

    http: NonEmpty | None = None
    https: NonEmpty | None = None
    no_proxy: NonEmpty | None = None


class Network(Section):
    """The compute nodes' networks; `flags` is Slurm's `--network`."""

    fabric: Literal["infiniband", "roce", "slingshot", "efa", "gib", "ethernet"] | None = None
    interface: NonEmpty | None = None
    """One name, for the bootstrap of NCCL and Gloo: both get it as *_SOCKET_IFNAME, unless `env.set` has these."""
    rendezvous: Rendezvous | None = None
    internet: Literal["none", "proxy", "nat", "direct"] = "direct"
    """`none` sets HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, and refuses images and models that would be downloaded."""
    proxy: Proxy = Proxy()
    ports: PortRange = "20000-29999"
    flags: NonEmpty | None = None
    bind: Literal["all", "interface", "loopback"] = "all"
    """Where a served model listens: on all addresses of its node, on that of `interface`, or on its loopback."""

    @field_validator("interface")
    @classmethod
    def _one_name(cls, value: str | None) -> str | None:
        if value is not None and re.search("[,^=]", value):
            raise ValueError("must be one name; NCCL_SOCKET_IFNAME in env.set takes lists")
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_.:@-]{1,15}", value):
            raise ValueError("must be the name of an interface: at most 15 letters, digits, '_', '.', ':', '@' and '-'")
        return value


class Security(Section):
    """What a server keeps from others: `closed_apis` of Triton are refused to everybody, its owner too.

    `require_key`: inference needs a key, in every job.
    """

    require_key: bool = False
    closed_apis: TritonApis = ("model-repository", "shared-memory", "trace", "logging")


class Storage(Section):
    """Paths; `$NAME` and `~` are replaced when a job is submitted.

    `logs` is where run directories go when the spec names none, `images` where images without a folder are looked
    for, `models` is mounted read-only into containers, `hf_home` becomes HF_HOME and is mounted.
    """

    logs: NonEmpty | None = None
    local: NonEmpty = "/tmp"
    images: NonEmpty | None = None
    models: NonEmpty | None = None
    hf_home: NonEmpty | None = None
    staging: NonEmpty | None = None
    """Where `staging` of a spec puts copies of weights on a node; left out, in `local`."""
    staging_gb: Positive | None = None
    """GB that fit there: more is refused before a job is submitted."""
    submit_from: Regex | None = None
    """What the whole path of the folder of submission looks like; elsewhere submission is refused."""

    @field_validator("local", "staging")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        # Triton's Python backend hands the repository path to a shell, so the path may hold nothing special.
        if value is not None and not re.match(r"/[A-Za-z0-9._/-]*\Z", value):
            raise ValueError("must be an absolute path of letters, digits, '.', '_', '-' and '/'")
        return value


class SiteEnvironment(Section):
    """Variables of every rank: `unset` first, then `source` (files, inside the step), `set`, and `prepend` (paths)."""

    set: Environment = {}  # noqa: RUF012
    unset: Variables = ()
    prepend: dict[VariableName, Texts] = {}  # noqa: RUF012
    source: Lines = ()


class Modules(Section):
    """Environment modules, loaded on the batch host before the first step, in this order."""

    purge: bool = False
    use: Lines = ()
    unload: Lines = ()
    load: Lines = ()


class Ulimits(Section):
    """Soft limits of every rank: a number, or `unlimited`; `memlock`, `stack` and `core` in KiB."""

    memlock: AtLeastZero | Literal["unlimited"] | None = None
    nofile: AtLeastZero | Literal["unlimited"] | None = None
    stack: AtLeastZero | Literal["unlimited"] | None = None
    core: AtLeastZero | Literal["unlimited"] | None = None
    nproc: AtLeastZero | Literal["unlimited"] | None = None


class IdleGpu(Section):
    """Jobs whose GPUs draw less than `watts` for `after_s` seconds are ended by the site."""

    watts: Positive
    after_s: Positive


class Policies(Section):
    """What the site's submit filter refuses (`forbid`) and insists on (`require`): names of sbatch options."""

    forbid: OptionNames = ()
    require: OptionNames = ()
    idle_gpu: IdleGpu | None = None
    gpu_clocks: bool = False
    """Users may lock GPU clocks: `sudo -n nvidia-smi -lgc` works on the nodes."""


class Startup(Section):
    """Slow storage and nodes that boot on demand: the limit to readiness is `ready_s` × factor + `boot_s`."""

    timeout_factor: Annotated[float, Field(gt=0, le=1000)] = 1.0
    boot_s: AtLeastZero = 0


class SitePreflight(Section):
    """`mpi: false` leaves out the MPI part of the check, for images without mpi4py."""

    mpi: bool = True


class SiteMetrics(Section):
    """`exporter: false`: a run has no metrics page of its own, unless its spec asks for one."""

    exporter: bool = True


class SiteTriton(Section):
    """Where tritonserver lies on the nodes or in the images, when not in /opt/tritonserver."""

    server: NonEmpty | None = None
