"""The head: reads the node agents' records, probes the leaders, decides the run's state, and has the job ended.

It runs beside the job's script on the first node, its standard input the agents' step. The script speaks to it through
its own journal, `job.jsonl`: a note to stop, and one that every server step has ended.
"""

import json
import os
import select
import signal
import threading
import time
from typing import Any, Dict, List, Optional

from . import fold, front, journal, nodes, orders, probe, prober, service, watchdog, writer

TICK_S = 0.2
LOOK_S = 0.5
"""Between two looks at all ranks: the beats of many nodes wake the head far more often."""
SETTLE_S = 0.3
"""How long after the first end other nodes' reports are awaited, so that the earliest one is named."""
COMPLAINT_S = 1.2
"""How long a rank whose model failed has for an end of its own, which says more."""
HELLO_S = 10.0
GIVE_UP_S = 5.0
"""How long the agents of the living nodes have for an end, once another node is lost."""
AGENTS_S = 15.0
"""How long beyond Triton's exit timeout the agents may take to end."""


class Head:
    """One attempt's head; `run` returns 0 when the agents have gone."""

    def __init__(self, run_dir: str, attempt_dir: str) -> None:
        with open(os.path.join(run_dir, "plan.json")) as stream:
            self.plan: Dict[str, Any] = json.load(stream)
        self.attempt_dir = attempt_dir
        self.parent = os.getppid()
        self.writer = writer.Writer(os.path.join(attempt_dir, "journal", "head.jsonl"))
        self.ranks = len(self.plan["ranks"])
        self.instance_of = {item["leader"]: item["index"] for item in self.plan["instances"]}
        self.records: List[journal.Record] = []
        self.script = os.path.join(attempt_dir, "journal", "job.jsonl")
        self.script_read = 0
        self.hellos: Dict[str, str] = {}
        limits = {name: float(self.plan["limits"][name]) for name in watchdog.Limits._fields}
        self.watchdog = watchdog.Watchdog(watchdog.Limits(**limits), watchdog.members_of(self.plan))
        self.alive = nodes.Nodes(os.path.join(attempt_dir, "agents.log"))
        self.gave_up = False
        self.unsaid: List[str] = []
        self.give_up_at: Optional[float] = None
        self.complaint: Optional[journal.Record] = None
        self.complained_at = 0.0
        self.nodes = int(self.plan["allocation"]["nodes"])
        self.order: Optional[str] = None
        self.front = front.Front(self.plan, attempt_dir)
        self.prober = prober.Prober(self.plan["server"]["model_name"], self.plan["probe"], self.watchdog.limits)
        job = os.environ.get("SLURM_JOB_ID", "")
        self.service = service.Service(self.plan, run_dir, job, service.Voice(self.parent, self.note, writer.say))
        self.prober.traffic = self.service.traffic
        self.last_answer = "none"
        self.state = ""
        self.failed_at: Optional[float] = None
        self.end_seen = False
        self.failed = False
        self.finished = False
        self.finished_at: Optional[float] = None
        self.asked = ""
        self.started = time.monotonic()
        self.looked_at = 0.0
        self.torn = b""

    def note(self, kind: str, **fields: Any) -> None:
        """Write one record to the head's journal."""
        item = journal.record(kind, **fields)
        self.records.append(item)
        self.writer.write(item)

    def set_state(self, state: str, reason: str = "", **more: Any) -> None:
        """Record a change of the run's state and tell it in the job's output."""
        if state == self.state:
            return
        self.state = state
        self.note("state", state=state, reason=reason, **more)
        writer.say("slurm_llm: %s %s%s" % (time.strftime("%H:%M:%S"), state, ": " + reason if reason else ""))

    def run(self) -> None:
        """Follow the attempt until the agents' step has closed its output."""
        # Slurm ends a job by TERM to all of its processes: the script's note says so, the head must live to act on it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self.set_state("STARTING")
        lacks = self.front.lacks()
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
            self._give_order()
            self._keep_journal()
        self.front.close()
        self.service.settle()
        self._heed_service()
        if not self.finished and not self.asked:
            self.set_state("FAILED", "the node agents' step ended before the server")

    def _forgive(self) -> None:
        """What nobody could hear while the head itself stood still is no silence, nor does that time count."""
        gap = self.alive.stood_still_s(time.monotonic())
        self.started += gap
        self.watchdog.progress.forgive(gap)

    def _keep_journal(self) -> None:
        news = self.writer.mend(self.records)
        if news:
            self.note("warning", text=news)
            writer.say("slurm_llm: warning: %s" % news)

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
        try:
            size = os.stat(self.script).st_size
            if size == self.script_read:
                return
            if size < self.script_read:
                # Removed by hand, and begun anew.
                self.script_read = 0
            with open(self.script, "rb") as stream:
                stream.seek(self.script_read)
                data = stream.read()
        except OSError:
            return
        self.script_read += len(data)
        for item in journal.parse(data):
            self.records.append(item)
            self._heed(item)

    def _read(self) -> bool:
        try:
            readable, _, _ = select.select([0], [], [], TICK_S)
        except InterruptedError:
            return True
        if not readable:
            return True
        data = os.read(0, 65536)
        if not data:
            return False
        *rows, self.torn = (self.torn + data).split(b"\n")
        rows.append(self.torn)
        if journal.parse_line(self.torn) is not None:
            self.torn = b""
        for item in filter(None, map(journal.parse_line, rows)):
            self._note_agent(item)
        return True

    def _note_agent(self, item: journal.Record) -> None:
        if "node" not in item:
            # A note of the script that it could not write to its journal.
            self.writer.write(item)
            self._heed(item)
        if item["kind"] == "bye":
            self.alive.forget(item["node"])
        elif "node" in item:
            self.alive.heard(item["node"], time.monotonic())
        if item["kind"] == "beat":
            self.watchdog.beat(item, time.monotonic())
            return
        if item["kind"] != "sample":
            self.records.append(item)
        if item["kind"] == "hello" and item.get("step"):
            self.hellos[item["node"]] = str(item["step"])
            self._check_room(item)
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

    def _check_room(self, item: journal.Record) -> None:
        need = self.plan["dev_shm_mib"] * self.plan["allocation"]["ranks_per_node"]
        if item.get("shm_free_mib", need) < need:
            what = "/dev/shm of node %s has %d MiB free, %d ranks need %d MiB" % (
                item["node"],
                item["shm_free_mib"],
                self.plan["allocation"]["ranks_per_node"],
                need,
            )
            self._fail(what, why="shm", node=item["node"])

    def _meet(self, item: journal.Record) -> None:
        instance = self.instance_of.get(item["rank"])
        if instance is None or instance in self.prober.leaders:
            return
        given = item["ports"]
        host = item["node"] if item.get("address") in (None, "0.0.0.0", "::") else item["address"]
        leader = probe.Leader(instance, host, int(given["http"]), int(given["grpc"] or 0), int(given["metrics"] or 0))
        self.note("leader", instance=instance, node=item["node"], host=host, http=leader.http)
        self.prober.follow(leader)

    def _take_answers(self) -> None:
        for said in self.prober.take():
            self.last_answer = str(said.answer.status or said.answer.body)
            if self.asked or self.failed or self.failed_at is not None:
                continue
            stall = self.watchdog.heard(said, time.monotonic())
            if stall is not None:
                self._stalled(stall)
            elif said.instance not in self.watchdog.answered:
                continue
            elif said.answer.ok and len(self.watchdog.answered) == len(self.plan["instances"]):
                self._serve()
            elif not said.answer.ok and self.state == "READY":
                self.set_state("DEGRADED", "leader of instance %d: %s" % (said.instance, self.last_answer))

    def _look_for_hangs(self) -> None:
        now = time.monotonic()
        if self.asked or self.failed or self.failed_at is not None or now - self.looked_at < LOOK_S:
            return
        self.looked_at = now
        stall = self.watchdog.overdue(now)
        if stall is None and self.state in ("STARTING", "LOADING"):
            stall = self.watchdog.loading(now - self.started, now, self._waiting_for)
        if stall is not None:
            self._stalled(stall)

    def _stalled(self, stall: watchdog.Stall) -> None:
        silent = self.alive.silent(time.monotonic())
        if silent is not None and stall.culprit is None:
            self._lose(silent._replace(why="its agent is silent, and %s" % stall.what))
            return
        rank = None if stall.culprit is None else stall.culprit.rank
        rates = {
            str(key): [round(own.user, 3), round(own.system, 3), round(own.naps, 1), own.states]
            for key, own in self.watchdog.progress.rates().items()
        }
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
        if wrong:
            self._fail(wrong)
        else:
            self.set_state("READY")

    def _heed(self, item: journal.Record) -> None:
        if item["kind"] == "finish":
            self.finished = True
            self.finished_at = time.monotonic()
            if self.asked or self.failed:
                self.order = "INT"
            elif self.failed_at is None:
                self.failed_at = time.monotonic()
        elif item["kind"] == "limit":
            self.service.warn()
        elif item["kind"] == "stop" and not self.asked and not self.failed:
            why = str(item["why"])
            self._stop(why, "the time limit is near" if why == "time limit" else "asked to stop")
            self.service.explain()

    def _stop(self, why: str, text: str) -> None:
        self.asked = why
        self.service.leave()
        self.set_state("DRAINING", text)
        self.order = "USR1"

    def _heed_service(self) -> None:
        for order in self.service.orders(self.state):
            if self.asked or self.failed or self.finished:
                continue
            if not order.stop:
                self.set_state("DRAINING", order.text)
                continue
            self.note("stop", why=order.stop)
            self._stop(order.stop, order.text)
            # The script must know too: it starts no server again.
            self.tell_script(signal.SIGTERM)

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
        states = fold.fold(self.records, self.ranks).ranks.values()
        silent = [str(item.rank) for item in states if item.state == fold.WAITING]
        if silent:
            return "no engine process seen for rank %s" % ",".join(silent)
        return "every rank runs, but no generation is answered (the leader's last answer: %s)" % self.last_answer

    def _fail(self, reason: str, **more: Any) -> None:
        self.failed = True
        self.service.leave()
        self.set_state("FAILED", reason, **more)
        self.order = "INT" if self.finished else "USR2"

    def _give_order(self) -> None:
        """Signal the agents' step; they stop the ranks on their nodes, clean up and end.

        An agent that has not said hello may have no handler yet and would die of the signal: wait for all, a while.
        """
        while self.unsaid:
            self.note("warning", text=self.unsaid.pop(0))
        if self.order is None or not self.hellos:
            return
        if len(self.hellos) < self.nodes and time.monotonic() - self.started < HELLO_S:
            return
        signal_name, self.order = self.order, None
        job = os.environ.get("SLURM_JOB_ID", "")
        for step in set(self.hellos.values()):
            given = ("%s.%s" % (job, step), signal_name, self.unsaid.append)
            threading.Thread(target=orders.deliver, args=given, daemon=True).start()


def main(run_dir: str, attempt_dir: str) -> int:
    """Run the head of one attempt."""
    os.umask(0o077)
    script, head = os.getppid(), None
    try:
        head = Head(run_dir, attempt_dir)
        head.run()
    finally:
        if head is not None:
            head.front.close()
        if (head is None or not head.finished) and os.getppid() == script:
            # Nobody would see a rank die now: the job's script ends the servers.
            os.kill(script, signal.SIGUSR2)
    # A probe that hangs in its thread must not hold up the job's end.
    os._exit(0)
