"""What the head writes down: its journal, which is also the list of all that it was told, and the run's state."""

import time
from typing import Any, List

from . import journal, writer


class Diary:
    """One attempt's records; `state` is the run's, `records` hold what the agents and the script have told too."""

    def __init__(self, path: str) -> None:
        self.writer = writer.Writer(path)
        self.records: List[journal.Record] = []
        self.state = ""

    def note(self, kind: str, **fields: Any) -> None:
        """Write one record to the journal."""
        item = journal.record(kind, **fields)
        self.records.append(item)
        self.writer.write(item)

    def set_state(self, state: str, reason: str = "", **more: Any) -> None:
        """Record a change of the run's state and tell it in the job's output."""
        if state == self.state:
            return
        self.state = state
        self.note("state", state=state, reason=reason, **more)
        writer.say("slurm_llm: %s %s%s" % (time.strftime("%H:%M:%S"), state, ": " + reason if reason else ""))

    def mend(self) -> None:
        """Write what could not be written before, and tell when that begins and ends."""
        news = self.writer.mend(self.records)
        if news:
            self.note("warning", text=news)
            writer.say("slurm_llm: warning: %s" % news)
