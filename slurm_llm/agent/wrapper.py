"""What a rank's own script has written to its journal, as the agent on its node reads it. Judges nothing."""

import os
import time
from typing import Any, Dict, Optional

from . import journal, processes


def path_of(attempt_dir: str, rank: int) -> str:
    """Return the journal of one rank's script."""
    return os.path.join(attempt_dir, "journal", "rank-%d.jsonl" % rank)


def start_of(attempt_dir: str, rank: int) -> Dict[str, Any]:
    """Return `started` (seconds since the epoch) and `gpus` as the script told them; nothing where it has not.

    With them an agent's word on a rank says all, and nobody need open a file for each of thousands of ranks.
    """
    for item in journal.read(path_of(attempt_dir, rank)):
        if item["kind"] == "start":
            return {"started": item["t"], "gpus": item.get("gpus")}
    return {}


def exit_words(attempt_dir: str, rank: int) -> Optional[str]:
    """Return how the rank ended: its script reaps the engine at once and writes the status down. Waits a moment."""
    for _ in range(10):
        for item in reversed(journal.read(path_of(attempt_dir, rank))):
            if item["kind"] == "exit":
                return processes.describe_exit_code(int(item["code"]))
        time.sleep(0.02)
    return None
