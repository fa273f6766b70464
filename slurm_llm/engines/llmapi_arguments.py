"""The arguments of TensorRT-LLM's LLM(), by version, and the keys of the sections that are often set.

Read in tensorrt_llm/llmapi/llm_args.py (editions of 0.20, 1.1, 1.2, 1.3 and 1.4, the last one of September 2026) and in
tests/unittest/api_stability/references/llm.yaml (1.0) of NVIDIA/TensorRT-LLM. Pre-releases differ from the releases
after them, so a border between two versions is a hint and never a reason to refuse; a name in no version is.
"""

from __future__ import annotations

from slurm_llm.engines.releases import version_numbers
from slurm_llm.errors import did_you_mean


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SINCE_LONG = """
model tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code tensor_parallel_size dtype revision
tokenizer_revision pipeline_parallel_size context_parallel_size gpus_per_node moe_cluster_parallel_size
moe_tensor_parallel_size moe_expert_parallel_size enable_attention_dp cp_config load_format enable_lora lora_config
kv_cache_config enable_chunked_prefill guided_decoding_backend batched_logits_processor iter_stats_max_iterations
request_stats_max_iterations peft_cache_config scheduler_config cache_transceiver_config speculative_config
max_batch_size max_input_len max_seq_len max_beam_width max_num_tokens gather_generation_logits num_postprocess_workers
postprocess_tokenizer_dir reasoning_parser decoding_config mpi_session backend garbage_collection_gen0_threshold
disable_overlap_scheduler attn_backend enable_iter_perf_stats enable_iter_req_stats print_iter_log torch_compile_config
enable_layerwise_nvtx_marker enable_min_latency stream_interval quant_config
"""
_SINCE = {
    "1.0": """cuda_graph_config moe_config enable_autotuner checkpoint_loader checkpoint_format
        force_dynamic_quantization allreduce_strategy""",
    "1.1": """attention_dp_config model_kwargs enable_lm_head_tp_in_adp return_perf_metrics perf_metrics_max_requests
        batch_wait_timeout_ms batch_wait_timeout_iters batch_wait_max_tokens_ratio kv_connector_config mm_encoder_only
        otlp_traces_endpoint""",
    "1.2": """custom_tokenizer pp_partition sparse_attention_config orchestrator_type env_overrides
        ray_worker_extension_cls""",
    "1.3": """hf_revision nvfp4_gemm_config layer_wise_benchmarks_config max_stats_len ray_placement_config sleep_config
        sampler_force_async_worker use_cute_dsl_blockscaling_mm use_cute_dsl_blockscaling_bmm""",
    "1.4": """post_processor_hook kv_cache_compression_config num_serve_frontends perf_metrics_output_dir
        prometheus_metrics_config enable_energy_metrics telemetry_config generation_config encoder_cuda_graph_config
        enable_encoder_decoder_mixed_cuda_graph multimodal_config dwdp_config encoder_max_batch_size
        encoder_max_num_tokens enable_mla_skip_correction mla_skip_correction_threshold enable_in_graph_sampling
        enable_speculative_beam_history_d2h enable_early_first_token_response enable_low_latency_host_dispatch
        prefill_cuda_graph_backend prefill_capture_num_tokens use_fine_grained_sync checkpoint_io_policy mx_config
        gms_config disable_mm_encoder encode_only ray_worker_nsight_options reorder_policy_config
        enable_resource_governor use_cute_dsl_bf16_bmm use_cute_dsl_bf16_gemm""",
}
_UNTIL = {
    "0.21": """use_cuda_graph cuda_graph_batch_sizes cuda_graph_max_batch_size cuda_graph_padding_enabled
        moe_max_num_tokens moe_load_balancer moe_backend mixed_sampler autotuner_enabled auto_parallel
        auto_parallel_world_size pytorch_backend_config""",
    "1.0": "kv_cache_dtype",
    "1.1": "enable_mixed_sampler enable_trtllm_sampler connector_config",
    "1.3": """build_config batching_type normalize_log_probs enable_tqdm workspace enable_build_cache
        extended_runtime_perf_knob_config calib_config embedding_parallel_mode fast_build enable_prompt_adapter
        max_prompt_adapter_token max_lora_rank max_loras max_cpu_loras fail_fast_on_attention_window_too_large
        sampler_type enable_sleep disable_flashinfer_sampling""",
}

ARGUMENTS: dict[str, tuple[str | None, str | None]] = {
    **dict.fromkeys(_SINCE_LONG.split(), (None, None)),
    **{name: (version, None) for version, names in _SINCE.items() for name in names.split()},
    **{name: (None, version) for version, names in _UNTIL.items() for name in names.split()},
}
"""Each argument's first and last minor version as far as they are known; None: from before 0.20, or to this day."""

