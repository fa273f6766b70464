"""Asking a served model for text over Triton's `generate` and `generate_stream`, past any proxy. Knows no run.

Bodies carry the names of TensorRT-LLM's LLM API model: `text_input`, `sampling_param_max_tokens`, `streaming`,
`stop`. The request id goes into the body as `id`: Triton 2.51 ignores the `triton-request-id` header.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import httpx

from slurm_llm.errors import Problem, RequestFailed

CANCEL_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0
SHOWN_BODY = 2000

Body = dict[str, str | int | bool]


@dataclass(frozen=True)
class Served:
    """Where one instance serves which model."""

    url: str
    model: str

    def path(self, verb: str) -> str:
        """Return the address of `generate` or `generate_stream`."""
        return f"{self.url}/v2/models/{self.model}/{verb}"


@dataclass(frozen=True)
class Ask:
    """One request for text; without an id it gets one, so that it can be cancelled."""

    prompt: str
    max_tokens: int | None = None
    request_id: str = ""
    timeout_s: float = 300.0

    def with_id(self) -> Ask:
        """Return the same request with an id."""
        return self if self.request_id else Ask(self.prompt, self.max_tokens, uuid4().hex, self.timeout_s)

    def body(self, streaming: bool) -> Body:
        """Return the request's JSON object."""
        body: Body = {"id": self.request_id, "text_input": self.prompt, "streaming": streaming}
        if self.max_tokens is not None:
            body["sampling_param_max_tokens"] = self.max_tokens
        return body


def generate(served: Served, ask: Ask) -> str:
    """Return the whole text; an interrupt cancels the request on the server.

    Raises:
        RequestFailed: no answer in time, or one that is an error, with its status and body.
    """
    ask = ask.with_id()
    try:
        with _client(ask.timeout_s) as client:
            response = client.post(served.path("generate"), json=ask.body(streaming=False))
    except httpx.HTTPError as error:
        raise _unreachable(served, error, ask) from None
    except KeyboardInterrupt:
        cancel(served, ask.request_id)
        raise
    if response.status_code != 200:
        raise _refused(served, response.status_code, response.text)
    return _text(served, response.text)


def stream(served: Served, ask: Ask) -> Iterator[str]:
    """Yield pieces of text as they come; an interrupt, or giving up on the iterator, cancels the request.

    Raises:
        RequestFailed: as `generate`; also when the stream breaks off with an error in its middle.
    """
    ask = ask.with_id()
    deadline = time.monotonic() + ask.timeout_s
    finished = False
    try:
        with _client(ask.timeout_s) as client:
            body = ask.body(streaming=True)
            with client.stream("POST", served.path("generate_stream"), json=body) as response:
                if response.status_code != 200:
                    finished = True
                    raise _refused(served, response.status_code, response.read().decode("utf-8", "replace"))
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        yield _text(served, line[5:])
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("")
        finished = True
    except httpx.HTTPError as error:
        raise _unreachable(served, error, ask) from None
    finally:
        if not finished:
            cancel(served, ask.request_id)


def cancel(served: Served, request_id: str) -> None:
    """Ask the server to stop the request of that id; it answers the stop itself with an error, so no answer counts."""
    body: Body = {"id": request_id, "text_input": "", "stop": True}
    try:
        with _client(CANCEL_TIMEOUT_S) as client:
            client.post(served.path("generate"), json=body)
    except httpx.HTTPError:
        # The request may be over, or the server gone: either way nothing is left to stop.
        return


def _client(timeout_s: float) -> httpx.Client:
    # trust_env: sites export http_proxy, and a proxy cannot reach a compute node.
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
    return httpx.Client(trust_env=False, timeout=timeout)


def _text(served: Served, line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        raise _refused(served, 200, line) from None
    if not isinstance(value, dict) or "error" in value or "text_output" not in value:
        raise _refused(served, 200, line)
    text = value["text_output"]
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def _refused(served: Served, status: int, body: str) -> RequestFailed:
    return RequestFailed(Problem(served.url, f"answered with status {status}", body.strip()[:SHOWN_BODY]))


def _unreachable(served: Served, error: httpx.HTTPError, ask: Ask) -> RequestFailed:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        what = f"cannot be reached from here: {error or type(error).__name__}"
        return RequestFailed(Problem(served.url, what, todo="is the job still ready, and is this a login node?"))
    if isinstance(error, httpx.TimeoutException):
        return RequestFailed(Problem(served.url, f"no answer within {ask.timeout_s:g} s"))
    return RequestFailed(Problem(served.url, f"broke off: {error or type(error).__name__}"))
