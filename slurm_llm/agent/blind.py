"""Nodes whose agent has ended while the node lives on: nobody sees their ranks any more. Pure.

The head notes such a node (`unwatched`, since when). What ended there first is at most known from the notes of the
ranks' own wrappers.
"""

import time
from typing import Dict, Iterable, List

from .journal import Record
from .known import Known

REMEDY = "The run goes on; what happens to a rank on that node is only seen from afar until it is started anew."


def since(records: List[Record]) -> Dict[str, float]:
    """Return when each node without an agent was heard for the last time, seconds since the epoch."""
    found: Dict[str, float] = {}
    for item in records:
        if item["kind"] == "unwatched":
            found.setdefault(str(item["node"]), float(item["since"]))
    return found


def exits(records: List[Record]) -> List[Record]:
    """Return the wrappers' notes of ranks that ended unwatched, and before the run was given up."""
    lost = since(records)
    over = (float(item["t"]) for item in records if item.get("state") == "FAILED")
    until = min(over, default=float("inf"))
    ends = [item for item in records if item["kind"] == "exit" and item.get("node") in lost]
    return [item for item in ends if lost[str(item["node"])] < float(item["t"]) <= until]


def unseen(records: List[Record], at: float, seen_on: str) -> str:
    """Return the unwatched node of which a rank may have ended before `at`, when one on `seen_on` did; or nothing."""
    lost = {node: when for node, when in since(records).items() if when < at and node != seen_on}
    noted = {item.get("rank") for item in records if item["kind"] == "exit"}
    begun = [item for item in records if item["kind"] in ("start", "found")]
    for node in list(lost):
        ranks = {item.get("rank") for item in begun if item.get("node") == node}
        if ranks and ranks <= noted:
            # Their own wrappers say when they ended.
            del lost[node]
    return min(lost, key=lambda node: lost[node]) if lost else ""


def hedged(records: List[Record], node: str, ranks: List[int], first: str) -> str:
    """Return one sentence on an end that need not be the first, since a node with `ranks` was not watched."""
    moment = time.strftime("%H:%M:%S", time.localtime(since(records)[node]))
    whose = "one of its ranks %s" % spans(ranks) if ranks else "there"
    what = "node %s was not watched (its agent had ended at %s), the first end may be %s"
    return (what + "; the first that was seen: %s") % (node, moment, whose, first)


def warnings(records: List[Record]) -> List[Known]:
    """Return what is to be told of nodes that nobody watches."""
    texts = [str(item.get("text", "")) for item in records if item["kind"] == "unwatched"]
    return [Known("agent-ended", text, REMEDY, "", "journal/head.jsonl", 1) for text in texts]


def spans(numbers: Iterable[int]) -> str:
    """Return numbers in short, such as `0-3,7`."""
    found: List[List[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join("%d-%d" % (own[0], own[-1]) if len(own) > 1 else str(own[0]) for own in found)
