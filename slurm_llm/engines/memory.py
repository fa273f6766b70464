"""Whether a model fits the GPUs that a spec gives it: weights a rank, KV cache a token, tokens that are left.

These are bounds, not measurements: a refusal stands on what cannot fit in any case, everything closer is a remark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slurm_llm.engines.types import Findings, Gpu
from slurm_llm.engines.weights import ModelFacts
from slurm_llm.errors import Problem
from slurm_llm.topology import ParallelSizes

GIB = 2**30
RESERVE_BYTES = GIB // 2
"""Left to the CUDA context in every case; activations and graphs come on top and are not counted in a refusal."""

WORKING_BYTES = 3 * GIB
"""What activations, CUDA graphs and communication usually take besides, for the figures that are shown."""

FEW_TOKENS = 8192

_KV_BYTES = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "auto": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
}


@dataclass(frozen=True)
class Budget:
    """How much memory an engine gives the KV cache, and how its spec keys are called.

    `fraction` is of what the weights leave free (TensorRT-LLM), or of the whole GPU with the weights in it (vLLM).
    `max_seq_len` is the longest sequence that the spec asks for; with `strict` the engine refuses to start when the
    model's own longest one does not fit. `copies` of the model share each GPU.
    """

    fraction: float
    of: Literal["free", "total"] = "free"
    fraction_key: str = "engine_args.kv_cache_config.free_gpu_memory_fraction"
    max_seq_len: int | None = None
    max_seq_len_key: str = "engine_args.max_seq_len"
    strict: bool = False
    kv_dtype: str = "auto"
    attention_dp: bool = False
    copies: int = 1


def rank_bytes(model: ModelFacts, sizes: ParallelSizes, *, attention_dp: bool = False) -> int:
    """Return the bytes of weights of the fullest rank.

    Tensor ranks share every layer, its experts too (expert and mixture-of-experts tensor sizes multiply to the tensor
    size). A pipeline stage has its layers, the first one the embedding, the last one the output table. With attention
    data parallelism every tensor rank has the whole attention.
    """
    tensor, stages = sizes.tensor_parallel_size, sizes.pipeline_parallel_size
    tables = model.embedding_bytes * model.tables
    body = max(0, model.weights_bytes - tables)
    deepest = -(-model.layers // stages) / model.layers if model.layers else 1 / stages
    attention = min(model.attention_bytes, body) if attention_dp else 0
    stage_tables = tables if stages == 1 else model.embedding_bytes
    return int(deepest * ((body - attention) / tensor + attention) + stage_tables / tensor)


def kv_token_bytes(
    model: ModelFacts, sizes: ParallelSizes, kv_dtype: str = "auto", *, attention_dp: bool = False
) -> int:
    """Return the bytes of KV cache that one token takes in a rank, 0 where the model's shape is unknown.

    Heads are shared by the tensor ranks and repeated where there are fewer of them; a latent vector is in every rank.
    """
    kind = (model.kv_algo or "auto").lower() if kv_dtype == "auto" else kv_dtype
    each = _KV_BYTES.get(kind, 1.0 if "fp8" in kind else 2.0)
    layers = -(-model.layers // sizes.pipeline_parallel_size)
    values = float(model.kv_values)
    if not model.latent and not attention_dp and model.kv_heads:
        values *= -(-model.kv_heads // sizes.tensor_parallel_size) / model.kv_heads
    return int(layers * values * each / sizes.context_parallel_size)


def tokens_that_fit(free: float, token: int) -> int:
    """Return how many tokens of `token` bytes `free` bytes hold."""
    return max(0, int(free // token)) if token else 0


def fit(model: ModelFacts, sizes: ParallelSizes, gpu: Gpu, budget: Budget) -> Findings:
    """Return whether `model` fits, and its figures in words. Without the GPU's memory there are only figures."""
    own = rank_bytes(model, sizes, attention_dp=budget.attention_dp) * budget.copies
    token = kv_token_bytes(model, sizes, budget.kv_dtype, attention_dp=budget.attention_dp)
    sort = "" if model.exact else "about "
    facts = [("weights", f"{sort}{_size(model.weights_bytes)} ({model.source}), {_size(own)} a GPU")]
    if token:
        facts.append(("KV cache", f"{token / 1024:.4g} KiB a token and GPU"))
    if gpu.memory_gb is None:
        return Findings(facts=tuple(facts))
    whole = gpu.memory_gb * GIB
    if own > whole - RESERVE_BYTES:
        fault = _too_heavy(model, sizes, gpu, own)
        return Findings((fault,) if model.exact else (), () if model.exact else (str(fault),), tuple(facts))
    best, usual = (_room(whole, own, reserve, budget) for reserve in (RESERVE_BYTES, WORKING_BYTES))
    if best <= 0:
        what = f"{budget.fraction:g} of {gpu.memory_gb} GB leaves nothing beside {_size(own)} of weights"
        return Findings((Problem(budget.fraction_key, what, "more", "raise it, or use more GPUs"),), (), tuple(facts))
    if not token:
        return Findings(facts=tuple(facts))
    most, tokens = tokens_that_fit(best, token), tokens_that_fit(usual, token)
    facts.append(("tokens that fit", f"about {tokens:,} in {_size(max(0, usual))} of each GPU"))
    return _judged(model, budget, most, tokens, tuple(facts))


def _room(whole: float, own: int, reserve: int, budget: Budget) -> float:
    """Return the bytes of a GPU for one copy's KV cache."""
    free = whole - own - reserve
    room = budget.fraction * free if budget.of == "free" else budget.fraction * whole - own / budget.copies
    return min(room, free)


def _judged(model: ModelFacts, budget: Budget, most: int, tokens: int, facts: tuple[tuple[str, str], ...]) -> Findings:
    asked, longest = budget.max_seq_len, budget.max_seq_len or model.max_positions
    if longest is not None and most < longest:
        what = f"a sequence of {longest:,} tokens does not fit: at most {most:,} do"
        todo = f"lower it, use more GPUs, or raise {budget.fraction_key}"
        if model.uniform and (asked is not None or budget.strict):
            return Findings((Problem(budget.max_seq_len_key, what, f"1 to {most}", todo),), (), facts)
        return Findings((), (f"{budget.max_seq_len_key}: {what}",), facts)
    if tokens < min(longest or FEW_TOKENS, FEW_TOKENS):
        remark = f"memory: only about {tokens:,} tokens fit beside the weights, for all requests together"
        return Findings((), (remark,), facts)
    return Findings(facts=facts)


def _too_heavy(model: ModelFacts, sizes: ParallelSizes, gpu: Gpu, own: int) -> Problem:
    split = f"tensor {sizes.tensor_parallel_size} × pipeline {sizes.pipeline_parallel_size}"
    what = f"{_size(model.weights_bytes)} of weights over {split} are {_size(own)} a GPU, which has {gpu.memory_gb} GB"
    least = -(-model.weights_bytes // (int(gpu.memory_gb or 1) * GIB - RESERVE_BYTES))
    need = f"{least} GPUs or more" if least > sizes.world_size else "a more even split"
    return Problem("model", what, need, "raise tensor_parallel_size, or take a quantized checkpoint")


def _size(count: float) -> str:
    return f"{count / GIB:.4g} GiB"
