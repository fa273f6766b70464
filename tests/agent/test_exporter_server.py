"""The page's server under clients of every kind: whoever asks in order gets the page, whatever the others do."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from slurm_llm.agent import pageserver
from slurm_llm.agent.pageserver import Make, Server, bind
from tests.cluster.conftest import wait_for

PAGE = b"x" * (4 << 20)
PORTS = (21000, 21999)


@dataclass
class Served:
    """A server of a page, and the names of the pages that were made."""

    port: int
    server: Server
    made: list[str] = field(default_factory=list)

    def get(self, target: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
        """Return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, target)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def connect(self, said: bytes = b"") -> socket.socket:
        """Return a connection that has said this much."""
        made = socket.create_connection(("127.0.0.1", self.port), 60)
        made.sendall(said)
        return made


def route(target: str) -> str:
    """Return the page that a target means."""
    return target.lstrip("/") if target.startswith("/metrics") else ""


def make_page(_name: str) -> bytes:
    """Return a page that no socket takes in at once."""
    return PAGE


@contextmanager
def served(make: Make = make_page) -> Iterator[Served]:
    """Serve on a port of the tests' own."""
    names: list[str] = []

    def making(name: str) -> bytes:
        names.append(name)
        return make(name)

    listener = bind("127.0.0.1", PORTS, 1, [])
    server = Server(listener, route, making)
    server.start()
    yield Served(listener.getsockname()[1], server, names)


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/metrics", "GET", 200),
        ("/", "GET", 404),
        ("/etc/passwd", "GET", 404),
        ("/metrics", "POST", 405),
        ("/metrics", "DELETE", 405),
        ("/metrics", "HEAD", 405),
    ],
)
def test_only_the_page_is_there(target: str, method: str, status: int) -> None:
    """Nobody can have anything else, nor change anything."""
    with served() as own:
        found, body = own.get(target, method)
        assert found == status
        assert (body == PAGE) is (status == 200)


@pytest.mark.parametrize(
    "said", [b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"\x16\x03\x01\x00" * 4096, b"GET / SSH/2\r\n\r\n"]
)
def test_what_is_no_request_is_refused(said: bytes) -> None:
    """A TLS client, a port scanner, a request without an end: an answer at once, and the next one is served."""
    with served() as own:
        with own.connect(said) as odd:
            assert odd.recv(64).startswith(b"HTTP/1.1 400 ")
        assert own.get()[0] == 200


def test_a_flood_that_says_nothing_keeps_nobody_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 connections at once that send nothing, or a byte: a client that asks is answered while they are there."""
    monkeypatch.setattr(pageserver, "REQUEST_S", 600.0)
    with served() as own, ExitStack() as held:
        for number in range(200):
            held.enter_context(own.connect(b"G" * (number % 2)))
        assert own.get() == (200, PAGE)
        wait_for("the clients that asked for nothing, bounded", lambda: len(own.server._clients) <= pageserver.MOST)


def test_readers_that_take_nothing_in_keep_nobody_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 clients that ask and never read hold a page that all share, and give way to one that does read."""
    monkeypatch.setattr(pageserver, "SEND_S", 600.0)
    with served() as own, ExitStack() as held:
        for _ in range(200):
            held.enter_context(own.connect(b"GET /metrics HTTP/1.1\r\n\r\n"))
        assert own.get() == (200, PAGE)


def test_silent_clients_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their descriptors are the job's head's."""
    monkeypatch.setattr(pageserver, "REQUEST_S", 0.2)
    with served() as own, own.connect(b"GET /met") as silent:
        assert silent.recv(1) == b""
        assert not own.server._clients


def test_many_who_ask_at_once_get_one_page() -> None:
    """A page is made once for all who wait for it, and kept for a moment."""
    allowed = threading.Event()

    def make(_name: str) -> bytes:
        assert allowed.wait(60)
        return PAGE

    with served(make) as own, ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(own.get) for _ in range(20)]
        wait_for("all wait", lambda: sum(client.waits for client in list(own.server._clients.values())) == 20)
        allowed.set()
        assert {one.result() for one in asked} == {(200, PAGE)}
        assert own.made == ["metrics"]


def test_pages_of_different_names_are_made_one_after_the_other() -> None:
    """Each client gets the one that it asked for."""
    with served(lambda name: name.encode()) as own, ThreadPoolExecutor(8) as pool:
        names = [f"/metrics{number % 3}" for number in range(24)]
        assert [body.decode() for _, body in pool.map(own.get, names)] == [name[1:] for name in names]


def test_a_page_that_is_not_made_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told; one that asks later gets it."""
    monkeypatch.setattr(pageserver, "PAGE_S", 0.2)
    allowed = threading.Event()

    def make(_name: str) -> bytes:
        allowed.wait(60)
        return PAGE

    with served(make) as own:
        assert own.get()[0] == 503
        monkeypatch.setattr(pageserver, "PAGE_S", 60.0)
        allowed.set()
        assert own.get() == (200, PAGE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_page_that_cannot_be_made_is_told_once() -> None:
    """A fault of our own is told in the job's output, and leaves the server and its process alive."""

    def make(_name: str) -> bytes:
        raise ValueError("a fault")

    with served(make) as own:
        assert [own.get()[0] for _ in range(3)] == [503, 503, 503]
        assert own.made == ["metrics"]
        assert own.get("/other")[0] == 404


def test_ports_are_drawn_around_those_in_use() -> None:
    """The next free one of the range, from a place of the job's own; none is an error, and so is a foreign address."""
    low = 22010
    with bind("127.0.0.1", (low, low + 2), 1, []) as first, bind("127.0.0.1", (low, low + 2), 1, [low + 2]) as second:
        assert [one.getsockname()[1] for one in (first, second)] == [low + 1, low]
        with pytest.raises(OSError, match="no free port in 22010-22011"):
            bind("127.0.0.1", (low, low + 1), 0, [])
    with pytest.raises(OSError, match="assign requested address"):
        bind("192.0.2.1", (low, low + 2), 0, [])
