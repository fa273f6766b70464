"""What a cluster tells of itself to an ordinary user on a login node: argv and parser pairs, and asking them all.

It judges nothing: what a profile makes of the answers is decided elsewhere. A command that fails is noted, not raised.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from slurm_llm.errors import SetupError, SlurmError
from slurm_llm.slurm.client import SlurmClient
from slurm_llm.slurm.commands import SEPARATOR, failure
from slurm_llm.slurm.facts import split_records, text_or_empty
from slurm_llm.slurm.nodesets import expand_nodes

if TYPE_CHECKING:
    from slurm_llm.process import Completed

T = TypeVar("T")

PROGRAMS = (
    *("apptainer", "singularity", "enroot", "ch-run", "podman-hpc", "shifter", "ibrun", "mpirun"),
    *("sacct", "sacctmgr", "scontrol", "sinfo", "srun", "sbatch"),
)
SCRATCH_VARIABLES = ("SCRATCH", "PSCRATCH", "WORK")
MAX_KINDS_ASKED = 64

_NODE_FIELDS = {
    "partition": "%R",
    "state": "%T",
    "nodes": "%D",
    "cpus": "%c",
    "mem": "%m",
    "sockets": "%X",
    "cores": "%Y",
    "threads": "%Z",
    "names": "%N",
    "gres": "%G",
    "features": "%f",
}
_SUFFIXES = "*~#!%$@^-+"
_NOT_UP = frozenset({"down", "drained", "draining", "drain", "fail", "failing", "error", "unknown", "future", "inval"})
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*)=")
_HELP_OPTION = re.compile(r"^\s+(?:-\w(?:[ ,=]\S*)?,?\s+)?--([a-z][a-z0-9-]*)", re.MULTILINE)


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one kind and state in one partition, as sinfo groups them; numbers are of one node, memory is MiB.

    `names` is Slurm's folded list, `gres` its text. `boots` tells that some are powered down until a job needs them.
    """

    partition: str
    is_up: bool
    boots: bool
    nodes: int
    cpus: int
    mem_mib: int
    threads_per_core: int
    names: str
    gres: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class PartitionRules:
    """One partition's keys as scontrol prints them."""

    name: str
    fields: Mapping[str, str]

    def get(self, key: str) -> str:
        """Return a value, an empty text where Slurm says nothing: `(null)`, `N/A`, `NONE`, `UNLIMITED`."""
        text = text_or_empty(self.fields.get(key, ""))
        return "" if text.upper() in {"NONE", "UNLIMITED", "INFINITE"} else text

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list such as AllowAccounts, empty for ALL."""
        text = self.get(key)
        return () if text.upper() == "ALL" else tuple(word for word in text.split(",") if word)


@dataclass(frozen=True)
class Association:
    """An account that the user may use, with the QOS that go with it."""

    account: str
    partition: str
    qos: tuple[str, ...]
    default_qos: str


@dataclass(frozen=True)
class Survey:
    """All answers; `failures` has the reason of each command that did not answer.

    `nodes` has the keys of one node of each kind as scontrol prints them, `programs` those on PATH, `variables` the
    names of scratch variables that are set.
    """

    user: str
    host: str
    config: Mapping[str, str]
    partitions: tuple[PartitionRules, ...]
    kinds: tuple[NodeKind, ...]
    nodes: Mapping[str, Mapping[str, str]]
    mpi_types: tuple[str, ...]
    srun_options: frozenset[str]
    default_account: str
    associations: tuple[Association, ...]
    programs: frozenset[str]
    variables: tuple[str, ...]
    failures: Mapping[str, str]


def partitions_argv(*, clusters: str | None = None) -> tuple[str, ...]:
    """Ask the controller for every partition that the user may see, one a line."""
    return ("scontrol", *(() if clusters is None else (f"--clusters={clusters}",)), "--oneliner", "show", "partition")


def parse_partitions(completed: Completed) -> tuple[PartitionRules, ...]:
    """Return the partitions in the controller's order; raises SlurmError when it did not answer."""
    if completed.returncode != 0:
        raise failure(SlurmError, "scontrol got no answer about the partitions", completed)
    records = (parse_record(line) for line in completed.stdout.splitlines())
    return tuple(PartitionRules(one["PartitionName"], one) for one in records if one.get("PartitionName"))


def parse_record(line: str) -> dict[str, str]:
    """Split a line of `Key=value` pairs where a key begins with a capital; values may hold blanks and `=`."""
    matches = list(_KEY.finditer(line))
    if not matches:
        return {}
    ends = [match.start() for match in matches[1:]] + [len(line)]
    fields: dict[str, str] = {}
    for match, end in zip(matches, ends, strict=True):
        fields.setdefault(match[1], line[match.end() : end].strip())
    return fields


def node_kinds_argv() -> tuple[str, ...]:
    """Ask for the kinds of nodes in each partition, a line for each kind and state."""
    return ("sinfo", "--noheader", "--exact", "-o", SEPARATOR.join(_NODE_FIELDS.values()))


def parse_node_kinds(completed: Completed) -> tuple[NodeKind, ...]:
    """Return the kinds in sinfo's order; raises SlurmError when it did not answer."""
    if completed.returncode != 0:
        raise failure(SlurmError, "sinfo got no answer about the nodes", completed)
    return tuple(_node_kind(record) for record in split_records(completed.stdout, tuple(_NODE_FIELDS), SEPARATOR))


def nodes_argv(names: Sequence[str]) -> tuple[str, ...]:
    """Ask for some nodes by name, one a line."""
    return ("scontrol", "--oneliner", "show", "node", ",".join(names))


