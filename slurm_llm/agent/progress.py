"""Who holds up the others: judged from what the node agents see of each rank's processes. Pure.

A rank that hangs leaves nothing but what its processes do, or no longer do. The others wait for it, and how they wait
(polling the network, with many naps) differs from what the one does that they wait for.
"""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional

WINDOW_S = 4.0
"""How far back activity is looked at."""
LEAST_SPAN_S = 3.0
IDLE = 0.004
"""Cores: less is no work."""
BUSY = 0.03
"""Cores: more is work, or polling."""
LAZY = 8.0
"""Naps a second: what an idle process's own timers make; who looks for messages naps more often."""
NAPS_OF_POLLING = 2000.0
"""Naps for a second of CPU: who works goes on for longer at a time."""
KERNEL_SHARE = 0.25
"""Share of CPU in the kernel: more of it that moves nothing is polling."""
OWN_SHARE = 0.1
"""Share of CPU in the kernel: less of it is computing; taking turns with others costs some too."""
MOVED_MIB = 1.0
"""Memory or data that shows work."""


class Activity(NamedTuple):
    """What a rank's processes have done so far, `at` seconds on the node's own clock.

    Seconds of CPU in user and system mode, voluntary naps of threads, state letters as in proc(5), one a process, bytes
    of the rank's log, MiB of resident memory, MiB that were read.
    """

    at: float
    user_s: float
    system_s: float
    naps: int
    states: str
    log: int
    rss_mib: float = 0.0
    read_mib: float = 0.0


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


STOPPED = "a process of it is stopped"
ASLEEP = "it neither works nor looks for messages, while others wait"
SPINS = "it computes and never looks for messages, while others wait"
UNSEEN = "no process of it has been seen"
ALONE = "there is no other"


class Progress:
    """The ranks' activity over the last seconds."""

    def __init__(self) -> None:
        self.seen: Dict[int, List[Activity]] = {}
        self.moved: Dict[int, float] = {}

    def note(self, rank: int, now: Activity, heard: float) -> None:
        """Take in what a rank has done so far, as it was `heard` by the clock of `quiet_s`."""
        before = self.seen.setdefault(rank, [])
        if not before or worked(before[-1], now):
            self.moved[rank] = heard
        before.append(now)
        while len(before) > 2 and now.at - before[1].at >= WINDOW_S:
            before.pop(0)

    def forgive(self, seconds: float) -> None:
        """Let a time not count in which nobody could hear of work."""
        if seconds:
            self.moved = {rank: at + seconds for rank, at in self.moved.items()}

    def quiet_s(self, now: float, ranks: Iterable[int]) -> float:
        """Return for how long none of `ranks` has written to its log or done work; 0 when nothing is known."""
        moved = [self.moved[rank] for rank in ranks if rank in self.moved]
        return now - max(moved) if moved else 0.0

    def rates(self) -> Dict[int, Rates]:
        """Return every rank's activity a second, of ranks that were seen for long enough."""
        return {rank: _rates(seen) for rank, seen in self.seen.items() if seen[-1].at - seen[0].at >= LEAST_SPAN_S}

    def told(self) -> Dict[str, List[Any]]:
        """Return the same for a record: cores in user and in system mode, naps a second, states."""
        return {
            str(rank): [round(own.user, 3), round(own.system, 3), round(own.naps, 1), own.states]
            for rank, own in self.rates().items()
        }

    def culprit(self, ranks: Iterable[int]) -> Optional[Culprit]:
        """Return the one of `ranks`, which work together, that behaves otherwise; None when none or several do."""
        members = list(ranks)
        seen = {rank: self.seen[rank] for rank in members if rank in self.seen}
        stopped = [rank for rank, own in seen.items() if "T" in own[-1].states or "t" in own[-1].states]
        if stopped:
            return _only(stopped, STOPPED)
        if seen and len(seen) < len(members):
            return _only([rank for rank in members if rank not in seen], UNSEEN)
        if len(members) == 1 and seen:
            return Culprit(members[0], ALONE)
        rates = {rank: own for rank, own in self.rates().items() if rank in seen}
        if len(rates) < 2:
            return None
        asleep = _asleep(rates)
        if asleep and len(asleep) * 2 <= len(rates):
            return _only(asleep, ASLEEP)
        return _only(_spinning(rates), SPINS)


def worked(before: Activity, now: Activity) -> bool:
    """Tell whether a rank did anything between two looks that no waiting process does.

    A line in its log, a process more or less, memory, data that were read; or CPU, unless it is that of a poll: cut in
    small pieces by naps, or spent mostly in the kernel. Who waits in MPI_Init uses some of a core, for nothing.
    """
    if now.log != before.log or len(now.states) != len(before.states):
        return True
    if abs(now.rss_mib - before.rss_mib) >= MOVED_MIB or now.read_mib - before.read_mib >= MOVED_MIB:
        return True
    system = now.system_s - before.system_s
    spent = now.user_s - before.user_s + system
    if spent <= BUSY * max(0.1, now.at - before.at):
        return False
    return now.naps - before.naps < NAPS_OF_POLLING * spent and system < KERNEL_SHARE * spent


def _rates(seen: List[Activity]) -> Rates:
    first, last = seen[0], seen[-1]
    span = last.at - first.at
    return Rates(
        (last.user_s - first.user_s) / span,
        (last.system_s - first.system_s) / span,
        max(0, last.naps - first.naps) / span,
        last.states,
    )


def _median_naps(rates: Dict[int, Rates]) -> float:
    return sorted(own.naps for own in rates.values())[len(rates) // 2]


def _asleep(rates: Dict[int, Rates]) -> List[int]:
    """Return ranks without CPU whose threads nap far less often than those of the typical rank."""
    few = max(LAZY, _median_naps(rates) / 5)
    return [rank for rank, own in rates.items() if own.cpu < IDLE and own.naps < few]


def _spinning(rates: Dict[int, Rates]) -> List[int]:
    """Return ranks that burn CPU without calls to the kernel, while the typical waiting rank makes many."""
    shares = {rank: own.system / own.cpu for rank, own in rates.items() if own.cpu > BUSY}
    found = [rank for rank, share in shares.items() if share < OWN_SHARE and rates[rank].naps < LAZY]
    return found if _median_naps(rates) >= LAZY or len(shares) > len(found) else []


def _only(ranks: List[int], what: str) -> Optional[Culprit]:
    return Culprit(ranks[0], what) if len(ranks) == 1 else None
