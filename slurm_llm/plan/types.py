"""The Plan and its parts: frozen values with a JSON form that `plan_from_json` reads back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurm_llm.engines.types import ProbePlan, RepositoryFile, ServerPlan
from slurm_llm.topology import Coordinates, ParallelSizes

PLAN_SCHEMA = 1

SHM_PREFIX = "llm{job_id}a{attempt}r{rank}_"
"""Recipe for a rank's shared-memory prefix: the ids are known in the job. Short, and nothing but letters and digits."""


@dataclass(frozen=True)
class RankPlan:
    """One rank: `rank` counts over all instances, `instance_rank` within its own (the MPI rank).

    `node` counts the allocation's nodes from 0; `gpus` are slots on that node, in the order that Slurm shows them.
    """

    rank: int
    instance: int
    instance_rank: int
    node: int
    local: int
    gpus: tuple[int, ...]
    at: Coordinates
    role: str


@dataclass(frozen=True)
class InstancePlan:
    """One copy of the model: one srun step of `world_size` ranks on `nodes` nodes from `first_node` on."""

    index: int
    first_node: int
    nodes: int
    first_rank: int
    leader: int


@dataclass(frozen=True)
class Allocation:
    """What is asked of Slurm; None is not emitted. `gpus_per_node` 0 asks for none."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    gpu_style: str
    gpu_type: str | None
    cpus_per_rank: int
    mem_per_node: str | None
    time: str | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    exclusive: bool
    extra: tuple[str, ...]


@dataclass(frozen=True)
class StepPlan:
    """Options of the steps that start ranks."""

    mpi: str | None
    cpu_bind: str | None
    wait_s: int
    extra: tuple[str, ...]


@dataclass(frozen=True)
class PortPlan:
    """Recipe for the leader's three ports: a fixed number, or None for one drawn in the job from `low`..`high`."""

    low: int
    high: int
    http: int | None
    grpc: int | None
    metrics: int | None


@dataclass(frozen=True)
class Plan:
    """A decided job."""

    schema: int
    name: str
    slug: str
    site: str
    engine: str
    model: str | None
    launch: str
    sizes: ParallelSizes
    replicas: int
    allocation: Allocation
    instances: tuple[InstancePlan, ...]
    ranks: tuple[RankPlan, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    step: StepPlan
    server: ServerPlan
    ports: PortPlan
    shm_prefix: str
    probe: ProbePlan
    python: str | None
    local_dir: str
    env_set: tuple[tuple[str, str], ...]
    env_unset: tuple[str, ...]
    preflight_mpi: bool
    dev_shm_mib: int
    kill_wait_s: int
    ready_s: int
    answer_s: int
    prologue: str | None
    epilogue: str | None
    warnings: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """Ranks of one instance."""
        return self.sizes.world_size


def plan_to_json(plan: Plan) -> str:
    """Return `plan` as ASCII JSON text, one rank and one group a line; what runs in the job may not know UTF-8."""
    # asdict copies deeply and json indents every number: both are slow for thousands of ranks.
    head = asdict(replace(plan, ranks=(), groups={}))
    del head["ranks"], head["groups"]
    groups = ",\n".join(f"  {json.dumps(name)}: {_lines(groups, 3)}" for name, groups in plan.groups.items())
    ranks = _lines([{**vars(rank), "at": vars(rank.at)} for rank in plan.ranks], 2)
    return f'{json.dumps(head, indent=1)[:-2]},\n "groups": {{\n{groups}\n }},\n "ranks": {ranks}\n}}\n'


def _lines(items: Iterable[object], depth: int) -> str:
    indent = "\n" + depth * " "
    return "[" + ",".join(indent + _ENCODER.encode(item) for item in items) + indent[:-1] + "]"


_ENCODER = json.JSONEncoder()


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def plan_from_json(text: str) -> Plan:
    """Return the plan that `plan_to_json` wrote.

    Raises:
        ValueError, KeyError, TypeError: the text is not such a plan.
    """
    value = {key: _tuples(item) for key, item in json.loads(text).items()}
    if value["schema"] != PLAN_SCHEMA:
        raise ValueError(f"plan schema {value['schema']}, this slurm_llm reads {PLAN_SCHEMA}")
    value["groups"] = {key: _tuples(item) for key, item in value["groups"].items()}
    value["sizes"] = ParallelSizes(**value["sizes"])
    value["allocation"] = _build(Allocation, value["allocation"])
    value["step"] = _build(StepPlan, value["step"])
    server = {**value["server"], "parameters": dict(value["server"]["parameters"])}
    server["repository"] = tuple(RepositoryFile(**item) for item in server["repository"])
    value["server"] = _build(ServerPlan, server)
    value["ports"] = PortPlan(**value["ports"])
    value["probe"] = ProbePlan(**value["probe"])
    value["instances"] = tuple(InstancePlan(**item) for item in value["instances"])
    value["ranks"] = tuple(_rank(item) for item in value["ranks"])
    return Plan(**value)


def _build(kind: Any, value: dict[str, Any]) -> Any:
    return kind(**{key: _tuples(item) for key, item in value.items()})


def _rank(value: dict[str, Any]) -> RankPlan:
    return RankPlan(**{**value, "gpus": tuple(value["gpus"]), "at": Coordinates(**value["at"])})
