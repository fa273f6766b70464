"""What a node's agent tells the head of its ranks with every beat: what their processes have done so far."""

from typing import Any, Dict, Iterable, List, Set

from . import processes
from .processes import Found

Beat = Dict[str, Any]


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
