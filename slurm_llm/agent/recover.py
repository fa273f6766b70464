"""What follows an attempt that failed: a start in the same allocation, on which nodes, a requeue, or the end.

It judges by the attempts' result files and by what Slurm says of the job's nodes. The job's script acts on it.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import client, journal, nodes, processes

RESTART, REQUEUE, END = "restart", "requeue", "end"
HARDWARE = frozenset(
    ("cuda-ecc", "gpu-xid", "cuda-fabric", "nvml-mismatch", "transport-endpoint", "job-credential", "slurm-prolog")
)
"""Known errors that are faults of the node itself: the catalogue's remedy is to avoid it."""
OFTEN = 2
"""So many attempts that failed first on one node make it a suspect."""
DRAINING = ("DRAIN", "FAIL", "MAINT", "REBOOT", "POWER_DOWN")
LOOK_S, SPARE_S = 2.0, 60.0
"""Between two looks at a node that Slurm is to give up, and how long beyond its own time limit."""
_RESULT = re.compile(r"result\.(\d+)\.json\Z")


class Limits(NamedTuple):
    """What the spec allows; `reset_s` of service give an attempt's predecessors back."""

    restarts: int
    backoff_s: int
    reset_s: float
    requeues: int


class Attempt(NamedTuple):
    """How one attempt ended: seconds that it served, the kind of its failure, its node, known errors by id."""

    number: int
    served_s: float = 0.0
    kind: str = ""
    node: Optional[str] = None
    known: Tuple[str, ...] = ()


class Ground(NamedTuple):
    """The nodes of the allocation in its order, how many an attempt needs, and the one that runs the job's script.

    `lost` and `suspects` are nodes with the reason: no step can run on a lost one, a suspect is avoided.
    """

    allocated: Tuple[str, ...]
    need: int
    script_node: str
    lost: Dict[str, str]
    suspects: Dict[str, str]


class Order(NamedTuple):
    """What the script is to do; `nodes` are those of a restart, `left` counts further ones, `why` is for people."""

    next: str
    pause_s: int = 0
    nodes: Tuple[str, ...] = ()
    left: int = 0
    why: str = ""


def read_attempts(job_dir: str) -> List[Attempt]:
    """Return the job's attempts in order; one that could not write its result counts as one that never served."""
    try:
        names = os.listdir(job_dir)
    except OSError:
        names = []
    numbers = {int(name[len("attempt-") :]) for name in names if re.match(r"attempt-\d+\Z", name)}
    numbers |= {int(match.group(1)) for match in map(_RESULT.match, names) if match}
    return [_attempt(number, os.path.join(job_dir, "result.%d.json" % number)) for number in sorted(numbers)]


def _attempt(number: int, path: str) -> Attempt:
    try:
        with open(path, encoding="utf-8") as stream:
            value: Dict[str, Any] = json.load(stream)
        found: Dict[str, Any] = value.get("diagnosis") or {}
        ready, ended = value.get("ready"), value.get("ended")
        served = max(0.0, float(ended) - float(ready)) if ready and ended else 0.0
        known = tuple(str(one["id"]) for one in found.get("known") or ())
        return Attempt(number, served, str(found.get("kind") or ""), found.get("node"), known)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Attempt(number)


def requeues_so_far(job_dir: str, attempts: Sequence[Attempt]) -> int:
    """Return how often a failure has made the job's script requeue it."""
    count = 0
    for own in attempts:
        notes = journal.read(os.path.join(job_dir, "attempt-%d" % own.number, "journal", "job.jsonl"))
        kinds = [item["kind"] for item in notes]
        count += kinds.count("requeue") - kinds.count("requeue-refused")
    return count


def used_restarts(attempts: Sequence[Attempt], limits: Limits) -> int:
    """Return how many restarts an allocation has used with one for its last attempt; long service gives all back."""
    used = 0
    for own in attempts:
        used = (0 if own.served_s >= limits.reset_s else used) + 1
    return used


def find_lost(attempts: Sequence[Attempt]) -> Dict[str, str]:
    """Return nodes that attempts of this allocation have lost."""
    return {own.node: "lost in attempt %d" % own.number for own in attempts if own.kind == "node" and own.node}


def find_suspects(attempts: Sequence[Attempt]) -> Dict[str, str]:
    """Return nodes that are likely to fail again: a fault of the hardware, or the first one to fail time and again."""
    found: Dict[str, str] = {}
    failed = [own.node for own in attempts if own.node]
    for own in attempts:
        faults = [name for name in own.known if name in HARDWARE]
        if own.node and faults:
            found[own.node] = "its own fault: %s" % faults[0]
        elif own.node and failed.count(own.node) >= OFTEN:
            found.setdefault(own.node, "first to fail %d times" % failed.count(own.node))
    return found


