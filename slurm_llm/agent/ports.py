"""Drawing the leader's ports on its own node, just before the engine starts."""

import socket
import sys
from typing import List, Optional, Sequence

LOWEST_DRAW = 997
"""A step that shares no factor with usual range sizes spreads neighbouring job ids over the range."""


def free(port: int) -> bool:
    """Return whether `port` can be bound on every address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def draw(low: int, high: int, seed: int, fixed: Sequence[int], taken: Sequence[int] = ()) -> List[int]:
    """Return three ports; 0 in `fixed` stands for one to draw from `low`..`high`, starting from `seed`.

    Raises:
        ValueError: a fixed port is in use (all of them are named), or the range holds too few free ports.
    """
    busy = [port for port in fixed if port and not free(port)]
    if busy:
        raise ValueError("port %s is in use on this node" % ", ".join(map(str, busy)))
    size = high - low + 1
    used = set(fixed) | set(taken)
    result = list(fixed)
    at = (seed * LOWEST_DRAW) % size
    for _ in range(size):
        if 0 not in result:
            break
        port = low + at
        at = (at + 1) % size
        if port not in used and free(port):
            result[result.index(0)] = port
            used.add(port)
    if 0 in result:
        raise ValueError("no %d free ports in %d-%d on this node" % (fixed.count(0), low, high))
    return result


def main(low: int, high: int, seed: int, fixed: Sequence[int]) -> int:
    """Print three ports, or the reason why there are none; return the exit status."""
    try:
        print(*draw(low, high, seed, fixed))
    except ValueError as error:
        sys.stderr.write("slurm_llm: %s\n" % error)
        return 1
    return 0


def parse(text: Optional[str]) -> int:
    """Return a port of the command line; `-` stands for one to draw."""
    return 0 if text in (None, "-") else int(str(text))