NOT_FROM_YAML = ("mpi_session", "batched_logits_processor", "checkpoint_loader")
"""Arguments that take Python objects, which no model.yaml can hold."""

_DRAFTS = """
decoding_type max_draft_len max_total_draft_tokens speculative_model speculative_model_dir max_concurrency
draft_len_schedule load_format acceptance_window acceptance_length_threshold allow_advanced_sampling
medusa_choices num_medusa_heads
eagle_choices greedy_sampling posterior_threshold use_dynamic_tree dynamic_tree_max_topK num_eagle_layers
max_non_leaves_per_layer pytorch_weights_path eagle3_one_model eagle3_layers_to_capture eagle3_model_arch
prompt_lookup_num_tokens max_matching_ngram_size is_keep_all is_use_oldest is_public_pool
num_nextn_predict_layers use_relaxed_acceptance_for_thinking relaxed_topk relaxed_delta use_mtp_vanilla
mtp_eagle_one_model num_nextn_predict_layers_from_model_config begin_thinking_phase_token end_thinking_phase_token
max_window_size max_ngram_size max_verification_set_size
output_directory write_interval file_prefix drafter resource_manager
"""

SECTIONS: dict[str, frozenset[str]] = {
    name: _words(keys)
    for name, keys in {
        "kv_cache_config": """enable_block_reuse max_tokens max_attention_window sink_token_length
            free_gpu_memory_fraction host_cache_size host_cache_bind_to_gpu_numa_node onboard_blocks
            cross_kv_cache_fraction secondary_offload_min_priority cold_tier_offload_min_priority event_buffer_max_size
            attention_dp_events_gather_period_ms kv_events_config enable_partial_reuse copy_on_partial_reuse use_uvm
            max_gpu_total_bytes iteration_stats_interval dtype mixed_precision_first_n mamba_ssm_cache_dtype
            mamba_ssm_stochastic_rounding mamba_ssm_philox_rounds mamba_state_cache_interval mamba_state_config
            tokens_per_block use_kv_cache_manager_v2 enable_swa_scratch_reuse max_util_for_resume disk_cache_size
            disk_cache_path disk_io_threads disk_keep_copy_after_restore disk_write_through
            disk_protected_copy_fraction""",
        "scheduler_config": """capacity_scheduler_policy context_chunking_policy dynamic_batch_config
            waiting_queue_policy use_python_scheduler enable_prefix_aware_scheduling""",
        "peft_cache_config": """num_host_module_layer num_device_module_layer optimal_adapter_size max_adapter_size
            num_put_workers num_ensure_workers num_copy_streams max_pages_per_block_host max_pages_per_block_device
            device_cache_percent host_cache_size lora_prefetch_dir""",
        "lora_config": """lora_dir lora_ckpt_source max_lora_rank lora_target_modules trtllm_modules_to_hf_modules
            max_loras max_cpu_loras swap_gate_up_proj_lora_b_weight""",
        "quant_config": """quant_algo kv_cache_quant_algo group_size smoothquant_val clamp_val use_meta_recipe
            has_zero_point pre_quant_scale exclude_modules mamba_ssm_cache_dtype""",
        "moe_config": """backend max_num_tokens load_balancer disable_finalize_fusion use_low_precision_moe_combine
            use_cute_dsl_blockscaling_mm""",
        "cuda_graph_config": """batch_sizes max_batch_size enable_padding mode num_tokens max_num_token seq_lens
            max_seq_len""",
        "attention_dp_config": "enable_balance timeout_iters batching_wait_iters kv_cache_routing",
        "cache_transceiver_config": """backend transceiver_runtime max_tokens_in_buffer kv_transfer_timeout_ms
            kv_transfer_sender_future_timeout_ms kv_transfer_poll_interval_ms""",
        "speculative_config": _DRAFTS,
        "torch_compile_config": """enable_fullgraph enable_inductor enable_piecewise_cuda_graph capture_num_tokens
            enable_userbuffers max_num_streams torch_compile_fullgraph torch_compile_inductor_enabled
            torch_compile_piecewise_cuda_graph torch_compile_enable_userbuffers""",
    }.items()
}
"""Keys of the sections, of all versions together; not complete, so only a near miss of a known key counts as wrong."""

