"""The head: reads the node agents' records, probes the leaders, decides the run's state, and has the job ended.

It runs beside the job's script on the first node, its standard input the agents' step. The script speaks to it through
its own journal, `job.jsonl`: a note to stop, and one that every server step has ended.
"""

import json
import os
import signal
import time
from typing import Any, Dict, List, Optional

from . import (
    client,
    diary,
    exporter,
    fold,
    front,
    inbox,
    journal,
    keys,
    nodes,
    orders,
    probe,
    prober,
    service,
    stagewatch,
    watchdog,
    writer,
)

TICK_S = 0.2
LOOK_S = 0.5
"""Between two looks at all ranks: the beats of many nodes wake the head far more often."""
SETTLE_S = 0.3
"""How long after the first end other nodes' reports are awaited, so that the earliest one is named."""
COMPLAINT_S = 1.2
"""How long a rank whose model failed has for an end of its own, which says more."""
GIVE_UP_S = 5.0
"""How long the agents of the living nodes have for an end, once another node is lost."""
AGENTS_S = 15.0
"""How long beyond Triton's exit timeout the agents may take to end."""


class Head(diary.Diary):
    """One attempt's head; `run` returns 0 when the agents have gone."""

    def __init__(self, run_dir: str, attempt_dir: str) -> None:
        with open(os.path.join(run_dir, "plan.json")) as stream:
            self.plan: Dict[str, Any] = json.load(stream)
        self.attempt_dir = attempt_dir
        self.parent = os.getppid()
        super().__init__(os.path.join(attempt_dir, "journal", "head.jsonl"))
        self.ranks = len(self.plan["ranks"])
        self.instance_of = {item["leader"]: item["index"] for item in self.plan["instances"]}
        self.script = inbox.Script(os.path.join(attempt_dir, "journal", "job.jsonl"))
        self.pipe = inbox.Pipe()
        limits = {name: float(self.plan["limits"][name]) for name in watchdog.Limits._fields}
        self.watchdog = watchdog.Watchdog(watchdog.Limits(**limits), watchdog.members_of(self.plan))
        self.alive = nodes.Nodes(os.path.join(attempt_dir, "agents.log"))
        self.gave_up = False
        self.give_up_at: Optional[float] = None
        self.complaint: Optional[journal.Record] = None
        self.complained_at = 0.0
        self.order: Optional[str] = None
        self.front = front.Front(self.plan, attempt_dir)
        self.client = client.Client(self.plan, run_dir, attempt_dir, self.note)
        self.staging = stagewatch.StageWatch(self.plan, self.note, writer.say)
        asked = self.plan["server"]["model_name"], self.plan["probe"]
        self.prober = prober.Prober(*asked, self.watchdog.limits, keys.headers(attempt_dir))
        job = os.environ.get("SLURM_JOB_ID", "")
        self.steps = orders.Steps(job, int(self.plan["allocation"]["nodes"]))
        self.service = service.Service(self.plan, run_dir, job, service.Voice(self.parent, self.note, writer.say))
        self.prober.traffic = self.service.traffic
        self.last_answer = "none"
        seen = exporter.Sources(lambda: self.state, self.records, self.prober.leaders, self.alive)
        self.exporter = exporter.Exporter(self.plan, run_dir, attempt_dir, seen)
        self.failed_at: Optional[float] = None
        self.end_seen = False
        self.failed = False
        self.finished = False
        self.finished_at: Optional[float] = None
        self.asked = ""
        self.started = time.monotonic()
        self.looked_at = 0.0

    def run(self) -> None:
        """Follow the attempt until the agents' step has closed its output."""
        # Slurm ends a job by TERM to all of its processes: the script's note says so, the head must live to act on it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self.set_state("STARTING")
        self.front.exporter = self.exporter.start(self.note)
        lacks = self.front.lacks() or self.client.lacks()
        if lacks:
            self._fail(lacks)
        while self._read() and not self._overdue():
            self._forgive()
            self._read_script()
            self._take_answers()
            self._judge()
            self._look_for_hangs()
            self._watch_nodes()
            self._heed_service()
            self._heed_client()
            self._give_order()
            self.mend()
        self.client.close()
        self.front.close()
        self.service.settle()
        self._heed_service()
        if not self.finished and not self.asked:
            self.set_state("FAILED", "the node agents' step ended before the server")

    def _forgive(self) -> None:
        """What nobody could hear while the head itself stood still is no silence, nor does that time count."""
        gap = max(self.alive.stood_still_s(time.monotonic()), self.staging.gone_s(time.monotonic()))
        self.started += gap
        self.watchdog.progress.forgive(gap)

    def _overdue(self) -> bool:
        """Tell whether the agents have had their time: a lost node's never answers."""
        if self.give_up_at is not None and time.monotonic() > self.give_up_at:
            self.give_up_at = None
            # The script ends its sruns, which would wait for the lost node until Slurm gives it up too.
            self.tell_script(signal.SIGHUP)
        limit = self.plan["server"]["exit_timeout_s"] + AGENTS_S
        return self.finished_at is not None and time.monotonic() - self.finished_at > limit

    def tell_script(self, number: int) -> None:
        """Signal the job's script, unless it has gone and somebody else is our parent."""
        if os.getppid() == self.parent:
            os.kill(self.parent, number)

    def _read_script(self) -> None:
        for item in self.script.read():
            self.records.append(item)
            self._heed(item)

    def _read(self) -> bool:
        found = self.pipe.read(TICK_S)
        for item in found or ():
            self._note_agent(item)
        return found is not None

    def _note_agent(self, item: journal.Record) -> None:
        if "node" not in item:
            # A note of the script that it could not write to its journal.
            self.writer.write(item)
            self._heed(item)
        if item["kind"] == "bye":
            self.alive.forget(item["node"])
        elif "node" in item:
            self.alive.heard(item["node"], time.monotonic())
        self.exporter.tally.hear(item)
        if item["kind"] in stagewatch.KINDS:
            self._heed_staging(item)
            return
        if item["kind"] == "beat":
            self.watchdog.beat(item, time.monotonic())
            return
        if item["kind"] != "sample":
            self.records.append(item)
        if item["kind"] == "hello" and item.get("step"):
            self.steps.greet(item["node"], str(item["step"]))
            lack = nodes.lack_of_room(self.plan, item)
            if lack:
                self._fail(lack, why="shm", node=item["node"])
        elif item["kind"] == "ended":
            self.end_seen = True
        elif item["kind"] == "term":
            self.service.explain()
        elif item["kind"] == "complaint" and self.complaint is None:
            self.complaint, self.complained_at = item, time.monotonic()
        elif item["kind"] == "warning":
            writer.say("slurm_llm: warning: %s" % item["text"])
        elif item["kind"] == "found":
            if self.state == "STARTING":
                self.set_state("LOADING")
            if item.get("ports"):
                self._meet(item)

    def _meet(self, item: journal.Record) -> None:
        instance = self.instance_of.get(item["rank"])
        if instance is None or instance in self.prober.leaders:
            return
        leader = probe.leader_found(instance, item)
        self.note("leader", instance=instance, node=item["node"], host=leader.host, http=leader.http)
        self.prober.follow(leader)

    def _take_answers(self) -> None:
        for said in self.prober.take():
            self.exporter.tally.answered(said)
            self.last_answer = str(said.answer.status or said.answer.body)
            if self.asked or self.failed or self.failed_at is not None:
                continue
            stall = self.watchdog.heard(said, time.monotonic())
            if stall is not None:
                self._stalled(stall)
            elif said.instance not in self.watchdog.answered:
                continue
            elif not self.prober.ailing and len(self.watchdog.answered) == len(self.plan["instances"]):
                self._serve()
            elif self.prober.ailing and self.state == "READY":
                self.set_state("DEGRADED", "leader of instance %d: %s" % sorted(self.prober.ailing.items())[0])

    def _look_for_hangs(self) -> None:
        now = time.monotonic()
        if self.asked or self.failed or self.failed_at is not None or now - self.looked_at < LOOK_S:
            return
        self.looked_at = now
        self._heed_staging()
        stall = self.watchdog.overdue(now)
        if stall is None and self.state in ("STARTING", "LOADING"):
            stall = self.watchdog.loading(now - self.started, now, self._waiting_for)
        if stall is not None:
            self._stalled(stall)

    def _heed_staging(self, item: Optional[journal.Record] = None) -> None:
        trouble = self.staging.look(item, time.monotonic())
        if trouble and not (self.asked or self.failed):
            self._fail(trouble, why="staging", node=self.staging.node)
            # The script ends what still copies.
            self.tell_script(signal.SIGUSR2)

    def _stalled(self, stall: watchdog.Stall) -> None:
        silent = self.alive.silent(time.monotonic())
        if silent is not None and stall.culprit is None:
            self._lose(silent._replace(why="its agent is silent, and %s" % stall.what))
            return
        rank = None if stall.culprit is None else stall.culprit.rank
        rates = self.watchdog.progress.told()
        self.note("stall", rank=rank, what=stall.describe(), rates=rates, refused=stall.refused)
        self._fail(stall.describe())

    def _watch_nodes(self) -> None:
        """Fail when a node is gone; the script must then give up its sruns, which wait for that node."""
        lost = self.alive.lost(time.monotonic())
        self._tell_alone(self.alive.gone_alone())
        if lost is not None and not self.gave_up:
            self._lose(lost)

    def _tell_alone(self, found: List[nodes.Lost]) -> None:
        # Nothing of the server has ended with an agent: the run goes on.
        for own in found:
            self.note("unwatched", node=own.node, since=round(time.time() - own.silent_s, 3), text=own.why)
            writer.say("slurm_llm: warning: %s" % own.why)

    def _lose(self, lost: nodes.Lost) -> None:
        self.gave_up = True
        self.note("lost", node=lost.node, silent_s=round(lost.silent_s, 1), why=lost.why)
        if not self.failed and not self.asked:
            self._fail("node %s is lost: %s" % (lost.node, lost.why))
        self.give_up_at = time.monotonic() + GIVE_UP_S

    def _serve(self) -> None:
        if self.state in ("READY", "DRAINING"):
            return
        first = self.state != "DEGRADED"
        wrong = self.front.open([leader for _, leader in sorted(self.prober.leaders.items())]) if first else ""
        if not wrong:
            self.set_state("READY")
            wrong = self.client.start(self.front.value)
        if wrong:
            self._fail(wrong)

    def _heed(self, item: journal.Record) -> None:
        if item["kind"] == "finish":
            self.finished = True
            self.finished_at = time.monotonic()
            if self.asked or self.failed:
                self.order = "INT"
            elif self.failed_at is None:
                self.failed_at = time.monotonic()
        elif item["kind"] in stagewatch.NOTES:
            self._heed_staging(item)
        elif item["kind"] == "limit":
            self.service.warn()
        elif item["kind"] == "stop" and not self.asked and not self.failed:
            why = str(item["why"])
            self._stop(why, "the time limit is near" if why == "time limit" else "asked to stop")
            self.service.explain()

    def _stop(self, why: str, text: str) -> None:
        self.asked = why
        self.prober.close()
        self.service.leave()
        self.client.tell()
        self.set_state("DRAINING", text)
        self.order = "USR1"

    def _heed_service(self) -> None:
        for order in self.service.orders(self.state):
            if self.asked or self.failed or self.finished:
                continue
            if not order.stop:
                self.set_state("DRAINING", order.text)
                continue
            self._end_by_itself(order.stop, order.text)

    def _end_by_itself(self, why: str, text: str) -> None:
        self.note("stop", why=why)
        self._stop(why, text)
        # The script must know too: it starts no server again.
        self.tell_script(signal.SIGTERM)

    def _heed_client(self) -> None:
        now = time.monotonic()
        self.client.look(now)
        end = self.client.news(now)
        if end is not None and not (self.asked or self.failed or self.finished or self.failed_at is not None):
            self._end_by_itself(end.describe(), end.describe())

    def _judge(self) -> None:
        if self.asked or self.failed:
            return
        now = time.monotonic()
        if self.failed_at is None:
            ended = self.front.ended()
            if ended:
                self._fail(ended)
            elif self._rank_has_ended():
                self.failed_at = now
            elif self.complaint is not None and now - self.complained_at >= COMPLAINT_S:
                self._fail(fold.describe_complaint(self.complaint))
        elif now - self.failed_at >= SETTLE_S:
            self._tell_alone(self.alive.gone_alone(now))
            facts = fold.fold(journal.in_order(self.records), self.ranks)
            self._fail(fold.first_words(facts, self.records) or "the server's step ended by itself")

    def _rank_has_ended(self) -> bool:
        """Tell whether a process that ended since the last look was a rank's; the fold is only worth it then."""
        seen, self.end_seen = self.end_seen, False
        return seen and fold.first_end(self.records, None) is not None

    def _waiting_for(self) -> str:
        return fold.waiting_for(fold.fold(self.records, self.ranks), self.last_answer)

    def _fail(self, reason: str, **more: Any) -> None:
        self.failed = True
        self.service.leave()
        self.client.tell()
        self.set_state("FAILED", reason, **more)
        self.order = "INT" if self.finished else "USR2"

    def _give_order(self) -> None:
        """Signal the agents' step; they stop the ranks on their nodes, clean up and end."""
        for text in self.steps.troubles():
            self.note("warning", text=text)
        if self.order is None or (self.order == "USR1" and self.client.leaving()):
            return
        if self.steps.give(self.order, time.monotonic() - self.started):
            self.order = None


def main(run_dir: str, attempt_dir: str) -> int:
    """Run the head of one attempt."""
    os.umask(0o077)
    script, head = os.getppid(), None
    try:
        head = Head(run_dir, attempt_dir)
        head.run()
    finally:
        if head is not None:
            head.client.close()
            head.front.close()
        if (head is None or not head.finished) and os.getppid() == script:
            # Nobody would see a rank die now: the job's script ends the servers.
            os.kill(script, signal.SIGUSR2)
    # A probe that hangs in its thread must not hold up the job's end.
    os._exit(0)
