"""Asking a served model for text over Triton's `generate` and `generate_stream`, past any proxy, and for its metrics.

Knows no run. What a body holds depends on the engine: see `dialects`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from uuid import uuid4

import httpx

from slurm_llm.dialects import Body, Value, Wish, dialect_of
from slurm_llm.errors import InputError, NotReached, Problem, RequestFailed

CANCEL_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 10.0
MAX_PAGE = 1 << 24
SHOWN_BODY = 2000
REQUEST_ID = "triton-request-id"
REFUSALS = frozenset({401, 403, 404})
"""Statuses of a server that has not taken a request in: no key, a wrong one, no such model."""


@dataclass(frozen=True)
class Served:
    """Where one instance serves which model of which engine.

    `headers` are what its key wants; `stops` are the addresses that a request is stopped at, its own when empty.
    """

    url: str
    model: str
    engine: str = "llmapi"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    stops: tuple[str, ...] = ()

    def path(self, verb: str) -> str:
        """Return the address of `generate` or `generate_stream`."""
        return f"{self.url}/v2/models/{self.model}/{verb}"


@dataclass(frozen=True)
class Ask:
    """One request for text; without an id it gets one, so that it can be cancelled.

    `sampling` are sampling parameters by their common names (temperature, top_p, seed, …); `outputs` are wanted beside
    the text, by the engine's names without `return_` (finish_reason, cumulative_logprob, …).
    """

    prompt: str
    max_tokens: int | None = None
    request_id: str = ""
    timeout_s: float = 300.0
    sampling: Mapping[str, Value] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    def with_id(self) -> Ask:
        """Return the same request with an id."""
        return self if self.request_id else replace(self, request_id=uuid4().hex)

    def body(self, served: Served, streaming: bool) -> Body:
        """Return the request's JSON object, as the engine that is served wants it."""
        wish = Wish(self.prompt, self.request_id, streaming, self.max_tokens, self.sampling, self.outputs)
        return dialect_of(served.engine).body(wish)


@dataclass(frozen=True)
class Answer:
    """A text, or a piece of one, and what came with it."""

    text: str
    outputs: Mapping[str, object]


def generate(served: Served, ask: Ask) -> str:
    """Return the whole text; an interrupt, or the end of the time, cancels the request on the server.

    Raises:
        RequestFailed: no answer in time, or one that is an error, with its status and body.
    """
    return answer(served, ask).text


def answer(served: Served, ask: Ask) -> Answer:
    """Return the whole text with what came beside it; see `generate`."""
    ask = ask.with_id()
    join = dialect_of(served.engine).join
    if join is not None:
        pieces = list(answers(served, ask))
        return Answer("".join(piece.text for piece in pieces), join([piece.outputs for piece in pieces]))
    try:
        with _client(served, ask) as client:
            response = client.post(served.path("generate"), json=ask.body(served, streaming=False))
    except httpx.HTTPError as error:
        if isinstance(error, httpx.ReadTimeout):
            cancel(served, ask.request_id)
        raise _unreachable(served, error, ask) from None
    except KeyboardInterrupt:
        cancel(served, ask.request_id)
        raise
    if response.status_code != 200:
        raise _refused(served, response.status_code, response.text)
    return _answer(served, response.text, ask)


def stream(served: Served, ask: Ask) -> Iterator[str]:
    """Yield pieces of text as they come; an interrupt, or giving up on the iterator, cancels the request.

    Raises:
        RequestFailed: as `generate`; also when the stream breaks off with an error in its middle.
    """
    pieces = answers(served, ask)
    try:
        for piece in pieces:
            yield piece.text
    finally:
        pieces.close()  # type: ignore[attr-defined]  # a generator


def answers(served: Served, ask: Ask) -> Iterator[Answer]:
    """Yield pieces of text with what came beside each; see `stream`."""
    ask = ask.with_id()
    deadline = time.monotonic() + ask.timeout_s
    finished = False
    try:
        with _client(served, ask) as client:
            body = ask.body(served, streaming=True)
            with client.stream("POST", served.path("generate_stream"), json=body) as response:
                if response.status_code != 200:
                    finished = True
                    raise _refused(served, response.status_code, response.read().decode("utf-8", "replace"))
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        yield _answer(served, line[5:], ask)
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("")
        finished = True
    except httpx.HTTPError as error:
        raise _unreachable(served, error, ask) from None
    finally:
        if not finished:
            cancel(served, ask.request_id)


