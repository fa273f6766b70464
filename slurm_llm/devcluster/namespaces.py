"""Bridge, network namespaces and cables of the nodes, through iproute2; it starts no daemon."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from slurm_llm.devcluster.config import ClusterSpec, Machine, Names, names_of
from slurm_llm.devcluster.daemons import Identity, all_pids, end_processes, identify
from slurm_llm.errors import SetupError
from slurm_llm.process import run

NETNS_DIR = Path("/run/netns")
SUBNETS = (
    *("10.213.77", "172.29.213", "192.168.213", "10.87.119", "172.23.87", "192.168.87"),
    *("10.119.213", "172.27.119", "192.168.119"),
)
SHM_SIZE = "4g"

# What holds a node's namespaces open while slurmd is stopped; all of it is exec, so the pid stays.
HOLDER_SCRIPT = """set -e
hostname "$1"
mount -t tmpfs -o mode=1777,size="$2" tmpfs /tmp
mount -t tmpfs -o mode=1777,size="$2" tmpfs /dev/shm
exec sleep infinity
"""


def holder_argv(netns: str, node: str) -> tuple[str, ...]:
    """Return the command that makes a node's namespaces and stays in them."""
    unshare = ("unshare", "--mount", "--uts", "--ipc", "--propagation", "private")
    return ("ip", "netns", "exec", netns, *unshare, "sh", "-c", HOLDER_SCRIPT, "sh", node, SHM_SIZE)


def holder_ready(pid: int) -> bool:
    """Tell whether a holder has made its mounts: it is `sleep` from then on."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except OSError:
        return False


def inside(holder: int, *argv: str) -> tuple[str, ...]:
    """Return `argv` run in the namespaces of a holder."""
    return ("nsenter", "--target", str(holder), "--net", "--mount", "--uts", "--ipc", "--", *argv)


def free_subnet(bridge: str) -> str:
    """Return the first three bytes of a private /24 that no route of this machine touches."""
    used = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in json.loads(_ip("-4", "-json", "route", "show", "table", "all") or "[]")
        if route.get("dst", "default") != "default" and route.get("dev") != bridge
    ]
    for net in SUBNETS:
        candidate = ipaddress.ip_network(f"{net}.0/24")
        if not any(candidate.overlaps(other) for other in used):
            return net
    raise SetupError(f"network: none of {', '.join(f'{net}.0/24' for net in SUBNETS)} is free here")


def free_port(first: int) -> int:
    """Return the first port from `first` on that nothing on this machine listens on."""
    for port in range(first, first + 2000, 10):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise SetupError(f"network: no free port from {first} on")


def ensure_network(spec: ClusterSpec, machine: Machine) -> None:
    """Make the bridge and every node's namespace and cable, plugged in; what is there already stays.

    On paper there is the bridge alone, for the controller's address.
    """
    names = names_of(spec.state)
    if not _exists(names.bridge):
        _ip("link", "add", names.bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0")
    _ip("address", "replace", f"{machine.controller}/24", "dev", names.bridge)
    _ip("link", "set", names.bridge, "up")
    # slurmdbd's messages are two writes each: without this the second one waits 40 ms for the first one's receipt.
    here = (machine.controller, "dev", names.bridge, "proto", "kernel", "scope", "host", "src", machine.controller)
    _ip("route", "replace", "table", "local", "local", *here, "quickack", "1")
    for index, node in enumerate(() if spec.paper else spec.node_names):
        _ensure_cable(names, node, machine.address(index))


def _ensure_cable(names: Names, node: str, address: str) -> None:
    netns, veth = names.netns(node), names.veth(node)
    if not _usable(netns):
        _ip_quiet("netns", "delete", netns)
        (NETNS_DIR / netns).unlink(missing_ok=True)
        _ip("netns", "add", netns)
        _ip("-n", netns, "link", "set", "lo", "up")
    if not _exists(veth):
        _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", netns)
    _ip("link", "set", veth, "master", names.bridge, "up")
    _ip("-n", netns, "address", "replace", f"{address}/24", "dev", "eth0")
    _ip("-n", netns, "link", "set", "eth0", "up")


def remove_network(state: Path) -> bool:
    """Remove every namespace, cable and bridge of this state directory; tell whether there were any."""
    names = names_of(state)
    namespaces = namespaces_of(state)
    for netns in namespaces:
        _ip_quiet("netns", "delete", netns)
        # After a reboot the name is a plain file, which iproute2 refuses to delete.
        (NETNS_DIR / netns).unlink(missing_ok=True)
    links = [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(names.tag)]
    for link in links:
        _ip_quiet("link", "delete", link)
    if namespaces and not any(NETNS_DIR.iterdir()):
        # iproute2 mounts its directory on itself with the first name and never takes that away.
        run(["umount", str(NETNS_DIR)])
    return bool(namespaces or links)


def namespaces_of(state: Path) -> tuple[str, ...]:
    """Return the names of the network namespaces of this state directory."""
    prefix = f"{names_of(state).tag}-"
    found = NETNS_DIR.iterdir() if NETNS_DIR.is_dir() else ()
    return tuple(sorted(path.name for path in found if path.name.startswith(prefix)))


def processes_in(netnses: Iterable[str]) -> tuple[Identity, ...]:
    """Return every process of these network namespaces."""
    wanted = {key for netns in netnses if (key := _key(NETNS_DIR / netns)) is not None and _usable(netns)}
    if not wanted:
        return ()
    pids = [pid for pid in all_pids() if _key(Path(f"/proc/{pid}/ns/net")) in wanted]
    return tuple(found for pid in pids if (found := identify(pid)))


def kill_all_in(netnses: Iterable[str]) -> None:
    """Kill every process of these namespaces, also those that are born meanwhile."""
    names = tuple(netnses)
    for _ in range(50):
        found = processes_in(names)
        if not found:
            return
        end_processes(found, grace_s=0)
    raise SetupError(f"{', '.join(names)}: processes keep coming back: {[p.pid for p in found]}")


def set_link(names: Names, node: str, *, up: bool) -> None:
    """Plug in or pull out a node's cable at the bridge."""
    _ip("link", "set", names.veth(node), "up" if up else "down")


def link_is_up(names: Names, node: str) -> bool:
    """Tell whether a node's cable is plugged in."""
    try:
        flags = Path(f"/sys/class/net/{names.veth(node)}/flags").read_text()
    except OSError:
        return False
    return bool(int(flags, 16) & 1)


def _usable(netns: str) -> bool:
    """Tell a living namespace from the plain file that an earlier boot left under its name."""
    inner, outer = _key(NETNS_DIR / netns), _key(NETNS_DIR)
    return inner is not None and outer is not None and inner[0] != outer[0]


def _key(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _exists(link: str) -> bool:
    return Path(f"/sys/class/net/{link}").exists()


def _ip(*arguments: str) -> str:
    done = run(["ip", *arguments], env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise SetupError(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _ip_quiet(*arguments: str) -> None:
    run(["ip", *arguments])
