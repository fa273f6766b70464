"""Asking a leader's Triton over HTTP, past any proxy: ready, and one real generation. Decides nothing."""

import http.client
import json
from typing import NamedTuple, Optional


class Leader(NamedTuple):
    """Where one instance's leader listens."""

    instance: int
    host: str
    http: int
    grpc: int
    metrics: int


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

    `busy` tells that its model has answered others meanwhile (of a generation that failed: with success).
    """

    instance: int
    answer: Answer
    generation: bool = False
    busy: bool = False


def request(host: str, port: int, method: str, path: str, body: Optional[str] = None, timeout_s: float = 5.0) -> Answer:
    """Send one request; http.client reads no proxy from the environment."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, body=None if body is None else body.encode(), headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(65536).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        return Answer(None, str(error) or type(error).__name__)
    finally:
        connection.close()


def ready(host: str, port: int, timeout_s: float = 2.0) -> Answer:
    """Ask /v2/health/ready."""
    return request(host, port, "GET", "/v2/health/ready", timeout_s=timeout_s)


def generate(host: str, port: int, path: str, body: str, timeout_s: float) -> Answer:
    """Ask for one generation; an answer that is not JSON does not count."""
    answer = request(host, port, "POST", path, body, timeout_s)
    if answer.ok:
        try:
            json.loads(answer.body)
        except ValueError:
            return Answer(None, "the answer is not JSON: %r" % answer.body[:200])
    return answer


class Counts(NamedTuple):
    """How many requests a model has answered, and how many of them with an error."""

    answered: int
    failed: int


def requests_answered(host: str, port: int, model: str, timeout_s: float = 5.0) -> Optional[Counts]:
    """Return how many requests the model has answered; None when Triton does not say.

    Triton's statistics extension (server/docs/protocol/extension_statistics.md): counts of each model's version.
    """
    answer = request(host, port, "GET", "/v2/models/%s/stats" % model, timeout_s=timeout_s)
    try:
        found = json.loads(answer.body)["model_stats"]
        good, bad = (sum(int(item["inference_stats"][kind]["count"]) for item in found) for kind in ("success", "fail"))
        return Counts(good + bad, bad)
    except (ValueError, KeyError, TypeError):
        return None
