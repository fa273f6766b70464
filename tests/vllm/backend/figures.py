"""vLLM's figures on Triton's metrics page, under the names that NVIDIA's backend gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it
from vllm.v1.metrics.loggers import StatLoggerBase  # type: ignore[import-not-found]  # not where mypy runs

COUNTERS = {"vllm:prompt_tokens_total": "prompt tokens", "vllm:generation_tokens_total": "generated tokens"}
SECONDS = {
    "vllm:time_to_first_token_seconds": (0.001, 0.01, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    "vllm:time_per_output_token_seconds": (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5),
    "vllm:e2e_request_latency_seconds": (1, 2.5, 5, 10, 20, 30, 60),
}
COUNTS = {
    "vllm:request_prompt_tokens": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
    "vllm:request_generation_tokens": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
    "vllm:request_params_n": (1, 2, 5, 10, 20),
}


def logger_factory(labels: dict[str, str]) -> Callable[[Any, int], Any]:
    """Return what vLLM calls to make a logger for an engine."""

    def make(config: Any, engine_index: int) -> TritonLogger:
        return TritonLogger(labels)

    return make


class TritonLogger(StatLoggerBase):  # type: ignore[misc]
    """Takes vLLM's statistics of an iteration and adds them to Triton's families."""

    def __init__(self, labels: dict[str, str]) -> None:
        kinds = pb_utils.MetricFamily
        self._families = []
        self._metrics = {}
        for name, about in COUNTERS.items():
            family = kinds(name=name, description=about, kind=kinds.COUNTER)
            self._families.append(family)
            self._metrics[name] = family.Metric(labels=labels)
        for name, buckets in {**SECONDS, **COUNTS}.items():
            family = kinds(name=name, description=name.partition(":")[2], kind=kinds.HISTOGRAM)
            self._families.append(family)
            self._metrics[name] = family.Metric(labels=labels, buckets=[float(edge) for edge in buckets])

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **more: Any) -> None:
        """Add what one iteration of the engine has brought."""
        own = iteration_stats
        if own is None:
            return
        self._metrics["vllm:prompt_tokens_total"].increment(own.num_prompt_tokens)
        self._metrics["vllm:generation_tokens_total"].increment(own.num_generation_tokens)
        ended = own.finished_requests
        for name, values in (
            ("vllm:time_to_first_token_seconds", own.time_to_first_tokens_iter),
            ("vllm:time_per_output_token_seconds", own.inter_token_latencies_iter),
            ("vllm:e2e_request_latency_seconds", [one.e2e_latency for one in ended]),
            ("vllm:request_prompt_tokens", [one.num_prompt_tokens for one in ended]),
            ("vllm:request_generation_tokens", [one.num_generation_tokens for one in ended]),
            ("vllm:request_params_n", own.n_params_iter),
        ):
            for value in values:
                self._metrics[name].observe(value)

    def log_engine_initialized(self) -> None:
        """Say nothing."""
