"""The probe job's verb: the batch host, every node and every rank write down what they see; it judges nothing.

Each process has a file of its own in the probe's folder, and each record is one write.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from typing import Any, List, NamedTuple, Optional

from . import journal, meeting, sights

EXPECTED = "expect.json"
DONE = "done"
MPI_S, STAY_S, PEERS_S = 40.0, 150.0, 10.0
"""Seconds for the MPI world, for a node to wait for the ranks' end, for a rank to wait for the others."""

GIST_LINES = 3

_PROCESS = re.compile(r"^\[[\w.-]+:\d+\] ?")
_PMI_VARIABLES = ("PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "PMI_FD", "PALS_RANKID", "SLURM_MPI_TYPE")


class Options(NamedTuple):
    """Where the records go, what is surveyed (`batch`, `node`, `rank` or `mpi`), when its srun began, which rank."""

    folder: str
    of: str
    since: Optional[float] = None
    rank: Optional[int] = None


class Expected:
    """What the probe's folder says of the plan."""

    def __init__(self, folder: str) -> None:
        """Read it."""
        with open(os.path.join(folder, EXPECTED)) as stream:
            given = json.load(stream)
        self.ranks = int(given["ranks"])
        self.nodes = int(given["nodes"])
        self.ranks_per_node = int(given["ranks_per_node"])
        self.by_srun = bool(given["by_srun"])
        self.mpi = bool(given["mpi"])
        self.suffix = str(given["suffix"])
        self.ports = [int(port) for port in given["ports"]]
        self.places = sorted({"/dev/shm", str(given["local"])})
        self._seen = given["homes"], given["variables"], given["internet"]

    def look(self) -> sights.Facts:
        """Return what this process sees alone."""
        return sights.look(*self._seen)


def number(name: str) -> int:
    """Return a variable of Slurm as a number, 0 when it is not set."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


def job() -> str:
    """Return Slurm's number of the job."""
    return os.environ.get("SLURM_JOB_ID", "0")


def write(folder: str, name: str, kind: str, **facts: Any) -> None:
    """Append one record to a file that nobody else writes."""
    journal.append(os.path.join(folder, name + ".jsonl"), journal.record(kind, **facts))


def batch(folder: str, expected: Expected) -> None:
    """Write down what the batch host sees, and whether Slurm's commands answer there."""
    facts = expected.look()
    facts["scontrol"] = sights.attempt(sights.output, "scontrol", "show", "job", job(), seconds=20.0)
    if isinstance(facts["scontrol"], list):
        facts["scontrol"] = True
    # URG means nothing to whoever does not wait for it.
    facts["scancel"] = sights.attempt(sights.output, "scancel", "--signal=URG", "--batch", job(), seconds=20.0)
    write(folder, "batch", "batch", **facts)


def node(folder: str, expected: Expected) -> None:
    """Write down what a node's host sees, then stay beside the ranks until they have ended."""
    mine = number("SLURM_NODEID")
    places = _places(expected)
    facts = expected.look()
    facts["ports"] = sights.attempt(sights.sample_ports, *expected.ports)
    facts["ephemeral"] = sights.attempt(sights.ephemeral_ports)
    facts["writable"] = {place.folder: sights.attempt(place.leave, "node") for place in places}
    write(folder, "node-%d" % mine, "node", nodeid=mine, **facts)
    others = {"node-%d.jsonl" % other for other in range(expected.nodes) if other != mine}
    seen = sights.attempt(meeting.watch_for, folder, others, PEERS_S, seconds=2 * PEERS_S)
    write(folder, "node-%d" % mine, "seen", nodeid=mine, files=seen)
    meeting.watch_for(folder, {DONE}, STAY_S)
    for place in places:
        sights.attempt(place.clear_all)


def rank(folder: str, expected: Expected, given: Options) -> None:
    """Write down what a rank sees: alone, with its node's others, over the network, and in its MPI world."""
    begun = time.time()
    mine = number("SLURM_PROCID") if given.rank is None else given.rank
    each = expected.ranks_per_node
    local = number("SLURM_LOCALID") if expected.by_srun else mine % each
    door = meeting.open_door(folder, expected.ports, int(job())) if mine == 0 else None
    places = _places(expected)
    writable = {place.folder: sights.attempt(place.leave, str(mine)) for place in places}
    facts = expected.look()
    peers = {str(mine - local + other) for other in range(each)} | {"node"}
    facts.update(
        nodeid=number("SLURM_NODEID") if expected.by_srun else mine // each,
        localid=local,
        launch_s=None if given.since is None else round(begun - given.since, 3),
        cpus=sights.attempt(sights.cpus),
        pmi={name: os.environ[name] for name in _PMI_VARIABLES if name in os.environ},
        writable=writable,
        together={place.folder: sights.attempt(place.meet, peers) for place in places},
        listens=door if isinstance(door, str) else None,
        reach=sights.attempt(meeting.reach, folder, expected.suffix, PEERS_S, seconds=3 * PEERS_S)
        if not local
        else None,
    )
    write(folder, "rank-%d" % mine, "rank", rank=mine, **facts)
    meeting.watch_for(folder, {"rank-%d.jsonl" % other for other in range(expected.ranks)}, PEERS_S)
    for place in places:
        sights.attempt(place.clear)
    if expected.mpi:
        # Last, and in a process of its own: a world that cannot form ends its processes, or never answers.
        write(folder, "rank-%d" % mine, "mpi", rank=mine, world=sights.attempt(_world, folder, seconds=MPI_S + 5))


def _places(expected: Expected) -> List[meeting.Place]:
    return [meeting.Place(name, job()) for name in expected.places]


def _world(folder: str) -> Any:
    agent = os.path.dirname(os.path.abspath(__file__))
    argv = [sys.executable, "-I", agent, "survey", "--folder", folder, "--of", "mpi"]
    pipe = subprocess.PIPE
    # PMI-2 speaks over a descriptor that is handed down.
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, close_fds=False)
    try:
        out, err = child.communicate(timeout=MPI_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return "error: no world within %g s" % MPI_S
    rows = [row for row in out.decode("utf-8", "replace").splitlines() if row.startswith("{")]
    if rows:
        return json.loads(rows[-1])
    how = "signal %d" % -child.returncode if child.returncode < 0 else "exit status %d" % child.returncode
    return "error: ended with %s: %s" % (how, _gist(err.decode("utf-8", "replace")))


def _gist(said: str) -> str:
    """Return the first lines that say something, without what differs from process to process."""
    rows = [_PROCESS.sub("", row).strip() for row in said.splitlines()]
    return " ".join([row for row in rows if any(map(str.isalpha, row))][:GIST_LINES]) or "no word"


def mpi() -> None:
    """Join the MPI world, hear from everybody in it, and print what was seen."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begun = time.time()
    from mpi4py import MPI

    joined = time.time()
    world = MPI.COMM_WORLD
    who = world.allgather([number("SLURM_PROCID"), sights.node_name()])
    facts = {"size": world.Get_size(), "rank": world.Get_rank(), "who": who, "init_s": round(joined - begun, 3)}
    facts["exchange_s"] = round(time.time() - joined, 3)
    facts["library"] = MPI.Get_library_version().split("\n")[0].strip(" \0")[:80]
    print(json.dumps(facts), flush=True)


def main(given: Options) -> int:
    """Survey what `given` says."""
    if given.of == "mpi":
        mpi()
        return 0
    expected = Expected(given.folder)
    if given.of == "rank":
        rank(given.folder, expected, given)
    else:
        (batch if given.of == "batch" else node)(given.folder, expected)
    return 0
