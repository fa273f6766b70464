"""The arguments of vLLM's AsyncEngineArgs by version, and reading them from a vLLM's own source without running it.

The table was read with `read_engine_arguments` in vllm/engine/arg_utils.py of the releases named in `VERSIONS`: those
on PyPI that Triton's images hold, or that lie next to them. What changed between two of them is not known to the day:
a release in between gets the benefit of the doubt.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_llm.engines.releases import version_numbers
from slurm_llm.errors import Problem, did_you_mean

Kinds = frozenset[str]
"""What a value may be: "bool", "int", "float", "text", "list", "map"; empty: anything. None is always accepted."""

_LETTERS = {"b": "bool", "i": "int", "f": "float", "t": "text", "l": "list", "m": "map"}
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "text": "a text",
    "list": "a list",
    "map": "a mapping",
}

VERSIONS = (
    "0.5.5",
    "0.6.3",
    "0.7.3",
    "0.8.4",
    "0.9.2",
    "0.10.2",
    "0.11.0",
    "0.13.0",
    "0.16.0",
    "0.17.1",
    "0.19.0",
    "0.22.1",
    "0.24.0",
    "0.27.1",
    "0.32.0",
)
_SINCE = {
    "0.5.5": """
        block_size:i code_revision:t collect_detailed_traces:lt cpu_offload_gb:f device
        disable_custom_all_reduce:b disable_log_requests:b disable_log_stats:b
        disable_logprobs_during_spec_decoding:b disable_sliding_window:b distributed_executor_backend
        download_dir:t dtype enable_chunked_prefill:b enable_lora:b enable_prefix_caching:b
        enable_prompt_adapter:b enforce_eager:b engine_use_ray:b fully_sharded_loras:b gpu_memory_utilization:f
        guided_decoding_backend ignore_patterns:lt kv_cache_dtype limit_mm_per_prompt:m load_format
        long_lora_scaling_factors:l lora_dtype lora_extra_vocab_size:i max_context_len_to_capture:i
        max_cpu_loras:i max_logprobs:i max_lora_rank:i max_loras:i max_model_len:i max_num_batched_tokens:i
        max_num_seqs:i max_parallel_loading_workers:i max_prompt_adapter_token:i max_prompt_adapters:i
        max_seq_len_to_capture:i model:t model_loader_extra_config:m ngram_prompt_lookup_max:i
        ngram_prompt_lookup_min:i num_gpu_blocks_override:i num_lookahead_slots:i num_scheduler_steps:i
        num_speculative_tokens:i otlp_traces_endpoint:t pipeline_parallel_size:i preemption_mode:t
        qlora_adapter_name_or_path:t quantization quantization_param_path:t ray_workers_use_nsight:b revision:t
        rope_scaling:m rope_theta:f scheduler_delay_factor:f seed:i served_model_name:lt skip_tokenizer_init:b
        spec_decoding_acceptance_method:t speculative_disable_by_batch_size:i
        speculative_draft_tensor_parallel_size:i speculative_max_model_len:i speculative_model:t
        speculative_model_quantization:t swap_space:f tensor_parallel_size:i tokenizer:t tokenizer_mode
        tokenizer_pool_extra_config:m tokenizer_pool_size:i tokenizer_pool_type tokenizer_revision:t
        trust_remote_code:b typical_acceptance_sampler_posterior_alpha:f
        typical_acceptance_sampler_posterior_threshold:f use_v2_block_manager:b worker_use_ray:b""",
    "0.6.3": """
        config_format disable_async_output_proc:b mm_processor_kwargs:m multi_step_stream_outputs:b
        override_neuron_config:m scheduling_policy speculative_disable_mqa_scorer:b""",
    "0.7.3": """
        additional_config:m allowed_local_media_path:t calculate_kv_scales:b compilation_config
        disable_mm_preprocessor_cache:b enable_lora_bias:b enable_sleep_mode:b generation_config:t hf_overrides
        kv_transfer_config logits_processor_pattern:t long_prefill_token_threshold:i max_long_partial_prefills:i
        max_num_partial_prefills:i model_impl:t override_generation_config:m override_pooler_config
        scheduler_cls task worker_cls:t""",
    "0.8.4": """
        data_parallel_size:i disable_cascade_attn:b disable_chunked_mm_input:b enable_expert_parallel:b
        enable_reasoning:b hf_config_path:t hf_token:bt prefix_caching_hash_algo reasoning_parser:t
        show_hidden_metrics_for_version:t speculative_config:m use_tqdm_on_load:b worker_extension_cls:t""",
    "0.9.2": """
        cuda_graph_sizes:l data_parallel_address:t data_parallel_backend data_parallel_rank:i
        data_parallel_rpc_port:i data_parallel_size_local:i disable_hybrid_kv_cache_manager:b enable_eplb:b
        enable_multimodal_encoder_data_parallel:b enable_prompt_embeds:b eplb_log_balancedness:b
        eplb_step_interval:i eplb_window_size:i guided_decoding_disable_additional_properties:b
        guided_decoding_disable_any_whitespace:b guided_decoding_disable_fallback:b kv_events_config
        media_io_kwargs:m num_redundant_experts:i override_attention_dtype:t pt_load_map_location:mt""",
    "0.10.2": """
        async_scheduling:b convert data_parallel_hybrid_lb:b data_parallel_start_rank:i
        decode_context_parallel_size:i default_mm_loras:m enable_log_requests:b eplb_config
        interleave_mm_strings:b io_processor_plugin:t kv_cache_memory_bytes:i kv_sharing_fast_prefill:b
        logits_processors:l logprobs_mode mamba_cache_dtype mamba_ssm_cache_dtype mm_encoder_tp_mode
        mm_processor_cache_gb:f runner safetensors_load_strategy skip_mm_profiling:b""",
    "0.11.0": """
        allowed_media_domains:l dbo_decode_token_threshold:i dbo_prefill_token_threshold:i enable_dbo:b
        expert_placement_strategy mm_processor_cache_type mm_shm_cache_max_object_size_mb:i pooler_config
        structured_outputs_config video_pruning_rate:f""",
    "0.13.0": """
        aggregate_engine_logging:b all2all_backend attention_backend attention_config
        cp_kv_cache_interleave_size:i cudagraph_capture_sizes:l cudagraph_metrics:b data_parallel_external_lb:b
        dcp_kv_cache_interleave_size:i disable_nccl_for_dp_synchronization:b ec_transfer_config
        enable_layerwise_nvtx_tracing:b enable_mm_embeds:b kv_cache_metrics:b kv_cache_metrics_sample:f
        kv_offloading_backend kv_offloading_size:f mamba_block_size:i master_addr:t master_port:i
        max_cudagraph_capture_size:i mm_encoder_attn_backend nnodes:i node_rank:i optimization_level
        prefill_context_parallel_size:i profiler_config reasoning_parser_plugin:t stream_interval:i
        tokens_only:b""",
    "0.16.0": """
        allow_deprecated_quantization:b enable_flashinfer_autotune:b enable_logging_iteration_details:b
        enable_mfu_metrics:b enable_mm_processor_stats:b enable_return_routed_experts:b
        enable_tower_connector_lora:b kernel_config mamba_cache_mode mm_encoder_only:b model_weights:t
        specialize_active_lora:b ubatch_size:i weight_transfer_config""",
    "0.17.1": """
        cpu_offload_params:l enable_elastic_ep:b fail_on_environ_validation:b language_model_only:b moe_backend
        offload_backend:t offload_group_size:i offload_num_in_group:i offload_params:l offload_prefetch_step:i
        performance_mode""",
    "0.19.0": """
        dcp_comm_backend distributed_timeout_seconds:i enable_ep_weight_filter:b gdn_prefill_backend:t
        kv_cache_dtype_skip_layers:l lora_target_modules:l mm_tensor_ipc reasoning_config renderer_num_workers:i
        scheduler_reserve_full_isl:b shutdown_timeout:i""",
    "0.22.1": """
        cpu_distributed_timeout_seconds:i data_parallel_multi_port_external_lb:b enable_cumem_allocator:b
        enable_mamba_cache_stochastic_rounding:b enable_mixed_moe_lora_format:b ir_op_priority linear_backend
        mamba_backend mamba_cache_philox_rounds:i mamba_config mm_encoder_attn_dtype:t
        mm_encoder_fp8_scale_path:t mm_encoder_fp8_scale_save_margin:f mm_encoder_fp8_scale_save_path:t
        numa_bind:b numa_bind_cpus:l numa_bind_nodes:l quantization_config safetensors_prefetch_block_size:i
        safetensors_prefetch_num_threads:i spec_method:t spec_model:t spec_tokens:i use_fp64_gumbel:b""",
    "0.24.0": """
        device_ids:l diffusion_config:m jit_monitor_verbose:b prefill_schedule_interval:i watermark:f""",
    "0.27.1": """
        enable_bf16x3_router_gemm:b enable_fault_tolerance:b enable_moe_shared_loras:b fault_tolerance_config
        jit_monitor_mode:t kda_prefill_backend:t mamba_ssu_algorithm max_num_scheduled_tokens:i
        mm_hasher_algorithm mm_ipc_gpu_memory_gb:f model_class_overrides:m prefix_match_unit:i
        replayssm_buffer_len:i use_replayssm:b video_pruning_method:t""",
    "0.32.0": """
        aux_output_config custom_histogram_buckets:m dcp_q_replicate:b dp_sync_interval:i ec_manager_config
        elastic_ep_max_dp_size:i enable_batch_sharded_sampling:b enable_hc_sp:b
        enable_mamba_shared_prefix_checkpoint:b enable_nccl_comm_suspend:b enable_shm_tensor_arena:b
        enable_trace_replay:b engram_config kda_decode_backend:t log_config_file:t log_level logging_config
        long_prefill_token_threshold_adaptive:b max_lora_cls_labels:i max_num_active_seqs:i
        max_num_queued_reqs:i max_num_queued_tokens:i mm_device_do_normalize:b mm_processor_device
        per_request_spec_decode_metrics:t prefix_cache_retention_interval:i return_sampling_mask:b
        sleep_mode_offload_cudagraph:b sleep_preserve_parameter_names:l sparse_indexer_topk_backend
        swa_bounded_replay:b watermark_config:m""",
}
_UNTIL = {
    "0.5.5": """
        engine_use_ray""",
    "0.6.3": """
        max_context_len_to_capture quantization_param_path worker_use_ray""",
    "0.7.3": """
        disable_logprobs_during_spec_decoding ngram_prompt_lookup_max ngram_prompt_lookup_min
        num_speculative_tokens spec_decoding_acceptance_method speculative_disable_by_batch_size
        speculative_disable_mqa_scorer speculative_draft_tensor_parallel_size speculative_max_model_len
        speculative_model speculative_model_quantization typical_acceptance_sampler_posterior_alpha
        typical_acceptance_sampler_posterior_threshold""",
    "0.9.2": """
        device disable_log_requests enable_prompt_adapter enable_reasoning long_lora_scaling_factors
        max_prompt_adapter_token max_prompt_adapters multi_step_stream_outputs num_scheduler_steps
        override_neuron_config qlora_adapter_name_or_path tokenizer_pool_extra_config tokenizer_pool_size
        tokenizer_pool_type use_v2_block_manager""",
    "0.10.2": """
        disable_async_output_proc max_seq_len_to_capture preemption_mode scheduler_delay_factor""",
    "0.11.0": """
        cuda_graph_sizes disable_mm_preprocessor_cache enable_lora_bias enable_multimodal_encoder_data_parallel
        eplb_log_balancedness eplb_step_interval eplb_window_size guided_decoding_backend
        guided_decoding_disable_additional_properties guided_decoding_disable_any_whitespace
        guided_decoding_disable_fallback lora_extra_vocab_size num_lookahead_slots num_redundant_experts
        override_pooler_config rope_scaling rope_theta task""",
    "0.16.0": """
        logits_processor_pattern""",
    "0.17.1": """
        swap_space""",
    "0.24.0": """
        max_long_partial_prefills max_num_partial_prefills""",
    "0.27.1": """
        calculate_kv_scales enable_bf16x3_router_gemm override_attention_dtype""",
}


@dataclass(frozen=True)
class Argument:
    """One argument: what its value may be, and the first and last of `VERSIONS` that know it (None: the newest too)."""

    kinds: Kinds
    since: str
    until: str | None


def _table() -> dict[str, Argument]:
    last = {name: version for version, names in _UNTIL.items() for name in names.split()}
    made = {}
    for version, entries in _SINCE.items():
        for entry in entries.split():
            name, _, letters = entry.partition(":")
            made[name] = Argument(frozenset(_LETTERS[letter] for letter in letters), version, last.get(name))
    return made


ARGUMENTS = _table()


def check_arguments(
    arguments: Mapping[str, object], version: str | None, probed: Mapping[str, Kinds] | None = None
) -> list[Problem]:
    """Return what is wrong with names and types of `arguments` for vLLM `version`; None: nobody knows which it is.

    `probed` are the arguments of the vLLM in use, where it was asked (see `read_engine_arguments`): they count alone.
    """
    problems = []
    for name, value in arguments.items():
        where = f"engine_args.{name}"
        kinds = probed.get(name) if probed is not None else ARGUMENTS[name].kinds if name in ARGUMENTS else None
        fault = _unknown(where, name, version, probed) if kinds is None else _misfit(where, value, kinds)
        if probed is None and version is not None and name in ARGUMENTS:
            fault = _of_another_version(where, name, version) or fault
        problems += [] if fault is None else [fault]
    return problems


def _unknown(where: str, name: str, version: str | None, probed: Mapping[str, Kinds] | None) -> Problem | None:
    """Return that no vLLM knows `name`; one newer than the table, or unknown, may, unless it looks like a slip."""
    known: Iterable[str] = ARGUMENTS if probed is None else probed
    hint = did_you_mean(name, known)
    tabled = version is not None and version_numbers(version) <= version_numbers(VERSIONS[-1])
    if not hint and probed is None and not tabled:
        return None
    return Problem(where, "vLLM's AsyncEngineArgs has no such argument", "", hint or "remove it")


def versions_of(name: str) -> str:
    """Return in words which vLLM releases know the argument `name`, or an empty text for one that none does."""
    own = ARGUMENTS.get(name)
    return "" if own is None else f"vLLM {own.since} to {VERSIONS[-1] if own.until is None else own.until} know it"


def _of_another_version(where: str, name: str, version: str) -> Problem | None:
    """Return that `version` surely does not know `name`: the table's next one does not yet, or its last one no more."""
    own, numbers = ARGUMENTS[name], [version_numbers(one) for one in VERSIONS]
    at = version_numbers(version)
    before, after = bisect_right(numbers, at) - 1, bisect_left(numbers, at)
    newest = VERSIONS[-1] if own.until is None else own.until
    allowed = versions_of(name)
    if after < VERSIONS.index(own.since):
        return Problem(where, f"vLLM {version} does not know it yet", allowed, "use a newer image")
    if before > VERSIONS.index(newest) and own.until is not None:
        return Problem(where, f"vLLM {version} knows it no more", allowed, "remove it")
    return None


