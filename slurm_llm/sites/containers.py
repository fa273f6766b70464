"""ContainerRules: which runtime a site has and how it wants it called; knows no runtime's grammar."""

from __future__ import annotations

from typing import Literal

from slurm_llm.fields import Lines, Name, Names, NonEmpty, Options, Variables
from slurm_llm.schema import Section

RuntimeName = Literal[
    "none", "pyxis", "cscs_ce", "apptainer", "singularity", "shifter", "podman_hpc", "charliecloud", "enroot"
]


class Pyxis(Section):
    """Flags of pyxis; null leaves the site's own default (plugstack.conf, enroot.conf)."""

    remap_root: bool | None = None
    mount_home: bool | None = None
    entrypoint: bool | None = None
    writable: bool | None = None


class Apptainer(Section):
    """Flags of Apptainer and Singularity; `gpu_flag` null gives none, `auto` follows the partition's GPUs."""

    gpu_flag: Literal["auto", "nv", "nvccli", "rocm"] | None = "auto"
    containall: bool = False
    cleanenv: bool = False
    no_home: bool = False
    writable_tmpfs: bool = False


class CscsContainerEngine(Section):
    """What the generated environment definition file (EDF) of CSCS's container engine holds besides image and mounts.

    `base` names an EDF that it is built on (`base_environment`).
    """

    base: NonEmpty | None = None
    annotations: dict[NonEmpty, NonEmpty] = {}  # noqa: RUF012
    writable: bool | None = None


class Shifter(Section):
    """Modules of Shifter (`--module`), such as gpu and nccl-plugin; null leaves the site's default ones."""

    modules: Names | None = None


class PodmanHpc(Section):
    """Module flags of podman-hpc; `gpu: auto` follows the partition's GPUs."""

    gpu: bool | Literal["auto"] = "auto"
    mpi: bool = False
    cuda_mpi: bool = False
    nccl: bool = False


class Charliecloud(Section):
    """Flags of ch-run; `join` puts a node's ranks into one container, so that they may read each other's memory."""

    write: bool = False
    home: bool = False
    join: bool = False


class Enroot(Section):
    """Flags of `enroot start`."""

    root: bool = False
    rw: bool = False
    mount_home: bool = False


class ContainerRules(Section):
    """The container runtime; `none` runs the ranks on the node itself.

    `images` are aliases that specs may name; `image` is for specs that name none; `mounts` are SOURCE[:TARGET[:ro]],
    where `$NAME` is replaced when a job is submitted; `pass_env` are variables of the job that the image must not
    change.
    """

    runtime: RuntimeName = "none"
    program: NonEmpty | None = None
    """The runtime's program where it is not on PATH under its own name."""
    image: NonEmpty | None = None
    images: dict[Name, NonEmpty] = {}  # noqa: RUF012
    mounts: Lines = ()
    pass_env: Variables = ()
    python: NonEmpty = "python3"
    """Python 3.6 or newer inside the image."""
    extra: Options = ()
    """Options of the runtime itself, passed on as they stand."""
    pyxis: Pyxis = Pyxis()
    apptainer: Apptainer = Apptainer()
    cscs_ce: CscsContainerEngine = CscsContainerEngine()
    shifter: Shifter = Shifter()
    podman_hpc: PodmanHpc = PodmanHpc()
    charliecloud: Charliecloud = Charliecloud()
    enroot: Enroot = Enroot()
