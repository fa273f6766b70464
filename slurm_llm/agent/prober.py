"""Asking the leaders, each in a thread of its own: is the server ready, and does the model answer."""

import queue
import threading
import time
from typing import Any, Dict, List, Mapping, Optional

from . import lines, probe, service, watchdog

EAGER_S, HEALTH_S = 0.1, 1.0
"""Pauses between questions: before the first answer, and later."""
PATIENCE = 0.01
"""Share of the time that a server has taken so far: so much longer may pass before its readiness is noticed."""


def pause_s(waited_s: float) -> float:
    """Return the pause between two questions to a server that has loaded for so long: many replicas load for long."""
    return max(EAGER_S, min(HEALTH_S, PATIENCE * waited_s))


class Prober:
    """The leaders that are asked, with the headers of their key; `take` gives what they have said so far."""

    def __init__(
        self,
        model: str,
        question: Dict[str, Any],
        limits: watchdog.Limits,
        headers: Mapping[str, str] = probe.NO_HEADERS,
    ) -> None:
        self.model = model
        self.path, self.body = str(question["path"]), str(question["body"])
        self.limits = limits
        self.headers = headers
        self.leaders: Dict[int, probe.Leader] = {}
        self.ailing: Dict[int, str] = {}
        self.traffic: Optional[service.Traffic] = None
        self._lines: List[lines.Leader] = []
        self._closed = False
        self._said: "queue.Queue[probe.Said]" = queue.Queue()

    def follow(self, leader: probe.Leader) -> None:
        """Begin to ask `leader`."""
        self.leaders[leader.instance] = leader
        own = lines.Leader(leader, self.headers)
        self._lines.append(own)
        threading.Thread(target=self._ask, args=(own,), daemon=True).start()

    def take(self) -> List[probe.Said]:
        """Return what was said since the last call; `ailing` then says of each instance what is amiss, if anything."""
        taken = []
        while not self._said.empty():
            taken.append(self._said.get())
        for said in taken:
            words = _amiss(said)
            if words:
                self.ailing[said.instance] = words
            else:
                self.ailing.pop(said.instance, None)
        return taken

    def close(self) -> None:
        """Ask no more: the servers are to stop."""
        self._closed = True
        for own in self._lines:
            own.end()

    def _ask(self, leader: lines.Leader) -> None:
        """Ask until one generation is answered; then for health, and now and then for a generation."""
        pause, next_at, since = EAGER_S, 0.0, time.monotonic()
        while not self._closed:
            said = probe.Said(leader.at.instance, leader.health(), crowded=leader.crowded)
            if said.answer.ok:
                self._count_others(leader, own=0)
            # A generation needs a connection too: where none is left, its failure would prove nothing.
            if said.answer.ok and time.monotonic() >= next_at and (leader.long.held or not leader.crowded):
                said = self._generate(leader)
                self._count_others(leader, own=1)
                if said.answer.ok:
                    pause, next_at = HEALTH_S, time.monotonic() + self.limits.probe_s
            self._said.put(said)
            pause = max(pause, pause_s(time.monotonic() - since))
            # A model that answers with an error at once would have its log filled.
            time.sleep(HEALTH_S if said.generation else pause)

    def _generate(self, leader: lines.Leader) -> probe.Said:
        before, began = leader.counts(self.model), time.monotonic()
        answer = leader.generation(self.path, self.body, self.limits.answer_s)
        took_s = time.monotonic() - began
        said = probe.Said(leader.at.instance, answer, generation=True, crowded=leader.crowded, took_s=took_s)
        if answer.ok:
            return said
        after = leader.counts(self.model)
        if before is None or after is None:
            # One that has counted before and no longer says is in a throng; whether it is ready is asked besides.
            return said._replace(busy=leader.counted and answer.status is None)
        if answer.status is None:
            # Some models count a request as it comes in, others as it is answered: ours may be one.
            return said._replace(busy=after.answered - before.answered > 1)
        return said._replace(busy=after.answered - after.failed > before.answered - before.failed)

    def _count_others(self, leader: lines.Leader, own: int) -> None:
        """Keep account of others' requests, where that is wanted; `own` of those since the last look are ours."""
        if self.traffic is not None:
            counts = leader.counts(self.model)
            answered = None if counts is None else counts.answered
            self.traffic.look(leader.at.instance, answered, own, time.monotonic())


def _amiss(said: probe.Said) -> str:
    """Return what is amiss with a leader by its last answer; empty when nothing is."""
    if not said.answer.ok:
        return str(said.answer.status or said.answer.body)
    return "it accepts no further connections, too many are open" if said.crowded else ""
