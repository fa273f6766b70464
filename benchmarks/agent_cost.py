"""What watching costs a served model: requests a second with and without the node agents and the head, in one job.

One rehearsal job (eight ranks on four nodes) is asked by a fixed number of clients. In turns of some seconds, in the
order with, without, without, with, the agents and the head are running or stopped (SIGSTOP): the servers, their memory
and the machine are the same in both, and nobody watches in the one. Each pair of neighbouring turns gives one ratio.
Run it as an ordinary user on the devcluster, whose nodes share this machine's processes:

    python benchmarks/agent_cost.py --pairs 40

Short turns and many of them, since others may use the machine too. It prints both rates, the ratio with its spread
(the goal is 0.99 or more), and CPU and memory of an agent and the head. Where others make the rates jump, the CPU time
that a request takes says more: that of the servers, with and without, and of it the share of whoever watches.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

PROGRAM = (sys.executable, "-m", "slurm_llm")
SPEC = {
    "name": "agent-cost",
    "engine": "rehearsal",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 2,
    "resources": {"nodes": 4, "time": "00:30:00"},
}
BODY = json.dumps({"text_input": "?", "sampling_param_max_tokens": 1})
SETTLE_S = 0.3
ORDER = (True, False, False, True)
CLOCK = os.sysconf("SC_CLK_TCK")


@dataclass
class Watchers:
    """The processes that watch a job: node agents and the head, found by their command lines."""

    agents: list[int]
    head: int
    servers: list[int]
    spent: dict[int, float] = field(default_factory=dict)
    watched_s: float = 0.0
    served_s: float = 0.0

    def all(self) -> list[int]:
        """Return every process; agents first, so that the head hears of them before it judges."""
        return [*self.agents, self.head]

    def stop(self, number: signal.Signals) -> None:
        """Stop them all, or let them go on."""
        for pid in self.all() if number is signal.SIGCONT else reversed(self.all()):
            os.kill(pid, number)

    def count(self, since: dict[int, float], seconds: float) -> None:
        """Add what they have spent in a turn."""
        self.watched_s += seconds
        for pid, before in since.items():
            self.spent[pid] = self.spent.get(pid, 0.0) + cpu_s(pid) - before


def stat(pid: int) -> list[str]:
    """Return /proc/PID/stat from field 3 on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has spent."""
    return (int(stat(pid)[11]) + int(stat(pid)[12])) / CLOCK


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(stat(pid)[21]) * os.sysconf("SC_PAGE_SIZE") / 1048576


def watchers_of(job: Path) -> Watchers:
    """Find the agents and the head of a job's first attempt."""
    attempt = str(job / "attempt-0")
    found: dict[str, list[int]] = {"node": [], "head": []}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "python" in words[0] and attempt in words:
            for verb in found:
                found[verb] += [int(folder.name)] if verb in words else []
    if not found["node"] or len(found["head"]) != 1:
        raise SystemExit(f"the agents and the head of {job} are not seen here: {found}")
    return Watchers(found["node"], found["head"][0], servers_of(job))


def servers_of(job: Path) -> list[int]:
    """Return the processes of the job's ranks, by the mark in their environment."""
    mark = f"LLMRUN_TAG={job.name.removeprefix('job-')}.0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            given = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in given and any(one.startswith(b"LLMRUN_RANK=") for one in given):
            found.append(int(folder.name))
    return found


@dataclass(frozen=True)
class Turn:
    """What was seen in one turn: requests a second, and milliseconds of the servers' CPU for each."""

    rate: float
    cpu_ms: float


@contextmanager
def served(folder: Path, site: str) -> Iterator[tuple[Path, str]]:
    """Run the job; yield its folder and where to ask."""
    spec = folder / "agent-cost.yaml"
    spec.write_text(json.dumps({**SPEC, "log_root": str(folder / "logs")}))
    made = subprocess.run((*PROGRAM, "submit", spec, "--site", site, "--json"), check=True, capture_output=True)
    value = json.loads(made.stdout)
    job = Path(value["directory"]) / f"job-{value['job_id']}"
    try:
        until = time.monotonic() + 120
        while not (job / "endpoint.0.json").exists():
            if time.monotonic() > until:
                raise SystemExit(f"{job} is not ready after 120 s")
            time.sleep(0.2)
        endpoint = json.loads((job / "endpoint.0.json").read_text())
        yield job, f"{endpoint['instances'][0]['url']}/v2/models/{endpoint['model']}/generate"
    finally:
        subprocess.run((*PROGRAM, "cancel", job), check=False, capture_output=True)


