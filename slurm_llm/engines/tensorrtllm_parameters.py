"""Every parameter of the engine path's templates: legal values, meaning, and the versions whose template has it.

Names and values: docs/model_config.md of triton-inference-server/tensorrtllm_backend and what the C++ backend accepts
(inflight_batcher_llm/src/model_state.cc, model_instance_state.cc). Versions: the placeholders of config.pbtxt at the
tags v0.9.0 to v0.19.0 of that repository, and of two later editions in NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_llm.engines.tensorrtllm_values import Kind, boolean, choice, id_sets, ints, name, number, path, tree, whole

TENSORRT_LLM = "tensorrt_llm"
PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"
ENSEMBLE = "ensemble"
BLS = "tensorrt_llm_bls"
MULTIMODAL = "multimodal_encoders"
MODELS = (PREPROCESSING, TENSORRT_LLM, POSTPROCESSING, ENSEMBLE, BLS, MULTIMODAL)

Version = tuple[int, ...]

OLDEST: Version = (0, 9)
"""The oldest release whose templates are in the tables."""

LAST_IN_AN_IMAGE: Version = (1, 2)
"""The last minor release that a Triton image is known to hold with the engine path."""

REMOVED: Version = (1, 4)
"""TensorRT-LLM's main branch dropped engines in July 2026, on its way to 1.4 (tensorrt-backend-removal.md)."""

DECODING_MODES: dict[str, Version] = {
    **dict.fromkeys(("top_k", "top_p", "top_k_top_p", "beam_search"), (0, 9)),
    "medusa": (0, 10),
    **dict.fromkeys(("redrafter", "lookahead", "eagle"), (0, 16)),
}
"""Each decoding mode and the release that first takes it."""

LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
LORA_CACHE = (
    "lora_cache_optimal_adapter_size",
    "lora_cache_max_adapter_size",
    "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes",
)

_BYTES = whole(0, 2**63 - 1)
_LOGITS = choice("TYPE_FP32", "TYPE_FP16", "TYPE_BF16")
_FEATURES = choice("TYPE_FP16", "TYPE_BF16", "TYPE_FP32")
_COUNT = whole(1)


@dataclass(frozen=True)
class Parameter:
    """One placeholder: the kind of its value and the first release whose template has it.

    `appended`: no template has it, the backend reads it, so it is added at the end. `old` is its name in templates of
    releases before `renamed`.
    """

    kind: Kind
    since: Version = OLDEST
    appended: bool = False
    old: str | None = None
    renamed: Version = OLDEST


def _own(kind: Kind, *since: int) -> Parameter:
    return Parameter(kind, since or OLDEST)


_BATCH = _own(_COUNT)
_QUEUE_DELAY, _QUEUE_SIZE = whole(0), whole(0)
_VISUAL = Parameter(path(), (0, 12), old="visual_model_path", renamed=(0, 19))

