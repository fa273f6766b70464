"""Hangs: a run that makes no progress while it loads, or a served model that no longer answers, or with errors only."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from . import probe
from .progress import STOPPED, Activity, Culprit, Progress

SUSPECT_S = 4.5
"""How long a rank is looked for that holds up the others, once the model does not answer."""
REFUSALS = 3
"""Errors in a row, a second apart, after which a model that has answered before has failed."""
BUSY_STATUSES = (429, 503)
"""Answers of a server whose queue is full, or that is not ready: they count only when they last."""
SAID_LENGTH = 200


class Limits(NamedTuple):
    """Seconds: to readiness, without progress, for one answer, between probes, of health that is not 200."""

    ready_s: float
    stall_s: float
    answer_s: float
    probe_s: float
    unready_s: float


class Stall(NamedTuple):
    """A hang: what is seen of the run as a whole, and the rank that stands out.

    `refused` tells that the model does answer, with errors: then that rank is its leader.
    """

    what: str
    culprit: Optional[Culprit]
    refused: bool = False

    def describe(self) -> str:
        """Return one sentence."""
        if self.culprit is None:
            return "%s; no rank stands out" % self.what
        if self.refused:
            return self.what
        return "%s; rank %d holds up the others: %s" % (self.what, self.culprit.rank, self.culprit.what)


class Suspicion(NamedTuple):
    """A stall without a rank that stands out, and since when."""

    stall: Stall
    since: float


class Refusals:
    """Errors that a leader's model has answered in a row."""

    def __init__(self, now: float) -> None:
        self.since, self.times = now, 0


class Watchdog:
    """Judges beats and answers of one attempt. `members` are the ranks of each instance, its leader first."""

    def __init__(self, limits: Limits, members: Dict[int, List[int]]) -> None:
        self.limits = limits
        self.members = members
        self.progress = Progress()
        self.answered: Set[int] = set()
        self.unready_since: Dict[int, float] = {}
        self.refusals: Dict[int, Refusals] = {}
        self.suspicions: Dict[int, Suspicion] = {}

    def beat(self, item: Dict[str, Any], now: float) -> None:
        """Take in one beat of a node's agent, which came at `now`."""
        # Only moments of one node are compared by its clock, which nobody sets meanwhile.
        at = float(item.get("at", item["t"]))
        for name, own in item.get("ranks", {}).items():
            if name.isdigit():
                seen = Activity(
                    at,
                    float(own["u"]),
                    float(own["s"]),
                    int(own["n"]),
                    str(own["st"]),
                    int(own["log"]),
                    float(own.get("m", 0.0)),
                    float(own.get("r", 0.0)),
                )
                self.progress.note(int(name), seen, now)

    def loading(self, waited_s: float, now: float, waiting_for: Callable[[], str]) -> Optional[Stall]:
        """Return a stall of a run that is not ready yet; `now` is on the same clock as that of `beat`."""
        for instance, ranks in self.members.items():
            if instance in self.answered:
                continue
            if waited_s > self.limits.ready_s:
                what = "not ready within %d s: %s" % (self.limits.ready_s, waiting_for())
                return Stall(what, self.progress.culprit(ranks))
            quiet = self.progress.quiet_s(now, ranks)
            culprit = self.progress.culprit(ranks) if quiet > self.limits.stall_s else None
            if culprit is not None or quiet > self.limits.stall_s + SUSPECT_S:
                return Stall("no rank has logged or worked for %d s while loading" % quiet, culprit)
        return None

    def heard(self, said: probe.Said, now: float) -> Optional[Stall]:
        """Take in what a leader said to a probe; return a stall that is certain by now, in time.monotonic()."""
        if not said.generation:
            return self._health(said.instance, said.answer, now)
        if said.answer.ok:
            self.answered.add(said.instance)
            self._acquit(said.instance)
            return None
        if said.answer.status is not None:
            return self._refusal(said, now)
        self.refusals.pop(said.instance, None)
        return self._silence(said, now) if said.instance in self.answered else None

    def _acquit(self, instance: int) -> None:
        for kept in (self.suspicions, self.refusals, self.unready_since):
            kept.pop(instance, None)

    def _health(self, instance: int, answer: probe.Answer, now: float) -> Optional[Stall]:
        if instance not in self.answered:
            return None
        if answer.ok:
            self.unready_since.pop(instance, None)
            return None
        since = self.unready_since.setdefault(instance, now)
        if now - since <= self.limits.unready_s:
            return None
        what = "the leader of instance %d has not been ready for %d s (%s)" % (instance, now - since, _told(answer))
        return Stall(what, self._culprit(instance))

    def _silence(self, said: probe.Said, now: float) -> Optional[Stall]:
        """Judge a generation that was not answered in time: the model may only be busy.

        A rank that stands out says that it is not; else one is looked for a while longer, since it has just begun to.
        """
        culprit = self._culprit(said.instance)
        what = "the model of instance %d has not answered a request within %d s" % (said.instance, self.limits.answer_s)
        stall = Stall(what, culprit)
        if culprit is not None:
            return stall
        if said.busy:
            self.suspicions.pop(said.instance, None)
        else:
            self.suspicions.setdefault(said.instance, Suspicion(stall, now))
        return None

    def _refusal(self, said: probe.Said, now: float) -> Optional[Stall]:
        """Judge an error that was answered at once: one proves nothing, nor do errors while others are served."""
        self.suspicions.pop(said.instance, None)
        if said.busy:
            self.refusals.pop(said.instance, None)
            return None
        own = self.refusals.setdefault(said.instance, Refusals(now))
        own.times += 1
        lasting = now - own.since > self.limits.unready_s
        soon = said.instance in self.answered and said.answer.status not in BUSY_STATUSES and own.times >= REFUSALS
        if not (lasting or soon):
            return None
        leader = self.members[said.instance][0]
        culprit = self._culprit(said.instance)
        if culprit is not None and culprit.what == STOPPED:
            # Triton itself says of a stub that is stopped that it is not healthy.
            return Stall("the model of instance %d answers with errors" % said.instance, culprit)
        what = "rank %d calls itself ready and answers each request with an error: %s" % (leader, _told(said.answer))
        return Stall(what, Culprit(leader, "it answers with errors"), refused=True)

    def overdue(self, now: float) -> Optional[Stall]:
        """Return a stall that was suspected for long enough, or whose rank shows by now."""
        for instance, (stall, since) in self.suspicions.items():
            culprit = self._culprit(instance)
            if culprit is not None or now - since >= SUSPECT_S:
                return stall._replace(culprit=culprit)
        return None

    def _culprit(self, instance: int) -> Optional[Culprit]:
        return self.progress.culprit(self.members[instance])


def _told(answer: probe.Answer) -> str:
    """Return a status and the words that came with it."""
    said = " ".join(answer.body.split())[:SAID_LENGTH]
    return said if answer.status is None else ("HTTP %d %s" % (answer.status, said)).rstrip()


def members_of(plan: Dict[str, Any]) -> Dict[int, List[int]]:
    """Return the ranks of each instance of a plan, its leader first."""
    per = len(plan["ranks"]) // max(1, len(plan["instances"]))
    found = {}
    for item in plan["instances"]:
        ranks = range(item["first_rank"], item["first_rank"] + per)
        found[int(item["index"])] = sorted(ranks, key=lambda rank: (rank != item["leader"], rank))
    return found
