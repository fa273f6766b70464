"""The run's own families for its page: state, ranks, GPUs, probes, phases, time left. Pure: facts in, lines out.

`docs/metrics.md` lists them all.
"""

import collections
from typing import Any, Dict, List, NamedTuple, Optional

from . import fold, journal
from .exposition import OWN, Exposition, labelled
from .tally import Tally

STATES = ("STARTING", "LOADING", "READY", "DEGRADED", "DRAINING", "FAILED")
"""The states of a run that has a head."""
RANK_STATES = (fold.WAITING, fold.STARTING, fold.LOADING, fold.LOADED, fold.READY, fold.ENDED)
RUNNING = (fold.LOADING, fold.LOADED, fold.READY)
MIB = 1 << 20
FAMILIES = {
    "run_info": ("gauge", "What this run is; always 1"),
    "run_state": ("gauge", "1 for the state that the run is in"),
    "ranks": ("gauge", "Ranks in each state"),
    "attempt": ("gauge", "Number of this start of the server within its Slurm job, from 0"),
    "restarts": ("gauge", "Starts of the server before this one in the same allocation"),
    "requeues": ("gauge", "How often Slurm has put the job back into the queue"),
    "begin_timestamp_seconds": ("gauge", "When this attempt began"),
    "ready_timestamp_seconds": ("gauge", "When the run first served"),
    "time_left_seconds": ("gauge", "Time until Slurm ends the job"),
    "phase_seconds": ("gauge", "Time of each phase of the start that has ended"),
    "node_silent_seconds": ("gauge", "Time since a node's agent was last heard"),
    "xid_errors_total": ("counter", "Errors of this run's GPUs that the driver told"),
    "instance_ready": ("gauge", "Whether the leader's health was 200 when last asked"),
    "probe_success": ("gauge", "Whether the head's last generation was answered"),
    "probe_duration_seconds": ("gauge", "Time of the last generation that the head asked for"),
    "probe_timestamp_seconds": ("gauge", "When the head's last generation ended"),
    "rank_up": ("gauge", "Whether the rank's engine process lives"),
    "rank_state": ("gauge", "The state that the rank is in; always 1"),
    "rank_rss_bytes": ("gauge", "Resident memory of the rank's processes"),
    "rank_cpu_seconds_total": ("counter", "CPU time of the rank's processes"),
    "rank_log_age_seconds": ("gauge", "Time since the rank's log has grown"),
    "rank_gpu_memory_bytes": ("gauge", "Memory that the rank's processes use on GPUs"),
    "rank_gpu_utilization_ratio": ("gauge", "How busy the rank's GPUs are, 0 to 1"),
    "rank_gpus_info": ("gauge", "Which GPUs of its node the rank uses; always 1"),
    "gpu_memory_used_bytes": ("gauge", "Memory of a GPU that is in use, by whomever"),
    "gpu_memory_total_bytes": ("gauge", "Memory of a GPU"),
    "gpu_utilization_ratio": ("gauge", "How busy a GPU is, 0 to 1"),
    "scrape_up": ("gauge", "Whether the page of the instance's leader was read"),
    "scrape_duration_seconds": ("gauge", "How long the leader's page took"),
}
"""Our own families without their `slurm_llm_`, with kind and meaning, in their order on the page."""
_PHASES = ("check", "launch", "start", "load", "answer", "ready")


class Place(NamedTuple):
    """What the plan says of a rank."""

    rank: int
    instance: int
    role: str


class Moment(NamedTuple):
    """All that is known of a run at one moment; `now` is in time.monotonic(), other times are since the epoch."""

    info: Dict[str, str]
    state: str
    attempt: int
    requeues: int
    time_left_s: Optional[float]
    facts: fold.RunFacts
    tally: Tally
    silent_s: Dict[str, float]
    """By node, for how long its agent has said nothing."""
    xids: Dict[str, int]
    """By node, errors that its GPU driver has told of GPUs of this run."""
    now: float


def places_of(plan: Dict[str, Any]) -> List[Place]:
    """Return the ranks of a plan."""
    return [Place(int(item["rank"]), int(item["instance"]), str(item["role"])) for item in plan["ranks"]]


def count_xids(records: List[journal.Record]) -> Dict[str, int]:
    """Return by node how many errors of its own GPUs it has told."""
    found: Dict[str, int] = {}
    for item in records:
        if item["kind"] == "hello":
            found.setdefault(str(item.get("node", "")), 0)
        elif item["kind"] == "xid" and not item.get("other"):
            found[str(item.get("node", ""))] = found.get(str(item.get("node", "")), 0) + 1
    return found


def lines(page: Exposition, name: str) -> List[str]:
    """Return the list that the samples of one of FAMILIES go into."""
    return page.family(OWN + name, *FAMILIES[name])


def add(page: Exposition, name: str, labels: str, value: float) -> None:
    """Add a sample of one of FAMILIES."""
    lines(page, name).append("%s%s%s %s" % (OWN, name, "{%s}" % labels if labels else "", number(value)))


