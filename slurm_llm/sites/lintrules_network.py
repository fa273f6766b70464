"""Lint rules about launching over several nodes, internet and proxies, ports and paths."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_llm.sites.lintrules import Hit, Queue, queue_rules
from slurm_llm.yamlio import Key

EPHEMERAL = (32768, 60999)
"""Linux's default range of ports for outgoing connections (`ip_local_port_range`)."""

FEWEST_PORTS, FIRST_FREE_PORT = 100, 1024
_HOME = re.compile(r"(?:~|\$HOME|\$\{HOME\}|/homes?|/users|/root)(?:/|\Z)")
_OF_NODE = re.compile(r"(?:/tmp|/var/tmp|/dev/shm|/run)(?:/|\Z)|\$\{?(?:TMPDIR|XDG_RUNTIME_DIR)\b")
_OF_JOB = re.compile(r"\$\{?(SLURM_[A-Z_]+)")
_SHARED_PATHS = ("logs", "images", "models", "hf_home")


def several_nodes_without_mpi(queue: Queue) -> Iterator[Hit]:
    """MpiDefault is none in every release unless the site changes it, and then no two ranks find each other."""
    launcher = queue.site.launcher
    if queue.view.profile.base or not launcher.by_srun or not _takes_several_nodes(queue):
        return
    if launcher.mpi is None:
        path = queue.at("launcher") if queue.view.given("launcher") else ()
        what = "launcher.mpi is not set: engines that form an MPI world are refused"
        yield Hit(path, what, "set the type that the site's MPI speaks (see `srun --mpi=list`), usually pmix")
    elif launcher.mpi in ("none", "openmpi"):
        what = f"launcher.mpi {launcher.mpi} starts ranks that do not find each other"
        yield Hit(queue.at("launcher", "mpi"), what, "set a type of `srun --mpi=list`, usually pmix")


def mpi_never_used(queue: Queue) -> Iterator[Hit]:
    """--mpi is an option of srun; another launcher brings its own way."""
    launcher = queue.site.launcher
    program = launcher.command.strip().partition(" ")[0]
    if program != "srun" and launcher.mpi is not None:
        what = f"launcher.mpi is never used by {program}"
        yield Hit(queue.at("launcher", "mpi"), what, "remove it")


def rendezvous_without_interface(queue: Queue) -> Iterator[Hit]:
    """The address of an interface can be looked up only when the interface has a name."""
    network = queue.site.network
    if network.rendezvous is not None and network.rendezvous.source == "interface_ip" and network.interface is None:
        what = "network.rendezvous takes the address of network.interface, which is not set"
        yield Hit(queue.at("network", "rendezvous", "source"), what, "set network.interface")


def bind_without_interface(queue: Queue) -> Iterator[Hit]:
    """Servers that are to listen on the interface's address are refused when it has no name."""
    network = queue.site.network
    if network.bind == "interface" and network.interface is None:
        what = "network.bind wants the address of network.interface, which is not set"
        yield Hit(queue.at("network", "bind"), what, "set network.interface")


def proxy_without_address(queue: Queue) -> Iterator[Hit]:
    """Downloads on nodes behind a proxy need its address: from here, from a module, or from the prologue."""
    site, proxy = queue.site, queue.site.network.proxy
    elsewhere = site.modules.load or site.prologue or any(name.lower().endswith("_proxy") for name in site.env.set)
    if site.network.internet == "proxy" and not (proxy.http or proxy.https or elsewhere):
        what = "compute nodes reach the internet through a proxy, and no address is given"
        yield Hit(queue.at("network", "internet"), what, "set network.proxy.https and network.proxy.http")


def proxy_never_needed(queue: Queue) -> Iterator[Hit]:
    """A proxy beside direct access, or beside none at all, is a contradiction: one of the two is wrong."""
    network = queue.site.network
    if network.internet != "proxy" and (network.proxy.http or network.proxy.https):
        key = "http" if network.proxy.http else "https"
        what = f"a proxy is given, and network.internet is {network.internet}"
        yield Hit(queue.at("network", "proxy", key), what, "set network.internet: proxy, or remove the proxy")


def privileged_ports(queue: Queue) -> Iterator[Hit]:
    """Ports below 1024 cannot be opened by ordinary users."""
    low, _ = _ports(queue)
    if low < FIRST_FREE_PORT:
        what = f"network.ports {queue.site.network.ports} begins below {FIRST_FREE_PORT}"
        yield Hit(queue.at("network", "ports"), what, "begin above, as 20000-29999")


