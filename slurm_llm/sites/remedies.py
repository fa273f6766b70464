"""What to do about faults that people make in profiles: from a key and pydantic's items about it to the right form."""

from __future__ import annotations

import re
from typing import Any

from slurm_llm.schema import known_keys
from slurm_llm.sites.merge import APPEND, PARTITIONS
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.yamlio import Key

_FIRST_KEYS = {
    "gpu": "model",
    "gpu_request": "style",
    "cpus": "per_rank",
    "memory": "per_rank",
    "time": "max",
    "limits": "max_nodes",
    "account": "default",
    "launcher": "mpi",
    "network": "interface",
    "container": "runtime",
    "modules": "load",
    "slurm": "version",
}
"""Section → its key that a single value is most likely meant for."""

_QUOTED = frozenset({"max", "version"})
"""Keys whose values YAML could take for something else."""
_LAUNCHERS = frozenset({"srun", "ibrun", "mpirun", "mpiexec"})

_SHELL = "write lines of shell below `{}: |`"
_TEXTS = {
    "constraint": "write one text: 'a&b' for both, 'a|b' for either",
    "exclude_nodes": "write one text, as node[01-04,07]",
    "prologue": _SHELL.format("prologue"),
    "step_prologue": _SHELL.format("step_prologue"),
    "epilogue": _SHELL.format("epilogue"),
    "licenses": "write one text, as scratch:1,other:2",
}
"""Key that takes one text → what it looks like, for who wrote a list."""

_OTHER_NAMES = {
    "gpus": "did you mean 'gpus_per_node'?",
    "gpu_count": "did you mean 'gpus_per_node'?",
    "gres": "write gpu_request: {style: gres}, and the number as gpus_per_node",
    "gpu_type": "write gpu: {slurm_type: …} and gpu_request: {typed: true}",
    "partition": "did you mean 'slurm_partition'?",
    "mem": "write memory: {per_rank: …}",
    "walltime": "write time: {max: …}",
    "max_time": "write time: {max: …}",
    "time_limit": "write time: {max: …}",
    "max_nodes": "write limits: {max_nodes: …}",
    "cpus_per_task": "write cpus: {per_rank: …}",
    "cpus_per_node": "write cpus: {per_node: …}",
    "features": "did you mean 'constraint'?",
}
"""What other tools call keys of a partition."""

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+\Z")
_TYPED_COUNT = re.compile(r"(?:gpu:)?([A-Za-z][\w.-]*):(\d+)\Z")
_NUMBER_TYPES = frozenset({"int_type", "int_from_float"})
_LIST_TYPES = frozenset({"tuple_type", "list_type"})
_MAPPING_TYPES = frozenset({"model_type", "dict_type"})


def remedy(path: Key, items: list[Any]) -> str | None:
    """Return what to do about the faults `items` of the value at `path` of a profile, None where nothing is known."""
    if not path:
        return None
    kinds, value = {item["type"] for item in items}, items[0]["input"]
    if kinds == {"extra_forbidden"}:
        return _unknown_key(path, value)
    if path[-3:-1] == ("env", "set"):
        return _variable(str(path[-1]), value)
    own = str(path[-1])
    if kinds & _LIST_TYPES and isinstance(value, dict):
        return f"only {{{APPEND}: […]}} adds to a list; else write the list itself"
    if kinds & _MAPPING_TYPES and value is not None and (own == "modules" or not isinstance(value, list)):
        return _section(path, value)
    if own == "gpus_per_node" and kinds & _NUMBER_TYPES:
        return _gpus(value)
    if own == "ports" and isinstance(value, int):
        return (
            f"write LOW-HIGH, as {value}-{value + 9999}" if 1024 < value < 50_000 else "write LOW-HIGH, as 20000-29999"
        )
    if path[-2:] == ("verified", "date"):
        return "write it as YYYY-MM-DD, as 2026-11-30"
    return _TEXTS.get(own) if isinstance(value, list) and "string_type" in kinds else None


def _unknown_key(path: Key, value: object) -> str | None:
    own = str(path[-1])
    in_partition = known_keys(SiteProfile, (PARTITIONS, "any"))
    if len(path) == 1:
        if isinstance(value, dict) and "gpus_per_node" in value:
            return f"'{own}' belongs below {PARTITIONS}: indent it"
        if own in in_partition:
            return f"it belongs to a partition: {PARTITIONS}.NAME.{own}"
    if len(path) == 3 and path[0] == PARTITIONS:
        if own in known_keys(SiteProfile, ()):
            return "it holds for the whole site: write it at the left edge"
        return _OTHER_NAMES.get(own)
    if path[-2:] == ("gpu", "type"):
        return "did you mean 'slurm_type'?"
    if path[-2:-1] == ("env",) and _VARIABLE.match(own):
        return f"put it below env.set: {{set: {{{own}: …}}}}"
    return None


def _variable(name: str, value: object) -> str | None:
    if isinstance(value, list | dict):
        return f"a value is one text; to put paths in front: env: {{prepend: {{{name}: [/path]}}}}"
    return None


def _section(path: Key, value: object) -> str | None:
    if len(path) == 2 and path[0] == PARTITIONS:
        return "write its keys below it, gpus_per_node at least"
    own = str(path[-1])
    key = "command" if own == "launcher" and value in _LAUNCHERS else _FIRST_KEYS.get(own)
    if key not in known_keys(SiteProfile, path):
        return None
    shown = "[…]" if isinstance(value, list) else f'"{value}"' if key in _QUOTED else str(value)
    return f"write {own}: {{{key}: {shown}}}"


def _gpus(value: object) -> str | None:
    match = _TYPED_COUNT.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    if match[1] == "gpu":
        return f"write {match[2]}"
    return f"write {match[2]}, and the type as gpu: {{slurm_type: {match[1]}}} with gpu_request: {{typed: true}}"
