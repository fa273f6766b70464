"""What a devcluster is and the text of its configuration files; pure, it touches neither disk nor network."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_llm.devcluster.shape import Shape, device_lines, node_lines, plain_shape, queue_lines, shape_from_tree
from slurm_llm.devcluster.submitfilter import filter_text
from slurm_llm.errors import InputError, Problem

DEFAULT_STATE = Path("/var/lib/slurm_llm/devcluster")
MAX_NODES, MAX_PAPER_NODES = 200, 10_000
MAX_STATE_LENGTH = 48
FIRST_NODE_ADDRESS = 11
SLURMD_PORT = 6818


@dataclass(frozen=True)
class ClusterSpec:
    """The options of a cluster; memory in MiB, `shared` is the tree that `cut` hides from a node.

    With an `own_shape` the numbers of nodes, GPUs, CPUs and memory do not count. On paper there is a controller that
    knows the nodes and no slurmd: enough for `sbatch --test-only`. `epilog` is Slurm's Epilog.
    """

    state: Path = DEFAULT_STATE
    nodes: int = 4
    gpus_per_node: int = 4
    cpus_per_node: int = 8
    mem_per_node: int = 16000
    accounting: bool = True
    user: str = "llm"
    shared: Path | None = None
    own_shape: Shape | None = None
    paper: bool = False
    epilog: Path | None = None

    @property
    def shape(self) -> Shape:
        """The cluster's nodes, partitions and the rest."""
        return self.own_shape or plain_shape(self.nodes, self.cpus_per_node, self.mem_per_node, self.gpus_per_node)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Host names of the nodes, in order."""
        return tuple(f"{names_of(self.state).node_prefix}{n}" for n in range(1, self.shape.nodes + 1))

    def to_json(self) -> str:
        """Return the text that `spec_from_json` reads back."""
        return json.dumps(asdict(self), default=str)


def spec_from_json(text: str) -> ClusterSpec:
    """Return the spec that `ClusterSpec.to_json` wrote."""
    data = json.loads(text)
    data["state"] = Path(data["state"])
    for name in ("shared", "epilog"):
        data[name] = Path(data[name]) if data[name] else None
    data["own_shape"] = shape_from_tree(data["own_shape"]) if data["own_shape"] else None
    return ClusterSpec(**data)


def check_spec(spec: ClusterSpec) -> None:
    """Refuse a spec that no cluster can have; every fault is reported at once."""
    mistakes = [
        Problem(f"--{name}", f"{value} is out of range", f"{low} to {high}")
        for name, value, low, high in (
            ("nodes", spec.shape.nodes, 1, MAX_PAPER_NODES if spec.paper else MAX_NODES),
            ("gpus-per-node", spec.gpus_per_node, 0, 64),
            ("cpus-per-node", spec.cpus_per_node, 1, 1024),
            ("mem-per-node", spec.mem_per_node, 256, 16_000_000),
        )
        if not low <= value <= high
    ]
    mistakes += [
        mistake
        for name, path in (("state", spec.state), ("shared", spec.shared), ("epilog", spec.epilog))
        if path is not None and (mistake := _path_problem(f"--{name}", path)) is not None
    ]
    mistakes += [
        Problem("--like", f"{word!r} cannot stand in slurm.conf", "letters, digits and ._+:=-")
        for word in spec.shape.words
        if not re.fullmatch(r"[A-Za-z0-9._+:=-]+", word)
    ]
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", spec.user) or spec.user == "root":
        mistakes.append(Problem("--user", f"{spec.user!r} is not an ordinary user's name", "for example llm"))
    if mistakes:
        raise InputError(mistakes)


def _path_problem(where: str, path: Path) -> Problem | None:
    # slurm.conf has no quoting for blanks and comments.
    if not path.is_absolute() or not re.fullmatch(r"[A-Za-z0-9_./+@:-]+", str(path)) or ".." in path.parts:
        return Problem(where, f"{str(path)!r} cannot stand in slurm.conf", "a plain absolute path")
    # A node has its own /tmp and /dev/shm, so nothing that nodes share can live there.
    if path.parts[:2] == ("/", "tmp") or path.parts[:3] == ("/", "dev", "shm"):
        return Problem(where, f"{path} is private on every node", "a directory on disk")
    # Sockets of daemons and steps lie below it; the kernel allows 107 bytes.
    if where == "--state" and len(str(path)) > MAX_STATE_LENGTH:
        return Problem(where, f"{path} is too long for socket paths", f"at most {MAX_STATE_LENGTH} characters")
    return None


@dataclass(frozen=True)
class Names:
    """Names of everything that is made outside the state directory; they derive from its path alone.

    So `down` finds what a crashed `up` left, and two clusters can stand side by side.
    """

    tag: str
    node_prefix: str

    @property
    def bridge(self) -> str:
        """Name of the bridge, at most 15 characters."""
        return f"{self.tag}br"

    def veth(self, node: str) -> str:
        """Name of the host's end of a node's cable."""
        return f"{self.tag}v{node.removeprefix(self.node_prefix)}"

    def netns(self, node: str) -> str:
        """Name of a node's network namespace."""
        return f"{self.tag}-{node}"