def _misfit(where: str, value: object, kinds: Kinds) -> Problem | None:
    if value is None or not kinds or _kind(value) in kinds or (_kind(value) == "int" and "float" in kinds):
        return None
    allowed = " or ".join(_WORDS[kind] for kind in _WORDS if kind in kinds)
    return Problem(where, f"found {value!r}", allowed, "correct it")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    known = ((int, "int"), (float, "float"), (str, "text"), (list, "list"), (dict, "map"))
    return next((kind for type_, kind in known if isinstance(value, type_)), "")


_ANNOTATIONS = {
    **{name: name for name in ("bool", "int", "float", "list")},
    **dict.fromkeys(("List", "tuple", "Tuple", "Sequence", "set"), "list"),
    **dict.fromkeys(("dict", "Dict", "Mapping"), "map"),
    "str": "text",
}
_ANY = "any"
_DEEPEST = 5


def read_engine_arguments(source: str) -> dict[str, Kinds]:
    """Return the arguments of AsyncEngineArgs as the text of vllm/engine/arg_utils.py declares them; nothing is run.

    Raises:
        ValueError: the text is not Python, or declares no AsyncEngineArgs.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"arg_utils.py cannot be read: {error}") from None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if "AsyncEngineArgs" not in classes:
        raise ValueError("arg_utils.py declares no AsyncEngineArgs")
    found: dict[str, Kinds] = {}
    _collect("AsyncEngineArgs", classes, _aliases(tree), found)
    return found


def _collect(
    name: str, classes: Mapping[str, ast.ClassDef], aliases: Mapping[str, ast.expr], found: dict[str, Kinds]
) -> None:
    for base in classes[name].bases:
        if ast.unparse(base) in classes:
            _collect(ast.unparse(base), classes, aliases, found)
    for node in classes[name].body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
            continue
        kinds = _kinds(node.annotation, aliases)
        found[node.target.id] = frozenset() if _ANY in kinds else kinds


def _aliases(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the module's own names for types, as in `Device = Literal[...]`."""
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
    }


