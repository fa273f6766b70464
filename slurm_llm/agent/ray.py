"""A Ray cluster of one instance: the leader starts its head and waits for the other nodes, which join and stay.

Ray's own commands do it, under the `python3` that Triton's stub takes too. Options of `ray start` and variables are
those of Ray's documentation, tried with Ray 2.60.
"""

import json
import os
import secrets
import socket
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional

from . import interfaces, journal, ports, processes

FILE, TOKEN = "ray-%d", "ray-%d.token"
"""Files of the attempt's folder, for each instance: where its head listens, and what opens it."""
OWN_PORTS = (
    *("node-manager", "object-manager", "runtime-env-agent", "metrics-export"),
    *("dashboard-agent-listen", "dashboard-agent-grpc"),
)
SPARE_WORKER_PORTS, WORKER_PORTS_A_GPU = 16, 4
"""Every worker and driver of a node takes a port; Ray holds idle workers besides, one a CPU that it was told of."""
STORE_MIB = 1024
"""Size of the object store, through which little passes here: by default Ray takes 30 % of the node's memory."""
RESOURCE = "slurm_llm_rank_%d"
LOOK_S = 0.5
HEAD_LOOKS = 2
"""So often in a row the head must refuse a connection to have ended."""
PYTHON = "python3"
RAY = [PYTHON, "-m", "ray.scripts.scripts"]

COUNT = """
import sys, time
import ray
address, seconds, names = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
deadline, told = time.monotonic() + seconds, None
while True:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        break
    except Exception as error:
        if time.monotonic() > deadline:
            print("slurm_llm: Ray does not take its leader in: %s" % error)
            sys.exit(1)
        time.sleep(1.0)
while True:
    alive = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
    missing = [name for name in names if not any(name in own for own in alive)]
    if len(missing) != told:
        told = len(missing)
        print("slurm_llm: %d of %d nodes have joined Ray" % (len(names) - told, len(names)), flush=True)
    if not missing:
        sys.exit(0)
    if time.monotonic() > deadline:
        ranks = ", ".join(name.rpartition("_")[2] for name in missing)
        words = "slurm_llm: %d of %d nodes have not joined Ray within %d s: rank %s (its log says why)"
        print(words % (len(missing), len(names), seconds, ranks))
        sys.exit(1)
    time.sleep(0.5)
"""
"""What asks Ray who has joined; each rank's node offers a resource with the rank's name."""


class Options(NamedTuple):
    """What rank.sh tells. `ranks` are those of the instance, its leader first: one a node."""

    attempt_dir: str
    instance: int
    rank: int
    ranks: List[int]
    low: int
    high: int
    seed: int
    taken: List[int]
    gpus: int
    temp: str
    wait_s: float
    interface: str
    command: List[str]

    @property
    def file(self) -> str:
        """The file in which the leader says where Ray listens."""
        return os.path.join(self.attempt_dir, FILE % self.instance)


def main(options: Options) -> int:
    """Start the head and become `command`, or join and stay; return the exit status."""
    missing = [PYTHON, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)"]
    if subprocess.call(missing):
        say("no Ray in the python3 that Triton takes: the ray launch needs it in the image, or in the site's python")
        return 1
    try:
        return _lead(options) if options.rank == options.ranks[0] else _join(options)
    except (OSError, ValueError) as error:
        say(str(error))
        return 1


def say(text: str) -> None:
    """Write a line into the rank's log."""
    print("slurm_llm: %s" % text, flush=True)


