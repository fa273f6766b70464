"""Words of Triton in a rank's log that mean the end of its model, though no process may end.

A rank whose model fails to load can hang in MPI's finalize, and the others wait for it: nothing ends, and nobody is
slow. Triton's own words are the same for every engine (core, src/model_lifecycle.cc; python_backend, src/pb_stub.cc).
"""

import os
import re
import time
from typing import Dict, Iterable, List, NamedTuple, Optional

BLOCK = 65536
LENGTH = 300
PAUSE_S = 1.0
"""Each look asks a file system that nodes share for the sizes of logs."""
_FATAL = re.compile(
    rb"(Failed to initialize Python stub: [^\n]{1,400}|failed to load \'[^\'\n]{1,200}\' version[^\n]{0,400})"
)


class Complaint(NamedTuple):
    """A rank's first fatal words."""

    rank: int
    text: str


class Listener:
    """Reads what ranks' logs have gained since the last look, a block at a time."""

    def __init__(self) -> None:
        self.read: Dict[int, int] = {}
        self.heard: Dict[int, Complaint] = {}
        self.next_at = 0.0

    def news(self, folder: str, ranks: Iterable[int]) -> List[Complaint]:
        """Return new complaints in the logs of `ranks` below `folder`; looks no more often than every second."""
        if time.monotonic() < self.next_at:
            return []
        self.next_at = time.monotonic() + PAUSE_S
        found = [self.listen(rank, os.path.join(folder, "rank-%d.log" % rank)) for rank in ranks]
        return [complaint for complaint in found if complaint is not None]

    def listen(self, rank: int, path: str) -> Optional[Complaint]:
        """Return the rank's complaint when it is new."""
        if rank in self.heard:
            return None
        at = self.read.get(rank, 0)
        try:
            if os.stat(path).st_size <= at:
                return None
            with open(path, "rb") as stream:
                # A line may have been read in part.
                stream.seek(max(0, at - LENGTH))
                data = stream.read(BLOCK)
                self.read[rank] = stream.tell()
        except OSError:
            return None
        match = _FATAL.search(data)
        if match is None:
            return None
        text = match.group(1).decode("utf-8", "replace").split("\\n")[0].rstrip('"')
        self.heard[rank] = Complaint(rank, text[:LENGTH])
        return self.heard[rank]