def parse_nodes(completed: Completed) -> dict[str, dict[str, str]]:
    """Return each node's keys by its name; raises SlurmError when there was no answer."""
    records = [parse_record(line) for line in completed.stdout.splitlines()]
    found = {one["NodeName"]: one for one in records if one.get("NodeName")}
    if not found:
        raise failure(SlurmError, "scontrol got no answer about the nodes", completed)
    return found


def srun_help_argv() -> tuple[str, ...]:
    """Ask srun for its options, those of the cluster's SPANK plugins included."""
    return ("srun", "--help")


def parse_srun_help(completed: Completed) -> frozenset[str]:
    """Return the long names of srun's options without dashes; raises SlurmError when there are none."""
    names = frozenset(_HELP_OPTION.findall(completed.stdout))
    if not names:
        raise failure(SlurmError, "srun printed no help", completed)
    return names


def associations_argv(user: str) -> tuple[str, ...]:
    """Ask the accounting for the user's accounts and QOS."""
    fields = "format=account,partition,qos,defaultqos"
    return ("sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={user}", fields)


def parse_associations(completed: Completed) -> tuple[Association, ...]:
    """Return the associations; raises SlurmError when the accounting did not answer."""
    if completed.returncode != 0:
        raise failure(SlurmError, "sacctmgr got no answer about your accounts", completed)
    names = ("account", "partition", "qos", "default_qos")
    records = split_records(completed.stdout, names, "|")
    return tuple(
        Association(one["account"], one["partition"], _words(one["qos"]), one["default_qos"].strip())
        for one in records
        if one["account"]
    )


def default_account_argv(user: str) -> tuple[str, ...]:
    """Ask the accounting for the user's default account."""
    return ("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=defaultaccount")


def parse_default_account(completed: Completed) -> str:
    """Return the default account, an empty text without one; raises SlurmError."""
    if completed.returncode != 0:
        raise failure(SlurmError, "sacctmgr got no answer about you", completed)
    return next((line.strip() for line in completed.stdout.splitlines() if line.strip()), "")


def survey(client: SlurmClient, *, user: str, host: str, environ: Mapping[str, str]) -> Survey:
    """Ask everything.

    Raises:
        SetupError: scontrol or sinfo is not on PATH.
        SlurmError: they got no answer: without partitions and nodes there is nothing to say.
    """
    asked = _Asker(client)
    partitions = parse_partitions(client.output(partitions_argv()))
    kinds = parse_node_kinds(client.output(node_kinds_argv()))
    names = _one_of_each(kinds)
    return Survey(
        user=user,
        host=host,
        config=asked.config(),
        partitions=partitions,
        kinds=kinds,
        nodes=asked(nodes_argv(names), parse_nodes, {}) if names else {},
        mpi_types=asked.mpi_types(),
        srun_options=asked(srun_help_argv(), parse_srun_help, frozenset()),
        default_account=asked(default_account_argv(user), parse_default_account, ""),
        associations=asked(associations_argv(user), parse_associations, ()),
        programs=frozenset(name for name in PROGRAMS if shutil.which(name, path=environ.get("PATH"))),
        variables=tuple(name for name in SCRATCH_VARIABLES if environ.get(name, "").startswith("/")),
        failures=asked.failures,
    )


class _Asker:
    """Asks through a client, and notes what fails instead of raising it."""

    def __init__(self, client: SlurmClient) -> None:
        self.client = client
        self.failures: dict[str, str] = {}

    def __call__(self, argv: Sequence[str], parse: Callable[[Completed], T], default: T) -> T:
        return self._noted(argv, lambda: parse(self.client.output(argv)), default)

    def config(self) -> Mapping[str, str]:
        """Return the controller's configuration."""
        return self._noted(("scontrol", "show", "config"), self.client.config, {})

    def mpi_types(self) -> tuple[str, ...]:
        """Return the MPI types of srun."""
        return self._noted(("srun", "--mpi=list"), self.client.mpi_types, ())

    def _noted(self, argv: Sequence[str], ask: Callable[[], T], default: T) -> T:
        try:
            return ask()
        except (SlurmError, SetupError) as error:
            words = [word for word in argv if not word.startswith(("--noheader", "--parsable", "--oneliner"))]
            self.failures[" ".join(words[:3])] = " ".join(str(error).split())
            return default


def _one_of_each(kinds: Iterable[NodeKind]) -> list[str]:
    """Return the name of one node of each kind that is up."""
    names: dict[str, None] = {}
    for kind in kinds:
        try:
            first = expand_nodes(kind.names)[:1] if kind.is_up else ()
        except ValueError:
            continue
        names.update(dict.fromkeys(first))
    return list(names)[:MAX_KINDS_ASKED]


def _node_kind(record: Mapping[str, str]) -> NodeKind:
    state = record["state"].strip().lower()
    features = record["features"].strip()
    return NodeKind(
        partition=record["partition"].strip(),
        is_up=state.rstrip(_SUFFIXES) not in _NOT_UP and "*" not in state,
        boots=bool({"~", "#"} & set(state)),
        nodes=_number(record["nodes"]),
        cpus=_number(record["cpus"]),
        mem_mib=_number(record["mem"]),
        threads_per_core=_number(record["threads"]) or 1,
        names=record["names"].strip(),
        gres=text_or_empty(record["gres"]),
        features=_words(text_or_empty(features)),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    """Read `8` and `8+`; anything else is 0."""
    digits = text.strip().rstrip("+")
    return int(digits) if digits.isdecimal() else 0
