"""An engine directory's config.json, as trtllm-build writes it, as a value; it judges nothing.

Shape: `version`, `pretrained_config` (with `mapping` and `quantization`) and `build_config` (with `plugin_config` and
`lora_config`), beside rank0.engine … (tensorrt_llm/builder.py, EngineConfig). Releases differ in the keys they write:
a size that is not there is 1, everything else is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from slurm_llm.engines.configs import section, text_at
from slurm_llm.engines.types import Look
from slurm_llm.fields import MOST_LONG

_SPECULATIVE = {
    1: "none",
    2: "draft_tokens_external",
    4: "medusa",
    8: "lookahead_decoding",
    16: "explicit_draft_tokens",
    32: "eagle",
    64: "ngram",
    128: "user_provided",
}
"""SpeculativeDecodingMode of tensorrt_llm/models/modeling_utils.py, as its numbers are written to config.json."""


class Folder(Enum):
    """What a folder holds instead of an engine."""

    UNREADABLE = "no folder that can be read here"
    EMPTY = "no config.json"
    BROKEN = "a config.json that is not JSON"
    PAIR = "an encoder and a decoder engine in folders of their own"
    CHECKPOINT = "a TensorRT-LLM checkpoint, not a built engine"
    HUGGING_FACE = "a Hugging Face model, not a built engine"
    OLD = "an engine of a builder before TensorRT-LLM 0.9"
    OTHER = "a config.json without pretrained_config and build_config"


@dataclass(frozen=True)
class Ranks:
    """Ranks of the engine; `moe_*` are None where the engine has no experts."""

    world_size: int
    tensor: int
    pipeline: int
    context: int
    moe_tensor: int | None
    moe_expert: int | None
    gpus_per_node: int | None


@dataclass(frozen=True)
class Limits:
    """What the engine was built for; None where the build does not say."""

    batch_size: int | None
    beam_width: int | None
    seq_len: int | None
    num_tokens: int | None
    draft_len: int
    embedding_table: int
    lora_rank: int | None


@dataclass(frozen=True)
class Shape:
    """The sizes that give the bytes of a token in the KV cache; None where the model does not say."""

    layers: int | None
    kv_heads: int | None
    head_size: int | None
    kv_bytes: float


@dataclass(frozen=True)
class EngineDir:
    """One built engine; `files` are rank and bytes of each rank's file, with managed weights beside it counted in."""

    version: str | None
    architecture: str
    dtype: str | None
    logits_dtype: str | None
    quantization: str | None
    mapping: Ranks
    limits: Limits
    shape: Shape
    paged_kv_cache: bool | None
    paged_context: bool
    packed_input: bool
    weight_streaming: bool
    lora: bool
    speculative: str
    cross_attention: bool
    files: tuple[tuple[int, int | None], ...]


def read_engine(path: str, look: Look) -> EngineDir | Folder:
    """Return the engine in the folder `path`, or what is there instead."""
    names = look.names(path)
    if names is None:
        return Folder.UNREADABLE
    text = look.text(f"{path}/config.json") if "config.json" in names else None
    if text is None:
        return Folder.PAIR if {"encoder", "decoder"} <= set(names) else Folder.EMPTY
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return Folder.BROKEN
    if not isinstance(config, dict):
        return Folder.OTHER
    if "pretrained_config" not in config or "build_config" not in config:
        return _other(config)
    files = _files(path, names, look)
    return _engine(config, section(config, "pretrained_config"), section(config, "build_config"), files)


def _other(config: Mapping[str, object]) -> Folder:
    if "builder_config" in config:
        return Folder.OLD
    if "architecture" in config and "dtype" in config:
        return Folder.CHECKPOINT
    return Folder.HUGGING_FACE if "architectures" in config or "model_type" in config else Folder.OTHER


def _files(path: str, names: tuple[str, ...], look: Look) -> tuple[tuple[int, int | None], ...]:
    found = []
    for name in names:
        rank = name.removeprefix("rank").removesuffix(".engine")
        if name != f"rank{rank}.engine" or not rank.isdecimal():
            continue
        size = look.size(f"{path}/{name}")
        weights = f"rank{rank}_managed_weights.safetensors"
        more = look.size(f"{path}/{weights}") if weights in names else 0
        found.append((int(rank), None if size is None else size + (more or 0)))
    return tuple(sorted(found))


