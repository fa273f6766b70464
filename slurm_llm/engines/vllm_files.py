"""What the files of a vllm spec's model and adapters contradict, and whether they fit the GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_llm.engines.configs import read_object
from slurm_llm.engines.memory import Budget, fit
from slurm_llm.engines.types import Findings, Gpu, Known, Look
from slurm_llm.engines.vllm_checks import LORA
from slurm_llm.engines.weights import missing_files, read_model
from slurm_llm.errors import Problem
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tekken.json", "vocab.txt")
DEFAULT_LORA_RANK = 16
DEFAULT_SHARE = 0.9
"""vLLM's gpu_memory_utilization unless it is given; 0.92 from some release on, of which a refusal need not know."""


def inspect(spec: JobSpec, sizes: ParallelSizes, look: Look, gpu: Gpu, _known: Known | None = None) -> Findings:
    """Return what the files contradict; those that are not seen from here say nothing."""
    model = spec.model or ""
    problems = [*missing_files(look, model), *_find_adapters(spec, look)]
    folder = look.folder(model)
    names = None if folder is None else look.names(folder)
    if folder is None or names is None:
        return Findings(tuple(problems))
    if "config.json" not in names:
        if not any(name.endswith(".gguf") or name == "params.json" for name in names):
            problems.append(
                Problem("model", f"{folder} has no config.json", "a Hugging Face model", "correct the path")
            )
        return Findings(tuple(problems))
    if not spec.engine_args.get("tokenizer") and not spec.engine_args.get("skip_tokenizer_init"):
        problems += _find_tokenizer(folder, names)
    problems += _find_misfits(spec, sizes, read_object(look.text(f"{folder}/config.json")) or {})
    room = _fit(spec, sizes, look, gpu)
    return Findings((*problems, *room.problems), room.warnings, room.facts)


def _fit(spec: JobSpec, sizes: ParallelSizes, look: Look, gpu: Gpu) -> Findings:
    facts = read_model(look, spec.model or "")
    if facts is None:
        return Findings()
    share, longest = spec.engine_args.get("gpu_memory_utilization"), spec.engine_args.get("max_model_len")
    kind = spec.engine_args.get("kv_cache_dtype")
    offloads = any(
        spec.engine_args.get(name) for name in ("cpu_offload_gb", "offload_backend", "kv_cache_memory_bytes")
    )
    asked = longest if isinstance(longest, int) and longest > 0 else None
    budget = Budget(
        fraction=float(share) if isinstance(share, int | float) else DEFAULT_SHARE,
        of="total",
        fraction_key="engine_args.gpu_memory_utilization",
        max_seq_len=asked,
        max_seq_len_key="engine_args.max_model_len",
        # -1 is vLLM's own choice of what fits.
        strict=longest != -1,
        kv_dtype=kind if isinstance(kind, str) else "auto",
    )
    # Weights in host memory, or a cache of a given size, are not the arithmetic of this fit: its figures remain.
    return fit(facts, sizes, Gpu(None) if offloads else gpu, budget)


def _find_tokenizer(folder: str, names: tuple[str, ...]) -> list[Problem]:
    if any(name in TOKENIZERS for name in names):
        return []
    what, todo = f"{folder} has no tokenizer", "add it, or name one in engine_args.tokenizer"
    return [Problem("model", what, " or ".join(TOKENIZERS[:3]), todo)]


def _find_misfits(spec: JobSpec, sizes: ParallelSizes, config: Mapping[str, object]) -> list[Problem]:
    text = config.get("text_config")
    own: Mapping[str, object] = text if isinstance(text, dict) else config
    problems = []
    heads, layers = own.get("num_attention_heads"), own.get("num_hidden_layers")
    if isinstance(heads, int) and heads % sizes.tensor_parallel_size:
        what = f"{sizes.tensor_parallel_size} does not divide the model's {heads} attention heads"
        problems.append(Problem("tensor_parallel_size", what, "a divisor", "choose another"))
    if isinstance(layers, int) and layers < sizes.pipeline_parallel_size:
        what = f"{sizes.pipeline_parallel_size} stages for {layers} layers"
        problems.append(Problem("pipeline_parallel_size", what, f"at most {layers}", "lower it"))
    longest, asked = own.get("max_position_embeddings"), spec.engine_args.get("max_model_len")
    scaled = own.get("rope_scaling") or own.get("rope_parameters") or spec.engine_args.get("rope_scaling")
    allowed = "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in spec.env or spec.engine_args.get("hf_overrides")
    if isinstance(longest, int) and isinstance(asked, int) and asked > longest and not scaled and not allowed:
        where, what = "engine_args.max_model_len", f"{asked}, but the model was made for {longest} positions"
        problems.append(Problem(where, what, f"at most {longest}", "lower it"))
    return problems


def _find_adapters(spec: JobSpec, look: Look) -> list[Problem]:
    adapters = spec.engine_args.get(LORA)
    most = spec.engine_args.get("max_lora_rank", DEFAULT_LORA_RANK)
    problems = []
    for name, path in (adapters if isinstance(adapters, dict) else {}).items():
        where = f"engine_args.{LORA}.{name}"
        if look.missing(str(path)):
            problems.append(Problem(where, f"{path} does not exist", "an adapter's folder", "correct the path"))
            continue
        names = look.names(str(path))
        if names is not None and "adapter_config.json" not in names:
            problems.append(Problem(where, f"{path} has no adapter_config.json", "a LoRA adapter", "correct the path"))
        rank = (read_object(look.text(f"{path}/adapter_config.json")) or {}).get("r")
        if isinstance(rank, int) and isinstance(most, int) and rank > most:
            todo = f"set engine_args.max_lora_rank to {rank} or more"
            problems.append(Problem(where, f"its rank is {rank}", f"at most {most}", todo))
    return problems
