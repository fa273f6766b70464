"""What planning and rendering need of an engine, and the values that it adds to a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slurm_llm.errors import Problem
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes


@dataclass(frozen=True)
class Launch:
    """How an engine's ranks start.

    With `rank_per_gpu` each GPU has a rank of its own; else one rank a node holds all GPUs of the instance there.
    `needs_mpi`: the ranks form an MPI world. `one_node`: an instance cannot go beyond a node. `gpus`: how
    many an instance takes, where that is not its world size.
    """

    name: str
    rank_per_gpu: bool = True
    needs_mpi: bool = True
    one_node: bool = False
    gpus: int | None = None


LEADER = Launch("leader")
LLMAPI_LAUNCH = Launch("llmapi_launch")
ORCHESTRATOR = Launch("orchestrator", rank_per_gpu=False, one_node=True)
SINGLE = Launch("single", rank_per_gpu=False, needs_mpi=False, one_node=True)
RAY = Launch("ray", rank_per_gpu=False, needs_mpi=False)


@dataclass(frozen=True)
class RepositoryFile:
    """One file of the Triton model repository: the Jinja `template` filled, the packaged `asset`, or `text` itself."""

    path: str
    template: str | None = None
    asset: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class ImageFile:
    """One file of the repository that is taken from the image, or a folder with all that it holds, as the job starts.

    The first of `sources` (absolute paths where the ranks run) that exists is copied to `path`. `fill` are values for
    `${name}` in it, as NVIDIA's fill_template.py does: an unknown name is an error, what is not named stays. `replace`
    are texts that stand there and what takes the place of each, everywhere, before the filling; one that is not there
    is an error. `append` is added at the end.
    """

    path: str
    sources: tuple[str, ...]
    fill: tuple[tuple[str, str], ...] = ()
    append: str = ""
    replace: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ServerPlan:
    """How tritonserver is started in every rank of an instance.

    `arguments` go to every rank; the leader adds its ports, workers add `worker_arguments`. `home` is a folder with
    `bin/tritonserver`; None looks in the places that rank.sh names. `parameters` fill the repository's templates.
    `wrapper` are words before tritonserver's own. `env` are variables of every rank that the engine needs, unless spec
    or site set them.
    """

    model_name: str
    arguments: tuple[str, ...]
    worker_arguments: tuple[str, ...]
    home: str | None
    exit_timeout_s: int
    repository: tuple[RepositoryFile, ...]
    parameters: dict[str, str]
    image_files: tuple[ImageFile, ...] = ()
    wrapper: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ProbePlan:
    """The generation that proves readiness: POST `path` with the JSON text `body`."""

    path: str
    body: str


@dataclass(frozen=True)
class SiteServer:
    """What the site adds to the server: where it lies, how long it may take to stop, and the image as it is named.

    `gpus_per_node` are those of one instance on each of its nodes.
    """

    home: str | None
    exit_timeout_s: int
    image: str | None = None
    gpus_per_node: int = 1


class Look(Protocol):
    """Reading model files on the machine where the job is submitted.

    Paths are meant as the ranks see them: below a container's mount they are looked up at the mount's source. None
    stands for what is not there or unreadable here, and says nothing about compute nodes unless `missing` does.
    """

    def folder(self, model: str) -> str | None:
        """Return the folder of `model`: a path, or a Hugging Face id whose snapshot lies in the user's cache."""

    def missing(self, path: str) -> bool:
        """Return whether `path` is surely not there: its parent folder is, and can be read."""

    def text(self, path: str) -> str | None:
        """Return the start of a text file, at most 16 MiB."""

    def names(self, path: str) -> tuple[str, ...] | None:
        """Return the sorted names in a folder."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes."""


@dataclass(frozen=True)
class Gpu:
    """A GPU of the job's partition; None where the profile does not say.

    `per_node` are those that one instance uses on each of its nodes.
    """

    memory_gb: int | None = None
    type: str | None = None
    per_node: int | None = None


@dataclass(frozen=True)
class Known:
    """What was read of one engine where its ranks run: it counts in place of the tables of its releases.

    `place` is what messages call that: "image …". `names` are the engine's arguments, `sections` the keys of some of
    them; both are empty without the engine (`present`). `templates` are the names that each model's template asks for,
    `models` the model folders, `launcher` whether NVIDIA's launcher is there; None: nobody looked.
    """

    place: str
    present: bool
    version: str | None = None
    names: frozenset[str] = frozenset()
    sections: Mapping[str, frozenset[str]] = field(default_factory=dict)
    templates: Mapping[str, frozenset[str]] = field(default_factory=dict)
    models: frozenset[str] | None = None
    launcher: bool | None = None


@dataclass(frozen=True)
class Findings:
    """What an engine finds in the files of its model: faults that refuse the job, and remarks."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = field(default=())
    """Name and value in words, for `plan` to show: weights, KV cache a token, tokens that fit."""


class Check(Protocol):
    """Naming what is wrong with an engine's own arguments for the image (None: no container)."""

    def __call__(
        self, spec: JobSpec, sizes: ParallelSizes, image: str | None, known: Known | None = None, /
    ) -> list[Problem]: ...


class Inspect(Protocol):
    """Reading the model's files before anything is submitted."""

    def __call__(
        self, spec: JobSpec, sizes: ParallelSizes, look: Look, gpu: Gpu, known: Known | None = None, /
    ) -> Findings: ...


def find_nothing(
    _spec: JobSpec, _sizes: ParallelSizes, _look: Look, _gpu: Gpu, _known: Known | None = None
) -> Findings:
    """Return no findings: an engine without files."""
    return Findings()


@dataclass(frozen=True)
class Engine:
    """An engine. `check` names what is wrong with its own arguments for the image (None: no container), `launch` says
    how ranks start, `server` and `probe` what they run; `inspect` reads the model's files before anything is submitted.
    """

    name: str
    launch: Callable[[JobSpec, ParallelSizes], Launch]
    check: Check
    server: Callable[[JobSpec, ParallelSizes, SiteServer], ServerPlan]
    probe: Callable[[ServerPlan], ProbePlan]
    inspect: Inspect = find_nothing