def cancel(served: Served, request_id: str) -> None:
    """Ask the server to stop the request of that id, whether it has one or not.

    An engine that has no stop has ended it already: the connection has ended.
    """
    if dialect_of(served.engine).stop is None:
        return
    # The request may be over, or the server gone: either way nothing is left to stop.
    with suppress(RequestFailed):
        stop(served, request_id)


def stop(served: Served, request_id: str) -> None:
    """Ask the server to stop the request of that id. It answers the stop itself with an error, had it one or not.

    Raises:
        InputError: this engine stops nothing by its id; NotReached, RequestFailed: a server does not take the word.
    """
    body = dialect_of(served.engine).stop
    if body is None:
        what = f"{served.engine} stops no request by its id, it ends one when its client goes"
        raise InputError(Problem(served.url, what, todo="end the client that waits for it, as by Ctrl-C"))
    ask = Ask("", request_id=request_id, timeout_s=CANCEL_TIMEOUT_S)
    for url in served.stops or (served.url,):
        one = replace(served, url=url)
        try:
            with _client(served, ask) as client:
                response = client.post(one.path("generate"), json=body(request_id))
        except httpx.HTTPError as error:
            raise _unreachable(one, error, ask) from None
        if response.status_code in REFUSALS:
            raise _refused(one, response.status_code, response.text)


def server_version(url: str) -> str:
    """Return the release that the server at `url` says it is of; an empty text where it says something else.

    Raises:
        RequestFailed: as `page`.
    """
    try:
        return str(json.loads(page(f"{url}/v2"))["version"])
    except (ValueError, KeyError, TypeError):
        return ""


def page_client() -> httpx.Client:
    """Return a client for looking at pages again and again, from several threads: a new one each time costs 15 ms."""
    return httpx.Client(trust_env=False, follow_redirects=False)


def page(url: str, timeout_s: float = PAGE_TIMEOUT_S, client: httpx.Client | None = None) -> str:
    """Return the text of a plain page, as a server's metrics are; `client` stays open.

    Raises:
        RequestFailed: no answer in time, one that is an error, or one of more than MAX_PAGE bytes.
    """
    deadline, data, about = time.monotonic() + timeout_s, b"", Served(url, "")
    try:
        with (
            nullcontext(client) if client is not None else page_client() as asked,
            asked.stream("GET", url, timeout=timeout_s) as response,
        ):
            for piece in response.iter_bytes():
                data += piece
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("")
                if len(data) > MAX_PAGE:
                    raise RequestFailed(Problem(url, f"the page has more than {MAX_PAGE} bytes"))
    except httpx.HTTPError as error:
        raise _unreachable(about, error, Ask("", timeout_s=timeout_s)) from None
    text = data.decode("utf-8", "replace")
    if response.status_code != 200:
        raise _refused(about, response.status_code, text)
    return text


def _client(served: Served, ask: Ask) -> httpx.Client:
    # trust_env: sites export http_proxy, and a proxy cannot reach a compute node.
    timeout = httpx.Timeout(ask.timeout_s, connect=min(ask.timeout_s, CONNECT_TIMEOUT_S))
    return httpx.Client(trust_env=False, timeout=timeout, headers={**served.headers, REQUEST_ID: ask.request_id})


def _answer(served: Served, line: str, ask: Ask) -> Answer:
    try:
        value = json.loads(line)
    except ValueError:
        raise _refused(served, 200, line) from None
    if not isinstance(value, dict) or "error" in value or "text_output" not in value:
        raise _refused(served, 200, line)
    text = value["text_output"]
    outputs = {name: value[name] for name in ask.outputs if name in value}
    return Answer("".join(map(str, text)) if isinstance(text, list) else str(text), outputs)


def _refused(served: Served, status: int, body: str) -> RequestFailed:
    return RequestFailed(Problem(served.url, f"answered with status {status}", body.strip()[:SHOWN_BODY]))


def _unreachable(served: Served, error: httpx.HTTPError, ask: Ask) -> RequestFailed:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        what = f"cannot be reached from here: {error or type(error).__name__}"
        return NotReached(Problem(served.url, what, todo="is the job still ready, and is this a login node?"))
    if isinstance(error, httpx.TimeoutException):
        return RequestFailed(Problem(served.url, f"no answer within {ask.timeout_s:g} s"))
    return RequestFailed(Problem(served.url, f"broke off: {error or type(error).__name__}"))
