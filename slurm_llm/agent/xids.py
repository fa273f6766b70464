"""What NVIDIA's Xid numbers mean, and which of a run's GPU errors are the cause of its end. Pure."""

from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from .journal import Record
from .known import Known

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
SOURCE_NVML = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html"

PROGRAM, HARDWARE, EFFECT, NOTICE = "program", "hardware", "effect", "notice"

BEFORE_S = 30.0
"""How long before the end of a process its GPU's error may have been the cause of it."""
AFTER_S = 3.0
"""The driver reports an error after the program has run into it, and the agent hears of it a moment later."""


class Meaning(NamedTuple):
    """What an Xid says in words, and whose fault it mostly is."""

    what: str
    whose: str


_NVLINK = Meaning("an error on an NVLink between GPUs", HARDWARE)

MEANINGS: Dict[int, Meaning] = {
    13: Meaning("a kernel raised an exception, mostly an access out of bounds", PROGRAM),
    31: Meaning("a kernel touched memory that is not its own", PROGRAM),
    32: Meaning("broken commands reached the GPU", PROGRAM),
    43: Meaning("a kernel failed, and the driver ended its program's work; the GPU itself is well", PROGRAM),
    44: Meaning("a fault while switching between programs", PROGRAM),
    45: Meaning("the driver cleaned up after a program that ended or another error", EFFECT),
    46: Meaning("the GPU stopped processing", HARDWARE),
    48: Meaning("memory had an error that could not be corrected", HARDWARE),
    62: Meaning("the GPU's own controller halted", HARDWARE),
    63: Meaning("a bad piece of memory is to be replaced at the next reset", NOTICE),
    64: Meaning("a bad piece of memory could not be replaced", HARDWARE),
    68: Meaning("the video decoder raised an exception", PROGRAM),
    69: Meaning("a kernel used the GPU in a way that it does not know", PROGRAM),
    74: _NVLINK,
    79: Meaning("the GPU has fallen off the bus", HARDWARE),
    92: Meaning("memory has many errors, all corrected so far", NOTICE),
    94: Meaning("memory had an error that could not be corrected; only the program that used it was ended", HARDWARE),
    95: Meaning("memory had an error that could not be corrected, and nothing on the GPU can be trusted", HARDWARE),
    109: Meaning("switching between programs took too long", HARDWARE),
    110: Meaning("a security fault of the GPU", HARDWARE),
    119: Meaning("the GPU's system processor (GSP) did not answer the driver", HARDWARE),
    120: Meaning("the GPU's system processor (GSP) failed", HARDWARE),
    121: Meaning("an error on the link between GPU and CPU", NOTICE),
    136: Meaning("an NVLink could not be set up", HARDWARE),
    137: Meaning("another GPU's access over NVLink was refused", EFFECT),
    140: Meaning("memory had an error that could not be corrected", HARDWARE),
    143: Meaning("the GPU could not be initialized", HARDWARE),
    154: Meaning("the driver says what the GPU needs to recover from another error", NOTICE),
    155: _NVLINK,
    156: Meaning("a part of the GPU is no longer used", NOTICE),
    157: Meaning("a bad part of the GPU could not be taken out of use", NOTICE),
    158: Meaning("the GPU stopped answering", HARDWARE),
    171: Meaning("memory had an error that could not be corrected", HARDWARE),
    172: Meaning("a cache had an error that could not be corrected", HARDWARE),
}
"""The numbers that a serving job meets, by NVIDIA's catalogue (`SOURCE`, of 2025-10: description and first action)."""
MEANINGS.update((number, _NVLINK) for number in range(144, 151))

_UNKNOWN = Meaning("an error that NVIDIA's catalogue explains", PROGRAM)

_REMEDIES = {
    HARDWARE: "Put node %(node)s into `exclude_nodes` and report it to the admins with the GPU and the Xid: the GPU"
    " needs a reset, the node a reboot, or the card a replacement.",
    PROGRAM: "Mostly a fault of the program: try another version of the engine or its kernels; when it always happens"
    " on GPU %(gpu)s of node %(node)s, report that node to the admins.",
    EFFECT: "Look for the error that came first, on this GPU or on its peers.",
    NOTICE: "Tell the admins of node %(node)s; nothing has to be done in the job.",
}


def meaning(xid: int) -> Meaning:
    """Return what an Xid says."""
    return MEANINGS.get(xid, _UNKNOWN)


class Fault(NamedTuple):
    """An error of a GPU, as a journal has it; `ranks` are those that used it, `xid` is None for a GPU that is lost."""

    node: str
    gpu: Optional[int]
    uuid: str
    xid: Optional[int]
    at: float
    ranks: Tuple[int, ...]
    pid: Optional[int]

    @property
    def whose(self) -> str:
        """Whose fault it mostly is."""
        return HARDWARE if self.xid is None else meaning(self.xid).whose

    def describe(self) -> str:
        """Return one sentence without its full stop."""
        gpu = "a GPU" if self.gpu is None else "GPU %d" % self.gpu
        name = " (%s)" % self.uuid if self.uuid else ""
        by = ", in process %d" % self.pid if self.pid else ""
        what = "does not answer" if self.xid is None else "reports Xid %d: %s" % (self.xid, meaning(self.xid).what)
        return "%s%s of node %s %s%s" % (gpu, name, self.node, what, by)

    def remedy(self) -> str:
        """Return what to do."""
        gpu = "?" if self.gpu is None else str(self.gpu)
        return _REMEDIES[self.whose] % {"node": self.node, "gpu": gpu}


