"""How each engine's model wants to be asked: the names in the body of Triton's `generate`. It sends nothing.

Sampling parameters carry the same names here for every engine (temperature, top_p, top_k, seed, stop, …). Sources: the
config.pbtxt of TensorRT-LLM's LLM API model and of its ensemble, the inputs of Triton's vLLM backend, and their pages'
curl lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | bool | list[str]
Body = dict[str, "Value | dict[str, Value]"]

DEFAULT_MAX_TOKENS = 16
"""Where the engine needs a number and none is given."""


@dataclass(frozen=True)
class Wish:
    """One request for text; `outputs` names what is wanted beside the text, as the engine's page names it."""

    prompt: str
    request_id: str
    streaming: bool = False
    max_tokens: int | None = None
    sampling: Mapping[str, Value] | None = None
    outputs: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, Value]:
        """The sampling parameters with `max_tokens` among them."""
        most: dict[str, Value] = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return {**most, **(self.sampling or {})}


@dataclass(frozen=True)
class Dialect:
    """An engine's way: the body of a request, and the one that stops it.

    `stop` None: the end of the connection does, but Triton notices it only when it has something to send (measured on
    2.51). So a whole text is asked for as a stream, and `join` makes one of what came beside its pieces.
    """

    body: Callable[[Wish], Body]
    stop: Callable[[str], Body] | None
    join: Callable[[Sequence[Mapping[str, object]]], Mapping[str, object]] | None = None


_SAMPLING = frozenset(
    (
        *("best_of", "temperature", "top_k", "top_p", "frequency_penalty", "presence_penalty", "max_tokens", "seed"),
        *("stop", "exclude_input_from_output", "return_perf_metrics", "logits_post_processor_name"),
    )
)


def _llmapi(wish: Wish) -> Body:
    # The id goes into the body: Triton 2.51 ignores the triton-request-id header.
    body: Body = {"id": wish.request_id, "text_input": wish.prompt, "streaming": wish.streaming}
    for name, value in wish.parameters.items():
        body[f"sampling_param_{name}" if name in _SAMPLING else name] = value
    return {**body, **{f"return_{name}": True for name in wish.outputs}}


def _llmapi_stop(request_id: str) -> Body:
    return {"id": request_id, "text_input": "", "stop": True}


def _tensorrtllm(wish: Wish) -> Body:
    body: Body = {"id": wish.request_id, "text_input": wish.prompt, "stream": wish.streaming}
    body["max_tokens"] = DEFAULT_MAX_TOKENS
    for name, value in wish.parameters.items():
        body["stop_words" if name == "stop" else name] = value
    return {**body, **{f"return_{name}": True for name in wish.outputs}}


def _tensorrtllm_stop(request_id: str) -> Body:
    return {"id": request_id, "text_input": "", "max_tokens": 1, "stop": True}


def _vllm(wish: Wish) -> Body:
    # No id in the body: Triton hands every key that is no input to the model as a request parameter, and the backend
    # takes each of those for a sampling parameter (measured on 2.51).
    body: Body = {"text_input": wish.prompt, "exclude_input_in_output": True}
    body["parameters"] = {"stream": wish.streaming, **wish.parameters}
    return {**body, **{f"return_{name}": True for name in wish.outputs}}


def _vllm_join(pieces: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the outputs of the whole: tokens and their log probabilities are told for each piece, the rest so far."""
    made = dict(pieces[-1]) if pieces else {}
    counts = [piece["num_output_tokens"] for piece in pieces if "num_output_tokens" in piece]
    if counts:
        made["num_output_tokens"] = sum(count for count in counts if isinstance(count, int))
    texts = [piece["logprobs"] for piece in pieces if isinstance(piece.get("logprobs"), str)]
    if texts:
        made["logprobs"] = json.dumps([row for text in texts for row in json.loads(str(text)) or []])
    return made


_DIALECTS = {
    "llmapi": Dialect(_llmapi, _llmapi_stop),
    "rehearsal": Dialect(_llmapi, _llmapi_stop),
    "tensorrtllm": Dialect(_tensorrtllm, _tensorrtllm_stop),
    "vllm": Dialect(_vllm, None, _vllm_join),
}


def dialect_of(engine: str) -> Dialect:
    """Return how models of `engine` are asked; a run whose record is lost is asked as the LLM API's are."""
    return _DIALECTS.get(engine, _DIALECTS["llmapi"])


def example(engine: str) -> Body:
    """Return a short body for a curl line, as the engine's own page has it."""
    if engine == "vllm":
        return {"text_input": "Hello", "parameters": {"stream": False, "temperature": 0}}
    if engine == "tensorrtllm":
        return {"text_input": "Hello", "max_tokens": DEFAULT_MAX_TOKENS, "bad_words": "", "stop_words": ""}
    return {"text_input": "Hello", "sampling_param_max_tokens": DEFAULT_MAX_TOKENS}
