"""Reading the same page of many servers at once, past any proxy, with bounds on time and bytes. Knows no page."""

import errno
import os
import selectors
import socket
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

ONE_S, ALL_S = 3.0, 6.0
"""How long one server may take, and all of them together: a Prometheus waits for 10 s unless told otherwise."""
MOST_BYTES, MOST_TOGETHER = 4 << 20, 64 << 20
AT_ONCE = 64
"""Servers that are asked at a time, a descriptor each."""
PIECE = 1 << 16
_PENDING = (0, errno.EINPROGRESS)


class Place(NamedTuple):
    """Where one page is; `key` is the caller's own name for it."""

    key: int
    host: str
    port: int
    path: str = "/metrics"


class Fetched(NamedTuple):
    """A page, or the reason why there is none."""

    body: bytes
    problem: str
    took_s: float


class _Asked:
    """One server that is asked."""

    def __init__(self, place: Place, now: float) -> None:
        self.place, self.began = place, now
        self.connection = socket.socket()
        self.left = b""
        self.heard = bytearray()
        self.size: Optional[int] = None

    def start(self) -> None:
        """Begin to connect, and have ready what is to be said.

        Raises:
            OSError: there is no such host, or it refuses at once.
        """
        family, kind, _, _, address = socket.getaddrinfo(self.place.host, self.place.port, 0, socket.SOCK_STREAM)[0]
        self.connection.close()
        self.connection = socket.socket(family, kind)
        self.connection.setblocking(False)
        code = self.connection.connect_ex(address)
        if code not in _PENDING:
            raise OSError(code, os.strerror(code))
        host = "[%s]" % self.place.host if ":" in self.place.host else self.place.host
        # Version 1.0, so that no answer comes in chunks.
        words = "GET %s HTTP/1.0\r\nHost: %s:%d\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
        self.left = (words % (self.place.path, host, self.place.port)).encode()

    def go_on(self) -> bool:
        """Send or receive what can be; tell whether the answer is complete.

        Raises:
            OSError: the connection failed, or the answer is too long.
        """
        if self.left:
            code = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.left = self.left[self.connection.send(self.left) :]
            return False
        data = self.connection.recv(PIECE)
        self.heard += data
        if len(self.heard) > MOST_BYTES:
            raise OSError(errno.EFBIG, "more than %d bytes" % MOST_BYTES)
        if self.size is None:
            self.size = _size(bytes(self.heard[:PIECE]))
        return not data or (self.size is not None and len(self.heard) >= self.size)


def fetch(places: Sequence[Place], one_s: float = ONE_S, all_s: float = ALL_S) -> Dict[int, Fetched]:
    """Return what each server answered, by its key; each has an entry."""
    return _Round(places, one_s, all_s).run()


class _Round:
    """One look at all servers."""

    def __init__(self, places: Sequence[Place], one_s: float, all_s: float) -> None:
        self.waiting = list(places)[::-1]
        self.one_s, self.end = one_s, time.monotonic() + all_s
        self.selector = selectors.DefaultSelector()
        self.asked: List[_Asked] = []
        self.done: Dict[int, Fetched] = {}
        self.bytes = 0

    def run(self) -> Dict[int, Fetched]:
        """Ask all of them, so many at a time."""
        while (self.waiting or self.asked) and time.monotonic() < self.end:
            while self.waiting and len(self.asked) < AT_ONCE and time.monotonic() < self.end:
                self._ask(_Asked(self.waiting.pop(), time.monotonic()))
            ends = [self.end] + [one.began + self.one_s for one in self.asked]
            for key, _ in self.selector.select(max(0.0, min(ends) - time.monotonic())):
                self._go_on(key.data)
            now = time.monotonic()
            for one in [one for one in self.asked if now >= one.began + self.one_s]:
                self._finish(one, "no answer within %g s" % self.one_s)
        for one in list(self.asked):
            self._finish(one, "no answer in time")
        for place in self.waiting:
            self.done[place.key] = Fetched(b"", "not asked: the others took all of the time", 0.0)
        self.selector.close()
        return self.done

    def _ask(self, one: _Asked) -> None:
        self.asked.append(one)
        try:
            one.start()
        except OSError as error:
            self._finish(one, error.strerror or str(error))
        else:
            self.selector.register(one.connection, selectors.EVENT_WRITE, one)

    def _go_on(self, one: _Asked) -> None:
        sending = bool(one.left)
        try:
            if one.go_on():
                self._finish(one, "")
            elif sending and not one.left:
                self.selector.modify(one.connection, selectors.EVENT_READ, one)
        except BlockingIOError:
            pass
        except OSError as error:
            self._finish(one, error.strerror or str(error))

    def _finish(self, one: _Asked, problem: str) -> None:
        self.asked.remove(one)
        try:
            self.selector.unregister(one.connection)
        except KeyError:
            # Its connection was refused at once.
            pass
        one.connection.close()
        body = b""
        if not problem:
            body, problem = _body(bytes(one.heard))
        self.bytes += len(body)
        if self.bytes > MOST_TOGETHER:
            body, problem = b"", "all pages together have more than %d bytes" % MOST_TOGETHER
        self.done[one.place.key] = Fetched(body, problem, time.monotonic() - one.began)


def _length(head: bytes) -> Optional[int]:
    """Return how long the body is to be, by an answer's head."""
    for row in head.split(b"\r\n")[1:]:
        name, _, value = row.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return None


def _size(begin: bytes) -> Optional[int]:
    """Return the bytes of a whole answer, as far as its beginning tells."""
    end = begin.find(b"\r\n\r\n")
    length = None if end < 0 else _length(begin[:end])
    return None if length is None else end + 4 + length


def _body(answer: bytes) -> Tuple[bytes, str]:
    """Return the body of an answer, and what is wrong with it."""
    end = answer.find(b"\r\n\r\n", 0, PIECE)
    words = answer[: max(end, 0)].split(b"\r\n")[0].split()
    if end < 0 or len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        return b"", "what it answers is not HTTP"
    if words[1] != b"200":
        return b"", "it answers with status %s" % words[1].decode("latin-1")
    body, length = answer[end + 4 :], _length(answer[:end])
    if length is not None and len(body) < length:
        return b"", "its answer broke off after %d of %d bytes" % (len(body), length)
    return body, ""
