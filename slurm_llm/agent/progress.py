"""Who holds up the others: judged from what the node agents see of each rank's processes. Pure.

A rank that hangs leaves nothing but what its processes do, or no longer do. The others wait for it, and how they wait
(polling the network, with many naps) differs from what the one does that they wait for.
"""

from typing import Dict, List, NamedTuple, Optional

WINDOW_S = 4.0
"""How far back activity is looked at."""
LEAST_SPAN_S = 3.0
IDLE = 0.004
"""Cores: less is no work."""
BUSY = 0.03
"""Cores: more is work."""


class Activity(NamedTuple):
    """What a rank's processes have done so far: seconds of CPU in user and system mode, voluntary naps of their main
    threads, state letters as in proc(5), bytes of the rank's log."""

    at: float
    user_s: float
    system_s: float
    naps: int
    states: str
    log: int


class Rates(NamedTuple):
    """Activity a second over the window."""

    user: float
    system: float
    naps: float
    states: str

    @property
    def cpu(self) -> float:
        """Cores in use."""
        return self.user + self.system


class Culprit(NamedTuple):
    """The rank that stands out, and what it does, in words."""

    rank: int
    what: str


class Progress:
    """The ranks' activity over the last seconds."""

    def __init__(self) -> None:
        self.seen: Dict[int, List[Activity]] = {}
        self.moved: Dict[int, float] = {}

    def note(self, rank: int, now: Activity) -> None:
        """Take in what a rank has done so far."""
        before = self.seen.setdefault(rank, [])
        if not before or now.log != before[-1].log or _did_something(before[-1], now):
            self.moved[rank] = now.at
        before.append(now)
        while len(before) > 2 and now.at - before[1].at >= WINDOW_S:
            before.pop(0)

    def quiet_s(self, now: float) -> float:
        """Return for how long no rank has written to its log or done work; 0 when nothing is known."""
        return now - max(self.moved.values()) if self.moved else 0.0

    def rates(self) -> Dict[int, Rates]:
        """Return every rank's activity a second, of ranks that were seen for long enough."""
        return {rank: _rates(seen) for rank, seen in self.seen.items() if seen[-1].at - seen[0].at >= LEAST_SPAN_S}

    def culprit(self) -> Optional[Culprit]:
        """Return the one rank that behaves otherwise than the rest; None when none or several do."""
        stopped = [rank for rank, seen in self.seen.items() if "T" in seen[-1].states or "t" in seen[-1].states]
        if stopped:
            return _only(stopped, "a process of it is stopped")
        rates = self.rates()
        if len(rates) < 2:
            return None
        still = [rank for rank, own in rates.items() if own.cpu < IDLE and own.naps == 0]
        if still and len(still) * 2 <= len(rates):
            return _only(still, "it neither works nor looks for messages, while others wait")
        return _only(_spinning(rates), "it computes and never looks for messages, while others wait")


def _did_something(before: Activity, now: Activity) -> bool:
    spent = now.user_s + now.system_s - before.user_s - before.system_s
    return spent > BUSY * max(0.1, now.at - before.at)


def _rates(seen: List[Activity]) -> Rates:
    first, last = seen[0], seen[-1]
    span = last.at - first.at
    return Rates(
        (last.user_s - first.user_s) / span,
        (last.system_s - first.system_s) / span,
        (last.naps - first.naps) / span,
        last.states,
    )


def _spinning(rates: Dict[int, Rates]) -> List[int]:
    """Return ranks that burn CPU without calls to the kernel, while the typical waiting rank makes many."""
    shares = {rank: own.system / own.cpu for rank, own in rates.items() if own.cpu > BUSY}
    others = sorted(own.naps for own in rates.values())
    found = [rank for rank, share in shares.items() if share < 0.03 and rates[rank].naps < 1.0]
    return found if others[len(others) // 2] >= 1.0 or len(shares) > len(found) else []


def _only(ranks: List[int], what: str) -> Optional[Culprit]:
    return Culprit(ranks[0], what) if len(ranks) == 1 else None
