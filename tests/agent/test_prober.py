"""What the prober makes of a real HTTP server that is ready, slow, full or wrong."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slurm_llm.agent import probe, prober
from slurm_llm.agent.watchdog import Limits

LIMITS = Limits(ready_s=60, stall_s=10, answer_s=0.5, probe_s=0.0, unready_s=20)


class Triton(ThreadingHTTPServer):
    """Answers as Triton would; `status` is what a generation gets, None no answer in time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.health, self.status = 200, 200
        self.slow_s = 0.0
        self.good = self.bad = 0
        self.others: Callable[[], None] = lambda: None


class Handler(BaseHTTPRequestHandler):
    server: Triton

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/v2/health/ready":
            self._answer(self.server.health)
            return
        counts = {"success": {"count": self.server.good}, "fail": {"count": self.server.bad}}
        self._answer(200, {"model_stats": [{"inference_stats": counts}]})

    def do_POST(self) -> None:
        self.server.others()
        time.sleep(self.server.slow_s)
        if self.server.status == 200:
            self.server.good += 1
        else:
            self.server.bad += 1
        self._answer(self.server.status, {"error": "boom"})

    def _answer(self, status: int, value: object = None) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass


@pytest.fixture
def triton() -> Iterator[Triton]:
    with Triton() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def last(server: Triton) -> probe.Said:
    """Return what the prober hears from the server."""
    own = prober.Prober("m", {"path": "/v2/models/m/generate", "body": "{}"}, LIMITS)
    own.follow(probe.Leader(2, "127.0.0.1", server.server_address[1], 0, 0))
    deadline = time.monotonic() + 20
    said: list[probe.Said] = []
    while not said and time.monotonic() < deadline:
        said = own.take()
        time.sleep(0.02)
    return said[0]


def serve_another(server: Triton) -> None:
    server.good += 1


@pytest.mark.parametrize(
    ("status", "slow_s", "others", "heard", "busy"),
    [
        pytest.param(200, 0.0, False, 200, False, id="it answers"),
        pytest.param(400, 0.0, False, 400, False, id="an error"),
        pytest.param(503, 0.0, False, 503, False, id="a full queue"),
        pytest.param(400, 0.0, True, 400, True, id="an error, while others are served"),
        pytest.param(200, 3.0, False, None, False, id="no answer in time"),
    ],
)
def test_a_generation(triton: Triton, status: int, slow_s: float, others: bool, heard: int | None, busy: bool) -> None:
    """Health says 200 all the while: only a generation tells."""
    triton.status, triton.slow_s = status, slow_s
    if others:
        triton.others = lambda: serve_another(triton)
    said = last(triton)
    assert (said.instance, said.generation, said.answer.status, said.busy) == (2, True, heard, busy)


def test_a_server_that_is_not_ready_is_asked_for_no_generation(triton: Triton) -> None:
    """503 of the health endpoint is heard as such."""
    triton.health = 503
    said = last(triton)
    assert (said.generation, said.answer.status, triton.good) == (False, 503, 0)


@pytest.mark.parametrize(("waited", "pause"), [(0, 0.1), (10, 0.1), (30, 0.3), (100, 1.0), (3600, 1.0)])
def test_who_loads_for_long_is_asked_less_often(waited: float, pause: float) -> None:
    """Weights take half an hour, and every replica has a leader; no start becomes longer by more than a hundredth."""
    assert prober.pause_s(waited) == pytest.approx(pause)
