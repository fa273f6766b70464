"""A journal that outlives a full disk and a folder that has gone: what cannot be written now is written later.

Nothing that the agents do may depend on a file system that ranks share: it can be full, stale, or removed by hand.
"""

import os
import time
from typing import List

from . import journal

MOST_KEPT = 2000
"""Records that are kept for later; the first ones say most."""
RETRY_S = 5.0


class Writer:
    """Writes one journal."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting: List[journal.Record] = []
        self.begun = False
        self.trouble = ""
        self.since = 0.0
        self.told = False
        self.looked_at = time.monotonic()

    def write(self, item: journal.Record) -> bool:
        """Append a record, after those that wait; False when it has to wait too."""
        if len(self.waiting) < MOST_KEPT:
            self.waiting.append(item)
        return self._flush()

    def mend(self, everything: List[journal.Record]) -> str:
        """Now and then write what waits, and `everything` again where the journal has gone; return what is new."""
        if time.monotonic() - self.looked_at < RETRY_S:
            return ""
        self.looked_at = time.monotonic()
        if self.begun and not os.path.exists(self.path):
            self.waiting = list(everything)
            self.trouble, self.since = self.trouble or "it was removed", self.since or time.time()
        trouble, since = self.trouble, self.since
        if trouble and self._flush():
            self.trouble, self.since, self.told = "", 0.0, False
            return "%s could not be written for %d s (%s); it is complete again" % (
                self.path,
                time.time() - since,
                trouble,
            )
        if not self.trouble or self.told:
            return ""
        self.told = True
        return "cannot write to %s: %s; kept in memory" % (self.path, self.trouble)

    def _flush(self) -> bool:
        try:
            while self.waiting:
                if not os.path.isdir(os.path.dirname(self.path)):
                    os.makedirs(os.path.dirname(self.path), 0o700)
                journal.put(self.path, self.waiting[0])
                self.begun = True
                del self.waiting[0]
        except OSError as error:
            # Of several that make the folder anew at once, all but one fail, and try again.
            self.trouble, self.since = error.strerror or str(error), self.since or time.time()
            return False
        return True


def say(text: str) -> None:
    """Write a line to the job's output, which may lie on a disk that is full."""
    try:
        os.write(1, (text + "\n").encode("utf-8", "replace"))
    except OSError:
        pass
