"""A run at one moment, for the live view: ranks, nodes, instances, phases of its start, newest events. Pure.

Values in, value out: who looks, and how often, is for `cli.topwatch`; how it is drawn, for `cli.topview`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from slurm_llm.agent import fold, phases
from slurm_llm.agent.journal import Record
from slurm_llm.observe.facts import Endpoint, Evidence
from slurm_llm.observe.liveevents import Event, build_events
from slurm_llm.observe.livefigures import Figures, Probe, add_up
from slurm_llm.observe.status import RunStatus, rank_state, status_to_json
from slurm_llm.slurm.states import RunState

SCHEMA = 1
STARTS = frozenset({RunState.SUBMITTED, RunState.PENDING, RunState.STARTING, RunState.LOADING})
QUEUE, STAGING = "queue", "staging"
"""Phases that not every attempt goes through."""
_LOADED = (fold.LOADED, fold.READY)


@dataclass(frozen=True)
class RankNow:
    """One rank; `node` is `#n`, the allocation's node n, until its name is known."""

    rank: int
    instance: int
    node: str
    state: str


@dataclass(frozen=True)
class GpuNow:
    """One GPU of a node by NVML's index: MiB in use and there, percent busy; None is what the driver does not tell."""

    gpu: int
    used_mib: int
    total_mib: int | None
    util: int | None


@dataclass(frozen=True)
class NodeNow:
    """One node: how many ranks are in which state, the memory of their processes, its GPUs.

    `sampled` is when its agent looked at memory and GPUs, seconds since the epoch.
    """

    name: str
    states: Mapping[str, int]
    rss_mib: float | None = None
    gpus: tuple[GpuNow, ...] = ()
    sampled: float | None = None

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return sum(self.states.values())


@dataclass(frozen=True)
class Look:
    """What is known of an instance's metrics page: figures, when they were read, why there are no newer ones.

    `probe` is what the run's head has last asked the instance for itself. `trend` are requests by the second in the
    last intervals, oldest first.
    """

    figures: Figures | None = None
    at: float | None = None
    problem: str = ""
    probe: Probe | None = None
    trend: tuple[float, ...] = ()


@dataclass(frozen=True)
class InstanceNow:
    """One instance: its leader's node, its ranks, what its page says."""

    instance: int
    node: str
    ranks: int
    ready: int
    look: Look = field(default_factory=Look)


@dataclass(frozen=True)
class PhaseNow:
    """One phase of the newest attempt's start: how long it took, or, while `going`, has taken so far.

    `done` of all ranks have come through it; None where that says nothing.
    """

    name: str
    seconds: float | None
    going: bool = False
    done: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """A run as it was `at`, seconds since the epoch; `asked` is when Slurm was last asked.

    `total` are the figures of all instances that answer.
    """

    at: float
    asked: float | None
    status: RunStatus
    ranks: tuple[RankNow, ...]
    nodes: tuple[NodeNow, ...]
    instances: tuple[InstanceNow, ...]
    total: Figures | None
    phases: tuple[PhaseNow, ...]
    events: tuple[Event, ...]

    @property
    def starting(self) -> bool:
        """Whether it has not served yet, and may."""
        return self.status.state in STARTS


@dataclass(frozen=True)
class Seen:
    """What was read beside the status: records and samples of the newest attempt, what instances' pages say."""

    records: Sequence[Record] = ()
    samples: Mapping[str, Record] = field(default_factory=dict)
    looks: Mapping[int, Look] = field(default_factory=dict)
    asked: float | None = None


def build_snapshot(status: RunStatus, evidence: Evidence, seen: Seen, now: float) -> Snapshot:
    """Return the run's picture; `evidence` is that of the job that `status` is of."""
    ranks = _ranks(status, evidence)
    looks = {} if status.ended else seen.looks
    instances = tuple(_instances(ranks, evidence, looks))
    return Snapshot(
        at=now,
        asked=seen.asked,
        status=status,
        ranks=ranks,
        nodes=tuple(_nodes(ranks, {} if status.ended else seen.samples, seen.records)),
        instances=instances,
        total=add_up(one.look.figures for one in instances if one.look.figures is not None and not one.look.problem),
        phases=tuple(_phases(status, {item["kind"] for item in seen.records}, ranks, now)),
        events=build_events(seen.records, evidence.facts.first_end if evidence.facts else None),
    )


def metrics_pages(endpoints: Sequence[Endpoint]) -> dict[int, str]:
    """Return the address of each instance's metrics page; a balancer has none."""
    return {one.instance: one.metrics for one in endpoints if one.instance is not None and one.metrics}


