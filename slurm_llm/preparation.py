"""Sections of a spec for what comes before and after serving: `prepare` makes products, `bench` measures."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from slurm_llm.fields import AtLeastZero, Environment, Lines, NonEmpty, Plain, Positive, SlurmMemory, SlurmTime, Texts
from slurm_llm.schema import Section

Where = Literal["job", "login"]

_RELATIVE = re.compile(r"\.{0,2}[^/$~]")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")


def _place(value: str) -> str:
    if _RELATIVE.match(value):
        raise ValueError("must be an absolute path; `$NAME` and a leading `~` are replaced")
    return value


def _hub_id(value: str) -> str:
    if not _REPOSITORY.match(value):
        raise ValueError("must be the id of a model on the hub, as meta-llama/Llama-3.1-8B")
    return value


def _argument_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value):
        raise ValueError("must be the name of an argument, without dashes before it")
    return value


Place = Annotated[NonEmpty, AfterValidator(_place)]
Flags = dict[Annotated[str, AfterValidator(_argument_name)], Plain]


class Stage(Section):
    """What a stage asks of Slurm: one node, and of it this much.

    Left out, `partition` is that of the serving job, and `time` one hour as far as the partition allows.
    """

    partition: NonEmpty | None = None
    time: SlurmTime | None = None
    cpus: Positive | None = None
    gpus: AtLeastZero = 0
    mem: SlurmMemory | None = None


class ImageStage(Stage):
    """Import an image of a registry once, to the file that jobs start; `to` is `container.image` where that is a path.

    `on`: in a job, or on this machine while `prepare` runs; left out, here where compute nodes have no internet.
    """

    source: NonEmpty
    to: Place | None = None
    on: Where | None = None


class VllmStage(Stage):
    """A Triton home in the folder `to`, with the vLLM backend on top of what the image has.

    `version` installs this vLLM (without it the image's own stays), `packages` are further requirements of pip,
    `pip_args` its options. `backend` is a checkout of vllm_backend or the address of its repository, at `ref`.
    """

    to: Place
    version: NonEmpty | None = None
    packages: Texts = ()
    pip_args: Lines = ()
    backend: NonEmpty | None = None
    ref: NonEmpty | None = None


class WeightsStage(Stage):
    """Download a model of the hub, or find it complete; `repo` is the spec's `model` where that is an id.

    With `to` the files go to that folder, else to the hub's cache in HF_HOME. `include` and `exclude` are patterns of
    file names. The program is `hf`, or `huggingface-cli`, on the node or `in_image`.
    """

    repo: Annotated[NonEmpty, AfterValidator(_hub_id)] | None = None
    revision: NonEmpty | None = None
    to: Place | None = None
    include: Texts = ()
    exclude: Texts = ()
    in_image: bool = False
    on: Where | None = None


class ConvertStage(Stage):
    """Convert a checkpoint for TensorRT-LLM's build with `script` of the image; `args` are its further arguments.

    `source` is the model's folder: left out, what `weights` makes, or the spec's `model`. Sizes are the spec's.
    """

    script: Place
    to: Place
    source: Place | None = None
    args: Flags = {}  # noqa: RUF012


class BuildStage(Stage):
    """Build engines with trtllm-build; `args` are its further arguments, as max_batch_size.

    `source` is the checkpoint: left out, what `convert` makes. `to` is `engine_args.engine_dir` where it is left out.
    """

    to: Place | None = None
    source: Place | None = None
    args: Flags = {}  # noqa: RUF012
    gpus: AtLeastZero = 1


class Prepare(Section):
    """What is to be there before the server starts, made in this order; each part is optional, and made once."""

    image: ImageStage | None = None
    vllm: VllmStage | None = None
    weights: WeightsStage | None = None
    convert: ConvertStage | None = None
    build: BuildStage | None = None


class Client(Section):
    """A command that the job itself runs once the server is ready; the job ends with it, and with its exit status.

    It finds SLURM_LLM_URL, SLURM_LLM_MODEL and more in its environment, and runs on the job's first node: beside the
    script, or, `in_image` or with a number of `cpus`, as a step of its own. A server that is started again gets it
    again only with `restart`. Told to end, it has `grace_s` seconds.
    """

    command: Annotated[Texts, Field(min_length=1)]
    env: Environment = {}  # noqa: RUF012
    in_image: bool = False
    cpus: Positive | None = None
    restart: bool = False
    grace_s: Annotated[int, Field(ge=1, le=600)] = 10


def _plain_place(value: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9._/-]*", value):
        raise ValueError("must be an absolute path of letters, digits, '.', '_', '-' and '/'")
    return value


class Staging(Section):
    """Copies of a model's folders on a disk of each node, made before the ranks start, which then read those.

    `folders` are what is copied: left out, the `model` and what `engine_args` names as `engine_dir`. `to` is the folder
    on the node: left out, one of the user's own below the site's `storage.staging`. `exclude` are patterns of file
    names. With `keep` the copies stay for later jobs.
    """

    folders: Annotated[tuple[Place, ...], Field(strict=False)] = ()
    to: Annotated[NonEmpty, AfterValidator(_plain_place)] | None = None
    exclude: Texts = ()
    streams: Annotated[int, Field(ge=1, le=64)] = 4
    keep: bool = False


class Bench(Stage):
    """A command that runs beside the server once it is ready, in a job of its own.

    It finds SLURM_LLM_URL, SLURM_LLM_MODEL and more in its environment. `stop_server` ends the server afterwards.
    `wait_s` bounds the wait for readiness; left out, it ends with the stage's time.
    """

    command: Annotated[Texts, Field(min_length=1)]
    env: Environment = {}  # noqa: RUF012
    in_image: bool = False
    stop_server: bool = False
    wait_s: Positive | None = None
