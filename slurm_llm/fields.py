"""Types of the values that specs and site profiles share, each with its rule; it knows neither of the two."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from slurm_llm.slurm.formats import parse_mem_mib, parse_time

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})\Z", re.ASCII)
_OPTION = re.compile(r"(?:--[A-Za-z][A-Za-z0-9-]*(?:=.*)?|-[A-Za-z]\S*)\Z")

READ_ONLY_VARIABLES = frozenset({"UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"})
"""Bash refuses to set these."""

SCRIPT_VARIABLES = frozenset(
    {
        *("run", "python", "agent", "job_dir", "attempt", "attempt_dir", "rank", "local_dir", "head", "servers"),
        *("server", "agents", "stop", "code", "codes", "again", "preflight", "instance", "node", "now", "gpus", "base"),
        *("place", "prefix", "home", "command", "role", "ports", "http", "grpc", "metrics", "engine"),
        *("SLURM_JOB_ID", "SLURM_PROCID", "IFS"),
    }
)
"""The scripts' own variables: an exported one of the same name would be overwritten, or break them."""

SCRIPT_OPTIONS = frozenset(
    {
        *("array", "job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "open-mode", "output"),
        *("signal", "wrap", "parsable", "a", "J", "N", "n", "c", "o"),
    }
)
"""sbatch options that the plan sets itself, or that would break the script."""


def _one_line(value: str) -> str:
    if any(ord(character) < 32 or 127 <= ord(character) < 160 or character in "\u2028\u2029" for character in value):
        raise ValueError("must hold no line break or control character")
    return value


def _whole_as_text(value: object) -> object:
    # `time: 60` and `mem_per_node: 1024` mean minutes and MiB to Slurm, and YAML reads them as numbers.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _slurm_time(value: str) -> str:
    parse_time(value)
    return value.strip()


def _slurm_memory(value: str) -> str:
    parse_mem_mib(value)
    if "." in value:
        raise ValueError("must be a whole number with K, M, G or T: sbatch takes no fraction")
    return value.strip()


def _option(value: str) -> str:
    if not _OPTION.match(value):
        raise ValueError("must be one option, as --name, --name=value or -Xvalue")
    return value


def _sbatch_option(value: str) -> str:
    name = value[2:].partition("=")[0] if value.startswith("--") else value[1:2]
    if name in SCRIPT_OPTIONS:
        raise ValueError("is set by slurm_llm itself")
    return value


def check_variable(value: str) -> str:
    """Return `value` when it is a variable name that a job's script can set, else raise ValueError."""
    if not _VARIABLE.match(value):
        raise ValueError(f"not the name of an environment variable: {value!r}")
    if value in READ_ONLY_VARIABLES:
        raise ValueError(f"bash lets nobody set {value}")
    if value in SCRIPT_VARIABLES or value.startswith("LLMRUN_"):
        raise ValueError(f"{value} is a variable of the job's own scripts")
    return value


Line = Annotated[str, AfterValidator(_one_line)]
NonEmpty = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]
Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
SlurmTime = Annotated[str, BeforeValidator(_whole_as_text), AfterValidator(_one_line), AfterValidator(_slurm_time)]
SlurmMemory = Annotated[str, BeforeValidator(_whole_as_text), AfterValidator(_one_line), AfterValidator(_slurm_memory)]
Option = Annotated[Line, AfterValidator(_option)]
Options = Annotated[tuple[Option, ...], Field(strict=False)]
SbatchOptions = Annotated[tuple[Annotated[Option, AfterValidator(_sbatch_option)], ...], Field(strict=False)]
Variables = Annotated[tuple[Annotated[str, AfterValidator(check_variable)], ...], Field(strict=False)]
Lines = Annotated[tuple[Line, ...], Field(strict=False)]


Environment = dict[
    Annotated[str, AfterValidator(check_variable)], Annotated[str, AfterValidator(_one_line)] | int | float | bool
]


def check_ports(value: str) -> str:
    """Return `value` when it is a range like 20000-29999, else raise ValueError."""
    match = _PORTS.match(value)
    if match is None:
        raise ValueError("must be a range of ports like 20000-29999")
    low, high = int(match[1]), int(match[2])
    if not 1 <= low <= high <= 65535:
        raise ValueError("must be two ports between 1 and 65535, the lower one first")
    return value


PortRange = Annotated[str, AfterValidator(check_ports)]
