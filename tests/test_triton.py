"""Asking for text: the names in the body, streams, errors, cancelling, and no proxy."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from slurm_llm.errors import InputError, NotReached, RequestFailed
from slurm_llm.triton import Ask, Served, generate, stop, stream
from tests.http_server import serve

Answer = tuple[int, Iterator[bytes]]


def ok(*texts: str) -> Answer:
    """Return a stream of events."""
    return 200, (f"data: {json.dumps({'text_output': text})}\n\n".encode() for text in texts)


def test_generate_sends_the_llm_api_models_names() -> None:
    """Names as on Triton's TensorRT-LLM page, and the id in the body."""
    with serve(lambda path, body: (200, iter([b'{"text_output": "there"}']))) as server:
        text = generate(Served(server.url, "tensorrt_llm"), Ask("hello", 5, "me"))
    assert text == "there"
    body = {"id": "me", "text_input": "hello", "streaming": False, "sampling_param_max_tokens": 5}
    assert server.asked == [("/v2/models/tensorrt_llm/generate", body)]


def test_stream_yields_pieces() -> None:
    """One piece an event, white space kept; a finished stream cancels nothing."""
    with serve(lambda path, body: ok("a", " b", "\n")) as server:
        assert list(stream(Served(server.url, "m"), Ask("x"))) == ["a", " b", "\n"]
    ((path, body),) = server.asked
    assert path == "/v2/models/m/generate_stream"
    assert body["streaming"] is True
    assert len(str(body["id"])) == 32


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, [b'{"error": "no such model"}']), "status 400: .*no such model"),
        ((200, [b'data: {"error": "broke"}\n\n']), "broke"),
        ((200, [b"data: <html>\n\n"]), "html"),
    ],
)
def test_an_error_carries_status_and_body(streaming: bool, answer: tuple[int, list[bytes]], message: str) -> None:
    """Whatever the server says reaches the user."""
    with serve(lambda path, body: (answer[0], iter(answer[1]))) as server, pytest.raises(RequestFailed, match=message):
        served = Served(server.url, "m")
        list(stream(served, Ask("x"))) if streaming else generate(served, Ask("x"))


def test_giving_up_a_stream_cancels_the_request() -> None:
    """The stop carries the same id."""

    def answer(path: str, body: dict[str, object]) -> Answer:
        return ok(*"abcdef") if path.endswith("stream") else (500, iter([b'{"error": "cancelled"}']))

    with serve(answer) as server:
        pieces = stream(Served(server.url, "m"), Ask("x", request_id="mine"))
        assert next(pieces) == "a"
        pieces.close()  # type: ignore[attr-defined]
    assert server.asked[-1] == ("/v2/models/m/generate", {"id": "mine", "text_input": "", "stop": True})


def test_an_interrupt_cancels_the_request() -> None:
    """Ctrl-C while the whole text is awaited stops it on the server too."""

    def answer(path: str, body: dict[str, object]) -> Answer:
        if "stop" in body:
            return 500, iter([b"{}"])
        interrupt()
        return 200, late()

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def late() -> Iterator[bytes]:
        deadline = time.monotonic() + 30
        while len(server.asked) < 2 and time.monotonic() < deadline:
            yield b" "
            time.sleep(0.01)
        yield b'{"text_output": ""}'

    with serve(answer) as server, pytest.raises(KeyboardInterrupt):
        generate(Served(server.url, "m"), Ask("x", request_id="mine"))
    assert server.asked[-1][1] == {"id": "mine", "text_input": "", "stop": True}


def test_a_stop_goes_wherever_the_request_may_be() -> None:
    """Behind a balancer nobody knows which instance has it; each is told, with the key, whatever it answers."""
    refused: Answer = (400, iter([b'{"error": "Request cancelled by client"}']))
    with serve(lambda path, body: refused) as one, serve(lambda path, body: refused) as other:
        stop(Served("http://balancer:1", "m", headers={"x-key": "secret"}, stops=(one.url, other.url)), "mine")
    for server in (one, other):
        assert server.asked == [("/v2/models/m/generate", {"id": "mine", "text_input": "", "stop": True})]
        assert server.headers[0]["x-key"] == "secret"


def test_what_no_stop_reaches_is_told() -> None:
    """A key that is missing, a server that is gone, an engine that stops nothing by its id."""
    with serve(lambda path, body: (403, iter([b"restricted"]))) as server, pytest.raises(RequestFailed, match="403"):
        stop(Served(server.url, "m"), "mine")
    with pytest.raises(NotReached):
        stop(Served("http://127.0.0.1:1", "m"), "mine")
    with pytest.raises(InputError, match="ends one when its client goes"):
        stop(Served("http://127.0.0.1:1", "m", "vllm"), "mine")


def test_a_key_goes_along_and_is_not_shown() -> None:
    """Whole texts and streams carry the header; no value of ours prints it."""
    served = Served("", "m", headers={"x-key": "secret"})
    assert "secret" not in repr(served)
    for streaming in (False, True):
        with serve(lambda path, body: ok("a")) as server:
            own = replace(served, url=server.url)
            if streaming:
                list(stream(own, Ask("x")))
            else:
                with pytest.raises(RequestFailed):
                    generate(own, Ask("x"))
        assert server.headers[0]["x-key"] == "secret"


def test_nobody_listens() -> None:
    """A server that is gone is one sentence."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(RequestFailed, match="cannot be reached"):
            generate(Served(url, "m"), Ask("x", timeout_s=2))


def test_a_deadline_holds() -> None:
    """A server that takes the request and says nothing ends in an error, and the request is cancelled."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RequestFailed, match=r"no answer within 0\.2 s"):
            generate(Served(url, "m"), Ask("x", timeout_s=0.2))


def test_a_request_that_takes_too_long_is_stopped() -> None:
    """Nobody waits for its answer any more, so the model is not to write it."""

    def answer(path: str, body: dict[str, object]) -> Answer:
        if body.get("stop"):
            return 400, iter([b"{}"])
        return 200, late()

    def late() -> Iterator[bytes]:
        deadline = time.monotonic() + 30
        while len(server.asked) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        yield b'{"text_output": ""}'

    with serve(answer) as server, pytest.raises(RequestFailed, match="no answer within"):
        generate(Served(server.url, "m"), Ask("x", request_id="mine", timeout_s=0.3))
    assert server.asked[-1][1] == {"id": "mine", "text_input": "", "stop": True}


def test_proxies_are_bypassed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites export http_proxy; a proxy cannot reach a compute node."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve(lambda path, body: ok("x")) as server:
        assert list(stream(Served(server.url, "m"), Ask("x"))) == ["x"]
