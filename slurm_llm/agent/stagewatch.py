"""How the head follows the copies of weights: what the nodes tell, who is slow or stands still, and when it is over."""

import time
from typing import Any, Callable, Dict, NamedTuple, Optional

from .copying import amount
from .journal import Record

NOTES = ("staging", "staged")
"""The script's records: copies begin, and have ended, with an exit status."""
KINDS = ("copying", "copied", "copy-failed")
"""The nodes' records."""
TELL_S = 10.0
MOST_NAMED = 3


class Progress(NamedTuple):
    """A node's bytes, and when they last grew, in time.monotonic()."""

    done: int
    total: int
    moved_at: float


class StageWatch:
    """The copies of one attempt; `note` writes a record, `say` a line of the job's output.

    Times are in time.monotonic().
    """

    def __init__(self, plan: Dict[str, Any], note: Callable[..., None], say: Callable[[str], None]) -> None:
        self.nodes, self.stall_s = int(plan["allocation"]["nodes"]), float(plan["limits"]["stall_s"])
        self._note, self._say = note, say
        self.going = False
        self.began = self.told_at = self.counted_at = 0.0
        self.seen: Dict[str, Progress] = {}
        self.ready: Dict[str, Record] = {}
        self.trouble = ""
        self.node: Optional[str] = None

    def look(self, item: Optional[Record], now: float) -> str:
        """Take in a record, tell now and then how far it is, and return why the copies fail; empty unless they do."""
        if item is not None:
            self._hear(item, now)
        if self.going and not self.trouble:
            self._look_for_stall(now)
            self._tell(now)
        return self.trouble

    def gone_s(self, now: float) -> float:
        """Return how much time has gone into copies since the last call: it is none of the server's."""
        gone = now - self.counted_at if self.going else 0.0
        self.counted_at = now
        return gone

    def _hear(self, item: Record, now: float) -> None:
        kind, node = item["kind"], str(item.get("node", ""))
        if kind == "staging":
            self.going, self.began, self.told_at, self.counted_at = True, now, now, now
        elif kind == "staged":
            self._end(int(item["code"]))
        elif kind == "copying":
            before = self.seen.get(node)
            same = before is not None and before.done == int(item["done"]) and not item.get("waits")
            self.seen[node] = Progress(
                int(item["done"]), int(item["total"]), before.moved_at if before and same else now
            )
        elif kind == "copied":
            self.ready[node] = item
        elif not self.trouble:
            self.trouble, self.node = str(item["text"]), node

    def _end(self, code: int) -> None:
        self.going = False
        if not code and self.ready:
            self._tell_all(self._summary())
        elif code and not self.trouble:
            self.trouble = "the copies of weights ended with exit status %d: see staging.log" % code

    def _look_for_stall(self, now: float) -> None:
        for node, own in self.seen.items():
            if node not in self.ready and now - own.moved_at > self.stall_s:
                rest = "%s of %s are there" % (amount(own.done), amount(own.total))
                self.node = node
                self.trouble = "node %s has copied nothing for %d s; %s" % (node, now - own.moved_at, rest)

    def _tell(self, now: float) -> None:
        if not self.seen or now - self.told_at < TELL_S:
            return
        self.told_at = now
        done = sum(own.done for own in self.seen.values())
        total = max(own.total for own in self.seen.values()) * self.nodes
        rate = amount(done / max(0.1, now - self.began))
        self._tell_all("staging: %s of %s, %s/s%s" % (amount(done), amount(total), rate, self._behind()))

    def _tell_all(self, text: str) -> None:
        self._note("copies", text=text)
        self._say("slurm_llm: %s %s" % (time.strftime("%H:%M:%S"), text))

    def _behind(self) -> str:
        """Name the nodes that are behind, when they are few."""
        late = sorted((own.done / max(1, own.total), node) for node, own in self.seen.items() if node not in self.ready)
        if self.nodes == 1 or not late or len(late) > MOST_NAMED:
            return ""
        return "; " + ", ".join("%s has %d %%" % (node, 100 * part) for part, node in late)

    def _summary(self) -> str:
        """Return what was copied, and which node took longest."""
        size = max(int(item["bytes"]) for item in self.ready.values())
        reused = sum(1 for item in self.ready.values() if item["reused"] == item["bytes"])
        took, node = max((float(item["seconds"]), node) for node, item in self.ready.items())
        where = "node %s" % node if len(self.ready) == 1 else "each of %d nodes" % len(self.ready)
        text = "staging: %s on %s in %.1f s" % (amount(size), where, took)
        text += " (%s)" % node if len(self.ready) > 1 else ""
        return text + (", there already on %d" % reused if reused else "")
