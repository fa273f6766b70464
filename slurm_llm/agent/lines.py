"""Connections to a leader that are kept: who floods a server with connections of his own cannot end the run by it.

A server whose open files are all taken accepts nobody any more, and still answers those that it knows.
"""

import http.client
import json
import socket
from typing import Mapping, Optional

from . import probe


class Line:
    """A connection that is kept from one question to the next; one that has broken is begun anew."""

    def __init__(self, host: str, port: int, headers: Mapping[str, str] = probe.NO_HEADERS) -> None:
        self.host, self.port, self.headers = host, port, headers
        self.ended = False
        self._connection: Optional[http.client.HTTPConnection] = None

    @property
    def held(self) -> bool:
        """Return whether there is a connection from an earlier question."""
        return self._connection is not None

    def ask(self, method: str, path: str, body: Optional[str] = None, timeout_s: float = 5.0) -> probe.Answer:
        """Send one request and return its answer; one that broke on an old connection is sent on a new one."""
        if self.held:
            try:
                return self._ask(method, path, body, timeout_s)
            except socket.timeout as error:
                return self._failed(error)
            except (OSError, http.client.HTTPException):
                # The server has closed it meanwhile.
                self.close()
        if self.ended:
            return probe.Answer(None, "the line is closed")
        try:
            return self._ask(method, path, body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            return self._failed(error)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def end(self) -> None:
        """End the connection for good, from another thread than the one that asks."""
        self.ended, connection = True, self._connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                # It has ended already.
                pass

    def _ask(self, method: str, path: str, body: Optional[str], timeout_s: float) -> probe.Answer:
        connection = self._connection or http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        self._connection = connection
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        answer, whole = probe.exchange(connection, method, path, body, self.headers)
        if not whole:
            self.close()
        return answer

    def _failed(self, error: Exception) -> probe.Answer:
        self.close()
        return probe.Answer(None, str(error) or type(error).__name__)


class Leader:
    """The lines to one leader: `short` for questions that are answered at once, `long` for generations."""

    def __init__(self, leader: probe.Leader, headers: Mapping[str, str]) -> None:
        self.at = leader
        self.short = Line(leader.host, leader.http, headers)
        self.long = Line(leader.host, leader.http, headers)
        self.crowded = False
        self.counted = False

    def end(self) -> None:
        """End both lines for good: a Triton that is to stop waits for every connection to end."""
        self.short.end()
        self.long.end()

    def health(self) -> probe.Answer:
        """Ask for health as a newcomer; where none gets in, ask on the line that is kept, and be `crowded`."""
        answer = probe.ready(self.at.host, self.at.http)
        self.crowded = False
        if answer.status is None and self.short.held:
            kept = self.short.ask("GET", probe.READY, timeout_s=probe.READY_S)
            self.crowded = kept.ok
            return kept if kept.ok else answer
        return answer

    def generation(self, path: str, body: str, timeout_s: float) -> probe.Answer:
        """Ask for one generation; an answer that is not JSON does not count."""
        answer = self.long.ask("POST", path, body, timeout_s)
        if answer.ok:
            try:
                json.loads(answer.body)
            except ValueError:
                return probe.Answer(None, "the answer is not JSON: %r" % answer.body[:200])
        return answer

    def counts(self, model: str) -> Optional[probe.Counts]:
        """Ask how many requests the model has answered; None when Triton does not say."""
        found = probe.counts_in(self.short.ask("GET", probe.stats_path(model)))
        self.counted = self.counted or found is not None
        return found
