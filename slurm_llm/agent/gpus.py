"""The node's GPUs, for its agent: what they hold, which ranks use them, and their errors. Judges nothing.

A process of its own asks the driver (`gpuwatch`). Without a driver there is none, and nothing is said.
"""

import os
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from . import journal, xids

CONTROL = "/dev/nvidiactl"
"""The driver's own device; where it is missing there is no NVIDIA GPU to speak of."""
PATIENCE_S = 0.3
SILENT_S = 20.0
READ = 65536


class Look(NamedTuple):
    """One look: by GPU its MiB in use and how busy it is in percent; by process its MiB on each GPU.

    None is what the driver does not tell.
    """

    gpus: Dict[int, Tuple[int, Optional[int]]]
    processes: Dict[int, Dict[int, Optional[int]]]


class Share(NamedTuple):
    """What a rank's processes use: MiB on all their GPUs, how busy those are on average, and which they are."""

    mib: int
    util: Optional[int]
    gpus: Tuple[int, ...]


NOTHING = Look({}, {})


def look_in(item: journal.Record) -> Look:
    """Return the look that a record of `gpuwatch` tells of."""
    return Look(
        {int(gpu): (int(own[0]), own[1]) for gpu, own in item["gpus"].items()},
        {int(pid): {int(gpu): mib for gpu, mib in own.items()} for pid, own in item["pids"].items()},
    )


def shares(look: Look, ranks: Dict[int, int]) -> Dict[int, Share]:
    """Return what each rank uses, given the rank of each process; ranks that use no GPU are left out."""
    mib: Dict[int, int] = {}
    used: Dict[int, Set[int]] = {}
    for pid, own in look.processes.items():
        if pid in ranks:
            mib[ranks[pid]] = mib.get(ranks[pid], 0) + sum(one or 0 for one in own.values())
            used.setdefault(ranks[pid], set()).update(own)
    return {rank: Share(mib[rank], _average(look, gpus), tuple(sorted(gpus))) for rank, gpus in used.items()}


def _average(look: Look, gpus: Set[int]) -> Optional[int]:
    known = [util for util in (look.gpus.get(gpu, (0, None))[1] for gpu in gpus) if util is not None]
    return round(sum(known) / len(known)) if known else None


def sampled(look: Look) -> Dict[str, Any]:
    """Return the fields that a node's sample gets: by GPU its MiB in use and percent busy; none without GPUs."""
    return {"gpus": {str(gpu): list(own) for gpu, own in look.gpus.items()}} if look.gpus else {}


def in_sample(share: Share) -> Dict[str, Any]:
    """Return the fields that a rank's part of a sample gets."""
    return {"gpu_mib": share.mib, "gpu_util": share.util, "gpus": list(share.gpus)}


def crowded(found: Dict[int, Share]) -> Dict[int, List[int]]:
    """Return the ranks of each GPU that is the only one of several ranks."""
    users = {}  # type: Dict[int, List[int]]
    for rank, own in sorted(found.items()):
        if len(own.gpus) == 1:
            users.setdefault(own.gpus[0], []).append(rank)
    return {gpu: ranks for gpu, ranks in users.items() if len(ranks) > 1}