def names_of(state: Path) -> Names:
    """Return the names that belong to a state directory."""
    digest = hashlib.sha256(str(state).encode()).hexdigest()[:5]
    return Names(tag=f"dc{digest}", node_prefix="node" if state == DEFAULT_STATE else f"dc{digest}-node")


@dataclass(frozen=True)
class Machine:
    """What was found free on this machine: host name, first three bytes of a /24, ports."""

    host: str
    net: str
    ctld_port: int = 6817
    dbd_port: int = 6819
    sql_port: int = 13306

    @property
    def controller(self) -> str:
        """Address of the bridge, where the controller listens."""
        return f"{self.net}.1"

    def address(self, index: int) -> str:
        """Address of the node with this index, counted from 0."""
        return f"{self.net}.{FIRST_NODE_ADDRESS + index}"


@dataclass(frozen=True)
class Paths:
    """Files inside a state directory; `owned` is all that `down` removes."""

    state: Path

    @property
    def record(self) -> Path:
        return self.state / "cluster.json"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def slurmdbd_conf(self) -> Path:
        return self.etc / "slurmdbd.conf"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    @property
    def munge(self) -> Path:
        return self.state / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "munge.socket"

    @property
    def mariadb(self) -> Path:
        return self.state / "mariadb"

    @property
    def gpus(self) -> Path:
        return self.state / "gpus"

    @property
    def controller(self) -> Path:
        return self.state / "slurmctld"

    @property
    def spool(self) -> Path:
        return self.state / "spool"

    @property
    def owned(self) -> tuple[Path, ...]:
        """Everything but the logs; the record is last, so that an interrupted removal can be repeated."""
        trees = (self.etc, self.pids, self.munge, self.mariadb, self.gpus, self.controller, self.spool)
        return (*trees, self.mariadb.with_suffix(".new"), self.record.with_suffix(".new"), self.record)


def slurm_conf(spec: ClusterSpec, machine: Machine) -> str:
    """Return slurm.conf (Slurm 22.05)."""
    paths = Paths(spec.state)
    sections = (
        _identity(spec, machine, paths),
        _limits(spec),
        _accounting(spec, machine),
        _layout(spec, machine),
    )
    return "\n".join(line for section in sections for line in section) + "\n"


def _identity(spec: ClusterSpec, machine: Machine, paths: Paths) -> Sequence[str]:
    return (
        f"ClusterName={spec.shape.name}",
        f"SlurmctldHost={machine.host}({machine.controller})",
        f"SlurmctldPort={machine.ctld_port}",
        f"SlurmdPort={SLURMD_PORT}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        f"AuthInfo=socket={paths.munge_socket}",
        f"StateSaveLocation={paths.controller}",
        f"SlurmdSpoolDir={paths.spool}/%n",
        f"SlurmctldPidFile={paths.controller}/slurmctld.pid",
        f"SlurmdPidFile={paths.spool}/%n/slurmd.pid",
        f"SlurmctldLogFile={paths.log}/slurmctld.log",
        f"SlurmdLogFile={paths.log}/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "MpiDefault=none",
        "ReturnToService=2",
        # Nodes on paper are a cloud that is powered down, and sinfo hides that otherwise.
        f"PrivateData={'cloud' if spec.paper else 'none'}",
        *(() if spec.epilog is None else (f"Epilog={spec.epilog}",)),
    )


