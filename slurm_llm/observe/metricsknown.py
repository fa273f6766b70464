"""What the families of a Triton metrics page mean, in which unit, in the order in which they are shown. Only data.

Sources: Triton's docs/user_guide/metrics.md and src/metrics.cc; custom_metrics_reporter.cc of TensorRT-LLM's Triton
backend; for vLLM see `metricsvllm`.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_llm.observe.metricsfamily import Known
from slurm_llm.observe.metricsvllm import vllm

REQUESTS, CACHE = "nv_inference_*", "nv_cache_*"
TRITON, TRTLLM, MACHINE = "Triton", "TensorRT-LLM", "this leader's node"


def _requests() -> Iterator[Known]:
    reasons = {
        "REJECTED": "refused by Triton",
        "CANCELED": "given up by the client",
        "BACKEND": "failed in the engine",
        "OTHER": "failed otherwise",
    }
    rows = (
        ("request_success", "answered", ""),
        ("request_failure", "failed", ""),
        ("pending_request_count", "waiting for Triton", ""),
        ("count", "inferences", ""),
        ("exec_count", "executions", ""),
        ("request_duration_us", "time of all requests", "us"),
        ("queue_duration_us", "of it waiting", "us"),
        ("compute_input_duration_us", "of it reading inputs", "us"),
        ("compute_infer_duration_us", "of it in the engine", "us"),
        ("compute_output_duration_us", "of it writing outputs", "us"),
    )
    for name, meaning, unit in rows:
        failure = name == "request_failure"
        category, parts = ("reason", reasons) if failure else ("", {})
        yield Known(f"nv_inference_{name}", TRITON, meaning, unit, REQUESTS, category, parts)
    yield Known("nv_inference_first_response_histogram_ms", TRITON, "time to the first response", "ms")
    for name in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        yield Known(f"nv_inference_{name}_summary_us", TRITON, f"recent {name.replace('_', ' ')} time", "us")


def _caches() -> Iterator[Known]:
    rows = (
        ("num_hits", "answers from the cache", ""),
        ("num_misses", "not in the cache", ""),
        ("hit_duration", "time of hits", "us"),
        ("miss_duration", "time of misses", "us"),
    )
    for name, meaning, unit in rows:
        yield Known(f"nv_cache_{name}_per_model", TRITON, meaning, unit, CACHE)
    for name in ("hit", "miss"):
        yield Known(f"nv_cache_{name}_summary_per_model", TRITON, f"recent time of a {name}", "us")


def _trtllm() -> Iterator[Known]:
    requests = {
        "active": "in the engine",
        "max": "most at a time",
        "scheduled": "in this iteration",
        "context": "reading their prompt",
        "waiting": "waiting for a place",
    }
    blocks = {
        "max": "there are",
        "free": "free",
        "used": "used",
        "tokens_per": "tokens of a block",
        "reused": "used again by a request",
        "fraction": "used, 0 to 1",
    }
    batcher = {
        "total_context_tokens": "prompt tokens in it",
        "generation_requests": "requests that write",
        "micro_batch_id": "number of micro batch",
        "paused_requests": "paused for want of room",
    }
    fixed = {
        "total_context_tokens": "prompt tokens in it",
        "total_generation_tokens": "tokens written in it",
        "empty_generation_slots": "places left empty",
    }
    memory = {name: f"{name} memory" for name in ("cpu", "gpu", "pinned")}
    general = {"timestamp": "time of these figures", "iteration_counter": "iterations so far"}
    transfers = {"kv_cache_transfer_ms": "time of transfers, ms", "request_count": "requests"}
    rows = (
        ("request", "requests", "request_type", requests, ""),
        ("kv_cache_block", "blocks of the KV cache", "kv_cache_block_type", blocks, ""),
        ("inflight_batcher", "the batch in flight", "inflight_batcher_specific_metric", batcher, ""),
        ("v1", "the fixed batch (V1)", "v1_specific_metric", fixed, ""),
        ("runtime_memory", "memory of the engine", "memory_type", memory, "bytes"),
        ("disaggregated_serving", "KV cache moved", "disaggregated_serving_type", transfers, ""),
        ("general", "the engine's loop", "general_type", general, ""),
    )
    for name, meaning, category, parts, unit in rows:
        yield Known(f"nv_trt_llm_{name}_metrics", TRTLLM, meaning, unit, "", category, parts)
    for name, meaning in (("input", "tokens of a prompt"), ("output", "tokens of an answer")):
        yield Known(f"nv_llm_{name}_token_len", TRTLLM, meaning, "tokens", "", "response_metric_type")


def _machine() -> Iterator[Known]:
    rows = (
        ("nv_gpu_utilization", "GPU busy, 0 to 1", "", "nv_gpu_*"),
        ("nv_gpu_memory_used_bytes", "GPU memory used", "bytes", "nv_gpu_*"),
        ("nv_gpu_memory_total_bytes", "GPU memory", "bytes", "nv_gpu_*"),
        ("nv_gpu_power_usage", "power drawn", "W", "nv_gpu_*"),
        ("nv_gpu_power_limit", "power allowed", "W", "nv_gpu_*"),
        ("nv_energy_consumption", "energy since the start", "J", ""),
        ("nv_cpu_utilization", "CPUs busy, 0 to 1", "", "nv_cpu_*"),
        ("nv_cpu_memory_used_bytes", "memory used", "bytes", "nv_cpu_*"),
        ("nv_cpu_memory_total_bytes", "memory", "bytes", "nv_cpu_*"),
        ("nv_pinned_memory_pool_used_bytes", "pinned pool used", "bytes", "nv_pinned_memory_*"),
        ("nv_pinned_memory_pool_total_bytes", "pinned pool", "bytes", "nv_pinned_memory_*"),
    )
    yield Known("nv_model_load_duration_secs", TRITON, "time to load the model", "s")
    for name, meaning, unit, block in rows:
        yield Known(name, MACHINE, meaning, unit, block)


KNOWN = {one.family: one for make in (_requests, _trtllm, vllm, _caches, _machine) for one in make()}
"""Every family of Triton and of the engines' backends, in the order in which they are shown."""
