"""The node agent: sees which engine process on this node ends first and how, stops ranks in order, cleans up.

It runs in a step of its own, since PMIx kills a whole server step about a second after one rank goes, wrappers write
nothing then, and the order in which srun names tasks is no evidence. It judges nothing: that is the head's part.
"""

import os
import select
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from . import beats, cgroups, clocks, complaints, gpus, journal, leftovers, processes, regions, wrapper, writer

SCAN_FAST_S = 0.2
SCAN_SLOW_S = 1.0
SAMPLE_S = 10.0
GROWTH, GROWTH_MIB = 1.5, 256.0
"""A rank whose memory has grown by more than this since the last sample is sampled at once."""
BEAT_S = 2.0
"""How often the head hears from the agent; beats go through srun's pipe alone, never to the file system."""
FIRST_SAMPLE_S = 1.0
CLEAN_S = 10.0
YOUNG_S = 5.0
SERVER = "tritonserver"
PORT_OF = {"http": "kserve-http-port", "grpc": "kserve-grpc-port", "metrics": "openai-port"}
"""Options of the OpenAI-compatible front end, which stands in for tritonserver (server/python/openai/README.md)."""
EAGER_S = 60.0
"""How long after the last new process the agent looks for further ones at the fast pace."""


class Options(NamedTuple):
    """What the job's script tells the agent."""

    attempt_dir: str
    tag: str
    ranks: int
    local_dir: str
    stop_s: float
    kill_wait_s: float
    clocks: str = ""


