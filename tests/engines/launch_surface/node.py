"""The MPI side of the launch stand-in: `leader` serves one session on the launcher's address, `worker` waits for it.

usage: node.py leader|worker|stop|port
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from typing import Any

STOP = 7


def address() -> tuple[str | tuple[str, int], bytes]:
    """Return the launcher's address and key."""
    kind, _, rest = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"].partition("://")
    key = bytes.fromhex(os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY"])
    if kind == "ipc":
        return rest, key
    host, _, port = rest.partition(":")
    return (host, int(port)), key


def ask(message: object) -> object:
    """Say `message` to the leader node, which may not listen yet, and return its answer."""
    place, key = address()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(OSError), Client(place, authkey=key) as client:
            client.send(message)
            return client.recv()
        time.sleep(0.05)
    raise TimeoutError(f"no leader node at {place!r}")


def stop() -> int:
    """End the leader node."""
    return int(bool(ask("stop")))


def lead() -> int:
    """Answer sessions until one says stop, then end the workers; alone it needs no MPI."""
    place, key = address()
    size = world().Get_size() if int(os.environ.get("tllm_mpi_size", "1")) > 1 else 1  # noqa: SIM112
    with Listener(place, authkey=key) as listener:
        while True:
            with listener.accept() as client:
                message = client.recv()
                fits = message in ("stop", size)
                client.send("" if fits else f"n_workers {message} should be equal to the MPI world size {size}")
            if message == "stop":
                break
    for rank in range(1, size):
        world().send(STOP, rank)
    return 0


def work() -> int:
    """Wait for the leader node without spinning."""
    while not world().Iprobe(source=0):
        time.sleep(0.05)
    world().recv(source=0)
    return 0


def world() -> Any:
    """Join the MPI world of the ranks."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def free_port() -> int:
    """Print the first free port from 10012 on, as the old editions take it."""
    port = 10012
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                port += 1
                continue
        print(port)
        return 0


if __name__ == "__main__":
    verb = sys.argv[1]
    verbs: dict[str, Callable[[], int]] = {"leader": lead, "worker": work, "port": free_port, "stop": stop}
    sys.exit(verbs[verb]())
