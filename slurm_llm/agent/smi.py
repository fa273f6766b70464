"""The same figures from nvidia-smi, for a node where its library cannot be loaded: slow, so asked rarely."""

import re
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional, Sequence

from .journal import Record, record

LIMIT_S = 20
AGAIN_S = 60.0
GPUS = "index,uuid,name,pci.bus_id,memory.total,memory.used,utilization.gpu"
PROCESSES = "pid,gpu_uuid,used_memory"

_PCI = re.compile(r"([0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.")


def rows(text: str, fields: int) -> List[List[str]]:
    """Return the rows of `--format=csv,noheader,nounits` that have so many fields."""
    split = ([word.strip() for word in row.split(",")] for row in text.splitlines())
    return [row for row in split if len(row) == fields]


def number(text: str) -> Optional[int]:
    """Return a figure; None for `[N/A]` and the like."""
    return int(text) if text.isdigit() else None


def inventory(gpus: str) -> Record:
    """Return the record of what does not change, from the table of `GPUS`."""
    found = [
        {"gpu": int(row[0]), "uuid": row[1], "name": row[2], "pci": pci(row[3]), "total_mib": number(row[4]) or 0}
        for row in rows(gpus, 7)
        if row[0].isdigit()
    ]
    return record("gpus", by="nvidia-smi", driver="", hidden=0, gpus=found)


def look(gpus: str, processes: str) -> Record:
    """Return the record of one look, from the tables of `GPUS` and `PROCESSES`."""
    table = [row for row in rows(gpus, 7) if row[0].isdigit()]
    by_uuid = {row[1]: row[0] for row in table}
    used: Dict[str, Dict[str, Optional[int]]] = {}
    for pid, uuid, mib in rows(processes, 3):
        if uuid in by_uuid and pid.isdigit():
            used.setdefault(pid, {})[by_uuid[uuid]] = number(mib)
    return record("look", gpus={row[0]: [number(row[5]) or 0, number(row[6])] for row in table}, pids=used)


def pci(text: str) -> str:
    """Return `0000:3b:00` for `00000000:3B:00.0`, as the kernel's log has it."""
    match = _PCI.search(text)
    return ":".join(match.groups()).lower() if match else text


class Smi:
    """nvidia-smi in place of the library; no Xid and no slices are known then."""

    def __init__(self) -> None:
        """Find the program.

        Raises:
            OSError: there is none.
        """
        if shutil.which("nvidia-smi") is None:
            raise OSError("no nvidia-smi")
        self._last: Optional[Record] = None
        self._asked = 0.0

    def inventory(self, _only: Sequence[str] = ()) -> Record:
        """Return the record of what does not change, of all GPUs."""
        return inventory(_output("--query-gpu=" + GPUS))

    def look(self) -> Record:
        """Return the record of one look, which may be a minute old."""
        if self._last is None or time.monotonic() - self._asked >= AGAIN_S:
            self._last = look(_output("--query-gpu=" + GPUS), _output("--query-compute-apps=" + PROCESSES))
            self._asked = time.monotonic()
        return self._last

    def listen(self, tell: Any) -> None:
        """Tell of nothing."""


def _output(query: str) -> str:
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
