"""What the run's page needs beside the head's own records: the newest figures of each rank, GPU and probe.

The head's thread takes in, the page's thread reads: each figure is replaced as a whole.
"""

import time
from typing import Any, Dict, NamedTuple

from . import journal, probe


class Probed(NamedTuple):
    """The last generation that an instance was asked for: whether it was answered, when, and after how many seconds.

    `at` is since the epoch.
    """

    ok: bool
    at: float
    took_s: float


class Tally:
    """The newest figures."""

    def __init__(self) -> None:
        self.beats: Dict[str, Dict[str, Any]] = {}
        """By rank, as `agent.beats` has them."""
        self.logged: Dict[str, float] = {}
        """By rank when its log has last grown, in time.monotonic()."""
        self.cpu_s: Dict[str, float] = {}
        """By rank, CPU seconds of all its processes so far: a beat tells of those that live."""
        self.samples: Dict[str, journal.Record] = {}
        """By node."""
        self.gpus: Dict[str, journal.Record] = {}
        """By node, what its GPUs are."""
        self.probes: Dict[int, Probed] = {}
        """By instance."""
        self.ready: Dict[int, bool] = {}
        """By instance, whether its health was 200."""

    def hear(self, item: journal.Record) -> None:
        """Take in a record of a node's agent."""
        kind, node = item["kind"], str(item.get("node", ""))
        if kind == "beat":
            for rank, own in item.get("ranks", {}).items():
                self._beat(rank, own, time.monotonic())
        elif kind == "sample":
            self.samples[node] = item
        elif kind == "gpus":
            self.gpus[node] = item

    def _beat(self, rank: str, own: Dict[str, Any], now: float) -> None:
        before = self.beats.get(rank, {})
        if own.get("log") != before.get("log"):
            self.logged[rank] = now
        grown = own["u"] + own["s"] - before.get("u", 0.0) - before.get("s", 0.0)
        self.cpu_s[rank] = self.cpu_s.get(rank, 0.0) + max(0.0, grown)
        self.beats[rank] = own

    def answered(self, said: probe.Said) -> None:
        """Take in what a leader has said."""
        if said.generation:
            self.probes[said.instance] = Probed(said.answer.ok, time.time(), said.took_s)
        else:
            self.ready[said.instance] = said.answer.ok
