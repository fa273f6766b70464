"""From journal records to facts: rank states, the run's state, who went first. Pure; for use in the job and later."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import blind, phases
from .journal import Record, in_order
from .processes import describe_exit_code

HELPER_S = 5.0
"""A child that lived longer than this is part of the engine, not a helper that it ran."""
ENGINE_S = 0.4
"""The last child of a server that lived longer than this was its engine: asking for a version takes a moment."""
TOGETHER_S = 0.5
_STUB = "triton_python_b"
"""The model's Python process; the kernel cuts the name to 15 characters."""
CAUSE_S = 5.0
"""How long before its rank's end a killed child may have been the cause of it."""

SERVICE_NEWS = frozenset(("successor", "no-successor", "successor-failed", "preempted"))

WAITING, STARTING, LOADING, LOADED, READY, ENDED = "waiting", "starting", "loading", "loaded", "ready", "ended"


class RankState(NamedTuple):
    """What is known of one rank; times are seconds since the epoch, None where nothing is known."""

    rank: int
    node: Optional[str] = None
    state: str = WAITING
    pid: Optional[int] = None
    how: Optional[str] = None
    started: Optional[float] = None
    loaded: Optional[float] = None
    ended: Optional[float] = None
    rss_mib: Optional[float] = None
    cpu_s: Optional[float] = None
    visible_gpus: Optional[str] = None
    gpu_mib: Optional[int] = None
    gpu_util: Optional[int] = None
    """How busy its GPUs are, in percent."""
    gpus: Tuple[int, ...] = ()
    """The GPUs that its processes use, by NVML's index on that node."""


class FirstEnd(NamedTuple):
    """The process that ended first without having been asked to."""

    rank: int
    node: str
    name: str
    how: Optional[str]
    phase: str
    at: float


class ClientState(NamedTuple):
    """The client of an attempt; `code` is its exit status, None while it runs, and `told` that it was told to end."""

    started: float
    ended: Optional[float] = None
    code: Optional[int] = None
    told: bool = False


class RunFacts(NamedTuple):
    """What the journals of one attempt say."""

    ranks: Dict[int, RankState]
    first_end: Optional[FirstEnd]
    state: str
    reason: str
    ready_at: Optional[float]
    stop_why: Optional[str]
    restart_in_s: Optional[float]
    began: Optional[float]
    requeued: bool = False
    """Whether the job's script has sent the job back into the queue."""
    phases: "phases.Phases" = phases.Phases()
    service_news: str = ""
    """What has gone wrong with the handover to another job."""
    client: Optional[ClientState] = None


def fold(records: Iterable[Record], ranks: int) -> RunFacts:
    """Return the facts that `records` of one attempt with `ranks` ranks add up to."""
    states = {rank: RankState(rank) for rank in range(ranks)}
    ordered = in_order(records)
    service_news = ""
    state, reason, ready_at = "STARTING", "", None
    stop_why: Optional[str] = None
    restart_in_s: Optional[float] = None
    requeued = False
    for item in ordered:
        kind = item["kind"]
        if kind == "state":
            state, reason = str(item["state"]), str(item.get("reason", ""))
            if state == "READY" and ready_at is None:
                ready_at = float(item["t"])
        elif kind in ("copies", "staged") and state == "STARTING":
            reason = str(item.get("text", ""))
        elif kind == "stop":
            stop_why = _better_why(stop_why, str(item.get("why", "stop")))
        elif kind == "restart":
            restart_in_s = float(item.get("in_s", 0))
        elif kind in ("requeue", "requeue-refused"):
            requeued = kind == "requeue"
        elif kind in SERVICE_NEWS:
            service_news = "" if kind == "successor" else str(item.get("text", ""))
        elif kind == "sample":
            _apply_sample(states, item)
        elif isinstance(item.get("rank"), int) and item["rank"] in states:
            states[item["rank"]] = _apply(states[item["rank"]], item)
    if ready_at is not None:
        states = {rank: _as_serving(own) for rank, own in states.items()}
    began = float(ordered[0]["t"]) if ordered else None
    return RunFacts(
        states,
        first_end(ordered, ready_at),
        state,
        reason,
        ready_at,
        stop_why,
        restart_in_s,
        began,
        requeued,
        phases.phases(ordered, ranks),
        service_news,
        _client(ordered),
    )


def _client(ordered: List[Record]) -> Optional[ClientState]:
    found: Optional[ClientState] = None
    for item in ordered:
        if item["kind"] == "client-start":
            found = ClientState(float(item["t"]))
        elif item["kind"] == "client-told" and found is not None:
            found = found._replace(told=True)
        elif item["kind"] == "client-end" and found is not None:
            found = found._replace(ended=float(item["t"]), code=int(item["code"]), told=bool(item.get("told")))
    return found