def choose_nodes(ground: Ground) -> Optional[Tuple[str, ...]]:
    """Return the nodes of the next attempt, in the allocation's order; None when too few live.

    The script's own node is always one of them: nothing but a requeue moves the script.
    """
    if ground.script_node in ground.lost:
        return None
    living = [name for name in ground.allocated if name not in ground.lost]
    good = [name for name in living if name == ground.script_node or name not in ground.suspects]
    ranked = sorted(living, key=lambda name: (name != ground.script_node, name not in good, living.index(name)))
    chosen = set(ranked[: ground.need])
    return tuple(name for name in living if name in chosen) if len(chosen) == ground.need else None


def decide(attempts: Sequence[Attempt], limits: Limits, requeues: int, ground: Ground) -> Order:
    """Return what follows; `attempts` are those of this allocation, `requeues` all that the job has had."""
    used = used_restarts(attempts, limits)
    chosen = choose_nodes(ground)
    again = requeues < limits.requeues
    if used > limits.restarts:
        why = "no restart is left" if limits.restarts else "no restart was asked for"
    elif chosen is None:
        living = sum(name not in ground.lost for name in ground.allocated)
        why = "%d of its %d nodes live, a restart needs %d" % (living, len(ground.allocated), ground.need)
    elif again and attempts[-1].node == ground.script_node and ground.script_node in ground.suspects:
        why = "node %s, where the job's script runs, is at fault (%s)" % (
            ground.script_node,
            ground.suspects[ground.script_node],
        )
    else:
        pause = limits.backoff_s * 2 ** (used - 1)
        return Order(RESTART, pause, chosen, limits.restarts - used)
    if again:
        return Order(REQUEUE, left=limits.requeues - requeues - 1, why=why)
    return Order(END, why=why if not limits.requeues else "%s, nor a requeue" % why)


def wait_until_given_up(lost: Sequence[str]) -> bool:
    """Return once Slurm calls these nodes DOWN; False when it does not within its own time and a little more.

    A job that is requeued while a node of it is dead and not DOWN yet leaves GPUs of its other nodes marked as used,
    until slurmctld starts anew (22.05.8, with and without --no-kill). One without --no-kill Slurm requeues by itself.
    """
    deadline = time.monotonic() + nodes.slurmd_timeout_s() + SPARE_S
    while not all("DOWN" in nodes.slurm_says(name) for name in lost):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def look_at(names: Sequence[str], script_node: str) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return which of these nodes are lost and which are about to leave, in Slurm's words or by their silence."""
    lost: Dict[str, str] = {}
    leaving: Dict[str, str] = {}
    addresses: Dict[str, str] = {}
    for row in nodes.scontrol("--oneliner", "show", "node", ",".join(names)).splitlines():
        facts = dict(word.partition("=")[::2] for word in row.split() if "=" in word)
        name, state = facts.get("NodeName", ""), facts.get("State", "")
        if name not in names:
            continue
        addresses[name] = facts.get("NodeAddr") or name
        if nodes.is_gone(state):
            lost[name] = "Slurm says %s" % state
        elif any(word in state for word in DRAINING):
            leaving[name] = "Slurm says %s" % state
    silent = _silent({name: host for name, host in addresses.items() if name != script_node and name not in lost})
    lost.update(silent)
    lost.pop(script_node, None)
    return lost, leaving


def _silent(addresses: Dict[str, str]) -> Dict[str, str]:
    """Return the nodes whose slurmd takes no connection; all are asked at the same time."""
    if not addresses:
        return {}
    port, found = nodes.slurmd_port(), {}

    def ask(name: str, host: str) -> None:
        why = nodes.absence(host, port)
        if why:
            found[name] = why

    asking = [threading.Thread(target=ask, args=one, daemon=True) for one in addresses.items()]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    return found


def living(attempt_dir: str, names: Sequence[str]) -> List[str]:
    """Return those of an attempt's nodes that its head has not called lost."""
    records = journal.read(os.path.join(attempt_dir, "journal", "head.jsonl"))
    lost = {item.get("node") for item in records if item["kind"] == "lost"}
    return [name for name in names if name not in lost]


def can_do_without(run_dir: str, names: Sequence[str]) -> bool:
    """Tell whether Slurm would ever start this job without these nodes: one that never starts helps nobody."""
    argv = ["sbatch", "--test-only", "--exclude=%s" % ",".join(names), os.path.join(run_dir, "job.sub")]
    return _call(argv) == 0


