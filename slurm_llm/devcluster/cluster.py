"""The life of a cluster: up, down, status, node_action; how each part works is told in the other modules."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from slurm_llm.devcluster.accounting import MARIADB, SLURMDBD, ensure_accounting
from slurm_llm.devcluster.config import (
    ClusterSpec,
    Machine,
    Paths,
    cgroup_conf,
    check_spec,
    gres_conf,
    names_of,
    slurm_conf,
    spec_from_json,
)
from slurm_llm.devcluster.daemons import Daemon, Daemons, listens
from slurm_llm.devcluster.host import (
    ensure_devices,
    ensure_directories,
    ensure_user,
    exclusive,
    remove_hosts,
    require_debian,
    require_root,
    write_hosts,
)
from slurm_llm.devcluster.namespaces import (
    ensure_network,
    free_port,
    free_subnet,
    kill_all_in,
    link_is_up,
    namespaces_of,
    remove_network,
)
from slurm_llm.devcluster.nodes import (
    ACTIONS,
    SERVING,
    Cluster,
    cut_node,
    heal_node,
    kill_node,
    node_states,
    start_node,
    stop_slurmd,
    wait_for_nodes,
)
from slurm_llm.devcluster.packages import ensure_packages
from slurm_llm.devcluster.submitfilter import filter_text
from slurm_llm.errors import InputError, Problem, RunNotFound, SetupError, did_you_mean

MUNGED, SLURMCTLD = "munged", "slurmctld"


@dataclass(frozen=True)
class DaemonStatus:
    """One daemon of the controller's side; no pid means that it does not run."""

    name: str
    pid: int | None


@dataclass(frozen=True)
class NodeStatus:
    """One node; `state` and `reason` are sinfo's words, empty when the controller does not answer."""

    name: str
    address: str
    state: str
    reason: str
    slurmd_pid: int | None
    link: bool

    @property
    def serving(self) -> bool:
        """Whether the node takes jobs."""
        return self.slurmd_pid is not None and self.link and self.state in SERVING


