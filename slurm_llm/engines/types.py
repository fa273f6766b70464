"""What planning and rendering need of an engine, and the values that it adds to a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurm_llm.errors import Problem
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes


@dataclass(frozen=True)
class RepositoryFile:
    """One file of the Triton model repository: made from the Jinja `template`, or copied from the packaged `asset`."""

    path: str
    template: str | None = None
    asset: str | None = None


@dataclass(frozen=True)
class ServerPlan:
    """How tritonserver is started in every rank of an instance.

    `arguments` go to every rank; the leader adds its ports, workers add `worker_arguments`. `home` is a folder with
    `bin/tritonserver`; None looks in the places that rank.sh names. `parameters` fill the repository's templates.
    """

    model_name: str
    arguments: tuple[str, ...]
    worker_arguments: tuple[str, ...]
    home: str | None
    exit_timeout_s: int
    repository: tuple[RepositoryFile, ...]
    parameters: dict[str, str]


@dataclass(frozen=True)
class ProbePlan:
    """The generation that proves readiness: POST `path` with the JSON text `body`."""

    path: str
    body: str


@dataclass(frozen=True)
class SiteServer:
    """What the site adds to the server: where it lies, and how long it may take to stop."""

    home: str | None
    exit_timeout_s: int


@dataclass(frozen=True)
class Engine:
    """An engine: `check` names what is wrong with its own arguments, `server` and `probe` say how it starts."""

    name: str
    launch: str
    needs_mpi: bool
    check: Callable[[JobSpec, ParallelSizes], list[Problem]]
    server: Callable[[JobSpec, ParallelSizes, SiteServer], ServerPlan]
    probe: Callable[[ServerPlan], ProbePlan]
