"""What a node's agent tells the head of its ranks with every beat: what their processes have done so far."""

import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Set

from . import processes
from .processes import Found

Beat = Dict[str, Any]


def keep_up(due: Callable[[], float], tell: Callable[[Dict[str, Beat]], None], every_s: float) -> None:
    """Tell in the agent's place that it lives, without figures, whenever a beat is overdue; `due` is when, monotonic.

    A file system that ranks share can hold up the agent for minutes; its node is not lost.
    """

    def work() -> None:
        while True:
            time.sleep(every_s)
            if time.monotonic() - due() > every_s / 2:
                tell({})

    threading.Thread(target=work, daemon=True).start()


def of_ranks(watched: Iterable[Found], mains: Set[int]) -> Dict[str, Beat]:
    """Return for each rank `u`, `s`: CPU seconds in user and system mode; `n`: naps; `st`: a state letter a process;
    `m`: MiB of resident memory; `r`: MiB that were read. `mains` are the ids of the ranks' servers.
    """
    members: Dict[int, List[Found]] = {}
    for item in watched:
        members.setdefault(item.rank, []).append(item)
    return {str(rank): _of_rank(own, mains) for rank, own in members.items()}


def _of_rank(own: List[Found], mains: Set[int]) -> Beat:
    seen = [processes.usage(item.pid) for item in own]
    # The server's own threads nap all the time; what computes below it does not unless it waits.
    children = [item.pid for item in own if item.pid not in mains]
    return {
        "u": round(sum(one.user_s for one in seen), 2),
        "s": round(sum(one.system_s for one in seen), 2),
        "n": sum(map(processes.naps, children or [item.pid for item in own])),
        "st": "".join(one.state for one in seen),
        "m": round(sum(one.rss_mib for one in seen), 1),
        "r": round(sum(processes.read_mib(item.pid) for item in own), 1),
    }