@dataclass(frozen=True)
class ClusterStatus:
    """What there is under a state directory; `exists` is False where no cluster was made."""

    state: Path
    exists: bool
    spec: ClusterSpec | None = None
    user: str = ""
    shared: Path | None = None
    daemons: tuple[DaemonStatus, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()

    @property
    def slurm_conf(self) -> Path:
        """Value for SLURM_CONF."""
        return Paths(self.state).slurm_conf

    @property
    def all_up(self) -> bool:
        """Whether every daemon runs and every node takes jobs."""
        daemons = all(daemon.pid is not None for daemon in self.daemons)
        return self.exists and daemons and all(node.serving for node in self.nodes)

    def to_json(self) -> str:
        """Return the status as a JSON object."""
        extra = {"slurm_conf": self.slurm_conf, "all_up": self.all_up}
        return json.dumps({**asdict(self), **extra}, default=str, indent=2)


def silent(message: str) -> None:
    """Take a progress message and say nothing."""


def _check_epilog(path: Path) -> None:
    """Refuse a file that is no program, or that others than root could change: root runs it on every node."""
    if not os.access(path, os.X_OK):
        raise InputError(Problem("--epilog", f"{path} cannot be executed", "an executable file"))
    for part in (path, *path.parents):
        found = part.stat()
        if found.st_uid != 0 or (found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX):
            what = f"{part} could be changed by others than root, who runs it"
            raise InputError(Problem("--epilog", what, "a file of root's below folders of root's", "copy it to /etc"))


def up(spec: ClusterSpec, say: Callable[[str], None] = silent) -> ClusterStatus:
    """Bring a cluster up, or bring back what died of it, and wait until every node takes jobs.

    InputError: impossible options, or others than those of the cluster that is there. SetupError: not
    root, not Debian, a package or daemon fails. NotReady: a node does not come up, with the end of its log.
    """
    check_spec(spec)
    require_root()
    require_debian()
    if spec.epilog is not None:
        _check_epilog(spec.epilog)
    with exclusive():
        _check_state(spec)
        before = status(spec.state)
        if before.all_up and before.spec == spec:
            say("is up already")
            return before
        ensure_packages(accounting=spec.accounting, say=say)
        cluster = _prepare(spec)
        _start_controller(cluster, say)
        if not spec.paper:
            _start_nodes(cluster, say)
        _reserve(cluster)
    return status(spec.state)


def _start_nodes(cluster: Cluster, say: Callable[[str], None]) -> None:
    names = cluster.spec.node_names
    for node in names:
        start_node(cluster, node)
        heal_node(cluster, node)
    say(f"{len(names)} nodes")
    wait_for_nodes(cluster, names)


def down(state: Path, say: Callable[[str], None] = silent) -> bool:
    """End and remove everything that `up` made except the logs; return whether there was anything."""
    require_root()
    with exclusive():
        paths = Paths(state)
        daemons = Daemons(state, paths.pids, paths.log)
        leftovers = bool(daemons.marked() or namespaces_of(state))
        kill_all_in(namespaces_of(state))
        daemons.stop_all()
        network = remove_network(state)
        remove_hosts(state)
        recorded = paths.record.exists()
        if recorded:
            _remove_files(paths)
        return leftovers or network or recorded


def status(state: Path) -> ClusterStatus:
    """Return what runs under a state directory; it changes nothing."""
    paths = Paths(state)
    if not paths.record.exists():
        return ClusterStatus(state, exists=False)
    cluster = _load(paths)
    daemons, names = cluster.daemons, names_of(state)
    # Without a controller, sinfo would try for half a minute to reach it.
    states = node_states(cluster) if daemons.running(SLURMCTLD) else {}
    wanted = (MUNGED, *((MARIADB, SLURMDBD) if cluster.spec.accounting else ()), SLURMCTLD)
    # On paper every node is as the controller says, and nothing can happen to it.
    nodes = tuple(
        NodeStatus(
            name=node,
            address=cluster.machine.address(index),
            state=states.get(node, ("", ""))[0],
            reason=states.get(node, ("", ""))[1],
            slurmd_pid=daemons.running(f"slurmd-{node}"),
            link=link_is_up(names, node),
        )
        for index, node in enumerate(() if cluster.spec.paper else cluster.spec.node_names)
    )
    rows = tuple(DaemonStatus(name, daemons.running(name)) for name in wanted)
    return ClusterStatus(state, True, cluster.spec, cluster.spec.user, cluster.shared, rows, nodes)


def node_action(state: Path, node: str, action: str) -> ClusterStatus:
    """Lose a node or bring it back: down, up, cut, heal or kill; `up` and `heal` wait until it takes jobs."""
    require_root()
    if action not in ACTIONS:
        raise InputError(Problem(action, "no such action", ", ".join(ACTIONS), did_you_mean(action, ACTIONS)))
    with exclusive():
        cluster = _load(Paths(state))
        known = cluster.spec.node_names
        if node not in known:
            raise InputError(Problem(node, "no such node", ", ".join(known), did_you_mean(node, known)))
        actions: dict[str, Callable[[Cluster, str], None]] = {
            "down": stop_slurmd,
            "up": start_node,
            "cut": cut_node,
            "heal": heal_node,
            "kill": kill_node,
        }
        actions[action](cluster, node)
        if action in ("up", "heal"):
            wait_for_nodes(cluster, [node])
    return status(state)


def _check_state(spec: ClusterSpec) -> None:
    """Refuse other options than those of the cluster that is there, and a directory that is not ours."""
    paths = Paths(spec.state)
    if paths.record.exists():
        if not _agree(_load(paths).spec, spec):
            what = "a cluster with other options is there"
            raise InputError(Problem(str(spec.state), what, todo="run `devcluster down` first"))
        return
    # `down` removes what it finds there under our names, so it must never be somebody else's directory.
    ours = {paths.log, paths.record.with_suffix(".new")}
    if spec.state.is_dir() and set(spec.state.iterdir()) - ours:
        what = "is neither empty nor a devcluster's"
        raise InputError(Problem(str(spec.state), what, "an empty directory"))


def _agree(old: ClusterSpec, new: ClusterSpec) -> bool:
    """Tell whether a cluster can be had from the one that is there: on paper any shape can."""
    return old == (replace(new, own_shape=old.own_shape) if old.paper and new.paper else new)


def _prepare(spec: ClusterSpec) -> Cluster:
    """Settle addresses and ports, write everything the daemons read, make user, devices and network."""
    paths = Paths(spec.state)
    cluster = _load(paths) if paths.record.exists() else None
    if cluster is None or not cluster.daemons.marked():
        # Nothing of it lives (first start, or the machine was rebooted): names and ports are chosen afresh.
        kill_all_in(namespaces_of(spec.state))
        remove_network(spec.state)
        cluster = Cluster(spec, _discover(spec), spec.shared or ensure_user(spec.user))
    elif cluster.spec != spec:
        cluster = _reshaped(cluster, spec)
    paths.state.mkdir(mode=0o755, parents=True, exist_ok=True)
    _save(cluster)
    ensure_user(spec.user)
    ensure_directories(spec)
    _write_configuration(cluster)
    ensure_network(spec, cluster.machine)
    if not spec.paper:
        ensure_devices(spec)
        write_hosts(spec, cluster.machine)
    return cluster


def _reshaped(cluster: Cluster, spec: ClusterSpec) -> Cluster:
    """End the controller of a cluster on paper and what it remembers; the database stays up."""
    cluster.daemons.stop(SLURMCTLD, grace_s=0)
    shutil.rmtree(cluster.paths.controller)
    return replace(cluster, spec=spec)


def _write_configuration(cluster: Cluster) -> None:
    spec, paths = cluster.spec, cluster.paths
    paths.slurm_conf.write_text(slurm_conf(spec, cluster.machine))
    (paths.etc / "gres.conf").write_text(gres_conf(spec))
    (paths.etc / "cgroup.conf").write_text(cgroup_conf())
    (paths.etc / "job_submit.lua").write_text(filter_text(spec.shape) or "")


def _discover(spec: ClusterSpec) -> Machine:
    return Machine(
        host=socket.gethostname().split(".")[0],
        net=free_subnet(names_of(spec.state).bridge),
        ctld_port=free_port(6817),
        dbd_port=free_port(6819),
        sql_port=free_port(13306),
    )


def _start_controller(cluster: Cluster, say: Callable[[str], None]) -> None:
    spec, daemons, paths = cluster.spec, cluster.daemons, cluster.paths
    _start_munge(paths, daemons)
    if spec.accounting:
        say("accounting")
        ensure_accounting(spec, cluster.machine, daemons)
    if daemons.running(SLURMCTLD) is not None:
        return
    say("controller")
    conf = str(paths.slurm_conf)
    pid = daemons.start(Daemon(SLURMCTLD, ("slurmctld", "-D", "-f", conf)), {"SLURM_CONF": conf})
    daemons.wait(SLURMCTLD, lambda: listens(pid, cluster.machine.ctld_port))


def _reserve(cluster: Cluster) -> None:
    """Make the reservations that are missing; they never end."""
    spec, members = cluster.spec, list(cluster.spec.shape.members())
    for one in spec.shape.reservations:
        if cluster.slurm("scontrol", "show", "reservation", one.name).returncode == 0:
            continue
        nodes = ",".join(spec.node_names[place] for place in members[one.kind][1])
        words = (f"reservationname={one.name}", f"users={spec.user}", f"nodes={nodes}")
        done = cluster.slurm("scontrol", "create", "reservation", *words, "starttime=now", "duration=infinite")
        if done.returncode:
            raise SetupError(f"reservation {one.name}: {done.stderr.strip()}")


def _start_munge(paths: Paths, daemons: Daemons) -> None:
    if daemons.running(MUNGED) is not None:
        return
    key = paths.munge / "munge.key"
    if not key.exists():
        key.touch(mode=0o400)
        shutil.chown(key, "munge", "munge")
        key.write_bytes(os.urandom(128))
    for stale in (paths.munge_socket, paths.munge / "munge.socket.lock"):
        stale.unlink(missing_ok=True)
    options = {
        "socket": paths.munge_socket,
        "key-file": key,
        "pid-file": paths.munge / "munged.pid",
        "seed-file": paths.munge / "munged.seed",
    }
    identity = ("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "--")
    argv = (*identity, "munged", "--foreground", *(f"--{name}={path}" for name, path in options.items()))
    daemons.start(Daemon(MUNGED, argv))
    daemons.wait(MUNGED, paths.munge_socket.exists, timeout_s=20)


def _save(cluster: Cluster) -> None:
    data = {
        "spec": json.loads(cluster.spec.to_json()),
        "machine": asdict(cluster.machine),
        "shared": str(cluster.shared),
    }
    path = Paths(cluster.spec.state).record
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.rename(path)


def _load(paths: Paths) -> Cluster:
    try:
        data = json.loads(paths.record.read_text())
    except FileNotFoundError:
        raise RunNotFound(f"{paths.state}: no devcluster there: start one with `devcluster up`") from None
    spec = spec_from_json(json.dumps(data["spec"]))
    return Cluster(spec, Machine(**data["machine"]), Path(data["shared"]))


def _remove_files(paths: Paths) -> None:
    for path in paths.owned:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