class Watcher:
    """The agent's end of `gpuwatch`: asks for looks, and takes what is told meanwhile."""

    def __init__(self, poller: Any, node: str, silent_s: float = SILENT_S) -> None:
        """Wake up `poller` (a `select.poll`) whenever something is told; complain of a silence longer than that."""
        self._poller, self._node, self._silent_s = poller, node, silent_s
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._handle = -1
        self._torn = b""
        self._look = NOTHING
        self._asked: Optional[float] = None
        self._heard: List[journal.Record] = []
        self._faults: List[journal.Record] = []
        self._complained = False
        self._uuids: Dict[int, str] = {}
        self._users: Dict[int, Set[int]] = {}
        self._ranks: Dict[int, int] = {}
        self._wrong: Set[int] = set()
        self._crowded: Set[int] = set()

    def start(self) -> None:
        """Start to watch, where there is a driver."""
        if os.path.exists(CONTROL):
            self.start_as([sys.executable, "-I", os.path.dirname(os.path.abspath(__file__)), "gpus"])

    def start_as(self, argv: List[str]) -> None:
        """Start to watch by a program that speaks as `gpuwatch` does."""
        pipe = subprocess.PIPE
        try:
            self._child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        except OSError:
            return
        if self._child.stdout is not None:
            self._handle = self._child.stdout.fileno()
            os.set_blocking(self._handle, False)
            self._poller.register(self._handle)

    def look(self, ranks: Dict[int, int]) -> Look:
        """Return a new look, or the last one when the driver takes long; `ranks` tells the rank of each process."""
        if self._ask():
            deadline = time.monotonic() + PATIENCE_S
            while self._asked is not None and self._child is not None and time.monotonic() < deadline:
                time.sleep(0.005)
                self._read()
        self._note_users(ranks)
        return self._look

    def complaints(self, found: Dict[int, Share]) -> List[str]:
        """Return a sentence on each GPU that several ranks use and no other one; once."""
        new = {gpu: ranks for gpu, ranks in crowded(found).items() if gpu not in self._crowded}
        self._crowded |= set(new)
        return [
            "ranks %s on node %s all use GPU %d (%s) and no other"
            % (", ".join(map(str, ranks)), self._node, gpu, self._uuids.get(gpu, "UUID unknown"))
            for gpu, ranks in sorted(new.items())
        ]

    def _note_users(self, ranks: Dict[int, int]) -> None:
        for rank, own in shares(self._look, ranks).items():
            for gpu in own.gpus:
                self._users.setdefault(gpu, set()).add(rank)

    def _ask(self) -> bool:
        """Ask for a look; False where nobody is there, or still owes one."""
        if self._child is None or self._child.stdin is None or self._asked is not None:
            return False
        try:
            os.write(self._child.stdin.fileno(), b"\n")
        except OSError:
            return False
        self._asked = time.monotonic()
        return True

    def take(self, ranks: Dict[int, int]) -> List[journal.Record]:
        """Return the records for the journal that were told since the last call."""
        # Whose process it was is asked after its end too.
        self._ranks.update(ranks)
        self._read()
        if self._faults:
            # The processes may still be there.
            self.look(ranks)
            faults, self._faults = self._faults, []
            for item in faults:
                self._tell_fault(item)
        late = self._asked is not None and time.monotonic() - self._asked > self._silent_s
        if late and not self._complained:
            self._complained = True
            self._look = NOTHING
            what = "the GPU driver of node %s has not answered for %d s: no figures of its GPUs"
            self._warn(what % (self._node, self._silent_s))
        heard, self._heard = self._heard, []
        return heard

    def stop(self) -> None:
        """End the watch; who hangs in the driver is not waited for."""
        if self._child is not None:
            self._child.kill()
            self._forget()

    def _read(self) -> None:
        if self._child is None:
            return
        try:
            data = os.read(self._handle, READ)
        except OSError:
            return
        if not data:
            self._forget()
            return
        *rows, self._torn = (self._torn + data).split(b"\n")
        for item in filter(None, map(journal.parse_line, rows)):
            self._hear(item)

    def _forget(self) -> None:
        child, self._child, self._asked, self._look = self._child, None, None, NOTHING
        self._poller.unregister(self._handle)
        if child is not None:
            for pipe in filter(None, (child.stdin, child.stdout)):
                pipe.close()
            try:
                child.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                pass

    def _hear(self, item: journal.Record) -> None:
        if item["kind"] == "look":
            self._asked, self._look = None, look_in(item)
            lost = {int(gpu): code for gpu, code in item.get("errors", {}).items() if int(gpu) not in self._wrong}
            self._wrong.update(lost)
            self._faults += [{"kind": "gpu", "gpu": gpu, "error": code} for gpu, code in sorted(lost.items())]
            return
        if item["kind"] == "xid":
            self._faults.append(item)
            return
        self._uuids = {int(own["gpu"]): str(own["uuid"]) for own in item.get("gpus", [])}
        self._heard.append(item)
        for own in item.get("gpus", []):
            if own.get("remap"):
                what = "waits for a reset to replace" if own["remap"] == "pending" else "could not replace"
                self._warn("GPU %d of node %s %s a bad piece of its memory" % (own["gpu"], self._node, what))

    def _tell_fault(self, item: journal.Record) -> None:
        gpu, pid = item.get("gpu"), item.get("pid")
        known = gpu if isinstance(gpu, int) else -1
        ranks = {self._ranks[pid]} if pid in self._ranks else self._users.get(known, set())
        fields: Dict[str, Any] = {"uuid": self._uuids.get(known, ""), "ranks": sorted(ranks)}
        (own,) = xids.faults([dict(item, node=self._node, t=time.time(), **fields)])
        if self._is_anothers(own):
            fields["other"] = True
        else:
            self._warn(own.describe())
        self._heard.append(dict(item, **fields))

    def _is_anothers(self, own: xids.Fault) -> bool:
        """Tell whether an error is that of another job: its process is, or none of ours uses that GPU."""
        if own.pid is not None and own.pid not in self._ranks and own.whose == xids.PROGRAM:
            return True
        return bool(self._users) and not own.ranks

    def _warn(self, text: str) -> None:
        self._heard.append({"kind": "warning", "text": text})
