"""A service outlives its jobs: a successor is submitted ahead of a job's end, takes over, and the old one drains.

Also the end of a server that nobody asks, and what Slurm's own SIGTERM means. Whatever may wait runs in a thread; the
head takes what it has to say, and acts on it.
"""

import os
import queue
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from . import journal, successors
from .successors import LIVE, ask_slurm

SPARE_S = 20.0
"""Seconds that a job needs for its end beyond those that requests in flight have."""
EARLY_S = 90.0
"""Slurm warns up to a minute early (sbatch(1), `--signal`)."""
QUIET_S = 5.0
"""So long without a request, and the old job's clients have gone to the new one."""
POLL_S = 1.0
ASK_SLURM_S = 10.0
RETRY_S = 60.0
SETTLE_S = 15.0
TRIES = 2
"""A successor that fails is replaced once: the next may do better on other nodes, a third hardly."""
PREEMPTED = "Slurm takes the nodes for another job"


class Settings(NamedTuple):
    """The plan's `service`; `successors` None is any number, `idle_stop_s` None never stops an idle server."""

    handover_s: float
    drain_s: float
    successors: Optional[int]
    idle_stop_s: Optional[float]


OFF = Settings(0.0, 0.0, 0, None)


class Traffic:
    """When others last asked a model, judged by Triton's counts of requests; our own generations do not count.

    While Triton does not say, somebody may be asking.
    """

    def __init__(self) -> None:
        self.counted: Dict[int, int] = {}
        self.last = time.monotonic()

    def look(self, instance: int, answered: Optional[int], own: int, now: float) -> None:
        """Take in an instance's count of requests, of which `own` since the last look are ours."""
        if answered is None or answered - self.counted.get(instance, answered - own) > own:
            self.last = now
        if answered is not None:
            self.counted[instance] = answered


class Voice(NamedTuple):
    """The job script's process id, and what writes a record to the head's journal and a line to the job's output."""

    script: int
    note: Callable[..., None]
    say: Callable[[str], None]


class Order(NamedTuple):
    """What the head is to do: stop for the reason `stop`, or, where that is empty, go on as a server that drains."""

    stop: str
    text: str


