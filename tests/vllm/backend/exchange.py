"""Triton's requests to vLLM's words and back: the inputs and outputs of NVIDIA's vLLM backend. It runs no engine."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it

EXTRAS = (
    ("finish_reason", "TYPE_STRING", [-1]),
    ("cumulative_logprob", "TYPE_FP32", [-1]),
    ("logprobs", "TYPE_STRING", [-1]),
    ("num_input_tokens", "TYPE_UINT32", [1]),
    ("num_output_tokens", "TYPE_UINT32", [-1]),
)
"""Outputs that a request must ask for, each with an input `return_<name>`."""


def _optional(name: str, kind: str, dims: int = 1) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": [dims], "optional": True}


INPUTS: list[dict[str, Any]] = [
    {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
    _optional("image", "TYPE_STRING", -1),
    _optional("stream", "TYPE_BOOL"),
    _optional("sampling_parameters", "TYPE_STRING"),
    _optional("exclude_input_in_output", "TYPE_BOOL"),
    *(_optional(f"return_{name}", "TYPE_BOOL") for name, _, _ in EXTRAS),
    _optional("embedding_request", "TYPE_STRING"),
]
OUTPUTS: list[dict[str, Any]] = [
    {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
    *({"name": name, "data_type": kind, "dims": dims} for name, kind, dims in EXTRAS),
]


class Refused(Exception):
    """A request that the client has to correct."""


@dataclass(frozen=True)
class Ask:
    """One request; `wanted` names the extra outputs."""

    prompt: str
    streams: bool
    prepends: bool
    sampling: Any
    adapter: Any
    wanted: frozenset[str]


@dataclass
class Seen:
    """What of each sequence has been sent: characters, tokens and log probabilities."""

    characters: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, int] = field(default_factory=dict)


def new_id() -> str:
    """Return an id for vLLM: the client's own may come twice."""
    return uuid.uuid4().hex


def read_ask(request: Any, adapters: dict[str, str]) -> Ask:
    """Return what a request asks for.

    Raises:
        Refused: it contradicts itself, or names an adapter that is not there.
    """
    streams = bool(_scalar(request, "stream", False))
    excludes = bool(_scalar(request, "exclude_input_in_output", streams))
    if streams and not excludes:
        raise Refused("a stream never repeats the prompt: leave out exclude_input_in_output")
    given = _scalar(request, "sampling_parameters", None)
    parameters = json.loads(request.parameters() if given is None else given.decode())
    adapter = _adapter(parameters.pop("lora_name", None), adapters)
    wanted = frozenset(name for name, _, _ in EXTRAS if _scalar(request, f"return_{name}", False))
    prompt = _scalar(request, "text_input", b"").decode()
    return Ask(prompt, streams, not excludes, _sampling(parameters), adapter, wanted)


def _sampling(parameters: dict[str, Any]) -> Any:
    from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]  # not where mypy runs

    # Clients send numbers as text too: over gRPC a parameter has no type for a fraction.
    made = {}
    for name, value in parameters.items():
        kind = str(SamplingParams.__annotations__.get(name, "")).removeprefix("<class '").partition("'")[0]
        number = {"int": int, "int | None": int, "float": float}.get(kind)
        made[name] = number(value) if number is not None else value
    try:
        return SamplingParams(**made)
    except (TypeError, ValueError) as error:
        raise Refused(f"wrong sampling parameters: {error}") from None


def _adapter(name: str | None, adapters: dict[str, str]) -> Any:
    if name is None:
        return None
    if name not in adapters:
        raise Refused(f"LoRA {name} is not supported, these are: {list(adapters)}")
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]  # not where mypy runs

    number = list(adapters).index(name) + 1
    return LoRARequest(str(number), number, adapters[name])


def answer(ask: Ask, output: Any, seen: Seen) -> list[Any]:
    """Return the tensors of one response: what is new of every sequence since the last one."""
    made = {"text_output": _texts([_rest(seen.characters, one.index, one.text) for one in output.outputs])}
    if ask.prepends:
        made["text_output"] = _texts([output.prompt + one.text for one in output.outputs])
    if "finish_reason" in ask.wanted:
        made["finish_reason"] = _texts([str(one.finish_reason) for one in output.outputs])
    if "cumulative_logprob" in ask.wanted:
        made["cumulative_logprob"] = np.array([one.cumulative_logprob for one in output.outputs], np.float32)
    if "logprobs" in ask.wanted:
        made["logprobs"] = _texts([_logprobs(one, seen) for one in output.outputs])
    if "num_input_tokens" in ask.wanted:
        made["num_input_tokens"] = np.array([len(output.prompt_token_ids)], np.uint32)
    if "num_output_tokens" in ask.wanted:
        counts = [len(_rest(seen.tokens, one.index, one.token_ids)) for one in output.outputs]
        made["num_output_tokens"] = np.array(counts, np.uint32)
    return [pb_utils.Tensor(name, values) for name, values in made.items()]


def _rest(seen: dict[int, int], index: int, whole: Any) -> Any:
    start, seen[index] = seen.get(index, 0), len(whole)
    return whole[start:]


def _logprobs(one: Any, seen: Seen) -> str:
    if one.logprobs is None:
        return "null"
    rows = [
        {
            token: {"logprob": it.logprob, "rank": it.rank, "decoded_token": it.decoded_token}
            for token, it in row.items()
        }
        for row in _rest(seen.logprobs, one.index, one.logprobs)
    ]
    return json.dumps(rows)


def _texts(values: list[str]) -> Any:
    return np.array([value.encode() for value in values], np.object_)


def _scalar(request: Any, name: str, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def send(sender: Any, tensors: list[Any], final: bool) -> None:
    """Send one response."""
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
    sender.send(pb_utils.InferenceResponse(output_tensors=tensors), flags=flags)


def send_error(sender: Any, message: str, code: Any = None) -> None:
    """Send an error as the last response; without a code it is the client's fault."""
    kind = pb_utils.TritonError.INVALID_ARG if code is None else code
    error = pb_utils.TritonError(message, kind)
    sender.send(
        pb_utils.InferenceResponse(output_tensors=[], error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    )