class Agent:
    """One node's agent; `run` returns once it was told to leave and everything of the run is gone."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.node = processes.node_name()
        self.writer = writer.Writer(os.path.join(options.attempt_dir, "journal", "%s.jsonl" % self.node))
        self.watched: Dict[int, processes.Found] = {}
        self.seen: Dict[int, float] = {}
        self.completing: Set[int] = set()
        self.trackers: Set[int] = set()
        self.handles: Dict[int, int] = {}
        self.foreign: Set[int] = set()
        self.loaded: Set[int] = set()
        self.mapped: Set[str] = set()
        self.poller = select.poll()
        # USR1: stop in order. USR2: something failed, make an end. INT: every server step has ended, leave.
        # TERM: Slurm ends the job and sends KILL after KillWait; nobody may be there to say INT.
        self.limits = {
            int(signal.SIGUSR1): ("order", options.stop_s),
            int(signal.SIGUSR2): ("end", 2.0),
            int(signal.SIGINT): ("leave", 2.0),
            int(signal.SIGTERM): ("slurm", max(1.0, options.kill_wait_s - 3.0)),
        }
        self.stopping = ""
        self.leaving = False
        self.ending = False
        self.term_told = False
        self.deadline = 0.0
        self.told: Set[int] = set()
        self.mains: Set[int] = set()
        self.have_main: Set[int] = set()
        self.leader_left = False
        self.unwritten = False
        self.kills = cgroups.Kills()
        self.sampled: Dict[int, float] = {}
        self.listener = complaints.Listener()
        self.gpus = gpus.Watcher(self.poller, self.node)
        self.locking: Optional[threading.Thread] = None
        self.last_new = self.next_beat = time.monotonic()

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one record to the journal, and to standard output, where the head reads it at once."""
        item = journal.record(kind, node=self.node, **fields)
        if kind == journal.SAMPLE:
            # In a file of their own: what is told seldom is then read without them.
            journal.append(journal.samples_path(self.writer.path), item)
        elif not self.writer.write(item) and not self.unwritten:
            self.unwritten = True
            text = "node %s cannot write to %s: %s" % (self.node, self.writer.path, self.writer.trouble)
            self._tell(journal.record("warning", text=text))
        self._tell(item)

    def _tell(self, item: journal.Record) -> None:
        try:
            # srun passes on what many nodes write in pieces: one that comes between must not spoil the next record.
            os.write(1, journal.line(item) + b"\n")
        except OSError:
            # The head is gone; the journal on disk remains.
            pass

    def run(self) -> int:
        """Watch until told to stop, then stop, clean up and return 0."""
        self._listen()
        removed = leftovers.sweep(self.options.local_dir, self.options.tag)
        free = processes.shm_free_mib()
        self.emit("hello", step=os.environ.get("SLURM_STEP_ID", ""), pid=os.getpid(), swept=removed, shm_free_mib=free)
        self.gpus.start()
        if self.options.clocks:
            self.locking = clocks.lock_aside(self.options.clocks, self._tell_clocks)
        beats.keep_up(lambda: self.next_beat, self._tell_alive, BEAT_S)
        next_sample = float("inf")
        while not self._finished():
            if time.monotonic() >= self.next_beat:
                self._beat()
            self._scan()
            self._look_for_loaded()
            for said in self.listener.news(self.options.attempt_dir, set(self._ranks().values())):
                self.emit("complaint", rank=said.rank, text=said.text)
            if self.stopping:
                self._stop()
            if self.ending and not self.term_told:
                self.term_told = True
                self.emit("term")
            if next_sample == float("inf") and len(self.mains) >= self.options.ranks:
                next_sample = time.monotonic() + FIRST_SAMPLE_S
            if time.monotonic() >= next_sample:
                self._sample()
                next_sample = time.monotonic() + SAMPLE_S
                self._look_for_result()
            self._wait()
            self._hear_of_gpus()
        self._bye()
        return 0

    def _look_for_result(self) -> None:
        """Leave once the attempt has its result: this node was cut off, and nobody could say so."""
        job_dir, name = os.path.split(self.options.attempt_dir)
        if not self.stopping and os.path.exists(os.path.join(job_dir, "result.%s.json" % name.rpartition("-")[2])):
            self._note(signal.SIGINT, None)

    def _listen(self) -> None:
        for number in self.limits:
            signal.signal(number, self._note)
        # A head that has gone must not end the agent.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        self.poller.register(reader, select.POLLIN)
        self.wakeup = reader

    def _note(self, number: int, _frame: Any) -> None:
        how, seconds = self.limits[number]
        deadline = time.monotonic() + seconds
        self.leaving = self.leaving or how == "leave"
        self.ending = self.ending or how == "slurm"
        if not self.stopping or deadline < self.deadline:
            self.stopping, self.deadline = how, deadline

    def _finished(self) -> bool:
        """Tell whether the agent may go: ranks that it was to stop may still be on their way into being."""
        if not self.stopping or self.watched:
            return False
        late = time.monotonic() >= self.deadline
        if not (self.leaving or (self.ending and (late or len(self.have_main) >= self.options.ranks))):
            return False
        self._scan()
        return not self.watched

    def _scan(self) -> None:
        current = processes.pids()
        found = processes.find(self.options.tag, self.node, current - self.foreign - set(self.watched))
        ours = {item.pid for item in found}
        # A process between fork and exec still shows its parent's environment: look at young ones again.
        self.foreign = (self.foreign & current) | {p for p in current - ours - set(self.watched) if self._settled(p)}
        for item in sorted(found):
            # rank.sh gives its engine a process group of its own, so the engine itself leads one.
            self._watch(item, main=item.group == item.pid and item.rank not in self.have_main)
        # Its name is not its own before exec, and its words are gone with its end: ask while it is young.
        young = [pid for pid in self.watched if time.monotonic() - self.seen[pid] < YOUNG_S]
        self.completing |= {pid for pid in young if processes.completes_config(pid)}
        self.trackers |= {pid for pid in young if processes.tracks_resources(pid)}

    def _settled(self, pid: int) -> bool:
        return pid in self.foreign or processes.age(pid) > YOUNG_S

    def _watch(self, item: processes.Found, main: bool) -> None:
        self.watched[item.pid] = item
        self.seen[item.pid] = time.monotonic()
        if main:
            self.mains.add(item.pid)
            self.have_main.add(item.rank)
        self.last_new = time.monotonic()
        self.kills.watch(item.pid)
        handle = _open_pidfd(item.pid)
        if handle is not None:
            self.handles[handle] = item.pid
            self.poller.register(handle, select.POLLIN)
        fields: Dict[str, Any] = {"rank": item.rank, "pid": item.pid, "name": item.name, "main": main}
        if main:
            fields.update(wrapper.start_of(self.options.attempt_dir, item.rank))
        if main and item.role == "leader":
            given = processes.arguments(item.pid)
            fields["ports"] = {name: given.get(PORT_OF[name], given.get("%s-port" % name)) for name in PORT_OF}
            fields["address"] = given.get("http-address", given.get("host", "0.0.0.0"))
        self.emit("found", **fields)

    def _mains(self) -> List[processes.Found]:
        return [item for pid, item in self.watched.items() if pid in self.mains]

    def _look_for_loaded(self) -> None:
        loading = [item for item in self._mains() if item.pid not in self.loaded]
        if loading:
            regions.close(self.options.tag)
        for item in loading:
            if processes.handles_term(self._server(item).pid):
                self.loaded.add(item.pid)
                self._remember_files()
                self.emit("loaded", rank=item.rank, pid=item.pid)

    def _server(self, main: processes.Found) -> processes.Found:
        """Return the process that is the rank's server: the engine itself, or what a launcher has started as told."""
        if processes.name_of(main.pid) == SERVER:
            return main
        others = [item for item in self.watched.values() if item.rank == main.rank and item.pid != main.pid]
        return next((item for item in others if "model-repository" in processes.arguments(item.pid)), main)

    def _remember_files(self) -> None:
        for pid in self.watched:
            self.mapped |= processes.shared_files(pid)
        regions.close(self.options.tag, self.mapped)

    def _sample(self) -> None:
        self._remember_files()
        ranks: Dict[str, Dict[str, Any]] = {}
        for pid, item in self.watched.items():
            # A process may call itself something better than what it was started as: VLLM::EngineCore.
            self.watched[pid] = item._replace(name=processes.name_of(pid) or item.name)
            total = ranks.setdefault(str(item.rank), {"rss_mib": 0.0, "cpu_s": 0.0})
            seen = processes.usage(item.pid)
            total["rss_mib"] = round(total["rss_mib"] + seen.rss_mib, 1)
            total["cpu_s"] = round(total["cpu_s"] + seen.user_s + seen.system_s, 1)
        look = self.gpus.look(self._ranks())
        found = gpus.shares(look, self._ranks())
        for rank, share in found.items():
            ranks.setdefault(str(rank), {}).update(gpus.in_sample(share))
        for text in self.gpus.complaints(found):
            self.emit("warning", text=text)
        self.sampled = {int(rank): total["rss_mib"] for rank, total in ranks.items()}
        self.emit("sample", ranks=ranks, shm_free_mib=processes.shm_free_mib(), **gpus.sampled(look))

    def _ranks(self) -> Dict[int, int]:
        return {pid: item.rank for pid, item in self.watched.items()}

    def _hear_of_gpus(self) -> None:
        for item in self.gpus.take(self._ranks()):
            self.emit(**item)

    def _beat(self) -> None:
        ranks = beats.of_ranks(self.watched.values(), self.mains)
        memory = {int(rank): float(own["m"]) for rank, own in ranks.items()}
        if any(total > self.sampled.get(rank, total) * GROWTH + GROWTH_MIB for rank, total in memory.items()):
            # Whoever kills the rank will not wait for the next sample.
            self._sample()
        for rank, own in ranks.items():
            path = os.path.join(self.options.attempt_dir, "rank-%s.log" % rank)
            own["log"] = journal.size(path)
        self._tell_alive(ranks)
        self.next_beat = time.monotonic() + BEAT_S

    def _tell_alive(self, ranks: Dict[str, beats.Beat]) -> None:
        self._tell(journal.record("beat", node=self.node, ranks=ranks, at=round(time.monotonic(), 3)))

    def _wait(self) -> None:
        eager = self.stopping or time.monotonic() - self.last_new < EAGER_S or len(self._mains()) < self.options.ranks
        without_pidfd = len(self.handles) < len(self.watched)
        pause = SCAN_FAST_S if eager or without_pidfd else SCAN_SLOW_S
        for handle, _ in self.poller.poll(pause * 1000):
            if handle == self.wakeup:
                try:
                    os.read(self.wakeup, 4096)
                except OSError:
                    pass
            elif handle in self.handles:
                self._ended(self.handles[handle])
        if without_pidfd:
            for pid in [pid for pid in self.watched if not processes.alive(pid)]:
                self._ended(pid)

    def _ended(self, pid: int) -> None:
        how = processes.ended_how(pid)
        # A process found between fork and exec still bore its parent's name.
        name = processes.name_of(pid) or self.watched[pid].name
        when = time.time()
        main = pid in self.mains
        item = self.watched.pop(pid)
        self.leader_left |= main and item.role == "leader"
        for handle in [handle for handle, owner in self.handles.items() if owner == pid]:
            self.poller.unregister(handle)
            os.close(handle)
            del self.handles[handle]
        oom = how in (None, "signal SIGKILL") and self.kills.took(pid)
        if how is None and main:
            how = wrapper.exit_words(self.options.attempt_dir, item.rank)
        self.emit(
            "ended",
            rank=item.rank,
            pid=pid,
            name=name,
            main=main,
            how=how,
            lived_s=round(time.monotonic() - self.seen.pop(pid), 1),
            loaded=pid in self.loaded,
            asked=bool(self.stopping),
            at=round(when, 3),
            **({"oom": True} if oom else {}),
            **({"helper": True} if pid in self.completing else {}),
            **({"tracker": True} if pid in self.trackers else {}),
        )

    def _stop(self) -> None:
        self._remember_files()
        late = time.monotonic() >= self.deadline
        for item in list(self.watched.values()):
            if late:
                _send(item.pid, signal.SIGKILL)
            elif item.pid not in self.told and item.pid in self.mains and self._may_be_told(item):
                self.told.add(item.pid)
                _send(self._server(item).pid, signal.SIGTERM)

    def _may_be_told(self, item: processes.Found) -> bool:
        # A worker leaves initialize when its leader's finalize releases it. SIGTERM before that kills it, and the
        # leader then waits in MPI_Finalize until its exit timeout.
        return self.stopping in ("end", "leave") or item.role != "worker" or item.pid in self.loaded or self.leader_left

    def _tell_clocks(self, wrong: str) -> None:
        if wrong:
            self.emit("warning", text="GPU clocks of node %s are not locked: %s" % (self.node, wrong))
        else:
            self.emit("clocks", locked=self.options.clocks)

    def _bye(self) -> None:
        self._hear_of_gpus()
        self.gpus.stop()
        removed = leftovers.remove(self.options.tag, self.options.local_dir, self.mapped)
        if self.locking is not None:
            self.locking.join()
            wrong = clocks.reset()
            if wrong:
                self.emit("warning", text="GPU clocks of node %s are not given back: %s" % (self.node, wrong))
        self.emit("bye", removed=removed)


def _open_pidfd(pid: int) -> Optional[int]:
    opener: Optional[Callable[[int], int]] = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return opener(pid)
    except OSError:
        return None


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def clean(tag: str, local_dir: str, locked: str) -> int:
    """End what is left of a run on this node and remove its leftovers, in place of an agent that is gone."""
    node, mapped = processes.node_name(), set()
    deadline = time.monotonic() + CLEAN_S
    found = processes.find(tag, node, processes.pids())
    while found and time.monotonic() < deadline:
        for item in found:
            mapped |= processes.shared_files(item.pid)
            _send(item.pid, signal.SIGKILL)
        time.sleep(0.1)
        found = processes.find(tag, node, processes.pids())
    leftovers.remove(tag, local_dir, mapped)
    if locked:
        clocks.reset()
    return 0


def main(options: Options) -> int:
    """Run the node agent of this node."""
    os.umask(0o077)
    sys.stdin.close()
    return Agent(options).run()
