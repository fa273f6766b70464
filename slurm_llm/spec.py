"""JobSpec: what the user wants, as validated values. It knows no site, no Slurm query and no rendering."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, field_validator

from slurm_llm.errors import SpecError
from slurm_llm.fields import (
    MOST,
    AtLeastZero,
    Environment,
    Lines,
    NodeSet,
    NonEmpty,
    Plain,
    Port,
    Positive,
    SbatchOptions,
    Shell,
    Size,
    SlurmMemory,
    SlurmTime,
    TritonApis,
)
from slurm_llm.preparation import Bench, Client, Prepare, Staging
from slurm_llm.schema import Section, apply_settings, validate
from slurm_llm.yamlio import Document, Tree, load_document, parse_document

EngineName = Literal["llmapi", "tensorrtllm", "vllm", "rehearsal"]
LaunchName = Literal["leader", "llmapi_launch", "orchestrator", "single", "ray"]

MailType = Literal[
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
]
"""Moments of sbatch(1), `--mail-type`."""
MailTypes = Annotated[tuple[MailType, ...], Field(strict=False)]
_HOST = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_MAIL = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._%+-]*(@{_HOST}(\.{_HOST})*)?\Z")
"""A user's name, or an address: it becomes an argument of the site's mail program."""

MAX_NAME_BYTES = 1024
"""Slurm's own limit of a job name."""

