"""Whether an engine fits its GPUs: weights a rank, the KV cache of a token, and what a GPU can compute with."""

from __future__ import annotations

import re

from slurm_llm.engines.enginedir import EngineDir
from slurm_llm.engines.tensorrtllm_fit import Case
from slurm_llm.engines.types import Gpu
from slurm_llm.errors import Problem

GIB = 1024**3

_BEFORE_FP8 = re.compile(r"(?<![a-z0-9])(?:p100|v100s?|t4|a100l?|a800|a40|a30|a10g?|a16|a2|rtx-?a\d{4})(?![0-9a-z])")
_BEFORE_FP4 = re.compile(r"(?<![a-z0-9])(?:h100|h200|h800|h20|gh200|l40s?|l4)(?![0-9a-z])")


def check_memory(case: Case, gpu: Gpu) -> list[Problem]:
    """Return what the GPU of the partition cannot hold or compute."""
    return _too_old(case, gpu) + _too_large(case, gpu)


def memory_facts(case: Case, gpu: Gpu) -> tuple[tuple[str, str], ...]:
    """Return what `plan` shows of one engine."""
    engine = case.engine
    named = {"tensorrt_llm engine_dir": "", "tensorrt_llm encoder_engine_dir": "encoder: "}
    prefix = named.get(f"{case.llm.name} {case.key}", f"{case.llm.name}: ")
    facts = [("engine", prefix + _described(engine))]
    weights, token = weight_bytes(case), token_bytes(engine)
    if weights is not None:
        facts.append(("weights", f"{prefix}{weights / GIB:.1f} GiB a GPU"))
    if token is not None and case.key == "engine_dir":
        facts.append(("KV cache", f"{prefix}{token / 1024:.4g} KiB a token and GPU"))
        room = cache_tokens(case, gpu)
        if room is not None:
            facts.append(("tokens that fit", f"{prefix}about {room:,}, less what activations take"))
    return tuple(facts)


def memory_warnings(case: Case, gpu: Gpu) -> list[str]:
    """Return what a cache that is too small for one full request means."""
    room, longest = cache_tokens(case, gpu), case.engine.limits.seq_len
    if case.key != "engine_dir" or room is None or longest is None or room >= longest:
        return []
    return [f"{case.where}: about {room} tokens fit in the KV cache, one full request of the engine has {longest}"]


def weight_bytes(case: Case) -> int | None:
    """Return the bytes of the heaviest rank's file that stay on its GPU; None where they cannot be read."""
    sizes = [size for _, size in case.engine.files if size is not None]
    return round(max(sizes) * float(case.value("gpu_weights_percent") or 1)) if sizes else None


def token_bytes(engine: EngineDir) -> float | None:
    """Return the bytes that one token takes in the KV cache of one rank: keys and values of its layers and heads."""
    shape, ranks = engine.shape, engine.mapping
    if shape.layers is None or shape.kv_heads is None or shape.head_size is None:
        return None
    layers, heads = -(-shape.layers // ranks.pipeline), max(1, shape.kv_heads // ranks.tensor)
    return 2 * layers * heads * shape.head_size * shape.kv_bytes


def cache_tokens(case: Case, gpu: Gpu) -> int | None:
    """Return about how many tokens the KV cache holds: the free memory's share, at most what the spec allows."""
    weights, token = weight_bytes(case), token_bytes(case.engine)
    if gpu.memory_gb is None or weights is None or not token:
        return None
    share = float(case.value("kv_cache_free_gpu_mem_fraction") or 0.9)
    room = int(max(0.0, gpu.memory_gb * GIB - weights) * share / token)
    most = case.value("max_tokens_in_paged_kv_cache")
    return room if most is None else min(room, int(most))


def _too_large(case: Case, gpu: Gpu) -> list[Problem]:
    weights = weight_bytes(case)
    if gpu.memory_gb is None or weights is None or weights < gpu.memory_gb * GIB:
        return []
    what = f"the weights of a rank take {weights / GIB:.1f} GiB, a GPU of this partition has {gpu.memory_gb}"
    todo = "rebuild for more ranks or with a smaller quantization, or choose another partition"
    return [Problem(case.where, what, f"less than {gpu.memory_gb} GiB", todo)]


def _too_old(case: Case, gpu: Gpu) -> list[Problem]:
    kind, name = case.engine.quantization or "", (gpu.type or "").lower()
    fp4, fp8 = "FP4" in kind, "FP8" in kind
    if (fp4 or fp8) and (_BEFORE_FP8.search(name) or (fp4 and _BEFORE_FP4.search(name))):
        what = f"quantized to {kind}, which {gpu.type} cannot compute with"
        needed = "a Blackwell GPU" if fp4 else "an Ada, Hopper or Blackwell GPU"
        return [Problem(case.where, what, needed, "choose another partition, or rebuild with another quantization")]
    return []


def _described(engine: EngineDir) -> str:
    own, limits = engine.mapping, engine.limits
    sizes = " · ".join(
        f"{name}{size}" for name, size in (("tp", own.tensor), ("pp", own.pipeline), ("cp", own.context))
    )
    words = [f"{engine.architecture}, {engine.quantization or engine.dtype or 'unknown type'}, {sizes}"]
    words += [
        f"{text} {value}"
        for text, value in (
            ("batch at most", limits.batch_size),
            ("beams at most", limits.beam_width),
            ("sequence at most", limits.seq_len),
            ("by TensorRT-LLM", engine.version),
        )
        if value is not None
    ]
    return ", ".join(words)