class Clients:
    """A fixed number of clients that ask one after the other, each over one connection."""

    def __init__(self, url: str, clients: int) -> None:
        """Begin to ask."""
        self.answered, self.failed, self.over = 0, 0, False
        self._url, self._lock = urlsplit(url), threading.Lock()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let every client finish its last request."""
        self.over = True
        for thread in self._threads:
            thread.join(30)

    def _ask(self) -> None:
        line = http.client.HTTPConnection(self._url.netloc, timeout=20)
        while not self.over:
            line.request("POST", self._url.path, BODY, {"Content-Type": "application/json"})
            answer = line.getresponse()
            answer.read()
            with self._lock:
                self.answered += answer.status == 200
                self.failed += answer.status != 200


def turn(clients: Clients, watchers: Watchers, watched: bool, seconds: float) -> Turn:
    """Return what is seen in one turn."""
    watchers.stop(signal.SIGCONT if watched else signal.SIGSTOP)
    time.sleep(SETTLE_S)
    since = {pid: cpu_s(pid) for pid in watchers.all()}
    spent, before, began = sum(map(cpu_s, watchers.servers)), clients.answered, time.monotonic()
    time.sleep(seconds)
    took, answered = time.monotonic() - began, clients.answered - before
    spent = sum(map(cpu_s, watchers.servers)) - spent
    if watched:
        watchers.count(since, took)
        watchers.served_s += spent
    return Turn(answered / took, 1000 * spent / max(1, answered))


def measure(url: str, watchers: Watchers, given: argparse.Namespace) -> tuple[list[tuple[Turn, Turn]], int]:
    """Return (watched, not watched) of each pair, and how many requests have failed."""
    clients = Clients(url, given.clients)
    pairs: list[tuple[Turn, Turn]] = []
    time.sleep(2.0)
    try:
        for at in range(given.pairs):
            order = ORDER[2 * at % 4 : 2 * at % 4 + 2]
            both = {watched: turn(clients, watchers, watched, given.seconds) for watched in order}
            pairs.append((both[True], both[False]))
            print(f"  requests/s {both[True].rate:7.2f} with  {both[False].rate:7.2f} without", end="")
            print(f"   CPU ms {both[True].cpu_ms:7.1f} with  {both[False].cpu_ms:7.1f} without", flush=True)
    finally:
        watchers.stop(signal.SIGCONT)
        clients.end()
    return pairs, clients.failed


def spread(name: str, ratios: list[float]) -> str:
    """Return a ratio's median and spread in words."""
    ordered, quarter = sorted(ratios), len(ratios) // 4
    error = statistics.stdev(ordered) / len(ordered) ** 0.5
    return (
        f"{name}: median {statistics.median(ordered):.4f}, mean {statistics.mean(ordered):.4f} ± {error:.4f},"
        f" middle half {ordered[quarter]:.3f} to {ordered[-1 - quarter]:.3f}, n={len(ordered)}"
    )


def report(pairs: list[tuple[Turn, Turn]], watchers: Watchers, failed: int) -> None:
    """Print the ratios with their spread, and what the watchers cost."""
    with_it, without = ([pair[at] for pair in pairs] for at in (0, 1))
    print(f"failed requests: {failed}")
    for name, turns in (("with", with_it), ("without", without)):
        rate, cpu = statistics.median(one.rate for one in turns), statistics.median(one.cpu_ms for one in turns)
        print(f"{name:8} median {rate:.2f} requests/s, {cpu:.1f} ms of the servers' CPU for each")
    print(spread("requests/s, with / without", [one.rate / other.rate for one, other in pairs if other.rate]))
    print(spread("CPU a request, without / with", [other.cpu_ms / one.cpu_ms for one, other in pairs if one.cpu_ms]))
    watching = sum(watchers.spent.values())
    print(f"of the CPU that was spent, watching took {100 * watching / (watching + watchers.served_s):.2f} %")
    share = {pid: 100 * spent / watchers.watched_s for pid, spent in watchers.spent.items()}
    agents = [share[pid] for pid in watchers.agents]
    held = [rss_mib(pid) for pid in watchers.agents]
    print(f"a node agent: {statistics.mean(agents):.2f} % of a core (worst {max(agents):.2f}), {max(held):.1f} MiB")
    print(f"the head:     {share[watchers.head]:.2f} % of a core, {rss_mib(watchers.head):.1f} MiB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one turn; below 50, or nodes count as lost")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--site", default="devcluster")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.home()) as name, served(Path(name), given.site) as (job, url):
        watchers = watchers_of(job)
        pairs, failed = measure(url, watchers, given)
        report(pairs, watchers, failed)


if __name__ == "__main__":
    main()