def _kinds(node: ast.expr, aliases: Mapping[str, ast.expr], depth: int = 0) -> Kinds:
    if depth > _DEEPEST:
        return frozenset({_ANY})
    if isinstance(node, ast.Constant):
        return _of_constant(node.value, aliases, depth)
    if isinstance(node, ast.BinOp):
        return _kinds(node.left, aliases, depth + 1) | _kinds(node.right, aliases, depth + 1)
    if isinstance(node, ast.Subscript):
        return _of_subscript(node, aliases, depth)
    name = ast.unparse(node).rpartition(".")[2]
    if name in aliases:
        return _kinds(aliases[name], aliases, depth + 1)
    return frozenset({_ANNOTATIONS.get(name, _ANY)})


def _of_constant(value: object, aliases: Mapping[str, ast.expr], depth: int) -> Kinds:
    if value is None:
        return frozenset()
    if not isinstance(value, str):
        return frozenset({_ANY})
    try:
        return _kinds(ast.parse(value, mode="eval").body, aliases, depth + 1)
    except SyntaxError:
        return frozenset({_ANY})


def _of_subscript(node: ast.Subscript, aliases: Mapping[str, ast.expr], depth: int) -> Kinds:
    name = ast.unparse(node.value).rpartition(".")[2]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        texts = [isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts]
        return frozenset({"text"} if all(texts) else {_ANY})
    if name in ("Optional", "Union", "Annotated"):
        chosen = parts[:1] if name == "Annotated" else parts
        return frozenset().union(*(_kinds(part, aliases, depth + 1) for part in chosen))
    return frozenset({_ANNOTATIONS.get(name, _ANY)})
