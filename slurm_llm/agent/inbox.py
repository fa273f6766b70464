"""What the head reads: the node agents' records from its pipe, and the script's journal. Judges no record."""

import os
import select
from typing import List, Optional

from . import journal

PIECE = 65536


class Pipe:
    """Records of the agents' step, which come in pieces."""

    def __init__(self, handle: int = 0) -> None:
        self.handle = handle
        self.torn = b""

    def read(self, wait_s: float) -> Optional[List[journal.Record]]:
        """Return what has come within `wait_s` seconds, and None once the step has closed its output."""
        try:
            readable, _, _ = select.select([self.handle], [], [], wait_s)
        except InterruptedError:
            return []
        if not readable:
            return []
        data = os.read(self.handle, PIECE)
        if not data:
            return None
        *rows, self.torn = (self.torn + data).split(b"\n")
        rows.append(self.torn)
        if journal.parse_line(self.torn) is not None:
            self.torn = b""
        return [item for item in map(journal.parse_line, rows) if item is not None]


class Script:
    """The journal of the job's script, `job.jsonl`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.done = 0

    def read(self) -> List[journal.Record]:
        """Return the records that are new since the last call."""
        try:
            size = os.stat(self.path).st_size
            if size == self.done:
                return []
            if size < self.done:
                # Removed by hand, and begun anew.
                self.done = 0
            with open(self.path, "rb") as stream:
                stream.seek(self.done)
                data = stream.read()
        except OSError:
            return []
        self.done += len(data)
        return journal.parse(data)
