"""Asking a vLLM model over gRPC with NVIDIA's client, which the nvidia-pytriton wheel brings along."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpc  # type: ignore[import-untyped]

PATIENCE_S = 60


@dataclass(frozen=True)
class Told:
    """Pieces of text as they came, and the error that ended them."""

    pieces: tuple[str, ...]
    error: str | None


def ask_grpc(
    address: str, prompt: str, parameters: Mapping[str, str], *, streaming: bool = False, cancelling: bool = False
) -> Told:
    """Send one request and return what came; `cancelling` gives the stream up after its first piece."""
    text = grpc.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([prompt.encode()], np.object_))
    inputs = [text]
    for name, value in (("stream", streaming or cancelling), ("exclude_input_in_output", True)):
        inputs.append(grpc.InferInput(name, [1], "BOOL"))
        inputs[-1].set_data_from_numpy(np.array([value]))
    events: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.InferenceServerClient(address) as client:
        client.start_stream(callback=lambda result, error: events.put((result, error)))
        client.async_stream_infer(
            "vllm_model", inputs, parameters=dict(parameters), request_id="mine", enable_empty_final_response=True
        )
        return _read(events, client if cancelling else None)


def _read(events: queue.Queue[tuple[Any, Any]], cancelling: Any) -> Told:
    pieces: list[str] = []
    while True:
        result, error = events.get(timeout=PATIENCE_S)
        if error is not None:
            return Told(tuple(pieces), str(error))
        output = result.as_numpy("text_output")
        if output is not None:
            pieces.append(b"".join(output.tolist()).decode())
        if result.get_response().parameters["triton_final_response"].bool_param:
            return Told(tuple(pieces), None)
        if cancelling is not None:
            cancelling.stop_stream(cancel_requests=True)
            cancelling = None