def _better_why(known: Optional[str], told: str) -> str:
    """Return the reason of a stop: the first one, but the head's own before that the script was `asked`.

    The head asks the script to stop too, and that note may be the earlier one by a fraction of a millisecond.
    """
    return told if known in (None, "asked") else str(known)


def _as_serving(own: RankState) -> RankState:
    """A worker that blocks in initialize never finishes loading: once its leader answers, it serves."""
    return own._replace(state=READY) if own.state in (LOADING, LOADED) else own


def _apply(own: RankState, item: Record) -> RankState:
    kind, when = item["kind"], float(item["t"])
    if kind == "start":
        gpus = item.get("gpus", own.visible_gpus)
        return own._replace(node=item.get("node", own.node), state=STARTING, started=when, visible_gpus=gpus)
    if kind == "found" and item.get("main"):
        node, started = item.get("node", own.node), own.started or item.get("started") or when
        gpus = item.get("gpus", own.visible_gpus)
        return own._replace(node=node, state=LOADING, pid=item.get("pid"), started=started, visible_gpus=gpus)
    if kind == "loaded":
        return own._replace(state=LOADED, loaded=when)
    if kind == "ended" and item.get("main"):
        return own._replace(state=ENDED, how=item.get("how") or own.how, ended=_at(item))
    if kind == "exit":
        return own._replace(state=ENDED, how=own.how or _exit_words(item), ended=own.ended or when)
    return own


def _exit_words(item: Record) -> str:
    return describe_exit_code(int(item.get("code", 0)))


def _apply_sample(states: Dict[int, RankState], item: Record) -> None:
    samples: Dict[str, Dict[str, Any]] = item.get("ranks", {})
    for name, values in samples.items():
        if name.isdigit() and int(name) in states:
            states[int(name)] = states[int(name)]._replace(
                rss_mib=values.get("rss_mib"),
                cpu_s=values.get("cpu_s"),
                gpu_mib=values.get("gpu_mib"),
                gpu_util=values.get("gpu_util"),
                gpus=tuple(values.get("gpus", ())),
            )


def first_end(ordered: List[Record], ready_at: Optional[float]) -> Optional[FirstEnd]:
    """Return the earliest unasked end of an engine process, judged by the node agents' own times.

    The exit record of a rank's own wrapper counts where no agent has seen an engine of that rank: it failed before it
    started one, or there was no agent.
    """
    # Slurm's SIGTERM reaches every process of the steps, and of some jobs (a preempted one's) not the script.
    stop_at = min((float(item["t"]) for item in ordered if item["kind"] in ("stop", "term")), default=float("inf"))
    finish_at = min((float(item["t"]) for item in ordered if item["kind"] == "finish"), default=float("inf"))
    seen = {item.get("rank") for item in ordered if item["kind"] == "found" and item.get("main")}
    ends = [item for item in ordered if item["kind"] == "ended" and not item.get("asked")]
    # What tidies up after a Python process ends with it, or is killed beside it by whoever watches that one.
    ends = [item for item in ends if not item.get("tracker")]
    ends += [dict(item, main=True) for item in ordered if item["kind"] == "exit" and item.get("rank") not in seen]
    ends += [dict(item, main=True) for item in blind.exits(ordered) if item.get("rank") in seen]
    told = {item["rank"] for item in ends if item.get("main") and _was_told(item, stop_at)}
    ends = [item for item in ends if not _was_told(item, stop_at, told) and _at(item) <= finish_at]
    loaded = {item.get("rank"): float(item["t"]) for item in reversed(ordered) if item["kind"] == "loaded"}
    failures = [item for item in ends if _is_failure(item, loaded.get(item["rank"]))]
    if not failures:
        return None
    noticed = min(map(_at, failures))
    # PMIx ends all servers about a second after one stub has gone: the stub is the one to name.
    last = {item.get("rank"): item.get("pid") for item in ordered if item["kind"] == "found" and not item.get("main")}
    victims = [
        item
        for item in ends
        if noticed - CAUSE_S <= _at(item) <= noticed and (_by_signal(item) or _was_the_engine(item, last, ends))
    ]
    return _as_end(min(failures + victims, key=_at), ready_at)


def end_of(records: List[Record], rank: int) -> Optional[FirstEnd]:
    """Return the first end by a signal of a process of `rank`, whoever ended before it."""
    ends = [item for item in records if item["kind"] == "ended" and item.get("rank") == rank and _by_signal(item)]
    if not ends:
        return None
    ready = next((float(item["t"]) for item in in_order(records) if item.get("state") == "READY"), None)
    return _as_end(min(ends, key=_at), ready)


def _as_end(item: Record, ready_at: Optional[float]) -> FirstEnd:
    phase = "serving" if ready_at is not None and _at(item) >= ready_at else "loading"
    name = str(item.get("name", "engine"))
    return FirstEnd(int(item["rank"]), str(item.get("node", "?")), name, _how(item), phase, _at(item))


