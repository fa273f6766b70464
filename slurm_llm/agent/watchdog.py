"""Hangs: a run that makes no progress while it loads, or a served model that no longer answers."""

from typing import Any, Callable, Dict, NamedTuple, Optional

from . import probe
from .progress import Activity, Culprit, Progress


class Limits(NamedTuple):
    """Seconds: to readiness, without progress, for one answer, between probes, of health that is not 200."""

    ready_s: float
    stall_s: float
    answer_s: float
    probe_s: float
    unready_s: float


class Stall(NamedTuple):
    """A hang: what is seen of the run as a whole, and the rank that stands out."""

    what: str
    culprit: Optional[Culprit]

    def describe(self) -> str:
        """Return one sentence."""
        if self.culprit is None:
            return "%s; no rank stands out" % self.what
        return "%s; rank %d holds up the others: %s" % (self.what, self.culprit.rank, self.culprit.what)


class Watchdog:
    """Judges beats and probes of one attempt."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.progress = Progress()
        self.unready_since: Dict[int, float] = {}

    def beat(self, item: Dict[str, Any]) -> None:
        """Take in one beat of a node's agent."""
        for name, own in item.get("ranks", {}).items():
            if name.isdigit():
                at = float(item["t"])
                seen = Activity(at, float(own["u"]), float(own["s"]), int(own["n"]), str(own["st"]), int(own["log"]))
                self.progress.note(int(name), seen)

    def loading(self, waited_s: float, now: float, waiting_for: Callable[[], str]) -> Optional[Stall]:
        """Return a stall of a run that is not ready yet; `now` is wall-clock time, as the beats' own."""
        if waited_s > self.limits.ready_s:
            return Stall("not ready within %d s: %s" % (self.limits.ready_s, waiting_for()), self.progress.culprit())
        quiet = self.progress.quiet_s(now)
        if quiet > self.limits.stall_s:
            return Stall("no rank has logged or worked for %d s while loading" % quiet, self.progress.culprit())
        return None

    def health(self, instance: int, answer: probe.Answer, now: float) -> Optional[Stall]:
        """Return a stall when a leader's health has not been 200 for too long."""
        if answer.ok:
            self.unready_since.pop(instance, None)
            return None
        since = self.unready_since.setdefault(instance, now)
        if now - since <= self.limits.unready_s:
            return None
        said = answer.status or answer.body
        what = "the leader of instance %d has not been ready for %d s (%s)" % (instance, now - since, said)
        return Stall(what, self.progress.culprit())

    def silence(self, instance: int, busy: bool) -> Optional[Stall]:
        """Return the stall of a leader whose model did not answer in time; None while it may only be `busy`.

        A rank that stands out says that it is not.
        """
        culprit = self.progress.culprit()
        if busy and culprit is None:
            return None
        what = "the model of instance %d has not answered a request within %d s" % (instance, self.limits.answer_s)
        return Stall(what, culprit)
