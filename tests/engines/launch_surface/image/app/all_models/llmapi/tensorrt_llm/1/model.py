"""A model with the life cycle of TensorRT-LLM's llmapi model, in Triton's own Python backend; it echoes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import surface
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it
import yaml
from helpers import scalar

SETTINGS = {"max_batch_size", "decoupled", "cancellation_check_period_ms", "multimodal"}


class TritonPythonModel:
    """Rank 0 holds the LLM, the others wait inside `initialize`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read model.yaml beside this file, refuse what does not fit, and start."""
        config = json.loads(args["model_config"])
        own = yaml.safe_load((Path(__file__).parent / os.environ.get("LLM_CONFIG_PATH", "model.yaml")).read_text())
        settings = own.pop("triton_config")
        unknown = sorted(set(settings) - SETTINGS)
        if unknown:
            raise ValueError(f"unknown triton_config: {', '.join(unknown)}")
        self.decoupled = bool(settings["decoupled"])
        if self.decoupled != pb_utils.using_decoupled_model_transaction_policy(config):
            raise ValueError("model.yaml and config.pbtxt differ in decoupled")
        if config["max_batch_size"] != int(settings["max_batch_size"]):
            raise ValueError("model.yaml and config.pbtxt differ in max_batch_size")
        self.gpus = self._choose_gpus(config, args["model_instance_name"])
        if surface.rank() > 0:
            print(f"surface: rank {surface.rank()} waits for the leader", flush=True)
            surface.wait_for_leader()
            return
        self.llm = surface.LLM(**own)
        print(f"surface: {args['model_instance_name']} leads, GPUs {self.gpus}", flush=True)

    @staticmethod
    def _choose_gpus(config: dict[str, Any], instance: str) -> str:
        if int(config["instance_group"][0].get("count", 1)) > 1:
            sets = config["parameters"]["gpu_device_ids"]["string_value"].split(";")
            os.environ["CUDA_VISIBLE_DEVICES"] = sets[int(instance.rpartition("_")[2])]
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer each request, in pieces where it asks for a stream."""
        if not self.decoupled:
            return [self._answer("".join(self._pieces(request))) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            pieces = self._pieces(request)
            if not scalar(request, "streaming", False):
                pieces = ["".join(pieces)]
            for piece in pieces:
                sender.send(self._answer(piece))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _pieces(self, request: Any) -> list[str]:
        most = int(scalar(request, "sampling_param_max_tokens", 16))
        return self.llm.generate(scalar(request, "text_input", ""), most)

    @staticmethod
    def _answer(text: str) -> Any:
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text], dtype=object))])

    def finalize(self) -> None:
        """Let the workers go."""
        if surface.rank() == 0:
            surface.release_workers()
