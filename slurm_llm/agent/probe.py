"""Asking a leader's Triton over HTTP, past any proxy: what is asked, and what an answer says. Decides nothing."""

import http.client
import json
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

READY, READY_S = "/v2/health/ready", 2.0
LONGEST = 1 << 16
"""Bytes of an answer that are read."""
NO_HEADERS: Mapping[str, str] = {}


class Leader(NamedTuple):
    """Where one instance's leader listens."""

    instance: int
    host: str
    http: int
    grpc: int
    metrics: int


def leader_found(instance: int, found: Dict[str, Any]) -> Leader:
    """Return where the leader of an instance listens, by what its node's agent has told of its process."""
    given = found["ports"]
    host = found["node"] if found.get("address") in (None, "0.0.0.0", "::") else found["address"]
    return Leader(instance, host, int(given["http"]), int(given["grpc"] or 0), int(given["metrics"] or 0))


class Answer(NamedTuple):
    """A status code and body, or the reason why there is none."""

    status: Optional[int]
    body: str

    @property
    def ok(self) -> bool:
        """Return whether the answer was 200; any other answer is not one (a 503 is not healthy)."""
        return self.status == 200


class Said(NamedTuple):
    """What the leader of an instance answered: to a generation or to a question for its health.

    `busy` tells that its model has answered others meanwhile (of a generation that failed: with success), `crowded`
    that it answers on a connection that it has had before, and accepts no other.
    """

    instance: int
    answer: Answer
    generation: bool = False
    busy: bool = False
    crowded: bool = False
    took_s: float = 0.0
    """How long a generation took."""


def request(host: str, port: int, method: str, path: str, body: Optional[str] = None, timeout_s: float = 5.0) -> Answer:
    """Send one request on a connection of its own; http.client reads no proxy from the environment."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        return exchange(connection, method, path, body)[0]
    except (OSError, http.client.HTTPException) as error:
        return Answer(None, str(error) or type(error).__name__)
    finally:
        connection.close()


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Optional[str] = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Tuple[Answer, bool]:
    """Send one request and return its answer, and whether the connection is fit for another one.

    Raises:
        OSError, http.client.HTTPException: no answer.
    """
    sent = dict(headers)
    if body is not None:
        sent["Content-Type"] = "application/json"
    connection.request(method, path, body=None if body is None else body.encode(), headers=sent)
    response = connection.getresponse()
    text = response.read(LONGEST).decode("utf-8", "replace")
    return Answer(response.status, text), response.isclosed() and not response.will_close


def ready(host: str, port: int, timeout_s: float = READY_S) -> Answer:
    """Ask /v2/health/ready."""
    return request(host, port, "GET", READY, timeout_s=timeout_s)


class Counts(NamedTuple):
    """How many requests a model has answered, and how many of them with an error."""

    answered: int
    failed: int


def stats_path(model: str) -> str:
    """Return where Triton counts a model's requests (server/docs/protocol/extension_statistics.md)."""
    return "/v2/models/%s/stats" % model


def counts_in(answer: Answer) -> Optional[Counts]:
    """Return what Triton's answer to `stats_path` counts, over the model's versions; None when it does not say."""
    try:
        found = json.loads(answer.body)["model_stats"]
        good, bad = (sum(int(item["inference_stats"][kind]["count"]) for item in found) for kind in ("success", "fail"))
        return Counts(good + bad, bad)
    except (ValueError, KeyError, TypeError):
        return None


def requests_answered(host: str, port: int, model: str, timeout_s: float = 5.0) -> Optional[Counts]:
    """Return how many requests the model has answered; None when Triton does not say."""
    return counts_in(request(host, port, "GET", stats_path(model), timeout_s=timeout_s))
