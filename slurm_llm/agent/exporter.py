"""The run's Prometheus page: what the head knows of the run, and every leader's own page with labels that say whose.

It sleeps until somebody asks. The head only tells it what it hears; pages are made in a thread of their own, from the
head's values as they stand, so that nothing that happens here can hold up or end the head.
"""

import json
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import parse_qs

from . import exposition, fetching, fold, front, journal, nodes, pageserver, probe, processes, successors, writer
from . import runfamilies as families
from .tally import Tally

ASK_SLURM_S = 600.0
"""Between two questions for the job's end, which an admin can move; only while somebody reads the page."""
PARTS = ("ranks", "instances")
"""What a request may leave out: `/metrics?ranks=0` has no series of single ranks."""


class Sources(NamedTuple):
    """What of the head the page is made of; it is read while the head goes on."""

    state: Callable[[], str]
    records: List[journal.Record]
    leaders: Dict[int, probe.Leader]
    alive: nodes.Nodes


class _Folded(NamedTuple):
    """What so many records add up to, and the labels of each rank that was seen, and of each instance's leader."""

    records: int
    facts: fold.RunFacts
    xids: Dict[str, int]
    ranks: Dict[int, str]
    leaders: Dict[int, str]


class Exporter:
    """One attempt's page; `tally` is told what the head hears."""

    def __init__(self, plan: Dict[str, Any], run_dir: str, attempt_dir: str, sources: Sources) -> None:
        self.tally = Tally()
        self._plan, self._sources = plan, sources
        self._places = families.places_of(plan)
        self._leaders = {int(item["index"]): int(item["leader"]) for item in plan["instances"]}
        self._attempt = int(attempt_dir.rpartition("-")[2])
        self._info = _info(plan, run_dir)
        self._end = _End(os.environ.get("SLURM_JOB_ID", ""))
        self._reader = exposition.Reader()
        self._folded: Optional[_Folded] = None

    def start(self, note: Callable[..., None]) -> str:
        """Listen on a port of the site's range, note where, and return the page's address.

        Empty where the plan wants none, and where it cannot be: the run goes on without it, with a warning.
        """
        if not self._plan.get("exporter", True):
            return ""
        try:
            address = front.bind_address(self._plan)
            listener = _bind(self._plan, address)
            pageserver.Server(listener, route, self.make).start()
        except (OSError, ValueError, RuntimeError) as error:
            text = "no metrics page of the run: %s" % error
            note("warning", text=text)
            writer.say("slurm_llm: warning: %s" % text)
            return ""
        host, port = address or processes.node_name(), listener.getsockname()[1]
        note("exporter", host=host, port=port)
        return "http://%s:%d/metrics" % (host, port)

    def make(self, name: str) -> bytes:
        """Return the page of a name that `route` gives."""
        page = exposition.Exposition()
        moment, folded = self._moment()
        families.add_run(page, moment)
        families.add_probes(page, moment, folded.leaders)
        each = "ranks" in name
        if each:
            families.add_ranks(page, moment, folded.ranks)
        families.add_gpus(page, moment, folded.ranks, each)
        remarks = self._add_instances(page, folded.leaders) if "instances" in name else []
        return (page.text() + "".join(remarks)).encode("utf-8", "replace")

    def _moment(self) -> Tuple[families.Moment, _Folded]:
        folded, now = self._fold(), time.monotonic()
        own = families.Moment(
            info=self._info,
            state=self._sources.state(),
            attempt=self._attempt,
            requeues=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            time_left_s=self._end.left_s(now),
            facts=folded.facts,
            tally=self.tally,
            silent_s={node: max(0.0, now - heard) for node, heard in dict(self._sources.alive.last).items()},
            xids=folded.xids,
            now=now,
        )
        return own, folded

    def _fold(self) -> _Folded:
        """Return what the records add up to; they grow only when something happens."""
        if self._folded is None or self._folded.records != len(self._sources.records):
            records = list(self._sources.records)
            facts = fold.fold(records, len(self._places))
            ranks = {own.rank: _labels(own, facts) for own in self._places if facts.ranks[own.rank].node is not None}
            leaders = {
                instance: exposition.labelled(
                    [("rank", rank), ("node", facts.ranks[rank].node or ""), ("instance", instance)]
                )
                for instance, rank in self._leaders.items()
            }
            self._folded = _Folded(len(records), facts, families.count_xids(records), ranks, leaders)
        return self._folded

    def _add_instances(self, page: exposition.Exposition, labels: Dict[int, str]) -> List[str]:
        """Add the leaders' own pages; return a comment for each that cannot be had."""
        leaders = dict(self._sources.leaders)
        places = [fetching.Place(one.instance, one.host, one.metrics) for one in leaders.values()]
        remarks = []
        for name in ("scrape_up", "scrape_duration_seconds"):
            families.lines(page, name)
        for instance, found in sorted(fetching.fetch(places).items()):
            problem = found.problem
            try:
                if not problem:
                    page.take_in(self._reader.read(found.body), labels[instance])
            except exposition.Fault as fault:
                problem = "what it answers is no metrics page: %s" % fault
            families.add(page, "scrape_up", labels[instance], not problem)
            families.add(page, "scrape_duration_seconds", labels[instance], found.took_s)
            if problem:
                remarks.append("# instance %d: %s\n" % (instance, _plain(problem)))
        return remarks


