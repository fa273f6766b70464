"""Asking the leaders, each in a thread of its own: is the server ready, and does the model answer."""

import queue
import threading
import time
from typing import Any, Dict, List, Optional

from . import probe, service, watchdog

EAGER_S, HEALTH_S = 0.1, 1.0
"""Pauses between questions: before the first answer, and later."""
PATIENCE = 0.01
"""Share of the time that a server has taken so far: so much longer may pass before its readiness is noticed."""


def pause_s(waited_s: float) -> float:
    """Return the pause between two questions to a server that has loaded for so long: many replicas load for long."""
    return max(EAGER_S, min(HEALTH_S, PATIENCE * waited_s))


class Prober:
    """The leaders that are asked; `take` gives what they have said so far."""

    def __init__(self, model: str, question: Dict[str, Any], limits: watchdog.Limits) -> None:
        self.model = model
        self.path, self.body = str(question["path"]), str(question["body"])
        self.limits = limits
        self.leaders: Dict[int, probe.Leader] = {}
        self.traffic: Optional[service.Traffic] = None
        self._said: "queue.Queue[probe.Said]" = queue.Queue()

    def follow(self, leader: probe.Leader) -> None:
        """Begin to ask `leader`."""
        self.leaders[leader.instance] = leader
        threading.Thread(target=self._ask, args=(leader,), daemon=True).start()

    def take(self) -> List[probe.Said]:
        """Return what was said since the last call."""
        taken = []
        while not self._said.empty():
            taken.append(self._said.get())
        return taken

    def _ask(self, leader: probe.Leader) -> None:
        """Ask until one generation is answered; then for health, and now and then for a generation."""
        pause, next_at, since = EAGER_S, 0.0, time.monotonic()
        while True:
            said = probe.Said(leader.instance, probe.ready(leader.host, leader.http))
            if said.answer.ok:
                self._count_others(leader, own=0)
            if said.answer.ok and time.monotonic() >= next_at:
                said = self._generate(leader)
                self._count_others(leader, own=1)
                if said.answer.ok:
                    pause, next_at = HEALTH_S, time.monotonic() + self.limits.probe_s
            self._said.put(said)
            pause = max(pause, pause_s(time.monotonic() - since))
            # A model that answers with an error at once would have its log filled.
            time.sleep(HEALTH_S if said.generation else pause)

    def _generate(self, leader: probe.Leader) -> probe.Said:
        before = self._count(leader)
        answer = probe.generate(leader.host, leader.http, self.path, self.body, self.limits.answer_s)
        if answer.ok:
            return probe.Said(leader.instance, answer, generation=True)
        after = self._count(leader)
        busy = False
        if before is not None and after is not None and answer.status is None:
            # Some models count a request as it comes in, others as it is answered: ours may be one.
            busy = after.answered - before.answered > 1
        elif before is not None and after is not None:
            busy = after.answered - after.failed > before.answered - before.failed
        return probe.Said(leader.instance, answer, generation=True, busy=busy)

    def _count_others(self, leader: probe.Leader, own: int) -> None:
        """Keep account of others' requests, where that is wanted; `own` of those since the last look are ours."""
        if self.traffic is not None:
            counts = self._count(leader)
            self.traffic.look(leader.instance, None if counts is None else counts.answered, own, time.monotonic())

    def _count(self, leader: probe.Leader) -> Optional[probe.Counts]:
        return probe.requests_answered(leader.host, leader.http, self.model)
