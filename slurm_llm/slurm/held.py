"""An allocation that somebody holds: what each of its nodes gives, read from `scontrol show job --details`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_llm.slurm.nodesets import expand_nodes

_SHARE = re.compile(r"\bNodes=(\S+) CPU_IDs=(\S*) Mem=(\d+)\S*(?: GRES=(\S*))?")
_GRES = re.compile(r"([A-Za-z][\w./-]*)(?::[^:,()]+)?:(\d+)(?=[(,]|\Z)")


@dataclass(frozen=True)
class NodeShare:
    """What the allocation has of one node; `mem_mib` is 0 where Slurm does not track memory."""

    name: str
    cpus: int
    mem_mib: int
    gres: tuple[tuple[str, int], ...]

    def count(self, gres: str) -> int:
        """Return how many of one GRES there are, whatever their types."""
        return sum(number for name, number in self.gres if name == gres)


def parse_shares(text: str) -> tuple[NodeShare, ...]:
    """Return the share of every node, in the order in which Slurm tells them."""
    found = []
    for names, cpus, memory, gres in _SHARE.findall(text):
        parts = tuple((name, int(number)) for name, number in _GRES.findall(re.sub(r"\([^)]*\)", "", gres)))
        found += [NodeShare(name, _count(cpus), int(memory), parts) for name in expand_nodes(names)]
    return tuple(found)


def _count(ranges: str) -> int:
    """Return how many numbers `0-2,5` holds."""
    total = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