def head_page(endpoints: Sequence[Endpoint]) -> str:
    """Return the address of the page of the run's head without what it has of ranks and instances; empty without it."""
    found = next((one.exporter for one in endpoints if one.exporter), "")
    return f"{found}?ranks=0&instances=0" if found else ""


def _ranks(status: RunStatus, evidence: Evidence) -> tuple[RankNow, ...]:
    known = evidence.facts.ranks if evidence.facts else {}
    names = {
        place.node: own.node
        for place in evidence.layout.ranks
        if (own := known.get(place.rank)) is not None and own.node is not None
    }
    found = []
    for place in evidence.layout.ranks:
        own = known.get(place.rank) or fold.RankState(place.rank)
        node = own.node or names.get(place.node) or f"#{place.node}"
        found.append(RankNow(place.rank, place.instance, node, rank_state(own.state, status.state)))
    return tuple(found)


def _nodes(ranks: Sequence[RankNow], samples: Mapping[str, Record], records: Sequence[Record]) -> Iterator[NodeNow]:
    """Yield the nodes, in the order of their first ranks."""
    states: dict[str, Counter[str]] = {}
    for one in ranks:
        states.setdefault(one.node, Counter())[one.state] += 1
    totals = {
        (str(item.get("node")), int(own["gpu"])): int(own["total_mib"])
        for item in records
        if item["kind"] == "gpus"
        for own in item.get("gpus", ())
        if own.get("total_mib")
    }
    for name, own in states.items():
        sample = samples.get(name)
        if sample is None:
            yield NodeNow(name, dict(own))
            continue
        held = [values["rss_mib"] for values in sample.get("ranks", {}).values() if "rss_mib" in values]
        gpus = tuple(
            GpuNow(int(gpu), int(values[0]), totals.get((name, int(gpu))), values[1])
            for gpu, values in sorted(sample.get("gpus", {}).items(), key=lambda item: int(item[0]))
        )
        yield NodeNow(name, dict(own), round(sum(held), 1) if held else None, gpus, float(sample["t"]))


def _instances(ranks: Sequence[RankNow], evidence: Evidence, looks: Mapping[int, Look]) -> Iterator[InstanceNow]:
    by_instance: dict[int, list[RankNow]] = {number: [] for number in range(evidence.layout.instances)}
    for one in ranks:
        by_instance.setdefault(one.instance, []).append(one)
    for number, own in by_instance.items():
        ready = sum(one.state == fold.READY for one in own)
        yield InstanceNow(number, own[0].node if own else "?", len(own), ready, looks.get(number, Look()))


def _phases(status: RunStatus, kinds: Collection[str], ranks: Sequence[RankNow], now: float) -> Iterator[PhaseNow]:
    """Yield the phases in their order; `kinds` are those of the attempt's records."""
    took, begun = status.phases.took, status.phases.began
    done = {
        "launch": sum(one.state != fold.WAITING for one in ranks),
        "load": sum(one.state in _LOADED for one in ranks),
    }
    over = status.phases.submitted if begun is None else begun
    going = status.state in STARTS
    for name, fields in phases.NAMES:
        seconds = [getattr(took, one) for one in fields]
        known = [one for one in seconds if one is not None]
        if len(known) == len(fields):
            yield PhaseNow(name, round(sum(known), 3))
            over = over if over is None or name == QUEUE else over + sum(known)
        elif (name == QUEUE and begun is not None) or (name == STAGING and STAGING not in kinds):
            # Only a job's first attempt has waited in the queue; not every run copies weights.
            continue
        else:
            lasts = round(max(0.0, now - over), 3) if going and over is not None else None
            yield PhaseNow(name, lasts, going, done.get(name) if going else None)
            going, over = False, None


def snapshot_to_json(snapshot: Snapshot) -> str:
    """Return the snapshot as one JSON object; `status` is what `status --json` prints."""
    value = {
        "schema": SCHEMA,
        "at": snapshot.at,
        "slurm_asked": snapshot.asked,
        "status": json.loads(status_to_json(snapshot.status)),
        "total": None if snapshot.total is None else asdict(snapshot.total),
        "instances": [asdict(one) for one in snapshot.instances],
        "phases": [asdict(one) for one in snapshot.phases],
        "nodes": [asdict(one) for one in snapshot.nodes],
        "ranks": [asdict(one) for one in snapshot.ranks],
        "events": [asdict(one) for one in snapshot.events],
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