def _how(item: Record) -> Optional[str]:
    return item.get("how") if item["kind"] == "ended" else _exit_words(item)


def _was_told(item: Record, stop_at: float, told: Iterable[int] = ()) -> bool:
    """Tell whether a process ended because it was told to.

    `scancel` reaches engines, agents and head at about the same time, and any of them may notice it first. Once the
    server of a rank has gone, its wrapper kills what is left; `told` are ranks whose server was told to end.
    """
    by_wrapper = item["rank"] in told and not item.get("main")
    grace = 2.0 if by_wrapper or _how(item) in ("signal SIGTERM", "exit 0") else 0.0
    return _at(item) > stop_at - grace


def _at(item: Record) -> float:
    return float(item["at"] if "at" in item else item["t"])


def _by_signal(item: Record) -> bool:
    return str(item.get("how")).startswith("signal")


def _was_the_engine(item: Record, last: Dict[Any, Any], ends: List[Record]) -> bool:
    """Tell whether the last child that a rank's server has started ended by itself, and was no helper.

    A server whose model fails to load ends its child in order, and then itself.
    """
    if item.get("main") or item.get("pid") != last.get(item["rank"]) or float(item.get("lived_s", 0.0)) < ENGINE_S:
        return False
    servers = [_at(one) for one in ends if one.get("main") and one["rank"] == item["rank"]]
    return _how(item) != "exit 0" or not any(0.0 <= at - _at(item) < TOGETHER_S for at in servers)


def _is_failure(item: Record, loaded_at: Optional[float]) -> bool:
    """Tell whether the end of an engine process is the end of its rank.

    An engine runs short-lived helpers, whatever their status (Triton starts its Python stub once to ask for its
    version, and that one exits with 1). A child that had lived for a while is part of the engine, and so is a stub
    that dies by a signal or with another status, however soon, even while its server lives on and calls itself ready.
    """
    if item.get("main"):
        return True
    if item.get("how") in (None, "exit 0") and _is_long_helper(item, loaded_at):
        return False
    telling = _is_stub(item) and item.get("how") not in (None, "exit 0", "exit 1")
    return telling or float(item.get("lived_s", 0.0)) >= HELPER_S


def _is_long_helper(item: Record, loaded_at: Optional[float]) -> bool:
    """Tell whether a child that ended in order, or unseen, was a helper however long it lived.

    Triton completes a model's configuration in a stub of its own, and importing vLLM for that takes 10 s. vLLM looks at
    its model in a process for as long, while it loads; compilers run at a request. What is the engine's began before it
    had loaded, and lasts.
    """
    if item.get("helper"):
        return True
    if _is_stub(item) or item.get("name") == "tritonserver":
        return False
    began = _at(item) - float(item.get("lived_s", 0.0))
    return loaded_at is None or not began < loaded_at < _at(item)


def _is_stub(item: Record) -> bool:
    return str(item.get("name", "")).startswith(_STUB)


def shown(name: str) -> str:
    """Return the name of a process for people."""
    return "triton_python_backend_stub" if name == _STUB else name


def describe_complaint(item: Record) -> str:
    """Return one sentence on the first rank whose model failed though none of its processes ended."""
    return "rank %d on node %s: %s" % (item["rank"], item.get("node", "?"), item["text"])


def waiting_for(facts: RunFacts, last_answer: str) -> str:
    """Return what a run that is not ready waits for, given the last answer of a leader."""
    silent = [str(own.rank) for own in facts.ranks.values() if own.state == WAITING]
    if silent:
        return "no engine process seen for rank %s" % ",".join(silent)
    return "every rank runs, but no generation is answered (the leader's last answer: %s)" % last_answer


def describe_client(code: int) -> str:
    """Return how a client ended by itself, given its exit status; also the reason of the stop that follows."""
    return "the client ended: %s" % describe_exit_code(code) if code else "the client has ended"


def first_words(facts: RunFacts, records: List[Record]) -> str:
    """Return one sentence on the first end that was seen, and on a node of which nothing was; empty without an end."""
    end = facts.first_end
    node = "" if end is None else blind.unseen(records, end.at, end.node)
    if end is None or not node:
        return "" if end is None else describe(end)
    ranks = [own.rank for own in facts.ranks.values() if own.node == node]
    return blind.hedged(records, node, ranks, describe(end))


def describe(end: FirstEnd) -> str:
    """Return one sentence on the first end."""
    how = "ended: %s" % end.how if end.how else "ended, nobody saw how"
    if end.how == "exit 0":
        how = "ended with exit 0 though nobody had asked it to"
    return "rank %d on node %s went first: %s %s, while %s" % (end.rank, end.node, shown(end.name), how, end.phase)
