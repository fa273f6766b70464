"""A small HTTP server for pages that somebody may read now and then; it costs its process two threads that sleep.

One waits on all connections, each of which has a deadline; the other makes a page, for everybody who waits for it. Who
sends nothing, or takes nothing in, makes room for who comes later. It answers GET alone, and knows no page.
"""

import errno
import queue
import selectors
import socket
import threading
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

MOST = 64
"""Connections at a time."""
REQUEST_S, PAGE_S, SEND_S = 5.0, 20.0, 20.0
"""How long a client may take to ask, a page to be made, and a client to take in what it asked for."""
MOST_REQUEST = 8192
FRESH_S, SHARE = 1.0, 0.2
"""So long a page is handed to others as it is: longer where more than this share of a core would go into pages."""
PIECE = 1 << 18
PAUSE_S = 0.5
TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

Route = Callable[[str], str]
"""From a request's target, as in `/metrics?ranks=0`, to the name of a page; empty where there is none."""
Make = Callable[[str], bytes]
"""From a page's name to the page; may take seconds."""


class _Made(NamedTuple):
    page: bytes
    until: float


class _Client:
    """One connection: it is read until its request is there, waits for a page, and is then written to."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.heard = b""
        self.page = ""
        self.rest: List[memoryview] = []

    @property
    def waits(self) -> bool:
        """Whether it has asked for a page that is not there yet."""
        return bool(self.page) and not self.rest


class Server:
    """Serves on a socket that `bind` has made, from `start` on, for as long as the process lives."""

    def __init__(self, listener: socket.socket, route: Route, make: Make) -> None:
        self._listener, self._route, self._make = listener, route, make
        self._selector = selectors.DefaultSelector()
        self._clients: Dict[int, _Client] = {}
        self._lock = threading.Lock()
        self._made: Dict[str, _Made] = {}
        self._orders: "queue.Queue[str]" = queue.Queue()
        self._ordered = ""
        self._broken = False
        self._wakes, self._wakened = socket.socketpair()

    def start(self) -> None:
        """Begin to serve.

        Raises:
            RuntimeError: no thread can be started.
        """
        for one in (self._listener, self._wakes, self._wakened):
            one.setblocking(False)
        for handle in (self._listener, self._wakened):
            self._selector.register(handle, selectors.EVENT_READ)
        for work in (self._make_pages, self._serve):
            threading.Thread(target=work, daemon=True).start()

    def _make_pages(self) -> None:
        """Make the pages that are ordered; an error ends this alone, and threading tells it in the job's output."""
        try:
            while True:
                name = self._orders.get()
                began = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
                page = self._make(name)
                took = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - began
                with self._lock:
                    self._made[name] = _Made(page, time.monotonic() + max(FRESH_S, took / SHARE))
                    self._ordered = ""
                self._wakes.send(b"x")
        finally:
            self._broken = True
            self._wakes.send(b"x")

    def _serve(self) -> None:
        while True:
            ends = [client.deadline for client in self._clients.values()]
            wait = max(0.0, min(ends) - time.monotonic()) if ends else None
            for key, _ in self._selector.select(wait):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wakened:
                    self._wakened.recv(MOST_REQUEST)
                    self._hand_out()
                elif key.fd in self._clients:
                    self._go_on(self._clients[key.fd])
            self._give_up(time.monotonic())

    def _accept(self) -> None:
        """Take in those who wait to be connected, so many at a time."""
        for _ in range(MOST):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # No descriptor is left, or the client has gone again.
                if not self._make_room():
                    time.sleep(PAUSE_S)
                return
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        if len(self._clients) >= MOST and not self._make_room():
            connection.close()
            return
        connection.setblocking(False)
        self._clients[connection.fileno()] = _Client(connection, time.monotonic() + REQUEST_S)
        self._selector.register(connection, selectors.EVENT_READ)

    def _make_room(self) -> bool:
        """Close the client that has said nothing for longest, else the one that takes longest to take its page in."""
        found = [client for client in self._clients.values() if not client.waits]
        if found:
            self._close(min(found, key=lambda client: (bool(client.rest), client.deadline)))
        return bool(found)

    def _give_up(self, now: float) -> None:
        for client in [client for client in self._clients.values() if client.deadline <= now]:
            if client.waits:
                self._reply(client, 503, b"no page in time\n")
            else:
                self._close(client)

    def _close(self, client: _Client) -> None:
        self._clients.pop(client.connection.fileno(), None)
        self._deafen(client)
        client.connection.close()

    def _deafen(self, client: _Client) -> None:
        try:
            self._selector.unregister(client.connection)
        except KeyError:
            # It waits for a page, and nobody listens to it meanwhile.
            pass

    def _go_on(self, client: _Client) -> None:
        try:
            if client.rest:
                self._send(client)
            else:
                self._hear(client)
        except BlockingIOError:
            pass
        except OSError:
            self._close(client)

    def _hear(self, client: _Client) -> None:
        data = client.connection.recv(MOST_REQUEST)
        client.heard += data
        if not data:
            self._close(client)
        elif b"\r\n\r\n" in client.heard or b"\n\n" in client.heard:
            self._answer(client)
        elif len(client.heard) > MOST_REQUEST:
            self._reply(client, 400, b"the request is too long\n")

    def _answer(self, client: _Client) -> None:
        words = client.heard.split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._reply(client, 400, b"this is no HTTP/1 request\n")
        elif words[0] != "GET":
            self._reply(client, 405, b"only GET\n")
        elif not self._route(words[1]):
            self._reply(client, 404, b"there is only /metrics\n")
        else:
            self._deafen(client)
            client.page, client.deadline = self._route(words[1]), time.monotonic() + PAGE_S
            self._hand_out()

    def _hand_out(self) -> None:
        """Give every waiting client its page where there is a fresh one; order the others', one after the other."""
        now = time.monotonic()
        with self._lock:
            self._made = {name: made for name, made in self._made.items() if now < made.until}
            fresh, ordered = dict(self._made), self._ordered
        for client in [client for client in self._clients.values() if client.waits]:
            if client.page in fresh:
                self._reply(client, 200, fresh[client.page].page)
            elif self._broken:
                self._reply(client, 503, b"the page cannot be made: see the job's output\n")
            elif not ordered:
                self._ordered = ordered = client.page
                self._orders.put(ordered)

    def _reply(self, client: _Client, status: int, body: bytes) -> None:
        head = ["HTTP/1.1 %d %s" % (status, _WORDS[status]), "Content-Type: " + TYPE, "Connection: close"]
        head += ["Content-Length: %d" % len(body)] + (["Allow: GET"] if status == 405 else [])
        # A page may be large, and many may read it: it is not copied.
        client.rest = [memoryview(("\r\n".join(head) + "\r\n\r\n").encode()), memoryview(body)]
        client.deadline = time.monotonic() + SEND_S
        self._deafen(client)
        self._selector.register(client.connection, selectors.EVENT_WRITE)

    def _send(self, client: _Client) -> None:
        sent = client.connection.send(client.rest[0][:PIECE])
        client.rest[0] = client.rest[0][sent:]
        if not client.rest[0]:
            del client.rest[0]
        if not client.rest:
            self._close(client)


def bind(host: str, ports: Tuple[int, int], seed: int, avoid: Sequence[int]) -> socket.socket:
    """Return a socket that listens on a free port of the range `ports`, the first one from a place by `seed` on.

    Raises:
        OSError: the address is not this node's, or no port of the range is free.
    """
    low, high = ports
    for offset in range(high - low + 1):
        port = low + (seed + offset) % (high - low + 1)
        made = None if port in avoid else _listening(host, port)
        if made is not None:
            return made
    raise OSError(errno.EADDRINUSE, "no free port in %d-%d" % ports)


def _listening(host: str, port: int) -> Optional[socket.socket]:
    """Return a socket that listens there, None where somebody else does."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        # With that option two may be bound to one port, until one of them listens.
        made.listen(MOST)
    except OSError as error:
        made.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    return made