CHOICES: dict[str, tuple[str, ...]] = {
    "tokenizer_mode": ("auto", "slow"),
    "guided_decoding_backend": ("xgrammar", "llguidance"),
    "allreduce_strategy": (
        *("AUTO", "NCCL", "UB", "MINLATENCY", "ONESHOT", "TWOSHOT", "LOWPRECISION", "MNNVL", "NCCL_SYMMETRIC"),
    ),
    "orchestrator_type": ("rpc", "ray"),
    "checkpoint_io_policy": ("auto", "native", "rank_striped_read_ahead"),
    "prefill_cuda_graph_backend": ("disabled", "piecewise", "breakable"),
    "generation_config": ("auto", "trtllm"),
    "scheduler_config.capacity_scheduler_policy": ("MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH"),
    "scheduler_config.context_chunking_policy": ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS", "FORCE_CHUNK"),
    "scheduler_config.waiting_queue_policy": ("fcfs", "priority"),
    "cache_transceiver_config.backend": ("DEFAULT", "UCX", "NIXL", "MOONCAKE", "MPI"),
    "lora_config.lora_ckpt_source": ("hf", "nemo"),
}
"""Legal values, of all versions together."""

USUAL: dict[str, tuple[str, ...]] = {
    "backend": ("pytorch", "_autodeploy", "tensorrt"),
    "load_format": ("auto", "dummy", "vision_only", "gms"),
    "attn_backend": ("TRTLLM", "FLASHINFER", "VANILLA", "FLASHINFER_STAR_ATTENTION"),
    "moe_config.backend": (
        *("AUTO", "CUTLASS", "CUTEDSL", "WIDEEP", "TRTLLM", "DEEPGEMM", "DENSEGEMM", "VANILLA", "TRITON", "MARLIN"),
        "MEGAMOE_DEEPGEMM",
    ),
    "speculative_config.decoding_type": (
        *("AUTO", "Draft_Target", "DraftTarget", "Eagle", "Eagle3", "Lookahead", "Medusa", "MTP", "NGram", "PARD"),
        *("SaveState", "User_Provided"),
    ),
    "kv_cache_config.dtype": ("auto", "fp8", "nvfp4", "fp8_ds_mla", "float16", "bfloat16"),
}
"""Known values of lists that grow: only a near miss of one counts as wrong."""

BOOLEANS = _words(
    """skip_tokenizer_init trust_remote_code enable_attention_dp enable_lm_head_tp_in_adp enable_lora
    enable_chunked_prefill gather_generation_logits return_perf_metrics disable_overlap_scheduler
    enable_iter_perf_stats enable_iter_req_stats print_iter_log enable_autotuner enable_layerwise_nvtx_marker
    enable_min_latency force_dynamic_quantization mm_encoder_only disable_mm_encoder encode_only
    kv_cache_config.enable_block_reuse kv_cache_config.enable_partial_reuse kv_cache_config.copy_on_partial_reuse
    kv_cache_config.use_uvm kv_cache_config.onboard_blocks cuda_graph_config.enable_padding
    attention_dp_config.enable_balance"""
)
FRACTIONS = _words(
    """kv_cache_config.free_gpu_memory_fraction kv_cache_config.cross_kv_cache_fraction
    kv_cache_config.max_util_for_resume peft_cache_config.device_cache_percent batch_wait_max_tokens_ratio"""
)
POSITIVE = _words(
    """max_batch_size max_input_len max_seq_len max_beam_width max_num_tokens stream_interval
    moe_cluster_parallel_size num_serve_frontends lora_config.max_lora_rank kv_cache_config.tokens_per_block
    kv_cache_config.max_tokens"""
)
COUNTS = _words(
    """num_postprocess_workers batch_wait_timeout_iters perf_metrics_max_requests kv_cache_config.host_cache_size
    kv_cache_config.max_gpu_total_bytes kv_cache_config.event_buffer_max_size cuda_graph_config.max_batch_size
    kv_cache_config.sink_token_length"""
)


def versions_of(name: str) -> str:
    """Return in words which TensorRT-LLM versions know the argument `name`, or an empty text for all that we know."""
    since, until = ARGUMENTS[name]
    if since is not None:
        return f"TensorRT-LLM {since} and newer"
    return "" if until is None else f"TensorRT-LLM up to {until}"


def suggest(name: str) -> str:
    """Return the known argument nearest to `name`, with the versions that know it, or an empty text."""
    hint = did_you_mean(name, ARGUMENTS)
    if not hint:
        return ""
    versions = versions_of(hint.split("'")[1])
    return hint + (f" ({versions})" if versions else "")


def misfit(name: str, version: str) -> str:
    """Return why TensorRT-LLM `version` may not know the argument `name`, or an empty text."""
    since, until = ARGUMENTS[name]
    own = version_numbers(version)[:2]
    late = since is not None and own < version_numbers(since)
    gone = until is not None and own > version_numbers(until)
    return f"known to {versions_of(name)}, the image has {version}" if late or gone else ""
