"""Specs and built engines of the engine path's tests, with the few values that a test is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from slurm_llm.plan import Plan, build_plan
from slurm_llm.spec import JobSpec, spec_from_mapping
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_site

FIXTURES = Path(__file__).parent / "templates_fixture"
PATHS: dict[str, Tree] = {"engine_dir": "/models/engine", "tokenizer_dir": "/models/hf"}


def engine_spec(arguments: Mapping[str, Tree] | None = None, version: str | None = "1.1.0", **values: Tree) -> JobSpec:
    """Return a spec with an engine, a tokenizer and `arguments` beside them; None takes one away."""
    merged = {**PATHS, "tensorrt_llm_version": version, **(arguments or {})}
    own: dict[str, Tree] = {key: value for key, value in merged.items() if value is not None}
    return spec_from_mapping({"name": "demo", "engine": "tensorrtllm", "engine_args": own, **values})


def engine_plan(arguments: Mapping[str, Tree] | None = None, version: str | None = "1.1.0", **values: Tree) -> Plan:
    """Return the plan of such a spec on nodes of eight GPUs."""
    site = make_site({"gpus_per_node": 8, "cpus": {"per_node": 64}})
    return build_plan(engine_spec(arguments, version, **values), site)


def built_engine(path: str, ranks: int = 1, /, **changes: object) -> dict[str, str]:
    """Return the files of an engine that fits a spec of one rank; `changes` are by dotted key, None removes one."""
    config: dict[str, object] = {
        "version": "1.1.0",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "float16",
            "logits_dtype": "float32",
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1, "cp_size": 1, "gpus_per_node": 8},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "max_batch_size": 64,
            "max_beam_width": 1,
            "max_seq_len": 2048,
            "max_num_tokens": 8192,
            "max_draft_len": 0,
            "speculative_decoding_mode": 1,
            "kv_cache_type": "PAGED",
            "max_prompt_embedding_table_size": 0,
            "weight_streaming": False,
            "lora_config": {"lora_target_modules": [], "max_lora_rank": 64},
            "plugin_config": {"use_paged_context_fmha": True, "remove_input_padding": True, "lora_plugin": None},
        },
    }
    for dotted, value in changes.items():
        *sections, key = dotted.split(".")
        place = config
        for section in sections:
            inner = place.setdefault(section, {})
            assert isinstance(inner, dict)
            place = inner
        place[key] = value
    files = {f"{path}/rank{rank}.engine": "weights" for rank in range(ranks)}
    return {f"{path}/config.json": json.dumps(config), **files}