def _engine(
    config: Mapping[str, object],
    model: Mapping[str, object],
    build: Mapping[str, object],
    files: tuple[tuple[int, int | None], ...],
) -> EngineDir:
    plugins, lora = section(build, "plugin_config"), section(build, "lora_config")
    quantization = section(model, "quantization")
    return EngineDir(
        version=text_at(config, "version"),
        architecture=text_at(model, "architecture") or "unknown",
        dtype=text_at(model, "dtype"),
        logits_dtype=text_at(model, "logits_dtype"),
        quantization=text_at(quantization, "quant_algo"),
        mapping=_mapping(model),
        limits=_limits(build, lora),
        shape=_shape(model, quantization),
        paged_kv_cache=_paged(build, plugins),
        paged_context=plugins.get("use_paged_context_fmha") is True,
        packed_input=plugins.get("remove_input_padding") is not False,
        weight_streaming=build.get("weight_streaming") is True or plugins.get("weight_streaming") is True,
        lora=plugins.get("lora_plugin") is not None or bool(lora.get("lora_target_modules")),
        speculative=_mode(build),
        cross_attention=text_at(model, "architecture") == "DecoderModel" or model.get("cross_attention") is True,
        files=files,
    )


def _mapping(model: Mapping[str, object]) -> Ranks:
    sizes = section(model, "mapping")
    tensor, pipeline, context = (_size(sizes, key) for key in ("tp_size", "pp_size", "cp_size"))
    experts = _number(section(model, "moe"), "num_experts") or _number(model, "moe_num_experts") or 0
    return Ranks(
        world_size=_number(sizes, "world_size") or tensor * pipeline * context,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        moe_tensor=_size(sizes, "moe_tp_size", tensor) if experts else None,
        moe_expert=_size(sizes, "moe_ep_size") if experts else None,
        gpus_per_node=_number(sizes, "gpus_per_node"),
    )


def _limits(build: Mapping[str, object], lora: Mapping[str, object]) -> Limits:
    return Limits(
        batch_size=_number(build, "max_batch_size"),
        beam_width=_number(build, "max_beam_width"),
        seq_len=_number(build, "max_seq_len"),
        num_tokens=_number(build, "max_num_tokens"),
        draft_len=_number(build, "max_draft_len") or 0,
        embedding_table=_number(build, "max_prompt_embedding_table_size") or 0,
        lora_rank=_number(lora, "max_lora_rank"),
    )


def _shape(model: Mapping[str, object], quantization: Mapping[str, object]) -> Shape:
    heads, hidden = _number(model, "num_attention_heads"), _number(model, "hidden_size")
    head_size = _number(model, "head_size") or (hidden // heads if heads and hidden else None)
    cached = text_at(quantization, "kv_cache_quant_algo")
    small = {"FP8": 1.0, "INT8": 1.0, "NVFP4": 0.5}
    wide = 4.0 if text_at(model, "dtype") == "float32" else 2.0
    return Shape(
        layers=_number(model, "num_hidden_layers"),
        kv_heads=_number(model, "num_key_value_heads") or heads,
        head_size=head_size,
        kv_bytes=wide if cached is None else small.get(cached, wide),
    )


def _paged(build: Mapping[str, object], plugins: Mapping[str, object]) -> bool | None:
    """Newer builds name the kind of the cache, older ones have a plugin that pages it."""
    kind = build.get("kv_cache_type")
    if isinstance(kind, str):
        return kind.rpartition(".")[2].lower() == "paged"
    paged = plugins.get("paged_kv_cache")
    return paged if isinstance(paged, bool) else None


def _mode(build: Mapping[str, object]) -> str:
    mode = build.get("speculative_decoding_mode")
    if isinstance(mode, str):
        return mode.rpartition(".")[2].lower()
    return _SPECULATIVE.get(mode, "none") if isinstance(mode, int) else "none"


def _number(value: Mapping[str, object], key: str) -> int | None:
    found = value.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and abs(found) <= MOST_LONG else None


def _size(value: Mapping[str, object], key: str, usual: int = 1) -> int:
    """Return a parallel size; -1 and a missing key mean the usual one."""
    found = _number(value, key)
    return usual if found is None or found < 1 else found
