"""Asking the leaders, each in a thread of its own: is the server ready, and does the model answer."""

import queue
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from . import probe, watchdog

HEALTH_S = 1.0


class Prober:
    """The leaders that are asked; `take` gives their answers so far.

    `answered` holds the instances that have answered a generation. `silent` holds those whose latest one was not
    answered in time, and whether the model answered others meanwhile.
    """

    def __init__(self, model: str, question: Dict[str, Any], limits: watchdog.Limits) -> None:
        self.model = model
        self.path, self.body = str(question["path"]), str(question["body"])
        self.limits = limits
        self.leaders: Dict[int, probe.Leader] = {}
        self.answered: Set[int] = set()
        self.silent: Dict[int, bool] = {}
        self._answers: "queue.Queue[Tuple[probe.Leader, probe.Answer]]" = queue.Queue()

    def follow(self, leader: probe.Leader) -> None:
        """Begin to ask `leader`."""
        self.leaders[leader.instance] = leader
        threading.Thread(target=self._ask, args=(leader,), daemon=True).start()

    def take(self) -> List[Tuple[probe.Leader, probe.Answer]]:
        """Return what was answered since the last call."""
        taken = []
        while not self._answers.empty():
            taken.append(self._answers.get())
        return taken

    def _ask(self, leader: probe.Leader) -> None:
        """Ask until one generation is answered; then for health, and now and then for a generation."""
        pause, next_at = 0.1, 0.0
        while True:
            answer = probe.ready(leader.host, leader.http)
            if answer.ok and time.monotonic() >= next_at:
                before = self._count(leader)
                answer = probe.generate(leader.host, leader.http, self.path, self.body, self.limits.answer_s)
                if answer.ok:
                    self.answered.add(leader.instance)
                    pause, next_at = HEALTH_S, time.monotonic() + self.limits.probe_s
                elif leader.instance in self.answered:
                    # Some models count a request as it comes in, others as it is answered: ours may be one.
                    busy = (self._count(leader) or 0) - (before or 0) > 1
                    self.silent[leader.instance] = busy
            self._answers.put((leader, answer))
            time.sleep(pause)

    def _count(self, leader: probe.Leader) -> Optional[int]:
        return probe.requests_answered(leader.host, leader.http, self.model)