class Service:
    """One attempt's part in a service. Its threads only leave news; `orders` is for the head's own thread."""

    def __init__(self, plan: Dict[str, Any], run_dir: str, job_id: str, voice: Voice) -> None:
        given = plan.get("service")
        self.settings = OFF if given is None else Settings(**given)
        self.run_dir, self.job_id, self.voice = run_dir, job_id, voice
        self.traffic = None if given is None else Traffic()
        self.over = self.warned = self.explained = self.blind = False
        self.ready_at: Optional[float] = None
        self.hopeless = self.settings.successors == 0
        self._failed: Set[str] = set()
        self._lock = threading.Lock()
        self._news: "queue.Queue[journal.Record]" = queue.Queue()
        self._threads: List[threading.Thread] = []

    def leave(self) -> None:
        """Hand nothing over any more: the job has failed, or was asked to stop."""
        self.over = True

    def settle(self) -> None:
        """Wait for what is under way: the successor of a preempted job is submitted while that one ends."""
        self.leave()
        for thread in self._threads:
            thread.join(SETTLE_S)

    def orders(self, state: str) -> List[Order]:
        """Tell what is new, and return what the head is to do; `state` is the run's."""
        self._look(state, time.monotonic())
        found = []
        while not self._news.empty():
            item = self._news.get()
            kind, text = item.pop("kind"), item.pop("text")
            if kind in ("drain", "stop"):
                found.append(Order(item.get("why", ""), text))
                continue
            self.voice.note(kind, text=text, **item)
            self.voice.say("slurm_llm: %s %s" % (time.strftime("%H:%M:%S"), text))
        return found

    def _look(self, state: str, now: float) -> None:
        """Order a stop when nobody has asked a ready server for long enough."""
        limit = self.settings.idle_stop_s
        if self.traffic is None or limit is None or state != "READY" or self.over or self.warned:
            return
        if self.ready_at is None:
            self.ready_at = now
        if not self.traffic.counted and not self.blind:
            self.blind = True
            self._say("warning", "warning: Triton does not count its requests: an idle server is not stopped")
        if self.traffic.counted and now - max(self.ready_at, self.traffic.last) >= limit:
            self.over = True
            self._say("stop", "nobody has asked the model for %d s" % limit, why="idle for %d s" % limit)

    def warn(self) -> None:
        """Begin to hand over: the time limit is near, or Slurm has sent its warning since it wants the nodes."""
        if not self.warned:
            self.warned = True
            self._start(self._hand_over)

    def explain(self) -> None:
        """Find out why SIGTERM has come: a preempted job says so, and leaves a successor."""
        if not self.explained:
            self.explained = True
            self._start(self._explain)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _say(self, kind: str, text: str, **fields: Any) -> None:
        self._news.put(dict(fields, kind=kind, text=text))

    def _explain(self) -> None:
        word = ask_slurm(self.job_id)
        if word is None or (word.state in LIVE and word.state != "COMPLETING" and not word.preempted):
            # Somebody has signalled the script, as `cancel` does, or a step.
            return
        if word.preempted:
            self._say("preempted", PREEMPTED)
            self.hopeless = self.hopeless or word.comes_back
            self._submit()
        self._say("stop", PREEMPTED if word.preempted else "asked to stop", why="asked")

    def _hand_over(self) -> None:
        own, began = self.settings, time.time()
        word = ask_slurm(self.job_id)
        end = word.end if word is not None else None
        if end is None:
            end = began + own.handover_s + own.drain_s + SPARE_S
        preempted = word is not None and word.preempted
        self.hopeless = self.hopeless or (word is not None and preempted and word.comes_back)
        why = PREEMPTED if preempted else self._warned_of(end - began)
        self._say("preempted" if preempted else "handover", why)
        last = end - min(own.drain_s + SPARE_S, max(0.0, end - began) / 2)
        successor = self._await_successor(last)
        if self.over:
            return
        if successor is None:
            text = PREEMPTED if preempted else "the time limit is near"
            self._say("stop", text, why="asked" if preempted else "time limit")
            return
        text = "job %s serves now" % successor
        self._say("drain", text)
        self._await_quiet(min(time.time() + own.drain_s, max(time.time(), last)))
        self._say("stop", text, why="handed over to job %s" % successor)

    def _warned_of(self, left_s: float) -> str:
        """Return what a warning is about: Slurm sends USR1 ahead of the time limit, and so can anybody, at any time."""
        own = self.settings
        near = left_s <= own.handover_s + own.drain_s + SPARE_S + EARLY_S
        return "the time limit is near" if near else "asked by a warning signal (USR1)"

    def _await_successor(self, last: float) -> Optional[str]:
        """Return the job that serves in this one's place, None when there is none at the moment `last`."""
        successor: Optional[str] = None
        next_try = next_look = 0.0
        while time.time() < last and not self.over:
            now = time.monotonic()
            if successor is None and now >= next_try:
                successor, next_try = self._submit(), now + RETRY_S
            elif successor is not None and successors.serving(os.path.join(self.run_dir, "job-" + successor)):
                return successor
            elif successor is not None and now >= next_look:
                next_look = now + ASK_SLURM_S
                if self._has_failed(successor):
                    self._failed.add(successor)
                    successor, next_try = None, 0.0
            time.sleep(POLL_S)
        return None

    def _submit(self) -> Optional[str]:
        """Return this job's successor; submit one unless there is one, also of an earlier attempt."""
        with self._lock:
            jobs = successors.load_jobs(self.run_dir)
            own = [one for one, value in jobs.items() if value.get("after") == self.job_id]
            living = [one for one in own if one not in self._failed]
            if living or self.hopeless or len(own) >= TRIES:
                return max(living, key=int) if living else None
            so_far, most = len(successors.chain(jobs, self.job_id)), self.settings.successors
            if most is not None and so_far >= most:
                self.hopeless = True
                self._say("no-successor", "no successor: service.successors is %d, and so many there were" % most)
                return None
            return self._submit_one()

    def _submit_one(self) -> Optional[str]:
        environ = successors.clean_environment(successors.environment_of(self.voice.script))
        made = successors.submit(self.run_dir, self.job_id, environ)
        if made.problem:
            self.hopeless = not made.again
            then = "; tried again in %d s" % RETRY_S if made.again else ""
            self._say("no-successor", "no successor: %s%s" % (made.problem, then))
            return None
        problem = successors.write_down(self.run_dir, made, self.job_id)
        if problem:
            self._say("warning", "warning: " + problem)
        self._say("successor", "job %s is submitted to take over" % made.job_id, job=made.job_id)
        return made.job_id

    def _has_failed(self, successor: str) -> bool:
        word = ask_slurm(successor)
        if word is None or word.state in LIVE:
            return False
        # Somebody did not want it.
        self.hopeless = self.hopeless or word.state == "CANCELLED"
        self._say("successor-failed", "job %s, which was to take over, is %s" % (successor, word.state), job=successor)
        return True

    def _await_quiet(self, until: float) -> None:
        """Wait until clients have gone to the new job, or `until`."""
        begun, seen = time.monotonic(), self.traffic
        while time.time() < until and not self.over:
            if seen is not None and seen.counted and time.monotonic() - max(begun, seen.last) >= QUIET_S:
                return
            time.sleep(POLL_S / 4)
