"""The JSON form of a Plan, written and read back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from slurm_llm.containers.types import ContainerPlan, Mount
from slurm_llm.engines.types import ImageFile, ProbePlan, RepositoryFile, ServerPlan
from slurm_llm.plan.types import (
    PLAN_SCHEMA,
    AccessPlan,
    Allocation,
    BalancerPlan,
    ClientPlan,
    EnvironmentPlan,
    FrontendPlan,
    Gpus,
    GuestPlan,
    InstancePlan,
    LimitPlan,
    MasterPlan,
    ModulePlan,
    Plan,
    PortPlan,
    RankPlan,
    RecoveryPlan,
    ServicePlan,
    StagedFolder,
    StagingPlan,
    StepPlan,
)
from slurm_llm.topology import Coordinates, ParallelSizes


def plan_to_json(plan: Plan) -> str:
    """Return `plan` as ASCII JSON text, one rank and one group a line; what runs in the job may not know UTF-8."""
    # asdict copies deeply and json indents every number: both are slow for thousands of ranks.
    head = asdict(replace(plan, ranks=(), groups={}))
    del head["ranks"], head["groups"]
    for name in [name for name in ("service", "client", "staging", "guest") if head[name] is None]:
        del head[name]
    if plan.exporter:
        del head["exporter"]
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
    allocation = {**value["allocation"], "gpus": Gpus(**value["allocation"]["gpus"])}
    value["allocation"] = _build(Allocation, allocation)
    for name, kind in (("step", StepPlan), ("env", EnvironmentPlan), ("modules", ModulePlan)):
        value[name] = _build(kind, value[name])
    value["master"] = None if value["master"] is None else MasterPlan(**value["master"])
    value["limits"] = LimitPlan(**value["limits"])
    value["recovery"] = RecoveryPlan(**value["recovery"])
    value["service"] = None if value.get("service") is None else ServicePlan(**value["service"])
    value["client"] = None if value.get("client") is None else _build(ClientPlan, value["client"])
    value["access"] = _build(AccessPlan, value.get("access", {}))
    value["staging"] = None if value.get("staging") is None else _staging(value["staging"])
    value["guest"] = None if value.get("guest") is None else GuestPlan(**value["guest"])
    value["container"] = _container(value["container"])
    server = {**value["server"], "parameters": dict(value["server"]["parameters"])}
    server["repository"] = tuple(RepositoryFile(**item) for item in server["repository"])
    server["image_files"] = tuple(_build(ImageFile, item) for item in server["image_files"])
    value["server"] = _build(ServerPlan, server)
    value["ports"] = PortPlan(**value["ports"])
    value["balancer"] = None if value["balancer"] is None else BalancerPlan(**value["balancer"])
    value["frontend"] = None if value["frontend"] is None else _build(FrontendPlan, value["frontend"])
    value["probe"] = ProbePlan(**value["probe"])
    value["instances"] = tuple(InstancePlan(**item) for item in value["instances"])
    value["ranks"] = tuple(_rank(item) for item in value["ranks"])
    return Plan(**value)


def _build(kind: Any, value: dict[str, Any]) -> Any:
    return kind(**{key: _tuples(item) for key, item in value.items()})


def _staging(value: dict[str, Any]) -> StagingPlan:
    folders = tuple(StagedFolder(**item) for item in value["folders"])
    return StagingPlan(**{**{key: _tuples(item) for key, item in value.items()}, "folders": folders})


def _container(value: dict[str, Any] | None) -> ContainerPlan | None:
    if value is None:
        return None
    mounts = tuple(Mount(**item) for item in value["mounts"])
    return ContainerPlan(**{**{key: _tuples(item) for key, item in value.items()}, "mounts": mounts})


def _rank(value: dict[str, Any]) -> RankPlan:
    return RankPlan(**{**value, "gpus": tuple(value["gpus"]), "at": Coordinates(**value["at"])})
