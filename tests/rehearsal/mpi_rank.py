"""One rank of a real MPI world that runs the engine without Triton; started by mpirun from the tests.

Usage: mpi_rank.py PARAMETERS_JSON PROMPTS_JSON MAX_TOKENS. Rank 0 prints one JSON object with the texts.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from slurm_llm.rehearsal.engine import start_engine
from slurm_llm.rehearsal.texts import Request
from slurm_llm.rehearsal.world import RehearsalError


class Collector:
    """A client that keeps its text."""

    def __init__(self) -> None:
        self.text = ""
        self.error = ""
        self.done = threading.Event()

    def send(self, text: str) -> None:
        self.text += text

    def finish(self, text: str, reason: str, stop_text: str | None) -> None:
        self.text += text
        self.done.set()

    def fail(self, message: str) -> None:
        self.error = message
        self.done.set()

    def is_gone(self) -> bool:
        return False


def main(parameters: str, prompts: str, max_tokens: str) -> int:
    """Serve the prompts one after the other, then all at once."""
    try:
        leader = start_engine(json.loads(parameters), lambda line: print(line, file=sys.stderr, flush=True))
    except RehearsalError as error:
        print(f"RehearsalError: {error}", flush=True)
        return 3
    if leader is None:
        return 0

    def ask(prompt: str) -> Collector:
        client = Collector()
        leader.submit(Request("", prompt.encode(), client, max_tokens=int(max_tokens)))
        return client

    begun = time.monotonic()
    single = [client.text for client in map(ask, json.loads(prompts)) if client.done.wait(30)]
    seconds = time.monotonic() - begun
    together = [client.text for client in list(map(ask, json.loads(prompts))) if client.done.wait(30)]
    leader.close(10)
    print(json.dumps({"single": single, "together": together, "seconds": seconds}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