def faults(records: Iterable[Record]) -> List[Fault]:
    """Return the GPU errors in journals, in order of time, without those of other jobs.

    One that is told twice counts once, with its process.
    """
    found: Dict[Tuple[str, Optional[int], Optional[int]], Fault] = {}
    for item in records:
        if item["kind"] not in ("xid", "gpu") or item.get("other"):
            continue
        own = _fault(item)
        key = (own.node, own.gpu, own.xid)
        before = found.get(key)
        if before is None or (before.pid is None and own.pid is not None):
            found[key] = own if before is None else own._replace(at=before.at, ranks=before.ranks or own.ranks)
    return sorted(found.values(), key=lambda own: own.at)


def _fault(item: Record) -> Fault:
    gpu, xid, pid = item.get("gpu"), item.get("xid"), item.get("pid")
    return Fault(
        node=str(item.get("node", "?")),
        gpu=gpu if isinstance(gpu, int) else None,
        uuid=str(item.get("uuid", "")),
        xid=xid if isinstance(xid, int) else None,
        at=float(item["at"] if "at" in item else item["t"]),
        ranks=tuple(item.get("ranks") or ()),
        pid=pid if isinstance(pid, int) else None,
    )


class Blame(NamedTuple):
    """What a GPU's error makes of a diagnosis; `broken` when it is the first cause."""

    fault: Fault
    broken: bool
    cause: str
    rank: Optional[int]
    node: Optional[str]
    told: Known


_PATIENT = ("hang", "not-ready")
_KINDS = _PATIENT + ("exit", "exit0", "signal", "raise", "unseen", "step", "failed", "unknown")
"""The kinds of diagnosis that a GPU's error may explain."""


def blame(
    records: Iterable[Record], kind: str, cause: str, rank: Optional[int], node: Optional[str], at: Optional[float]
) -> Optional[Blame]:
    """Return the GPU error behind a diagnosis; None where there is none.

    A broken GPU is the cause of what came after it; a program's fault on a GPU only says more of it.
    """
    own = behind(records, rank, node, at, hang=kind in _PATIENT) if kind in _KINDS else None
    if own is None:
        return None
    if own.whose == PROGRAM:
        return Blame(own, False, "%s; %s" % (cause, own.describe()), rank, node, told(own))
    mine = rank if rank in own.ranks or not own.ranks else own.ranks[0]
    mine = mine if own.ranks or own.node == node else None
    return Blame(own, True, "%s; then %s" % (own.describe(), cause), mine, own.node, told(own))


def told(own: Fault) -> Known:
    """Return what a diagnosis tells of an error."""
    name = "gpu-lost" if own.xid is None else "xid-%d" % own.xid
    return Known(name, own.describe(), own.remedy(), SOURCE, "journal/%s.jsonl" % own.node, 1)


def warnings(records: List[Record], blamed: Optional[Fault]) -> List[Known]:
    """Return what else there is to tell of GPUs: other errors, and those that were in use before the start."""
    found = [told(own) for own in faults(records) if own != blamed and (own.whose != EFFECT or blamed is None)]
    for item in records:
        for text in item.get("busy", ()) if item["kind"] == "sees" else ():
            node = item.get("node", "?")
            remedy = "Ask who computes on node %s beside the job; the admins can end what is left of other jobs." % node
            found.append(Known("gpu-in-use", "node %s: %s" % (node, text), remedy, SOURCE_NVML, "preflight.log", 1))
    return found


def behind(
    records: Iterable[Record], rank: Optional[int], node: Optional[str], at: Optional[float], hang: bool
) -> Optional[Fault]:
    """Return the GPU error behind the end of `rank` on `node` at that time, or of a run that hangs since then.

    What the driver says after another error is no cause. Hardware comes before programs, then the rank's own GPU, then
    its node's, then the earliest. A program's fault counts for its own rank or node only; a broken GPU of another rank
    makes everybody wait.
    """
    found = [own for own in faults(records) if own.whose in (HARDWARE, PROGRAM) and _in_time(own, at, hang)]
    found = [own for own in found if own.whose == HARDWARE or rank is None or _is_near(own, rank, node)]
    if not found:
        return None
    return min(found, key=lambda own: (own.whose != HARDWARE, rank not in own.ranks, own.node != node, own.at))


def _in_time(own: Fault, at: Optional[float], hang: bool) -> bool:
    return at is None or (own.at <= at + AFTER_S and (hang or own.at >= at - BEFORE_S))


def _is_near(own: Fault, rank: int, node: Optional[str]) -> bool:
    return rank in own.ranks if own.ranks else own.node == node
