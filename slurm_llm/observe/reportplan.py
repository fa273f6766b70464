"""What was planned, as rows for a report: sizes, resources, lines of the script, spec, versions. Pure: texts in.

The plan is read as JSON, since its own type brings the spec's schema library with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_llm.agent.journal import Record
from slurm_llm.observe.text import clean

Hide = Callable[[str], str]
"""Takes secrets out of a text."""
Rows = tuple[tuple[str, str], ...]
"""What something is called, and its value in words."""

MOST_GPUS = 16
"""GPUs that are named one by one."""

_SRUN = re.compile(r"^\s*(?:timeout .*?)?(?:srun |\S*(?:mpirun|mpiexec) )")
_KINDS = (
    ("rank.sh", "server"),
    ("preflight", "preflight"),
    (" node ", "node agents"),
    (" clean", "clean-up"),
)
_VERSIONS = (
    ("Triton", re.compile(r"\|\s*server_version\s*\|\s*(\d[\w.+-]*)")),
    ("TensorRT-LLM", re.compile(r"TensorRT[- ]LLM version:?\s*(\d[\w.+-]*)")),
    ("vLLM", re.compile(r"(?:LLM engine \(|vLLM (?:API server )?version )v?(\d[\w.+-]*)")),
    ("NCCL", re.compile(r"NCCL version (\d[\w.+-]*)")),
)
"""What servers print of themselves as they start: Triton's table of settings, TensorRT-LLM, vLLM and NCCL one line."""


@dataclass(frozen=True)
class Command:
    """One line of the job's script that starts a step, and what it starts."""

    of: str
    line: str


@dataclass(frozen=True)
class PlanView:
    """The decided job in words: sizes of the layout, what is asked of Slurm, lines of the script, spec, warnings."""

    sizes: Rows
    asked: Rows
    server: Rows
    options: tuple[str, ...]
    commands: tuple[Command, ...]
    groups: Rows
    spec: tuple[str, ...]
    warnings: tuple[str, ...]


def build_plan_view(plan: Mapping[str, Any], script: str, spec: str, hide: Hide) -> PlanView:
    """Return what plan.json, job.sub and spec.yaml say."""
    lines = list(_logical(script))
    return PlanView(
        sizes=_shown(_sizes(plan), hide),
        asked=_shown(_asked(plan), hide),
        server=_shown(_server(plan), hide),
        options=tuple(clean(line) for line in hide(script).split("\n") if line.startswith("#SBATCH ")),
        commands=tuple(_commands(lines, hide)),
        groups=_shown(_groups(plan), hide),
        spec=tuple(clean(line) for line in hide(spec).rstrip("\n").split("\n")),
        warnings=tuple(clean(hide(str(text))) for text in plan.get("warnings", ())),
    )


def _shown(rows: Iterable[tuple[str, object]], hide: Hide) -> Rows:
    """Return the rows that have a value, without secrets."""
    return tuple((name, clean(hide(str(value)))) for name, value in rows if value not in (None, "", [], {}))


def _sizes(plan: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    sizes = plan.get("sizes") or {}
    for name, size in sizes.items():
        if size != 1 and (not name.startswith("moe_") or _spreads_experts(plan)):
            yield name, size
    yield "replicas", plan.get("replicas")
    yield "ranks", len(plan.get("ranks", ()))
    yield "launch", plan.get("launch")


def _spreads_experts(plan: Mapping[str, Any]) -> bool:
    """Tell whether experts are spread: their groups of tensor parallelism are those of the layers otherwise."""
    return bool((plan.get("sizes") or {}).get("moe_expert_parallel_size", 1) > 1)


def _asked(plan: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    own = plan.get("allocation") or {}
    gpus = own.get("gpus") or {}
    spare = own.get("spare_nodes")
    yield "nodes", f"{own.get('nodes')}" + (f" and {spare} to spare" if spare else "")
    yield "ranks per node", own.get("ranks_per_node")
    yield (
        "GPUs per node",
        f"{gpus.get('per_node')} {gpus.get('type') or ''}".strip() if gpus.get("per_node") else "none",
    )
    yield "GPUs per rank", own.get("gpus_per_rank")
    yield "CPUs per rank", own.get("cpus_per_rank")
    for name in ("memory", "time", "partition", "account", "qos", "constraint", "reservation", "exclude"):
        yield name, own.get(name)


def _server(plan: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    container, server = plan.get("container") or {}, plan.get("server") or {}
    yield "engine", plan.get("engine")
    yield "model", plan.get("model")
    yield "served as", server.get("model_name")
    yield "container", container.get("runtime")
    yield "image", container.get("image")
    yield "balancer", (plan.get("balancer") or {}).get("program")
    yield "front end", "OpenAI-compatible" if plan.get("frontend") else None
    yield "MPI", (plan.get("step") or {}).get("mpi")
    yield "limits", _pairs(plan.get("limits"))
    yield "recovery", _pairs(plan.get("recovery"))
    yield "service", _pairs(plan.get("service"))
    for name, words in plan.get("facts", ()):
        yield str(name), words


def _pairs(values: object) -> str:
    if not isinstance(values, dict):
        return ""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _groups(plan: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield how many groups of ranks of each kind there are, and the first of them."""
    for name, groups in (plan.get("groups") or {}).items():
        if groups and len(groups[0]) > 1 and (not name.startswith("moe_") or _spreads_experts(plan)):
            first = ", ".join(map(str, groups[0][:16])) + (", …" if len(groups[0]) > 16 else "")
            yield f"{name} groups", f"{len(groups)} × {len(groups[0])} ranks, the first of ranks {first}"


def _logical(script: str) -> Iterator[str]:
    """Yield the lines of a script, continued ones as one."""
    yield from re.sub(r"\\\n\s*", "", script).split("\n")


def _commands(lines: Sequence[str], hide: Hide) -> Iterator[Command]:
    for line in lines:
        if _SRUN.match(line):
            of = next((kind for mark, kind in _KINDS if mark in line), "step")
            yield Command(of, clean(hide(line.strip())))


def _devices(inventories: Iterable[Record]) -> list[tuple[str, object]]:
    """Return a row for each GPU, of the first ones: what a ticket to those who own the machine needs."""
    found = [
        (f"GPU {one.get('gpu')} of {item.get('node')}", f"{one.get('uuid')}, {one.get('total_mib')} MiB")
        for item in sorted(inventories, key=lambda item: str(item.get("node")))
        for one in item.get("gpus", ())
    ]
    return [*found[:MOST_GPUS], *([("further GPUs", len(found) - MOST_GPUS)] if len(found) > MOST_GPUS else [])]


def versions_of(plan: Mapping[str, Any], records: Iterable[Record], log: str) -> Rows:
    """Return what is known of the versions of Slurm, the driver and the GPUs, the server and the engine.

    `log` is the beginning of a leader's log.
    """
    rows: list[tuple[str, object]] = [("Slurm", plan.get("slurm"))]
    inventories = [item for item in records if item["kind"] == "gpus"]
    drivers = sorted({str(item.get("driver")) for item in inventories if item.get("driver")})
    names = sorted({str(one.get("name")) for item in inventories for one in item.get("gpus", ()) if one.get("name")})
    rows += [("NVIDIA driver", ", ".join(drivers)), ("GPUs", ", ".join(names))]
    rows += _devices(inventories)
    rows += [(name, found[1]) for name, form in _VERSIONS if (found := form.search(log))]
    return _shown(rows, str)
