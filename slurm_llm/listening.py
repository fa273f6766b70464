"""Places of this machine where a tunnel listens: a port of its loopback, or a socket that its user alone can open."""

from __future__ import annotations

import os
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.errors import InputError, Problem

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Listener:
    """A socket that listens, at a port of loopback, or at a `path` of the file system."""

    socket: socket.socket
    path: Path | None = None

    @property
    def port(self) -> int:
        """The port; 0 where there is none."""
        return int(self.socket.getsockname()[1]) if self.path is None else 0

    @property
    def url(self) -> str:
        """What a client here is told, one of a socket the socket's path besides."""
        return f"http://{HERE}:{self.port}" if self.path is None else "http://localhost"

    @property
    def name(self) -> str:
        """What people know it by."""
        return self.url if self.path is None else str(self.path)

    def forward(self, port: int) -> str:
        """Return the words of `ssh -L` that lead here from another machine's `port`."""
        return f"{port}:{HERE}:{self.port}" if self.path is None else shlex.quote(f"{port}:{self.path}")

    def close(self) -> None:
        """Stop, and leave nothing in the file system."""
        self.socket.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()


def listen(port: int | None, usual: int) -> Listener:
    """Listen on loopback: at `port`, or at the usual one, or where there is room.

    Raises:
        InputError: `port` is taken, or not this user's to take.
    """
    for one in (port,) if port is not None else (usual, 0):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((HERE, one))
            made.listen(128)
            return Listener(made)
        except OSError as error:
            made.close()
            reason = error.strerror or str(error)
    todo = "say another one, or leave --port out"
    raise InputError(Problem(f"--port {port}", f"{HERE}:{port} cannot be taken: {reason}", todo=todo))


def listen_privately(path: Path) -> Listener:
    """Listen at a Unix socket of mode 0600; one that nobody listens at any more is taken over.

    Raises:
        InputError: something is there, or nothing can be.
    """
    try:
        _remove_stale(path)
        made = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)
        try:
            made.bind(str(path))
        except OSError:
            made.close()
            raise
        finally:
            os.umask(mask)
    except OSError as error:
        what = f"cannot be opened: {error.strerror or error}"
        raise InputError(Problem(f"--socket {path}", what, todo="name a path that is free")) from None
    made.listen(128)
    return Listener(made, path)


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
