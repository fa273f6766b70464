"""Whether the kernel killed a process for want of memory in its control group. Decides nothing.

Kernel documentation, admin-guide/cgroup-v2 (`memory.events`) and cgroup-v1/memory (`memory.oom_control`): `oom_kill`
counts the processes of a group that were killed so.
"""

import os
from typing import Dict

ROOT = "/sys/fs/cgroup"


def counter_of(pid: int, root: str = ROOT) -> str:
    """Return the file that counts such kills in the group of `pid`, empty where there is none."""
    try:
        with open("/proc/%d/cgroup" % pid) as stream:
            rows = [row.rstrip("\n").split(":", 2) for row in stream]
    except OSError:
        return ""
    candidates = []
    for _, controllers, path in rows:
        if "memory" in controllers.split(","):
            candidates.append(os.path.join(root, "memory", path.lstrip("/"), "memory.oom_control"))
        elif not controllers:
            candidates.append(os.path.join(root, path.lstrip("/"), "memory.events"))
    return next((path for path in candidates if os.access(path, os.R_OK)), "")


def kills(counter: str) -> int:
    """Return how many processes have been killed by that counter; 0 when it cannot be read."""
    try:
        with open(counter) as stream:
            rows = [row.split() for row in stream]
    except (OSError, UnicodeDecodeError):
        return 0
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == "oom_kill"), 0)


class Kills:
    """Tells of each process that has ended whether its group's counter has grown since it was first seen."""

    def __init__(self) -> None:
        self.counters: Dict[int, str] = {}
        self.before: Dict[str, int] = {}

    def watch(self, pid: int) -> None:
        """Remember the group of a process."""
        counter = counter_of(pid)
        if counter:
            self.counters[pid] = counter
            self.before.setdefault(counter, kills(counter))

    def took(self, pid: int) -> bool:
        """Tell, once for each kill, whether one may have been that of `pid`, which has ended."""
        counter = self.counters.pop(pid, "")
        if not counter or kills(counter) <= self.before[counter]:
            return False
        self.before[counter] += 1
        return True