def _lead(options: Options) -> int:
    host = _own_address(options.interface)
    drawn = _draw(options, 1)
    address = _joined(host, drawn[0])
    token = os.path.join(options.attempt_dir, TOKEN % options.instance)
    journal.write_once(token, secrets.token_hex(32))
    env = environment(host, token)
    words = ["--head", "--port=%d" % drawn[0], "--include-dashboard=false"]
    head = subprocess.Popen(RAY + start_words(options, host, drawn[1:], words), env=env, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + options.wait_s
    wrong = _wait_until_it_listens(head, host, drawn[0], deadline)
    if wrong:
        say("Ray's head %s, at %s" % (wrong, address))
        return 1
    journal.write_once(options.file, json.dumps({"address": address, "host": host, "port": drawn[0]}) + "\n")
    left = "%.0f" % max(1.0, deadline - time.monotonic())
    asking = [PYTHON, "-c", COUNT, address, left] + [RESOURCE % rank for rank in options.ranks]
    if _has_all(subprocess.Popen(asking, env=env, stdin=subprocess.DEVNULL), head):
        # From here on this process is the server: the agent has seen its ports already, and watches it to the end.
        os.execvpe(options.command[0], options.command, dict(env, RAY_ADDRESS=address))
    return 1


def _wait_until_it_listens(head: "subprocess.Popen[bytes]", host: str, port: int, deadline: float) -> str:
    """Return what is wrong; empty as soon as somebody listens there."""
    while not _listens(host, port):
        code = head.poll()
        if code is not None:
            return "ended with exit code %d before it listened" % code
        if time.monotonic() > deadline:
            return "does not listen"
        time.sleep(LOOK_S)
    return ""


def _has_all(asking: "subprocess.Popen[bytes]", head: "subprocess.Popen[bytes]") -> bool:
    """Return whether every node joins while the head lives."""
    while asking.poll() is None:
        code = head.poll()
        if code is not None:
            asking.kill()
            say("Ray's head ended with exit code %d while its nodes joined" % code)
            return False
        time.sleep(LOOK_S)
    return asking.returncode == 0


def _join(options: Options) -> int:
    where = _wait_for_head(options)
    if where is None:
        leader = options.ranks[0]
        say("rank %d has not started Ray within %d s: rank-%d.log says why" % (leader, options.wait_s, leader))
        return 1
    host = interfaces.address(options.interface) if options.interface else _address_towards(where["host"])
    if not host:
        raise OSError("interface %s has no address here (network.interface in the site profile)" % options.interface)
    env = environment(host, os.path.join(options.attempt_dir, TOKEN % options.instance))
    words = start_words(options, host, _draw(options, 0), ["--address=%s" % where["address"]])
    member = subprocess.Popen(RAY + words, env=env, stdin=subprocess.DEVNULL)
    refused = 0
    while refused < HEAD_LOOKS:
        time.sleep(LOOK_S)
        code = member.poll()
        if code is not None:
            say("this node's part of Ray ended with exit code %d" % code)
            return code if code > 0 else 1
        refused = refused + 1 if _refuses(where["host"], where["port"]) else 0
    # The leader's server has ended, and rank.sh ended Ray's head with it: in order or not, its own agent has seen.
    say("rank %d has ended Ray, so this node leaves it" % options.ranks[0])
    return 0


def _wait_for_head(options: Options) -> Optional[Dict[str, Any]]:
    folder, name = os.path.split(options.file)
    deadline = time.monotonic() + options.wait_s
    # Over NFS a folder's list asks the server, while one name may be answered from a memory of its absence.
    while name not in os.listdir(folder):
        if time.monotonic() > deadline:
            return None
        time.sleep(LOOK_S)
    with open(options.file) as stream:
        return dict(json.load(stream))


def start_words(options: Options, host: str, drawn: List[int], words: List[str]) -> List[str]:
    """Return the words of `ray start` beside Ray's own program: `drawn` are ports of OWN_PORTS, then of workers."""
    own = len(OWN_PORTS)
    made = ["start"] + words + ["--node-ip-address=%s" % host, "--block", "--disable-usage-stats"]
    made += ["--%s-port=%d" % (name, drawn[at]) for at, name in enumerate(OWN_PORTS)]
    made += ["--worker-port-list=%s" % ",".join(map(str, drawn[own:]))]
    # Each CPU that Ray knows of is an idle Python process for it; vLLM's workers ask for GPUs alone.
    made += ["--num-cpus=%d" % options.gpus]
    shown = shown_gpus()
    made += [] if shown is None else ["--num-gpus=%d" % shown]
    made += ["--temp-dir=%s" % options.temp, "--object-store-memory=%d" % (store_mib() << 20)]
    return made + ["--resources=%s" % json.dumps({RESOURCE % options.rank: 1})]


def shown_gpus() -> Optional[int]:
    """Return how many GPUs CUDA_VISIBLE_DEVICES names; None where nothing is said, and Ray is to look itself."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else len([name for name in text.split(",") if name and name != "NoDevFiles"])


def store_mib() -> int:
    """Return the size of the object store: half of what /dev/shm has left is the most that it takes."""
    return max(80, min(STORE_MIB, processes.shm_free_mib() // 2))


def environment(host: str, token: str) -> Dict[str, str]:
    """Return the environment of Ray and of all that it starts on this node, given ones kept.

    Without a token everybody in the cluster's network could run code as this user (Ray before 2.52 knows none). Ray's
    guard of memory counts that of the whole node, other jobs' too, and kills workers for it; workers that it starts
    ahead of need it kills later, which looks like a failure; the others it would give way to every other process.
    """
    given = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",
    }
    return dict(own, **dict(given, VLLM_HOST_IP=host))


def _draw(options: Options, more: int) -> List[int]:
    """Return free ports of the range: `more`, those of OWN_PORTS, and those of workers."""
    count = more + len(OWN_PORTS) + SPARE_WORKER_PORTS + WORKER_PORTS_A_GPU * options.gpus
    return ports.draw(options.low, options.high, options.seed, [0] * count, options.taken)


def _own_address(interface: str) -> str:
    """Return this node's address as the others reach it: the interface's, else the one that its name stands for.

    Raises:
        OSError: there is none.
    """
    if interface:
        found = interfaces.address(interface)
        if not found:
            raise OSError("interface %s has no address here (network.interface in the site profile)" % interface)
        return found
    try:
        named = socket.gethostbyname(processes.node_name())
    except OSError:
        named = ""
    if named and not named.startswith("127."):
        return named
    others = [address for name, address in interfaces.addresses().items() if address and name != "lo"]
    if not others:
        raise OSError("this node has no address for Ray: set network.interface in the site profile")
    return others[0]


def _address_towards(host: str) -> str:
    """Return this node's address on the way to `host`; nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def _joined(host: str, port: int) -> str:
    return ("[%s]:%d" if ":" in host else "%s:%d") % (host, port)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 2.0).close()
    except OSError:
        return False
    return True


def _refuses(host: str, port: int) -> bool:
    """Return whether nobody listens there any more; a network that is slow to answer says nothing."""
    try:
        socket.create_connection((host, port), 2.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def from_words(given: Any) -> Options:
    """Return the options of the command line."""
    return Options(
        given.attempt,
        given.instance,
        given.rank,
        list(range(given.first, given.first + given.ranks)),
        given.low,
        given.high,
        given.seed,
        [int(word) for word in given.taken.split()],
        given.gpus,
        given.temp,
        given.wait_s,
        given.interface,
        given.words[1:] if given.words[:1] == ["--"] else given.words,
    )
