"""A small vLLM backend for Triton that keeps the contract of NVIDIA's, so that a repository made for that runs on it.

What it keeps: `model.json` and `multi_lora.json` in the version folder, the inputs and outputs that it completes a
minimal config.pbtxt with, the parameters REPORT_CUSTOM_METRICS, ENABLE_VLLM_HEALTH_CHECK and GPU_DEVICE_IDS, request
parameters as vLLM's sampling parameters, cancelling, and LoRA by name. Image inputs and embeddings are left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import traceback
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import exchange  # type: ignore[import-not-found]  # Triton puts the backend's folder on the path
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it

SHUTDOWN_S = 20


class TritonPythonModel:
    """Triton makes one of these and calls its methods; vLLM lives in an event loop on a thread of its own."""

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        """Add inputs and outputs that the configuration lacks, and answers at any time."""
        known = config.as_dict()
        for item in exchange.INPUTS:
            if item["name"] not in [one["name"] for one in known["input"]]:
                config.add_input(item)
        for item in exchange.OUTPUTS:
            if item["name"] not in [one["name"] for one in known["output"]]:
                config.add_output(item)
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Start vLLM with the arguments of model.json; returns when it can generate."""
        config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException("vllm: the model must be decoupled")
        self._name = config["name"]
        self._parameters = {name: item["string_value"] for name, item in config["parameters"].items()}
        folder = Path(pb_utils.get_model_dir())
        arguments = json.loads((folder / "model.json").read_text())
        _choose_gpus(args, arguments, self._parameters.get("GPU_DEVICE_IDS"))
        adapters: dict[str, str] = {}
        if _is_true(arguments.get("enable_lora")):
            adapters = json.loads((folder / "multi_lora.json").read_text())
        self._adapters = adapters
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._running: set[str] = set()
        self._engine = self._wait(self._start(arguments, args))
        pb_utils.Logger.log_info(f"[vllm] {self._name} is up")

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand requests to vLLM and return; answers go through each request's sender."""
        if _is_true(self._parameters.get("ENABLE_VLLM_HEALTH_CHECK")) and not self._healthy():
            for request in requests:
                message = "vLLM's engine has failed: the model is unloaded"
                exchange.send_error(request.get_response_sender(), message, pb_utils.TritonError.UNAVAILABLE)
            return
        for request in requests:
            asyncio.run_coroutine_threadsafe(self._serve(request), self._loop)

    def finalize(self) -> None:
        """Let running requests end, then end vLLM."""
        self._wait(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SHUTDOWN_S)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, arguments: dict[str, Any], args: dict[str, str]) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]  # not where mypy runs
        from vllm.v1.engine.async_llm import AsyncLLM  # type: ignore[import-not-found]

        own = AsyncEngineArgs(**arguments)
        loggers = []
        if _is_true(self._parameters.get("REPORT_CUSTOM_METRICS")) and not own.disable_log_stats:
            from figures import logger_factory  # type: ignore[import-not-found]

            loggers = [logger_factory({"model": args["model_name"], "version": args["model_version"]})]
        return AsyncLLM.from_engine_args(own, stat_loggers=loggers or None)

    async def _serve(self, request: Any) -> None:
        sender = request.get_response_sender()
        mark = exchange.new_id()
        self._running.add(mark)
        try:
            await self._generate(exchange.read_ask(request, self._adapters), sender, mark)
        except exchange.Refused as refused:
            exchange.send_error(sender, str(refused))
        except Exception as error:  # noqa: BLE001  # whatever vLLM raises is the client's answer
            pb_utils.Logger.log_error(f"[vllm] {traceback.format_exc()}")
            exchange.send_error(sender, f"vLLM failed on the request: {error!r}")
        finally:
            self._running.discard(mark)

    async def _generate(self, ask: Any, sender: Any, mark: str) -> None:
        seen = exchange.Seen()
        last = None
        async for output in self._engine.generate(ask.prompt, ask.sampling, mark, lora_request=ask.adapter):
            if sender.is_cancelled():
                await self._engine.abort(mark)
                pb_utils.Logger.log_info("[vllm] the request was cancelled")
                exchange.send_error(sender, "the request was cancelled", pb_utils.TritonError.CANCELLED)
                return
            last = output
            if ask.streams:
                exchange.send(sender, exchange.answer(ask, output, seen), final=output.finished)
        if not ask.streams:
            exchange.send(sender, exchange.answer(ask, last, seen), final=True)

    async def _finish(self) -> None:
        while self._running:
            await asyncio.sleep(0.05)
        self._engine.shutdown()

    def _healthy(self) -> bool:
        try:
            self._wait(self._engine.check_health())
        except Exception as error:  # noqa: BLE001  # vLLM's own kinds of error differ by release
            pb_utils.Logger.log_error(f"[vllm] unhealthy, the model is unloaded: {error!r}")
            pb_utils.unload_model(self._name)
            return False
        return True


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _choose_gpus(args: dict[str, str], arguments: dict[str, Any], given: str | None) -> None:
    """Show vLLM the GPUs that the model may use: the one that Triton chose, or those that GPU_DEVICE_IDS names."""
    count = int(arguments.get("tensor_parallel_size", 1)) * int(arguments.get("pipeline_parallel_size", 1))
    if args["model_instance_kind"] == "GPU":
        if count > 1:
            raise pb_utils.TritonModelException("vllm: KIND_GPU is for one GPU: use KIND_MODEL")
        os.environ["CUDA_VISIBLE_DEVICES"] = args["model_instance_device_id"]
    if given is not None:
        ids = given.split(",")
        if len(ids) != count:
            raise pb_utils.TritonModelException(f"vllm: GPU_DEVICE_IDS names {len(ids)} GPUs, the model takes {count}")
        os.environ["CUDA_VISIBLE_DEVICES"] = given
