"""How long each phase of a start took, from an attempt's journals, and which rank was slowest in it. Pure."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .journal import Record

NAMES = (
    ("queue", ("queue_s",)),
    ("check", ("check_s",)),
    ("staging", ("stage_s",)),
    ("launch", ("launch_s", "start_s")),
    ("load", ("load_s",)),
    ("answer", ("answer_s",)),
)
"""The phases as people are told of them, and the fields that they are made of."""
APART_S = 0.3
"""A rank stands out that took so much longer than the middle one."""


class Slowest(NamedTuple):
    """The rank that took longest in a phase, and how much longer than the middle one."""

    phase: str
    rank: int
    node: str
    seconds: float
    apart_s: float


class Phases(NamedTuple):
    """Seconds of each phase that has ended, by the clocks of the nodes.

    In their order: from submission to the job's script; agents and preflight; srun and container up to the last rank's
    first line; from there to its engine's process; up to the end of loading; up to the first answered generation.
    `stage_s`, after the preflight, is of copies of weights.
    `ready_s` is from the script's begin to that.
    """

    queue_s: Optional[float] = None
    check_s: Optional[float] = None
    launch_s: Optional[float] = None
    start_s: Optional[float] = None
    load_s: Optional[float] = None
    answer_s: Optional[float] = None
    ready_s: Optional[float] = None
    stage_s: Optional[float] = None
    slowest: Tuple[Slowest, ...] = ()


class _Moments:
    """When what happened first: of the attempt, and of each rank."""

    def __init__(self, ordered: List[Record]) -> None:
        self.of: Dict[str, float] = {}
        self.ranks: Dict[str, Dict[int, float]] = {"start": {}, "found": {}, "loaded": {}}
        self.nodes: Dict[int, str] = {}
        self.leaders: List[int] = []
        for item in ordered:
            self._note(item["kind"], item)

    def _note(self, kind: str, item: Record) -> None:
        when, rank = float(item["t"]), item.get("rank")
        if kind in ("begin", "server", "staging", "staged"):
            self.of.setdefault(kind, when)
        elif kind == "state" and item.get("state") == "READY":
            self.of.setdefault("ready", when)
        elif isinstance(rank, int) and (kind != "found" or item.get("main")) and kind in self.ranks:
            self.ranks[kind].setdefault(rank, when)
            if kind == "found" and item.get("started"):
                # The rank's own journal says the same, where it is read.
                self.ranks["start"].setdefault(rank, float(item["started"]))
            self.nodes.setdefault(rank, str(item.get("node", "?")))
            if item.get("ports"):
                self.leaders.append(rank)

    def all(self, kind: str, ranks: int) -> Optional[float]:
        """Return when the last of all ranks had come so far."""
        seen = self.ranks[kind]
        return max(seen.values()) if ranks and len(seen) >= ranks else None

    def loaded(self) -> Optional[float]:
        """Return when the last leader had loaded: workers may block while they load, and never tell.

        A first answer can be noticed before the end of loading is.
        """
        ends = [self.ranks["loaded"][rank] for rank in self.leaders if rank in self.ranks["loaded"]]
        if not ends or len(ends) < len(self.leaders):
            return None
        return min(max(ends), self.of.get("ready", max(ends)))


def phases(ordered: List[Record], ranks: int) -> Phases:
    """Return what the records of one attempt, in order of time, tell of its phases."""
    at = _Moments(ordered)
    begin, server, ready = at.of.get("begin"), at.of.get("server"), at.of.get("ready")
    started, found, loaded = at.all("start", ranks), at.all("found", ranks), at.loaded()
    return Phases(
        check_s=_between(begin, at.of.get("staging", server)),
        stage_s=_between(at.of.get("staging"), at.of.get("staged")),
        launch_s=_between(server, started),
        start_s=_between(started, found),
        load_s=_between(found, ready if loaded is None else loaded),
        answer_s=_between(loaded, ready),
        ready_s=_between(begin, ready),
        slowest=tuple(filter(None, (_slowest(at, "launch", server), _slowest(at, "start", None)))),
    )


def _slowest(at: _Moments, phase: str, since: Optional[float]) -> Optional[Slowest]:
    started = at.ranks["start"]
    if phase == "launch":
        took = {rank: when - since for rank, when in started.items()} if since is not None else {}
    else:
        took = {rank: when - started[rank] for rank, when in at.ranks["found"].items() if rank in started}
    if len(took) < 2:
        return None
    rank = max(took, key=lambda one: (took[one], -one))
    middle = sorted(took.values())[(len(took) - 1) // 2]
    return Slowest(phase, rank, at.nodes.get(rank, "?"), round(took[rank], 3), round(took[rank] - middle, 3))


def _between(first: Optional[float], last: Optional[float]) -> Optional[float]:
    """Return the seconds between two moments; clocks of nodes may differ a little."""
    return None if first is None or last is None else round(max(0.0, last - first), 3)


def queued(own: Phases, submitted: Optional[float], began: Optional[float], attempt: int) -> Phases:
    """Return the phases with the time in the queue; only a job's first attempt has waited there."""
    return own if attempt else own._replace(queue_s=_between(submitted, began))


def outstanding(own: Phases) -> Optional[Slowest]:
    """Return the rank that stands out most in any phase; None when none does."""
    found = [one for one in own.slowest if one.apart_s >= APART_S]
    return max(found, key=lambda one: one.apart_s) if found else None


def as_json(own: Phases) -> Dict[str, Any]:
    """Return the phases as JSON values."""
    return dict(own._asdict(), slowest=[one._asdict() for one in own.slowest])


def from_json(value: Any) -> Optional[Phases]:
    """Return what `as_json` has made; None for anything else."""
    try:
        slowest = tuple(Slowest(**one) for one in value["slowest"])
        return Phases(**dict(value, slowest=slowest))
    except (KeyError, TypeError):
        return None


def parts(own: Phases) -> List[str]:
    """Return a few words on each phase that has ended, and on the rank that stands out."""
    found = []
    for name, fields in NAMES:
        took = [seconds for seconds in (getattr(own, field) for field in fields) if seconds is not None]
        if len(took) == len(fields):
            found.append("%s %s" % (name, _seconds(sum(took))))
    slow = outstanding(own) if found else None
    if slow is not None:
        found.append("slowest rank %d on %s (%s %s)" % (slow.rank, slow.node, slow.phase, _seconds(slow.seconds)))
    return found


def _seconds(value: float) -> str:
    return "%.1f s" % value if value < 10 else "%.0f s" % value if value < 600 else "%.0f min" % (value / 60)
