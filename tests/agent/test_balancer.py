"""The load balancer in front of several instances, with Debian's own HAProxy and nginx."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slurm_llm.agent import balancer, front, ports, probe

pytestmark = pytest.mark.rehearsal

LOW, HIGH = 31000, 31900


class Instance:
    """A stand-in for one instance's HTTP: says its own name, and whether it is ready."""

    def __init__(self, index: int) -> None:
        outer = self
        self.ready = 200
        self.connections: list[socket.socket] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections.append(self.connection)

            def do_GET(self) -> None:
                self._answer(outer.ready, b"")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(200, json.dumps({"text_output": f"instance {index}"}).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        port = int(self.server.server_address[1])
        self.leader = probe.Leader(index, "127.0.0.1", port, port, 0)

    def end(self) -> None:
        """End as a process that is killed: no further connections, and those that are open are closed."""
        self.server.shutdown()
        self.server.server_close()
        for one in self.connections:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.thread.join()


@pytest.fixture
def instances() -> Iterator[list[Instance]]:
    """Two instances."""
    made = [Instance(0), Instance(1)]
    yield made
    for one in made:
        with contextlib.suppress(OSError):
            one.end()


def _ask(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/m/generate", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(json.load(response)["text_output"])


def _start(program: str, folder: Path, instances: list[Instance], grpc: bool) -> tuple[balancer.Balancer, int]:
    made = balancer.Balancer(program, str(folder))
    assert made.lacks() == ""
    http, other, _ = ports.draw(LOW, HIGH, os.getpid(), [0, 0, 0])
    made.start([one.leader for one in instances], balancer.Ports(http, other if grpc else 0))
    return made, http


@pytest.mark.parametrize("program", ["haproxy", "nginx"])
@pytest.mark.parametrize("grpc", [False, True], ids=["http", "with-grpc"])
def test_requests_are_shared_out_and_a_dead_instance_gets_none(
    program: str, grpc: bool, tmp_path: Path, instances: list[Instance]
) -> None:
    """Both serve; when one is gone, every further request is answered by the other."""
    made, port = _start(program, tmp_path, instances, grpc)
    try:
        assert set(Counter(_ask(port) for _ in range(20))) == {"instance 0", "instance 1"}
        instances[0].end()
        assert Counter(_ask(port) for _ in range(20)) == {"instance 1": 20}
    finally:
        made.stop()
    assert made.ended() is None
    with pytest.raises(urllib.error.URLError):
        _ask(port)


def test_haproxy_asks_each_instance_whether_it_is_ready(tmp_path: Path, instances: list[Instance]) -> None:
    """One that lives but is not ready gets no requests either, and gets them again once it is."""
    made, port = _start("haproxy", tmp_path, instances, grpc=False)
    try:
        for ready, who in ((503, {"instance 1"}), (200, {"instance 0", "instance 1"})):
            instances[0].ready = ready
            deadline = time.monotonic() + 15
            while {_ask(port) for _ in range(10)} != who:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        made.stop()


@pytest.mark.parametrize("program", ["haproxy", "nginx"])
def test_a_balancer_that_cannot_listen_is_told(program: str, tmp_path: Path, instances: list[Instance]) -> None:
    """Its own words are in the log that the message names."""
    leaders = [one._replace(host="no such host") for one in (instances[0].leader,)]
    made = balancer.Balancer(program, str(tmp_path))
    http, _, _ = ports.draw(LOW, HIGH, os.getpid(), [0, 0, 0])
    with pytest.raises(OSError, match=f"{program} does not listen: see {tmp_path}/balancer.log"):
        made.start(leaders, balancer.Ports(http, 0))
    made.stop()
    assert (tmp_path / "balancer.log").read_text()


def test_a_program_that_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    made = balancer.Balancer("no-such-balancer", str(tmp_path))
    assert made.lacks().startswith("there is no no-such-balancer on this node: load its module")


def test_a_balancer_that_ends_by_itself_is_missed_a_moment_later(tmp_path: Path) -> None:
    """Slurm ends it together with all else when the job is cancelled: then the script's word of that comes first."""
    own = front.Front({"balancer": {"program": "haproxy", "port": 0}}, str(tmp_path / "attempt-0"))
    assert own.balancer is not None and own.ended() == ""
    own.balancer._child = subprocess.Popen(["sh", "-c", "exit 7"])
    own.balancer._child.wait(20)
    assert own.ended() == ""
    deadline = time.monotonic() + 20
    while not own.ended():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "ended with status 7" in own.ended()