def _call(argv: List[str]) -> int:
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return -1


def tell(order: Order, ground: Ground, excluded: Sequence[str]) -> str:
    """Return what the job's output says."""
    if order.next == RESTART:
        text = "the server is started again in %d s; restarts left after that: %d" % (order.pause_s, order.left)
        bad = [name for name in ground.allocated if name not in order.nodes]
        known = ["%s (%s)" % (name, (ground.lost.get(name) or ground.suspects.get(name))) for name in bad]
        known = [row for row in known if "(None)" not in row]
        return text + ("; without " + ", ".join(known) if known else "")
    if order.next == REQUEUE:
        text = "%s: the job is requeued; requeues left after that: %d" % (order.why, order.left)
        return text + ("; without " + ", ".join(excluded) if excluded else "")
    return "the server is not started again: %s" % order.why


class Given(NamedTuple):
    """What the job's script gives: `first` is this allocation's first attempt; `need` nodes, 0 for all of the job's.

    `excluded` are nodes that the spec excludes, as Slurm writes them.
    """

    attempt_dir: str
    first: int
    limits: Limits
    need: int
    excluded: str


def main(given: Given) -> int:
    """Print the order for the script (`restart SECONDS NODES`, `requeue 0 EXCLUDED`, `end`) and tell it to people."""
    job_dir = os.path.dirname(given.attempt_dir)
    attempts = read_attempts(job_dir)
    own = [one for one in attempts if one.number >= given.first]
    ground = _ground(given, attempts, own)
    order = _unless_begun(job_dir, own) or decide(own, given.limits, requeues_so_far(job_dir, attempts), ground)
    if order.next == REQUEUE and ground.lost:
        _say("the job is requeued once Slurm has given up %s" % ", ".join(ground.lost))
        if not wait_until_given_up(list(ground.lost)):
            order = Order(END, why="Slurm has not given up %s" % ", ".join(ground.lost))
    excluded: List[str] = []
    if order.next == REQUEUE:
        bad = [name for name in ground.suspects if name in ground.allocated]
        excluded = bad if bad and can_do_without(os.path.dirname(job_dir), bad + _words(given.excluded)) else []
    _note(given.attempt_dir, order, excluded)
    _say(tell(order, ground, excluded))
    rest = ",".join(order.nodes if order.next == RESTART else excluded and excluded + _words(given.excluded))
    print(order.next, order.pause_s, rest)
    return 0


def _unless_begun(job_dir: str, own: Sequence[Attempt]) -> Optional[Order]:
    """Return the end where the job's client has begun, and is not to begin once more."""
    try:
        with open(os.path.join(os.path.dirname(job_dir), "plan.json"), encoding="utf-8") as stream:
            plan: Dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return None
    given = plan.get("client")
    begun = client.began_in(job_dir, own[-1].number + 1) if own and given and not given["restart"] else None
    return None if begun is None else Order(END, why="the client has begun, and client.restart is not set")


def _say(text: str) -> None:
    print("slurm_llm: %s %s" % (time.strftime("%H:%M:%S"), text), file=sys.stderr, flush=True)


def _words(text: str) -> List[str]:
    return [text] if text else []


def _note(attempt_dir: str, order: Order, excluded: Sequence[str]) -> None:
    path = os.path.join(attempt_dir, "journal", "job.jsonl")
    if order.next == RESTART:
        item = journal.record(RESTART, in_s=order.pause_s, left=order.left, nodes=list(order.nodes))
    elif order.next == REQUEUE:
        item = journal.record(REQUEUE, left=order.left, why=order.why, without=list(excluded))
    else:
        item = journal.record(journal.NO_RESTART, why=order.why)
    journal.append(path, item)


def _ground(given: Given, attempts: Sequence[Attempt], own: Sequence[Attempt]) -> Ground:
    """Return the ground for a next attempt; nodes are looked at only where there are spare ones."""
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    allocated = tuple(nodes.scontrol("show", "hostnames", listed).split())
    script_node = processes.node_name()
    lost, suspects = find_lost(own), find_suspects(attempts)
    if given.need and given.need < len(allocated):
        gone, leaving = look_at([name for name in allocated if name not in lost], script_node)
        lost.update(gone)
        suspects = dict(leaving, **suspects)
    return Ground(allocated, given.need or len(allocated), script_node, lost, suspects)


def print_living(attempt_dir: str, names: str) -> int:
    """Print how many of an attempt's nodes live, and which, for the script's last step there."""
    found = living(attempt_dir, names.split(","))
    print(len(found), ",".join(found))
    return 0
