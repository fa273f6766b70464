"""Types of the values that specs and site profiles share, each with its rule; it knows neither of the two."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from slurm_llm.slurm.formats import parse_mem_mib, parse_time
from slurm_llm.slurm.nodesets import expand_nodes
from slurm_llm.slurm.options import LETTERS_ALONE, MANAGED_SBATCH, MANAGED_SRUN, option_name

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_OPTION_NAME = re.compile(r"--[a-z][a-z0-9-]*\Z")
_VERSION = re.compile(r"\d\d\.\d\d(\.\d+)?\Z", re.ASCII)
_OPTION = re.compile(r"(?:--[A-Za-z][A-Za-z0-9-]*(?:=.*)?|-[A-Za-z]\S*)\Z")

READ_ONLY_VARIABLES = frozenset({"UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"})
"""Bash refuses to set these."""

SCRIPT_VARIABLES = frozenset(
    {
        *("run", "python", "agent", "job_dir", "attempt", "attempt_dir", "rank", "local_dir", "head", "servers"),
        *("nodes", "living", "count", "first", "next", "names", "old"),
        *("server", "agents", "stop", "code", "codes", "again", "preflight", "instance", "node", "now", "gpus", "base"),
        *("place", "prefix", "home", "command", "role", "ports", "http", "grpc", "metrics", "engine"),
        *("task", "tasks", "init", "folder", "image", "look", "meeting", "name", "nodes", "options", "program"),
        *("asked", "result", "pause", "by", "limit", "status", "frontend", "variable", "shown_by"),
        *("ray", "ray_temp", "checking", "staging", "staged", "told"),
        *("ranks", "shown", "source", "sources", "target", "value", "written"),
        *("address", "key", "secret", "groups", "option", "files", "scratch"),
        *("SLURM_JOB_ID", "SLURM_PROCID", "IFS"),
    }
)
"""The scripts' own variables: an exported one of the same name would be overwritten, or break them."""


MOST, MOST_LONG = 2**31 - 1, 2**63 - 1
"""The largest whole numbers of Slurm, Triton and bash: what goes beyond would be refused, or wrapped, in the job."""

LONGEST_NUMBER = 40
"""Characters of a time or an amount of memory; Python itself refuses to read thousands of digits."""


def _one_line(value: str) -> str:
    if any(ord(character) < 32 or 127 <= ord(character) < 160 or character in "\u2028\u2029" for character in value):
        raise ValueError("must hold no line break or control character")
    return value


def _whole_as_text(value: object) -> object:
    # `time: 60` and `mem_per_node: 1024` mean minutes and MiB to Slurm, and YAML reads them as numbers.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _short(value: str) -> None:
    if len(value) > LONGEST_NUMBER:
        raise ValueError(f"must have at most {LONGEST_NUMBER} characters")


def _slurm_time(value: str) -> str:
    _short(value)
    parse_time(value)
    return value.strip()


def _slurm_memory(value: str) -> str:
    _short(value)
    parse_mem_mib(value)
    if "." in value:
        raise ValueError("must be a whole number with K, M, G or T: sbatch takes no fraction")
    return value.strip()


def _option(value: str) -> str:
    if not _OPTION.match(value):
        raise ValueError("must be one option, as --name, --name=value or -Xvalue")
    return value


def _unmanaged(value: str, managed: dict[str, str]) -> str:
    name = option_name(value)
    if len(value) > 2 and value[1] != "-" and value[1] in LETTERS_ALONE:
        raise ValueError(f"-{value[1]} takes no value: write each option by itself")
    longer = [known for known in managed if known.startswith(name)]
    if value.startswith("--") and name not in managed and longer:
        raise ValueError(f"sbatch and srun would read it as --{longer[0]}: write options in full")
    key = managed.get(name)
    if key is not None:
        raise ValueError("is set by slurm_llm itself" + (f": use {key}" if key else ""))
    return value


def _sbatch_option(value: str) -> str:
    return _unmanaged(value, MANAGED_SBATCH)


def _srun_option(value: str) -> str:
    return _unmanaged(value, MANAGED_SRUN)


def _name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("must be letters, digits, '.', '_' and '-', and start with a letter or digit")
    return value


def _option_name(value: str) -> str:
    if not _OPTION_NAME.match(value):
        raise ValueError("must be the long name of an option, as --mem, without a value")
    return value


def _version_text(value: str) -> str:
    if not _VERSION.match(value):
        raise ValueError('must be a release in quotes, as "23.11" or "23.11.4"')
    return value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def _node_set(value: str) -> str:
    expand_nodes(value)
    return value


def _words(value: str) -> str:
    if not value.split():
        raise ValueError("must name a program")
    words = value.split()
    if words[0].rpartition("/")[2] == "srun" and words != ["srun"]:
        raise ValueError("must be srun alone: its options go in srun_extra and launcher.step")
    return " ".join(words)


def _shell_text(value: str) -> str:
    if "\0" in value or "\r" in value:
        raise ValueError("must hold no NUL and no carriage return (DOS line ends)")
    return value


def _finite(value: JsonValue) -> JsonValue:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be a finite number: JSON has no {value}")
    for one in inner:
        _finite(one)
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
Positive = Annotated[int, Field(ge=1, le=MOST)]
AtLeastZero = Annotated[int, Field(ge=0, le=MOST_LONG)]
Size = Annotated[int, Field(ge=1, le=100_000)]
Port = Annotated[int, Field(ge=1, le=65535)]
SlurmTime = Annotated[str, BeforeValidator(_whole_as_text), AfterValidator(_one_line), AfterValidator(_slurm_time)]
SlurmMemory = Annotated[str, BeforeValidator(_whole_as_text), AfterValidator(_one_line), AfterValidator(_slurm_memory)]
Option = Annotated[Line, AfterValidator(_option)]
Options = Annotated[tuple[Option, ...], Field(strict=False)]
SbatchOptions = Annotated[tuple[Annotated[Option, AfterValidator(_sbatch_option)], ...], Field(strict=False)]
SrunOptions = Annotated[tuple[Annotated[Option, AfterValidator(_srun_option)], ...], Field(strict=False)]
Variables = Annotated[tuple[Annotated[str, AfterValidator(check_variable)], ...], Field(strict=False)]
Lines = Annotated[tuple[Line, ...], Field(strict=False)]
Texts = Annotated[tuple[NonEmpty, ...], Field(strict=False)]
Name = Annotated[str, AfterValidator(_name)]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
OptionNames = Annotated[tuple[Annotated[str, AfterValidator(_option_name)], ...], Field(strict=False)]
VariableName = Annotated[str, AfterValidator(check_variable)]
Regex = Annotated[str, AfterValidator(_regex)]
NodeSet = Annotated[NonEmpty, AfterValidator(_node_set)]
SlurmVersionText = Annotated[str, AfterValidator(_version_text)]
Words = Annotated[NonEmpty, AfterValidator(_words)]
Shell = Annotated[str, AfterValidator(_shell_text)]


Plain = Annotated[JsonValue, AfterValidator(_finite)]
"""A value for an engine's or a program's own argument: what JSON can hold."""

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

TritonApi = Literal["model-repository", "model-config", "shared-memory", "statistics", "trace", "logging"]
"""Triton's names of what its protocols let others do beside inference, health and metadata."""
TritonApis = Annotated[tuple[TritonApi, ...], Field(strict=False)]