MAX_FILE_NAME_BYTES = 255
"""That of Linux: what is longer cannot even be looked for."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def _job_name(value: str) -> str:
    if len(value.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"must have at most {MAX_NAME_BYTES} bytes")
    return value


def _model(value: str) -> str:
    if any(len(part.encode()) > MAX_FILE_NAME_BYTES for part in value.split("/")):
        raise ValueError(f"must be an id or a path, whose parts have at most {MAX_FILE_NAME_BYTES} bytes")
    return value


def _upper(value: object) -> object:
    return [one.upper() if isinstance(one, str) else one for one in value] if isinstance(value, list) else value


def _some(value: tuple[MailType, ...]) -> tuple[MailType, ...]:
    if not value:
        raise ValueError("must name a moment; leave `mail` out for no mail")
    return value


def _mail_user(value: str) -> str:
    if not _MAIL.match(value):
        raise ValueError("must be one user or one address, as me@example.org")
    return value


class Mail(Section):
    """Mail that Slurm sends about the job: at which moments, and to whom; left out, to the user who submits."""

    types: Annotated[MailTypes, BeforeValidator(_upper), AfterValidator(_some)] = ("END", "FAIL")
    user: Annotated[str, Field(max_length=254), AfterValidator(_mail_user)] | None = None


class Resources(Section):
    """What is asked of Slurm; what is left out follows from the parallel sizes and the site."""

    nodes: Positive | None = None
    gpus_per_node: Positive | None = None
    cpus_per_rank: Positive | None = None
    mem_per_node: SlurmMemory | None = None
    time: SlurmTime | None = None


class Container(Section):
    """The image that the ranks run in: a path, a registry's reference, or one of the site's aliases.

    Left out, it is the site's own image where there is one, else the ranks run on the node itself. `mounts` are
    SOURCE[:TARGET[:ro]]; `$NAME` is replaced when the job is submitted.
    """

    image: NonEmpty | None = None
    mounts: Lines = ()
    workdir: NonEmpty | None = None


class TritonOptions(Section):
    """Options of tritonserver; a port that is left out is drawn from the site's range inside the job."""

    model_name: Annotated[str, Field(max_length=128)] | None = None
    http_port: Port | None = None
    grpc_port: Port | None = None
    metrics_port: Port | None = None
    server: NonEmpty | None = None
    log_verbose: Annotated[int, Field(ge=0, le=MOST)] = 0
    exit_timeout_s: Positive | None = None
    extra_args: Lines = ()
    openai_frontend: NonEmpty | None = None
    """`main.py` of the OpenAI-compatible front end, where it is not in its usual place of the image."""
    tokenizer: NonEmpty | None = None
    """Tokenizer of the front end: a path or a Hugging Face id; left out, the model's own."""

    @field_validator("model_name")
    @classmethod
    def _usable_in_a_path(cls, value: str | None) -> str | None:
        if value is not None and not _MODEL_NAME.match(value):
            raise ValueError("must be letters, digits, '.', '_' and '-', and start with a letter or digit")
        return value

    @field_validator("extra_args")
    @classmethod
    def _not_ours(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        owned = [argument for argument in value if argument.partition("=")[0] in OWNED_TRITON_ARGUMENTS]
        if owned:
            raise ValueError(f"these are set by slurm_llm itself: {', '.join(owned)}")
        return value


OWNED_TRITON_ARGUMENTS = frozenset(
    {
        "--model-repository",
        "--model-store",
        "--backend-directory",
        "--http-port",
        "--grpc-port",
        "--metrics-port",
        "--allow-http",
        "--allow-grpc",
        "--allow-metrics",
        "--model-control-mode",
        "--load-model",
        "--exit-timeout-secs",
        "--log-verbose",
        "--http-restricted-api",
        "--grpc-restricted-protocol",
    }
)


class Access(Section):
    """Who may ask the server what: `key` makes inference need one, drawn in the job; left out, as the site says.

    `open_apis` are APIs of Triton that the site closes and this job opens.
    """

    key: bool | None = None
    open_apis: TritonApis = ()


class BalancerOptions(Section):
    """One address before all instances, on the job's first node; its port is drawn like Triton's unless given."""

    program: Literal["haproxy", "nginx"]
    port: Port | None = None


def _by_name(value: object) -> object:
    return {"program": value} if isinstance(value, str) else value


class Preflight(Section):
    """The check between allocation and start; `mpi: false` leaves out the part that needs mpi4py."""

    mpi: bool | None = None
    dev_shm_mib: Annotated[int, Field(ge=0, le=MOST)] = 64


class Metrics(Section):
    """`exporter`: whether the job has a metrics page of the whole run; left out, as the site says."""

    exporter: bool | None = None


class Timeouts(Section):
    """Limits in seconds, after which a run counts as hung.

    `ready_s`: from its start until it serves. `stall_s`: without a line in any rank's log and without work, while it
    loads. `answer_s`: for the answer to a generation; one is asked for every `probe_s` while nothing else proves that
    the model answers. `unready_s`: with a health that is not 200, once it has served.
    """

    ready_s: Positive = 1800
    stall_s: Positive = 600
    answer_s: Positive = 60
    probe_s: Positive = 30
    unready_s: Positive = 120


class Recovery(Section):
    """What is done when a server fails; nothing unless asked.

    `restarts`: how often it is started again in the same allocation, `backoff_s` seconds after the failure, twice as
    long each further time; after `reset_s` seconds of service all of them are there again. `spare_nodes`: nodes beyond
    those that the ranks need, so that a restart leaves out one that failed. `requeue`: how often the job goes back
    into the queue when no restart is left or possible; with it Slurm may requeue the job too.
    """

    restarts: Annotated[int, Field(ge=0, le=100)] = 0
    backoff_s: Annotated[int, Field(ge=0, le=3600)] = 10
    reset_s: Positive = 3600
    spare_nodes: Annotated[int, Field(ge=0, le=1000)] = 0
    requeue: Annotated[int, Field(ge=0, le=100)] = 0


class Service(Section):
    """A server that outlives its jobs; in seconds.

    `successors`: how many jobs may follow the first one, each before the end of the one before it. `handover_s`: ahead
    of its end a job submits the next one, which has so long for the queue and for its start. `drain_s`: so long the old
    job goes on to answer once the next one serves, and so long requests in flight then have. `idle_stop_s`: a server
    that nobody has asked for so long ends by itself.
    """

    successors: AtLeastZero | Literal["unlimited"] = 0
    handover_s: Annotated[int, Field(ge=10, le=MOST)] = 600
    drain_s: Positive = 60
    idle_stop_s: Annotated[int, Field(ge=10, le=MOST)] | None = None


class JobSpec(Section):
    """One serving job: an engine, a model, its parallel sizes and what it needs of the cluster."""

    name: Annotated[NonEmpty, AfterValidator(_job_name)]
    engine: EngineName
    launch: LaunchName | None = None
    """How the engine's ranks start; left out, the engine's usual way for these sizes."""
    model: Annotated[NonEmpty, AfterValidator(_model)] | None = None
    tensor_parallel_size: Size = 1
    pipeline_parallel_size: Size = 1
    context_parallel_size: Size = 1
    moe_tensor_parallel_size: Size | None = None
    moe_expert_parallel_size: Size | None = None
    replicas: Size = 1
    resources: Resources = Resources()
    partition: NonEmpty | None = None
    account: NonEmpty | None = None
    qos: NonEmpty | None = None
    constraint: NonEmpty | None = None
    reservation: NonEmpty | None = None
    exclude_nodes: NodeSet | None = None
    mail: Mail | None = None
    comment: Annotated[NonEmpty, Field(max_length=1000)] | None = None
    container: Container | None = None
    triton: TritonOptions = TritonOptions()
    frontend: Literal["triton", "openai"] = "triton"
    """What the leader starts: tritonserver, or the image's OpenAI-compatible front end around it."""
    balancer: Annotated[BalancerOptions | None, BeforeValidator(_by_name)] = None
    access: Access = Access()
    engine_args: dict[NonEmpty, Plain] = {}  # noqa: RUF012
    env: Environment = {}  # noqa: RUF012
    gpu_clocks: Annotated[str, Field(pattern=r"^[0-9]+(,[0-9]+)?$")] | None = None
    """Clocks of the GPUs in MHz, `LOWEST,HIGHEST` or one number: `nvidia-smi -lgc`, where the site allows it."""
    site: dict[NonEmpty, JsonValue] = {}  # noqa: RUF012
    """Laid over the site's profile for this job, in the profile's own keys."""
    preflight: Preflight = Preflight()
    metrics: Metrics = Metrics()
    timeouts: Timeouts = Timeouts()
    recovery: Recovery = Recovery()
    service: Service | None = None
    prepare: Prepare | None = None
    staging: Staging | None = None
    bench: Bench | None = None
    client: Client | None = None
    log_root: NonEmpty | None = None
    sbatch_extra: SbatchOptions = ()
    prologue: Shell | None = None
    epilogue: Shell | None = None


def parse_spec(document: Document, settings: Iterable[str] = ()) -> JobSpec:
    """Return the spec that `document` holds, with each `a.b=value` of `settings` laid over it.

    Raises:
        SpecError: every fault of the document and of the settings.
    """
    return validate(JobSpec, apply_settings(document, settings, SpecError), SpecError)


def load_spec(path: str | Path, settings: Iterable[str] = ()) -> JobSpec:
    """Read the spec at `path`; see `parse_spec`."""
    return parse_spec(load_document(Path(path), SpecError), settings)


def load_spec_document(path: str | Path, settings: Iterable[str] = ()) -> Document:
    """Read the YAML at `path` with `settings` laid over it, without looking at what it says; see `parse_spec`."""
    return apply_settings(load_document(Path(path), SpecError), settings, SpecError)


def spec_from_mapping(value: dict[str, Tree], source: str = "spec") -> JobSpec:
    """Return the spec that a Python mapping describes; see `parse_spec`."""
    return parse_spec(Document(source, value))


def spec_from_text(text: str, source: str = "spec") -> JobSpec:
    """Return the spec that a YAML text describes; see `parse_spec`."""
    return parse_spec(parse_document(text, source, SpecError))