def ephemeral_ports(queue: Queue) -> Iterator[Hit]:
    """The kernel gives ports of its ephemeral range to any connection: a server's bind then fails by chance."""
    low, high = _ports(queue)
    if low <= EPHEMERAL[1] and high >= EPHEMERAL[0]:
        first, last = EPHEMERAL
        what = f"network.ports {queue.site.network.ports} overlaps the kernel's ephemeral ports {first}-{last}"
        yield Hit(queue.at("network", "ports"), what, f"stay below {first}, as 20000-29999")


def few_ports(queue: Queue) -> Iterator[Hit]:
    """Jobs that share a node draw three ports each, from a start of their own."""
    low, high = _ports(queue)
    if high - low + 1 < FEWEST_PORTS:
        what = f"network.ports {queue.site.network.ports} holds {high - low + 1} ports"
        yield Hit(queue.at("network", "ports"), what, f"give at least {FEWEST_PORTS}")


def path_is_relative(queue: Queue) -> Iterator[Hit]:
    """Jobs are submitted from anywhere: a relative path means another folder each time."""
    for path, text in (*_storage(queue), *_sourced(queue)):
        if not text.startswith(("/", "$", "~")):
            yield Hit(path, f"'{text}' is a relative path", "begin it with /, ~ or $NAME")


def variable_of_the_job(queue: Queue) -> Iterator[Hit]:
    """Paths are replaced when a job is submitted, and a variable of the job does not exist yet."""
    site, paths = queue.site, list(_storage(queue))
    paths += [(queue.at("container", "mounts", at), text) for at, text in enumerate(site.container.mounts)]
    for path, text in paths:
        match = _OF_JOB.search(text)
        if match:
            what = f"${match[1]} is not known when a job is submitted"
            yield Hit(path, what, "use a variable of the login node, or storage.local for the node's own folder")


def logs_on_one_node(queue: Queue) -> Iterator[Hit]:
    """Run directories are read and written by all nodes of a job and by the login node."""
    text = queue.site.storage.logs
    if text is not None and _OF_NODE.match(text):
        what = f"storage.logs '{text}' is each node's own: jobs do not find their files there"
        yield Hit(queue.at("storage", "logs"), what, "choose a folder that all nodes share")


def storage_on_home(queue: Queue) -> Iterator[Hit]:
    """Home file systems are small and slow; some sites refuse jobs that work in them."""
    for path, text in _storage(queue):
        if _HOME.match(text):
            yield Hit(path, f"'{text}' is on a home file system", "choose scratch or project space")


def local_is_not_local(queue: Queue) -> Iterator[Hit]:
    """storage.local is for each node alone; /dev/shm is memory that engines need, and home is shared."""
    text = queue.site.storage.local
    if text.startswith("/dev/shm"):
        what = f"storage.local '{text}' is memory, and engines need it for their queues"
        yield Hit(queue.at("storage", "local"), what, "choose a folder on a disk of the node, as /tmp")
    elif _HOME.match(text):
        what = f"storage.local '{text}' is shared by all nodes"
        yield Hit(queue.at("storage", "local"), what, "choose a folder of the node's own, as /tmp")


def _takes_several_nodes(queue: Queue) -> bool:
    own = queue.partition
    return own.nodes != 1 and own.limits.max_nodes != 1


def _ports(queue: Queue) -> tuple[int, int]:
    low, high = queue.site.network.ports.split("-")
    return int(low), int(high)


def _storage(queue: Queue) -> Iterator[tuple[Key, str]]:
    for name in _SHARED_PATHS:
        text = getattr(queue.site.storage, name)
        if text is not None:
            yield queue.at("storage", name), text


def _sourced(queue: Queue) -> Iterator[tuple[Key, str]]:
    for index, text in enumerate(queue.site.env.source):
        yield queue.at("env", "source", index), text


RULES = (
    *queue_rules("error", rendezvous_without_interface, bind_without_interface, needs_all=True),
    *queue_rules("error", privileged_ports, path_is_relative, variable_of_the_job, logs_on_one_node),
    *queue_rules("warning", several_nodes_without_mpi, mpi_never_used, proxy_without_address, needs_all=True),
    *queue_rules("warning", proxy_never_needed, ephemeral_ports, few_ports, storage_on_home, local_is_not_local),
)