def _limits(spec: ClusterSpec) -> Sequence[str]:
    return (
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        # A job that asks for no memory gets its share, so that two of them fit on a node.
        f"DefMemPerCPU={spec.shape.share_of_memory}",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=2",
        "JobAcctGatherParams=OverMemoryKill",
        # A node may claim more processors and memory than this machine has.
        "SlurmdParameters=config_overrides",
        "KillWait=10",
        "MessageTimeout=5",
        "SlurmdTimeout=15",
        "MinJobAge=300",
        "SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0",
        *(() if spec.own_shape is None else _strictness(spec.own_shape)),
    )


def _strictness(shape: Shape) -> Sequence[str]:
    """What makes Slurm refuse at once what it would else let wait, ignore or take."""
    return (
        "EnforcePartLimits=ALL",
        "AllowSpecResourcesUsage=YES",
        *(("JobSubmitPlugins=lua",) if filter_text(shape) else ()),
        *((f"Licenses={','.join(shape.licenses)}",) if shape.licenses else ()),
    )


def _accounting(spec: ClusterSpec, machine: Machine) -> Sequence[str]:
    if not spec.accounting:
        return ("AccountingStorageType=accounting_storage/none",)
    names = spec.shape.gres_names
    return (
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={machine.controller}",
        f"AccountingStoragePort={machine.dbd_port}",
        # AuthInfo is not asked on the way to slurmdbd: the socket of munge has to be told once more.
        f"AccountingStoragePass={Paths(spec.state).munge_socket}",
        "AccountingStorageEnforce=associations,limits,qos",
        *((f"AccountingStorageTRES={','.join(f'gres/{name}' for name in names)}",) if names else ()),
    )


def _layout(spec: ClusterSpec, machine: Machine) -> Sequence[str]:
    names = spec.node_names
    addresses = None if spec.paper else [machine.address(index) for index in range(len(names))]
    return (*node_lines(spec.shape, names, addresses), *queue_lines(spec.shape, names))


def gres_conf(spec: ClusterSpec) -> str:
    """Return gres.conf; on paper there are no devices to name."""
    if spec.paper:
        return "AutoDetect=off\n"
    return "\n".join(device_lines(spec.shape, spec.node_names, str(Paths(spec.state).gpus))) + "\n"


def cgroup_conf() -> str:
    """Return cgroup.conf; without a plugin's name slurmd looks for mounted cgroups and a node has none."""
    return "CgroupPlugin=cgroup/v1\n"


def slurmdbd_conf(spec: ClusterSpec, machine: Machine, password: str) -> str:
    """Return slurmdbd.conf, which must be readable by the Slurm user alone."""
    paths = Paths(spec.state)
    lines = (
        f"DbdHost={machine.host}",
        f"DbdAddr={machine.controller}",
        f"DbdPort={machine.dbd_port}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        f"AuthInfo=socket={paths.munge_socket}",
        f"LogFile={paths.log}/slurmdbd.log",
        f"PidFile={paths.controller}/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        # An address, not localhost: that would mean the socket of the machine's own MariaDB.
        "StorageHost=127.0.0.1",
        f"StoragePort={machine.sql_port}",
        "StorageUser=slurm",
        f"StoragePass={password}",
        "StorageLoc=slurm_acct_db",
    )
    return "\n".join(lines) + "\n"


def hosts_block(spec: ClusterSpec, machine: Machine) -> str:
    """Return the lines that name the nodes, between two marks that `without_hosts_block` finds."""
    begin, end = _marks(spec.state)
    lines = [f"{machine.address(index)} {name}" for index, name in enumerate(spec.node_names)]
    return "\n".join((begin, *lines, end)) + "\n"


def without_hosts_block(text: str, state: Path) -> str:
    """Return `text`, a hosts file, without this cluster's block, even one that lost its end mark."""
    begin, end = _marks(state)
    prefix = names_of(state).node_prefix
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        words = line.split()
        ours = len(words) == 2 and words[1].startswith(prefix)
        if line.strip() == begin:
            inside = True
        elif inside and line.strip() == end:
            inside = False
        elif not (inside and ours):
            inside = False
            kept.append(line)
    return "".join(kept)


def _marks(state: Path) -> tuple[str, str]:
    return f"# BEGIN slurm_llm devcluster {state}", f"# END slurm_llm devcluster {state}"