def route(target: str) -> str:
    """Return the page that a request's target means, by the parts that it has; empty where there is none."""
    path, _, query = target.partition("?")
    if path != "/metrics":
        return ""
    asked = parse_qs(query)
    return " ".join(["run"] + [part for part in PARTS if asked.get(part, ["1"])[-1] != "0"])


def _plain(text: str) -> str:
    """Return what a server has said on one line, without what would steer a terminal."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))


def _labels(own: families.Place, facts: fold.RunFacts) -> str:
    node = facts.ranks[own.rank].node
    return exposition.labelled([("rank", own.rank), ("node", node), ("instance", own.instance), ("role", own.role)])


def _bind(plan: Dict[str, Any], address: str) -> socket.socket:
    """Draw a port on this node, from a place of the range away from those where leaders and a balancer begin."""
    given = plan["ports"]
    fixed = [given["http"], given["grpc"], given["metrics"], (plan.get("balancer") or {}).get("port")]
    seed = -1 - int(os.environ.get("SLURM_JOB_ID", "0"))
    place = (int(given["low"]), int(given["high"]))
    return pageserver.bind(address or "0.0.0.0", place, seed * 997, [int(port) for port in fixed if port])


def _info(plan: Dict[str, Any], run_dir: str) -> Dict[str, str]:
    """Return what the run is, for labels; the record beside the plan knows its id and our version."""
    try:
        with open(os.path.join(run_dir, "record.json"), encoding="utf-8", errors="replace") as stream:
            record = json.load(stream)
    except (OSError, ValueError):
        record = {}
    return {
        "run": str(record.get("run_id", os.path.basename(run_dir))),
        "version": str(record.get("version", "")),
        "name": str(plan["name"]),
        "site": str(plan["site"]),
        "engine": str(plan["engine"]),
        "model": str(plan["model"] or plan["server"]["model_name"]),
        "served_as": str(plan["server"]["model_name"]),
        "job_id": os.environ.get("SLURM_JOB_ID", ""),
        "cluster": os.environ.get("SLURM_CLUSTER_NAME", ""),
    }


class _End:
    """When Slurm ends the job: what the job was told at its start, and now and then Slurm's own word."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        told = os.environ.get("SLURM_JOB_END_TIME", "")
        self._end = float(told) if told.isdigit() else None
        self._asked_at: Optional[float] = None

    def left_s(self, now: float) -> Optional[float]:
        """Return the seconds until then as far as it is known; whoever asks waits for nobody."""
        if self._job_id and (self._asked_at is None or now - self._asked_at > ASK_SLURM_S):
            self._asked_at = now
            threading.Thread(target=self._ask, daemon=True).start()
        return None if self._end is None else max(0.0, self._end - time.time())

    def _ask(self) -> None:
        word = successors.ask_slurm(self._job_id)
        if word is not None and word.end is not None:
            self._end = word.end