PARAMETERS: dict[str, dict[str, Parameter]] = {
    TENSORRT_LLM: {
        "triton_backend": _own(choice("tensorrtllm", "python"), 0, 10),
        "triton_max_batch_size": _BATCH,
        "decoupled_mode": _own(boolean()),
        "max_queue_delay_microseconds": _own(_QUEUE_DELAY),
        "max_queue_size": _own(_QUEUE_SIZE, 0, 12),
        "engine_dir": _own(path()),
        "encoder_engine_dir": _own(path(), 0, 11),
        "batching_strategy": _own(choice("inflight_fused_batching", "inflight_batching", "V1", "v1")),
        "encoder_input_features_data_type": _own(_FEATURES, 0, 15),
        "logits_datatype": _own(_LOGITS, 0, 17),
        "prompt_embedding_table_data_type": _own(_FEATURES, 1, 1),
        "max_beam_width": _own(_COUNT),
        "batch_scheduler_policy": _own(choice("guaranteed_no_evict", "max_utilization")),
        "max_tokens_in_paged_kv_cache": _own(_COUNT),
        "max_attention_window_size": _own(ints()),
        "sink_token_length": _own(whole(0), 0, 10),
        "kv_cache_free_gpu_mem_fraction": _own(number(0, 1, above=True)),
        "cross_kv_cache_fraction": _own(number(0, 1), 0, 14),
        "kv_cache_host_memory_bytes": _own(_BYTES, 0, 10),
        "kv_cache_onboard_blocks": _own(boolean(), 0, 10),
        "enable_kv_cache_reuse": _own(boolean()),
        "enable_chunked_context": _own(boolean()),
        "exclude_input_in_output": _own(boolean()),
        "cancellation_check_period_ms": _own(_COUNT, 0, 10),
        "stats_check_period_ms": _own(_COUNT, 0, 10),
        "recv_poll_period_ms": Parameter(whole(0), (0, 13), appended=True),
        "iter_stats_max_iterations": _own(whole(0), 0, 10),
        "request_stats_max_iterations": _own(whole(0), 0, 10),
        "normalize_log_probs": _own(boolean()),
        "gpu_device_ids": _own(id_sets()),
        "participant_ids": _own(id_sets(), 0, 13),
        "num_nodes": _own(_COUNT, 0, 19),
        "gpu_weights_percent": _own(number(0, 1), 0, 10),
        "lora_cache_optimal_adapter_size": _own(_COUNT),
        "lora_cache_max_adapter_size": _own(_COUNT),
        "lora_cache_gpu_memory_fraction": _own(number(0, 1)),
        "lora_cache_host_memory_bytes": _own(_BYTES),
        "lora_prefetch_dir": _own(path(), 0, 19),
        "decoding_mode": _own(choice(*DECODING_MODES)),
        "medusa_choices": _own(tree()),
        "eagle_choices": _own(tree(), 0, 16),
        "lookahead_window_size": _own(_COUNT, 0, 19),
        "lookahead_ngram_size": _own(_COUNT, 0, 19),
        "lookahead_verification_set_size": _own(whole(0), 0, 19),
        "multi_block_mode": _own(boolean(), 0, 12),
        "enable_context_fmha_fp32_acc": _own(boolean(), 0, 12),
        "cuda_graph_mode": _own(boolean(), 0, 15),
        "cuda_graph_cache_size": _own(whole(0), 0, 15),
        "speculative_decoding_fast_logits": _own(boolean(), 0, 15),
        "guided_decoding_backend": _own(choice("xgrammar"), 0, 19),
        "tokenizer_dir": _own(path(), 0, 19),
        "xgrammar_tokenizer_info_path": _own(path(), 0, 19),
    },
    PREPROCESSING: {
        "triton_max_batch_size": _BATCH,
        "max_queue_delay_microseconds": _own(_QUEUE_DELAY, 0, 19),
        "max_queue_size": _own(_QUEUE_SIZE, 0, 19),
        "tokenizer_dir": _own(path()),
        "add_special_tokens": _own(boolean()),
        "preprocessing_instance_count": _own(_COUNT),
        "engine_dir": _own(path(), 0, 12),
        "multimodal_model_path": _VISUAL,
        "max_num_images": _own(_COUNT, 0, 15),
        "hf_model_path": _own(path(), 0, 20),
    },
    POSTPROCESSING: {
        "triton_max_batch_size": _BATCH,
        "tokenizer_dir": _own(path()),
        "skip_special_tokens": _own(boolean(), 0, 11),
        "postprocessing_instance_count": _own(_COUNT),
    },
    ENSEMBLE: {
        "triton_max_batch_size": _BATCH,
        "logits_datatype": _own(_LOGITS, 0, 17),
    },
    BLS: {
        "triton_max_batch_size": _BATCH,
        "decoupled_mode": _own(boolean()),
        "logits_datatype": _own(_LOGITS, 0, 17),
        "prompt_embedding_table_data_type": _own(_FEATURES, 1, 1),
        "accumulate_tokens": _own(boolean()),
        "bls_instance_count": _own(_COUNT),
        "tensorrt_llm_model_name": _own(name()),
        "tensorrt_llm_draft_model_name": _own(name()),
        "multimodal_encoders_name": _own(name(), 0, 13),
    },
    MULTIMODAL: {
        "triton_max_batch_size": _BATCH,
        "max_queue_delay_microseconds": _own(_QUEUE_DELAY, 0, 19),
        "max_queue_size": _own(_QUEUE_SIZE, 0, 19),
        "multimodal_model_path": Parameter(path(), (0, 13), old="visual_model_path", renamed=(0, 19)),
        "encoder_input_features_data_type": _own(_FEATURES, 0, 15),
        "prompt_embedding_table_data_type": _own(_FEATURES, 1, 1),
        "hf_model_path": _own(path(), 0, 17),
    },
}
"""By model, then by the name of the placeholder."""

GONE: dict[str, str] = {
    "enable_trt_overlap": "NVIDIA's page calls it removed from config.pbtxt: remove it",
    "worker_path": "the backend refuses it; the template names executor_worker_path itself: remove it",
    "executor_worker_path": "the template sets it itself: remove it",
    "gpt_model_path": "the template fills it from engine_dir: write engine_dir",
    "gpt_model_type": "the template fills it from batching_strategy: write batching_strategy",
    "encoder_model_path": "the template fills it from encoder_engine_dir: write encoder_engine_dir",
    "visual_model_path": "it is called multimodal_model_path: rename it",
    "tokenizer_type": "no release since 0.9 knows it: remove it",
}
"""Names from templates and pages that a spec does not take, each with what to do."""

SHARED = ("triton_max_batch_size", "decoupled_mode", "tokenizer_dir", "logits_datatype")
SHARED_TYPES = ("encoder_input_features_data_type", "prompt_embedding_table_data_type")

DEFAULTS: dict[str, dict[str, str]] = {
    TENSORRT_LLM: {
        "triton_backend": "tensorrtllm",
        "triton_max_batch_size": "64",
        "decoupled_mode": "false",
        "max_queue_delay_microseconds": "0",
        "max_queue_size": "0",
        "batching_strategy": "inflight_fused_batching",
        "encoder_input_features_data_type": "TYPE_FP16",
        "logits_datatype": "TYPE_FP32",
        "prompt_embedding_table_data_type": "TYPE_FP16",
    },
    PREPROCESSING: {
        "max_queue_delay_microseconds": "0",
        "max_queue_size": "0",
        "preprocessing_instance_count": "1",
    },
    POSTPROCESSING: {"postprocessing_instance_count": "1"},
    ENSEMBLE: {},
    BLS: {"bls_instance_count": "1", "accumulate_tokens": "false"},
    MULTIMODAL: {"max_queue_delay_microseconds": "20000", "max_queue_size": "0"},
}
"""What the page's recipes fill where a spec says nothing (docs/llama.md, docs/multimodal.md); all else stays unset."""


def models_with(parameter: str) -> tuple[str, ...]:
    """Return the models whose template has `parameter`."""
    return tuple(model for model in MODELS if parameter in PARAMETERS[model])


def words(version: Version) -> str:
    """Return a version as it is written: (0, 19) → 0.19."""
    return ".".join(map(str, version))
