"""The rehearsal engine as a model of Triton's Python backend, with the LLM API model's inputs and outputs.

Only translation happens here: parameters and requests in, responses out. Ranks above 0 stay in `initialize`
until rank 0 ends, then return as NVIDIA's model does; rank 0 serves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it

from .engine import Leader, start_engine
from .texts import Request
from .world import RehearsalError

_DEFAULT_MAX_TOKENS = 16


class TritonPythonModel:
    """Triton makes one of these and calls the three methods."""

    _leader: Leader | None = None

    def initialize(self, args: dict[str, str]) -> None:
        """Start this rank; returns on rank 0 when all ranks are ready, on others when rank 0 has ended."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        try:
            self._leader = start_engine(
                {name: value["string_value"] for name, value in parameters.items()}, pb_utils.Logger.log_info
            )
        except RehearsalError as error:
            raise pb_utils.TritonModelException(f"rehearsal: {error}") from error

    def execute(self, requests: Sequence[Any]) -> None:
        """Queue requests and return; responses go through each request's sender."""
        try:
            for request in requests:
                self._take(request)
        except RehearsalError as error:
            raise pb_utils.TritonModelException(f"rehearsal: {error}") from error

    def finalize(self) -> None:
        """Let running requests end and release the other ranks."""
        if self._leader is not None:
            pb_utils.Logger.log_info("rehearsal: finishing")
            self._leader.close(self._leader.finish_s)

    def _take(self, request: Any) -> None:
        sender = request.get_response_sender()
        if self._leader is None:
            _send_error(sender, "this rank does not serve: ask rank 0")
            return
        request_id = request.request_id()
        if _scalar(request, "stop", False):
            # NVIDIA's model answers a stop request with an error too, in the same words.
            self._leader.cancel(request_id)
            if request_id:
                _send_error(sender, "Request cancelled by client", pb_utils.TritonError.CANCELLED)
            else:
                _send_error(sender, "A request id must be provided for request cancellation")
            return
        try:
            text = _read_request(request, request_id, sender)
        except RehearsalError as error:
            _send_error(sender, str(error), pb_utils.TritonError.INVALID_ARG)
            return
        self._leader.submit(text)


class _Streaming:
    """A client that gets one response for each token."""

    def __init__(self, sender: Any, wanted: frozenset[str], opening: str) -> None:
        self._sender, self._wanted = sender, wanted
        self._opening = opening

    def send(self, text: str) -> None:
        _send(self._sender, self._outputs(text, "None", None))

    def finish(self, text: str, reason: str, stop_text: str | None) -> None:
        _send(self._sender, self._outputs(text, reason, stop_text), last=True)

    def fail(self, message: str) -> None:
        _send_error(self._sender, message)

    def is_gone(self) -> bool:
        return bool(self._sender.is_cancelled())

    def _outputs(self, text: str, reason: str, stop_text: str | None) -> list[Any]:
        text, self._opening = self._opening + text, ""
        outputs = [_strings("text_output", text), _strings("finish_reason", reason)]
        if "return_stop_reason" in self._wanted:
            outputs.append(_strings("stop_reason", str(stop_text)))
        if "return_cumulative_logprob" in self._wanted:
            outputs.append(pb_utils.Tensor("cumulative_logprob", np.zeros(1, np.float32)))
        return outputs


class _Whole(_Streaming):
    """A client that gets exactly one response: through `generate` Triton allows no more."""

    def send(self, text: str) -> None:
        self._opening += text


def _read_request(request: Any, request_id: str, sender: Any) -> Request:
    prompts = _tensor(request, "text_input")
    if prompts is None or prompts.size != 1:
        raise RehearsalError("text_input must be one text")
    prompt = _as_bytes(prompts.flat[0])
    max_tokens = int(_scalar(request, "sampling_param_max_tokens", _DEFAULT_MAX_TOKENS))
    if max_tokens < 1:
        raise RehearsalError(f"sampling_param_max_tokens is {max_tokens}; it must be at least 1")
    stop_texts = _tensor(request, "sampling_param_stop")
    texts = () if stop_texts is None else tuple(_as_bytes(text).decode(errors="replace") for text in stop_texts.flat)
    wanted = frozenset(
        name for name in ("return_stop_reason", "return_cumulative_logprob") if _scalar(request, name, False)
    )
    echo = not _scalar(request, "sampling_param_exclude_input_from_output", True)
    kind = _Streaming if _scalar(request, "streaming", False) else _Whole
    return Request(
        request_id=request_id,
        prompt=prompt,
        client=kind(sender, wanted, prompt.decode(errors="replace") if echo else ""),
        max_tokens=max_tokens,
        stop_texts=tuple(text for text in texts if text),
    )


def _tensor(request: Any, name: str) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _scalar(request: Any, name: str, default: Any) -> Any:
    values = _tensor(request, name)
    return default if values is None or values.size == 0 else values.flat[0]


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _strings(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode()], np.object_))


def _send(sender: Any, outputs: list[Any], *, last: bool = False) -> None:
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
    sender.send(pb_utils.InferenceResponse(output_tensors=outputs), flags=flags)


def _send_error(sender: Any, message: str, code: Any = None) -> None:
    error = pb_utils.TritonError(message) if code is None else pb_utils.TritonError(message, code)
    sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