def number(value: float) -> str:
    """Return a figure without an exponent, to the thousandth."""
    return ("%.3f" % value).rstrip("0").rstrip(".")


def add_run(page: Exposition, own: Moment) -> None:
    """Add what holds for the run as a whole."""
    facts = own.facts
    add(page, "run_info", labelled(sorted(own.info.items())), 1)
    for state in STATES:
        add(page, "run_state", labelled([("state", state)]), state == own.state)
    counts = collections.Counter(rank.state for rank in facts.ranks.values())
    for state in RANK_STATES:
        add(page, "ranks", labelled([("state", state)]), counts[state])
    _add_known(page, "attempt", own.attempt)
    _add_known(page, "restarts", max(0, own.attempt - own.requeues))
    _add_known(page, "requeues", own.requeues)
    _add_known(page, "begin_timestamp_seconds", facts.began)
    _add_known(page, "ready_timestamp_seconds", facts.ready_at)
    _add_known(page, "time_left_seconds", own.time_left_s)
    for phase in _PHASES:
        took = getattr(facts.phases, phase + "_s")
        if took is not None:
            add(page, "phase_seconds", labelled([("phase", phase)]), took)
    for name, by_node in (("node_silent_seconds", own.silent_s), ("xid_errors_total", own.xids)):
        for node, value in sorted(by_node.items()):
            add(page, name, labelled([("node", node)]), value)


def _add_known(page: Exposition, name: str, value: Optional[float]) -> None:
    if value is not None:
        add(page, name, "", value)


def add_probes(page: Exposition, own: Moment, labels: Dict[int, str]) -> None:
    """Add what the head's own questions to each instance have brought; `labels` are those of its leader."""
    for instance, healthy in sorted(dict(own.tally.ready).items()):
        add(page, "instance_ready", labels.get(instance, ""), healthy)
    for instance, probed in sorted(dict(own.tally.probes).items()):
        text = labels.get(instance, "")
        add(page, "probe_success", text, probed.ok)
        add(page, "probe_duration_seconds", text, probed.took_s)
        add(page, "probe_timestamp_seconds", text, probed.at)


def add_ranks(page: Exposition, own: Moment, labels: Dict[int, str]) -> None:
    """Add figures of each rank that has been seen; `labels` are its own."""
    names = ("rank_up", "rank_state", "rank_rss_bytes", "rank_cpu_seconds_total", "rank_log_age_seconds")
    # There may be thousands: the lists are looked up once.
    up, state, rss, cpu, log = (lines(page, name).append for name in names)
    beats, logged, cpus = dict(own.tally.beats), dict(own.tally.logged), dict(own.tally.cpu_s)
    for rank, text in labels.items():
        seen, name = own.facts.ranks[rank], str(rank)
        up("slurm_llm_rank_up{%s} %d" % (text, seen.state in RUNNING))
        state('slurm_llm_rank_state{%s,state="%s"} 1' % (text, seen.state))
        beat = beats.get(name)
        if beat is None:
            continue
        if seen.state != fold.ENDED:
            rss("slurm_llm_rank_rss_bytes{%s} %d" % (text, beat["m"] * MIB))
        cpu("slurm_llm_rank_cpu_seconds_total{%s} %.2f" % (text, cpus.get(name, 0.0)))
        log("slurm_llm_rank_log_age_seconds{%s} %.1f" % (text, own.now - logged.get(name, own.now)))


def add_gpus(page: Exposition, own: Moment, labels: Dict[int, str], each_rank: bool) -> None:
    """Add figures of GPUs, by node, number and UUID, and with `each_rank` what each rank's processes use of them."""
    inventories = dict(own.tally.gpus)
    for node, sample in sorted(dict(own.tally.samples).items()):
        known = {str(one["gpu"]): one for one in inventories.get(node, {}).get("gpus", ())}
        for gpu, (mib, util) in sorted(sample.get("gpus", {}).items()):
            about = known.get(gpu, {})
            text = labelled([("node", node), ("gpu", gpu), ("uuid", about.get("uuid", ""))])
            add(page, "gpu_memory_used_bytes", text, mib * MIB)
            if about.get("total_mib"):
                add(page, "gpu_memory_total_bytes", text, about["total_mib"] * MIB)
            if util is not None:
                add(page, "gpu_utilization_ratio", text, util / 100.0)
        for rank, used in sample.get("ranks", {}).items() if each_rank else ():
            if used.get("gpu_mib") is not None and int(rank) in labels:
                _add_rank_on_gpus(page, labels[int(rank)], used)


def _add_rank_on_gpus(page: Exposition, text: str, used: Dict[str, Any]) -> None:
    add(page, "rank_gpu_memory_bytes", text, used["gpu_mib"] * MIB)
    if used.get("gpu_util") is not None:
        add(page, "rank_gpu_utilization_ratio", text, used["gpu_util"] / 100.0)
    add(page, "rank_gpus_info", text + "," + labelled([("gpus", ",".join(map(str, used.get("gpus", ()))))]), 1)
