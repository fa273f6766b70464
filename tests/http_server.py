"""A small HTTP server that answers as a test wants and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """What a test's server was asked, and how it answers: `answer` gets path and body, returns status and pieces."""

    answer: Callable[[str, dict[str, object]], tuple[int, Iterator[bytes]]]
    url: str = ""
    asked: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serve(answer: Callable[[str, dict[str, object]], tuple[int, Iterator[bytes]]]) -> Iterator[Served]:
    """Serve on a free port of this machine until the block ends."""
    served = Served(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            self._reply({})

        def _reply(self, body: dict[str, object]) -> None:
            served.asked.append((self.path, body))
            served.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, pieces = served.answer(self.path, body)
            self.send_response(status)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
