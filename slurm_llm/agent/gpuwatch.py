"""The process that asks NVML for the node agent: on a sick GPU a call can hang where no signal ends it.

It speaks in journal records, one a line: `gpus` once, `look` for each line that it reads, `xid` whenever there is one.
It ends when its input does, and with the agent. A call that crashes takes nobody else along.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from . import journal, nvml, smi

WAIT_S = 5.0
SAME_S = 2.0
"""An Xid comes by NVML and, where the kernel's log may be read, by that too."""
KERNEL_LOG = "/dev/kmsg"
_DIE_WITH_PARENT = 1

T = TypeVar("T")

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d+)(?:, pid='?(\d+))?")


class Xid(NamedTuple):
    """An error that the driver reports: the GPU's index or PCI address, NVIDIA's number, the process if known."""

    gpu: Union[int, str, None]
    xid: int
    pid: Optional[int] = None


def xid_in(line: str) -> Optional[Xid]:
    """Return the Xid that a line of the kernel's log tells of."""
    match = _XID.search(line)
    if match is None:
        return None
    return Xid(match.group(1).lower(), int(match.group(2)), int(match.group(3)) if match.group(3) else None)


class Nvml:
    """NVML's answers as records. What one GPU cannot tell is left out: not every model knows everything."""

    def __init__(self) -> None:
        """Start the library.

        Raises:
            OSError: there is none.
            NvmlError: it does not answer.
        """
        self._library = nvml.Library()
        self._mine: List[int] = []

    def inventory(self, only: Sequence[str] = ()) -> journal.Record:
        """Return what does not change, of the GPUs that this process may open; `hidden` counts the others.

        `only` names some of them as CUDA_VISIBLE_DEVICES does, by index among those or by UUID.
        """
        library, hidden = self._library, 0
        found: List[Dict[str, Any]] = []
        for gpu in range(library.count()):
            uuid = _known("", library.uuid, gpu)
            if not uuid:
                hidden += 1
                continue
            found.append(self._one(gpu, uuid))
        found = [own for at, own in enumerate(found) if _is_among(only, at, own)] or found
        self._mine = [own["gpu"] for own in found]
        driver = _known("", library.driver)
        return journal.record("gpus", by="nvml", driver=driver, hidden=hidden, gpus=found)

    def _one(self, gpu: int, uuid: str) -> Dict[str, Any]:
        library = self._library
        pending, failed = _known((False, False), library.remapping, gpu)
        own: Dict[str, Any] = {
            "gpu": gpu,
            "uuid": uuid,
            "name": _known("", library.name, gpu),
            "pci": _known("", library.pci, gpu),
            "total_mib": _known((0, 0), library.memory, gpu)[1],
            "slices": library.slices(gpu),
            "uncorrected": _known(0, library.uncorrected, gpu),
            "remap": "failed" if failed else "pending" if pending else "",
        }
        return {name: value for name, value in own.items() if value or name in ("gpu", "total_mib")}

    def look(self) -> journal.Record:
        """Return what each GPU holds and does, by whom, and which do not answer; GPUs and processes as texts."""
        seen = {gpu: self._look_at(gpu) for gpu in self._mine}
        pids: Dict[str, Dict[str, Optional[int]]] = {}
        for gpu, own in seen.items():
            for one in own.processes:
                pids.setdefault(str(one.pid), {})[str(gpu)] = one.mib
        gpus = {str(gpu): (own.used_mib, own.util) for gpu, own in seen.items() if not own.error}
        errors = {str(gpu): own.error for gpu, own in seen.items() if own.error}
        return journal.record("look", gpus=gpus, pids=pids, errors=errors)

    def _look_at(self, gpu: int) -> "_Seen":
        library = self._library
        nobody: List[nvml.Process] = []
        try:
            used = library.memory(gpu)[0]
        except nvml.NvmlError as error:
            return _Seen(0, None, nobody, error.code)
        unknown: Optional[int] = None
        return _Seen(used, _known(unknown, library.utilization, gpu), _known(nobody, library.processes, gpu), 0)

    def listen(self, tell: Callable[[Xid], None]) -> None:
        """Tell of Xids, from a thread of its own."""
        try:
            self._library.listen(self._mine)
        except nvml.NvmlError:
            return
        threading.Thread(target=self._wait, args=(tell,), daemon=True).start()

    def _wait(self, tell: Callable[[Xid], None]) -> None:
        try:
            while True:
                event = self._library.wait(WAIT_S)
                if event is not None:
                    tell(Xid(event.gpu, event.xid))
        except nvml.NvmlError:
            return


def _is_among(only: Sequence[str], at: int, own: Dict[str, Any]) -> bool:
    return any(name == str(at) or own["uuid"].startswith(name) or name in own.get("slices", ()) for name in only)


class _Seen(NamedTuple):
    used_mib: int
    util: Optional[int]
    processes: List[nvml.Process]
    error: int


def _known(otherwise: T, ask: Callable[..., T], *arguments: int) -> T:
    try:
        return ask(*arguments)
    except nvml.NvmlError:
        return otherwise


class Teller:
    """Writes records to standard output; an Xid that two sources tell of is told once, or again with its process."""

    def __init__(self, inventory: journal.Record) -> None:
        self._by_pci = {own.get("pci"): own["gpu"] for own in inventory["gpus"]}
        self._lock = threading.Lock()
        self._told: Dict[Tuple[object, int], Tuple[float, Optional[int]]] = {}

    def tell(self, item: journal.Record) -> None:
        """Write a record, whole."""
        with self._lock:
            os.write(1, journal.line(item) + b"\n")

    def tell_xid(self, item: Xid) -> None:
        """Write the record of an Xid, unless it was told already."""
        gpu = self._by_pci.get(item.gpu) if isinstance(item.gpu, str) else item.gpu
        if gpu is None and isinstance(item.gpu, str):
            # Another job's, hidden from this one.
            return
        now = time.time()
        with self._lock:
            at, pid = self._told.get((gpu, item.xid), (0.0, None))
            if now - at < SAME_S and (item.pid is None or pid is not None):
                return
            self._told[gpu, item.xid] = (now, item.pid)
        fields = {"gpu": gpu, "xid": item.xid, "at": round(now, 3)}
        self.tell(journal.record("xid", **(dict(fields, pid=item.pid) if item.pid else fields)))


def _follow_kernel_log(tell: Callable[[Xid], None]) -> None:
    """Tell of the Xids that the kernel logs from now on, where an ordinary user may read its log."""
    try:
        handle = os.open(KERNEL_LOG, os.O_RDONLY)
        os.lseek(handle, 0, os.SEEK_END)
    except OSError:
        return

    def follow() -> None:
        while True:
            try:
                item = xid_in(os.read(handle, 8192).decode("utf-8", "replace"))
            except BrokenPipeError:
                # The kernel has overwritten what was not read in time.
                continue
            except OSError:
                return
            if item is not None:
                tell(item)

    threading.Thread(target=follow, daemon=True).start()


def source() -> Union[Nvml, smi.Smi, None]:
    """Return what can be asked here: NVML, else nvidia-smi, else nothing."""
    try:
        return Nvml()
    except (OSError, nvml.NvmlError):
        pass
    try:
        return smi.Smi()
    except OSError:
        return None


def main() -> int:
    """Answer until the input ends."""
    # Slurm signals every process of a step; these are meant for the agent.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    asked = source()
    if asked is None:
        return 0
    # A step that has GPUs of its job is told which; on some clusters it could open the others too.
    inventory = asked.inventory(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    teller = Teller(inventory)
    teller.tell(inventory)
    if not inventory["gpus"]:
        return 0
    asked.listen(teller.tell_xid)
    _follow_kernel_log(teller.tell_xid)
    for _ in sys.stdin:
        teller.tell(asked.look())
    sys.stdout.flush()
    # A thread that waits in the driver must not hold up the end.
    os._exit(0)
