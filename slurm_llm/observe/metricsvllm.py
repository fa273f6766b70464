"""What vLLM's own families mean: those that Triton's vLLM backend passes on, and those of vLLM itself. Only data.

Sources: src/utils/metrics.py of Triton's vLLM backend; loggers.py and perf.py of vllm/v1/metrics and metrics.py of
vllm/v1/spec_decode of vLLM 0.32. Counters have `_total` after the name that the source gives them (prometheus_client).
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_llm.observe.metricsfamily import Known

VLLM, BLOCK = "vLLM", "vllm:*"

_TOGETHER = (
    ("num_requests_running", "in the engine now", ""),
    ("num_requests_waiting", "waiting now", ""),
    ("kv_cache_usage_perc", "KV cache used, 0 to 1", ""),
    ("prompt_tokens_total", "tokens read", "tokens"),
    ("generation_tokens_total", "tokens written", "tokens"),
    ("prompt_tokens_cached_total", "of those read, cached", "tokens"),
    ("prefix_cache_queries_total", "looked up in KV cache", "tokens"),
    ("prefix_cache_hits_total", "of them found", "tokens"),
    ("num_preemptions_total", "put back, no room left", ""),
    ("mm_cache_queries_total", "inputs looked up", ""),
    ("mm_cache_hits_total", "of them found", ""),
)
_TIMES = (
    ("time_to_first_token_seconds", "time to the first token"),
    ("time_per_output_token_seconds", "time of each further token"),
    ("inter_token_latency_seconds", "time between two tokens"),
    ("request_time_per_output_token_seconds", "mean time of a token"),
    ("e2e_request_latency_seconds", "time of a whole request"),
    ("request_queue_time_seconds", "time of waiting"),
    ("request_inference_time_seconds", "time in the engine"),
    ("request_prefill_time_seconds", "time of reading the prompt"),
    ("request_decode_time_seconds", "time of writing"),
    ("kv_block_lifetime_seconds", "life of a block of the KV cache"),
    ("kv_block_idle_before_evict_seconds", "a block idle, then evicted"),
    ("kv_block_reuse_gap_seconds", "between two uses of a block"),
)
_SIZES = (
    ("request_prompt_tokens", "tokens of a prompt", "tokens"),
    ("request_generation_tokens", "tokens of an answer", "tokens"),
    ("request_max_num_generation_tokens", "tokens asked for at most", "tokens"),
    ("request_params_max_tokens", "max_tokens of a request", "tokens"),
    ("request_prefill_kv_computed_tokens", "of a prompt computed anew", "tokens"),
    ("iteration_tokens_total", "tokens of a step of the engine", "tokens"),
    ("request_num_preemptions", "times a request was put back", ""),
    ("request_params_n", "answers asked for at once (n)", ""),
    ("request_params_best_of", "answers to choose from (best_of)", ""),
    ("external_prefix_cache_queries_total", "looked up in other caches", "tokens"),
    ("external_prefix_cache_hits_total", "found in other caches", "tokens"),
    ("spec_decode_num_drafts_total", "drafts", ""),
    ("spec_decode_num_draft_tokens_total", "tokens drafted", "tokens"),
    ("spec_decode_num_accepted_tokens_total", "of them kept", "tokens"),
    ("estimated_flops_per_gpu_total", "arithmetic of a GPU, estimated", ""),
    ("estimated_read_bytes_per_gpu_total", "read by a GPU, estimated", "bytes"),
    ("estimated_write_bytes_per_gpu_total", "written by a GPU, estimated", "bytes"),
    ("cache_config_info", "settings of the KV cache", ""),
    ("lora_requests_info", "LoRA adapters in use", ""),
    ("corrupted_requests_total", "answers that hold NaN", ""),
)
_FINISHED = {
    "stop": "at a stop",
    "length": "at their length",
    "abort": "given up by the client",
    "error": "failed",
    "repetition": "repeated themselves",
}
_REASONS = {"capacity": "no room in the engine", "deferred": "held back for a moment"}
_SOURCES = {
    "local_compute": "computed",
    "local_cache_hit": "from this KV cache",
    "external_kv_transfer": "from another one",
}
_TIERS = {
    "device": "from GPU memory",
    "host": "from the node's memory",
    "disk": "from disk",
    "p2p": "from another instance",
    "external_unspecified": "from elsewhere",
}
_SLEEP = {
    "awake": "1: awake, 0: asleep",
    "weights_offloaded": "asleep, weights kept",
    "discard_all": "asleep, weights dropped",
}
_LIMITS = {"max_num_queued_reqs": "too many requests", "max_num_queued_tokens": "too many tokens"}
_PARTED: tuple[tuple[str, str, str, str, dict[str, str]], ...] = (
    ("request_success_total", "requests that ended", "", "finished_reason", _FINISHED),
    ("num_requests_waiting_by_reason", "waiting now", "", "reason", _REASONS),
    ("admission_rejections_total", "refused at once", "", "reason", _LIMITS),
    ("prompt_tokens_by_source_total", "tokens read", "tokens", "source", _SOURCES),
    ("prompt_tokens_cached_by_source_total", "cached tokens", "tokens", "source", _TIERS),
    ("engine_sleep_state", "whether the engine sleeps", "", "sleep_state", _SLEEP),
    ("spec_decode_num_accepted_tokens_per_pos_total", "kept", "tokens", "position", {}),
)


def vllm() -> Iterator[Known]:
    """Return the families in the order in which they are shown."""
    for name, meaning, unit in _TOGETHER:
        yield Known(f"vllm:{name}", VLLM, meaning, unit, BLOCK)
    for name, meaning, unit, category, parts in _PARTED:
        yield Known(f"vllm:{name}", VLLM, meaning, unit, "", category, parts)
    for name, meaning in _TIMES:
        yield Known(f"vllm:{name}", VLLM, meaning, "s")
    for name, meaning, unit in _SIZES:
        yield Known(f"vllm:{name}", VLLM, meaning, unit)
