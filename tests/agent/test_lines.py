"""Connections that the head keeps to a leader, against a real server that can refuse newcomers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from slurm_llm.agent import lines, probe

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers every request with 200; once `full` it accepts nobody any more."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.port = int(self.listener.getsockname()[1])
        self.full = threading.Event()
        self.seen: list[bytes] = []
        self.held: list[socket.socket] = []
        self.answer = OK
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.full.is_set():
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            self.held.append(one)
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        request = b""
        while data := self._read(one):
            request += data
            # The body may come by itself.
            if request.endswith(b"}" if request.startswith(b"POST") else b"\r\n\r\n"):
                self.seen.append(request)
                one.sendall(self.answer)
                request = b""

    def _read(self, one: socket.socket) -> bytes:
        try:
            return one.recv(65536)
        except OSError:
            return b""

    def fill(self) -> None:
        """Accept one more, then nobody, and let the kernel's own queue run full."""
        self.full.set()
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", self.port))
            self.held.append(one)

    def close(self) -> None:
        self.full.set()
        for one in (self.listener, *self.held):
            one.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def leader(server: Server) -> Iterator[lines.Leader]:
    made = lines.Leader(probe.Leader(0, "127.0.0.1", server.port, 0, 0), {"slurm-llm-key": "of mine"})
    yield made
    for line in (made.short, made.long):
        line.close()


def test_a_line_is_kept_and_carries_the_key(server: Server, leader: lines.Leader) -> None:
    """Many questions, one connection; each has the header."""
    assert [leader.generation("/x", "{}", 5).status for _ in range(3)] == [200] * 3
    assert len(server.held) == 1
    assert all(b"slurm-llm-key: of mine" in request for request in server.seen)


def test_a_line_that_broke_is_begun_anew(server: Server, leader: lines.Leader) -> None:
    """A server may close what is idle; the question is asked again."""
    assert leader.generation("/x", "{}", 5).ok
    server.held[0].shutdown(socket.SHUT_RDWR)
    assert leader.generation("/x", "{}", 5).ok
    assert len(server.held) == 2


def test_who_accepts_nobody_new_is_crowded_and_well(server: Server, leader: lines.Leader) -> None:
    """The line that is kept answers; without one it would have to count as gone."""
    assert leader.counts("m") is None
    server.fill()
    answer = leader.health()
    assert (answer.status, leader.crowded) == (200, True)
    stranger = lines.Leader(leader.at, {})
    assert (stranger.health().status, stranger.crowded) == (None, False)


def test_lines_that_are_ended_ask_no_more(server: Server, leader: lines.Leader) -> None:
    """A Triton that is to stop waits until every connection has ended."""
    assert leader.generation("/x", "{}", 5).ok
    leader.end()
    assert leader.generation("/x", "{}", 5).status is None
    deadline = time.monotonic() + 10
    while len(server.held) == 1 and time.monotonic() < deadline:
        # The server sees the end of the stream.
        server.held[0].settimeout(10)
        if server.held[0].recv(1) == b"":
            break
    assert len(server.held) == 1


def test_an_answer_that_is_no_json_does_not_count(server: Server, leader: lines.Leader) -> None:
    """A proxy's page of 200 is no generation."""
    server.answer = OK.replace(b"{}", b"no")
    answer = leader.generation("/x", "{}", 5)
    assert (answer.status, "not JSON" in answer.body) == (None, True)
