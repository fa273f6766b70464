"""Whether a built engine fits what a spec asks of it: ranks, sizes, cache, decoding, adapters, release.

Each complaint names both numbers and both ways out: build again with another flag, or set another value.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_llm.engines.enginedir import EngineDir
from slurm_llm.engines.releases import version_numbers
from slurm_llm.engines.tensorrtllm_arguments import DRAFT, Arguments, LlmModel
from slurm_llm.engines.tensorrtllm_parameters import (
    LOOKAHEAD,
    LORA_CACHE,
    MULTIMODAL,
    PARAMETERS,
    TENSORRT_LLM,
    Version,
    words,
)
from slurm_llm.engines.tensorrtllm_values import split_ids
from slurm_llm.engines.types import ORCHESTRATOR
from slurm_llm.errors import Problem
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

ENGINE_OF = {
    "medusa": "medusa",
    "lookahead": "lookahead_decoding",
    "redrafter": "explicit_draft_tokens",
    "eagle": "eagle",
}
"""The --speculative_decoding_mode that a decoding mode needs."""

EXTERNAL = "draft_tokens_external"
NAMED = 4
"""How many of an engine's files a complaint names."""


@dataclass(frozen=True)
class Case:
    """One engine of one model: `key` is the parameter that names its folder, `gpus_per_node` are an instance's."""

    spec: JobSpec
    sizes: ParallelSizes
    arguments: Arguments
    llm: LlmModel
    key: str
    engine: EngineDir
    version: Version | None
    gpus_per_node: int | None = None

    @property
    def where(self) -> str:
        """Return the key of the spec that names the engine."""
        return f"{self.llm.where}.{self.key}"

    def value(self, name: str) -> str | None:
        """Return what fills a placeholder of this model."""
        return self.llm.values.get(name)

    def at(self, name: str) -> str:
        """Return the place of a parameter of this model in the spec."""
        return f"{self.llm.where}.{name}"


def check_fit(case: Case) -> list[Problem]:
    """Return what does not fit, everything at once."""
    decoder = case.key == "engine_dir"
    checks = [_ranks, _files, _release, _streaming]
    if decoder:
        checks += [_sizes, _cache, _decoding, _lora, _inputs]
    return [problem for check in checks for problem in check(case)]


def fit_warnings(case: Case) -> list[str]:
    """Return what may be meant so, and is worth saying."""
    engine, found = case.engine, []
    types = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}
    logits, own = types.get(engine.logits_dtype or ""), case.value("logits_datatype")
    if case.key == "engine_dir" and logits is not None and own is not None and logits != own:
        where = case.at("logits_datatype")
        found.append(
            f"{where} is {own}, the engine's logits are {logits}: logits that a client asks for would be wrong"
        )
    seq_len, tokens = engine.limits.seq_len, case.value("max_tokens_in_paged_kv_cache")
    if seq_len is not None and tokens is not None and int(tokens) < seq_len:
        where = case.at("max_tokens_in_paged_kv_cache")
        found.append(f"{where} is {tokens}: a request of the engine's full {seq_len} tokens can never be served")
    return found


def _ranks(case: Case) -> list[Problem]:
    if case.llm is not case.arguments.main and case.spec.launch == ORCHESTRATOR.name:
        return _ranks_of_other(case)
    own, sizes = case.engine.mapping, case.sizes
    pairs = [
        ("tensor_parallel_size", own.tensor, sizes.tensor_parallel_size, "--tp_size"),
        ("pipeline_parallel_size", own.pipeline, sizes.pipeline_parallel_size, "--pp_size"),
        ("context_parallel_size", own.context, sizes.context_parallel_size, "--cp_size"),
        ("moe_tensor_parallel_size", own.moe_tensor, sizes.moe_tensor_parallel_size, "--moe_tp_size"),
        ("moe_expert_parallel_size", own.moe_expert, sizes.moe_expert_parallel_size, "--moe_ep_size"),
    ]
    problems = []
    for name, built, asked, flag in pairs:
        if built is not None and built != asked:
            what = f"the engine was built for {name} {built}, the spec says {asked}"
            problems.append(
                Problem(case.where, what, "equal sizes", f"set {name}: {built}, or rebuild with {flag} {asked}")
            )
    product = own.tensor * own.pipeline * own.context
    if own.world_size != product:
        what = f"its config.json names {own.world_size} ranks, and tp × pp × cp = {product}"
        problems.append(Problem(case.where, what, "equal numbers", "build it again"))
    return problems + _nodes(case)


def _ranks_of_other(case: Case) -> list[Problem]:
    own, ids = case.engine.mapping.world_size, case.value("gpu_device_ids")
    wrong = [len(each) for each in split_ids(ids) if len(each) != own] if ids is not None else []
    if not wrong:
        return []
    what = f"a set of {wrong[0]} GPUs, the engine has {own} ranks"
    return [Problem(case.at("gpu_device_ids"), what, f"{own} ids a set", "make them equal")]


def _nodes(case: Case) -> list[Problem]:
    """A rank's GPU is its number modulo the gpus_per_node of the build (runtime/worldConfig.cpp)."""
    built, each, world = case.engine.mapping.gpus_per_node, case.gpus_per_node, case.sizes.world_size
    if built is None or each is None or each >= world or built == each or case.value("gpu_device_ids") is not None:
        return []
    what = (
        f"the engine was built for {built} GPUs a node, this job has {each}: rank {each} would take GPU {each % built}"
    )
    todo = f"rebuild with --gpus_per_node {each}"
    if case.version is None or case.version >= PARAMETERS[TENSORRT_LLM]["num_nodes"].since:
        ids = ", ".join(map(str, range(each)))
        todo += f", or set gpu_device_ids: [{ids}] and num_nodes: {world // each}"
    return [Problem(case.where, what, f"{each} GPUs a node", todo)]


def _files(case: Case) -> list[Problem]:
    ranks, there = case.engine.mapping.world_size, [rank for rank, _ in case.engine.files]
    # Those that are named, and one more: config.json may name any number of ranks.
    missing = [rank for rank in range(min(ranks, len(there) + NAMED + 1)) if rank not in there]
    extra = [rank for rank in there if rank >= ranks]
    empty = [rank for rank, size in case.engine.files if size == 0]
    problems = []
    for found, what, todo in (
        (missing, "missing", "copy the whole folder, or build it again"),
        (extra, f"left from an engine of more ranks than {ranks}", "remove them, or build it again"),
        (empty, "empty", "copy them again"),
    ):
        if found:
            listed = ", ".join(f"rank{rank}.engine" for rank in found[:NAMED]) + (", …" if len(found) > NAMED else "")
            allowed = f"rank0.engine to rank{ranks - 1}.engine"
            problems.append(Problem(case.where, f"{listed}: {what}", allowed, todo))
    return problems


def _release(case: Case) -> list[Problem]:
    if case.version is None or case.engine.version is None:
        return []
    built, image = version_numbers(case.engine.version)[:3], case.version[:3]
    common = min(len(built), len(image))
    if built[:common] == image[:common]:
        return []
    what = f"built by TensorRT-LLM {case.engine.version}, the image has {words(case.version)}"
    return [Problem(case.where, what, "the same version", "build it with this image, or take the image of its version")]


def _streaming(case: Case) -> list[Problem]:
    percent = case.value("gpu_weights_percent")
    if percent is None or float(percent) >= 1 or case.engine.weight_streaming:
        return []
    what = f"{percent} needs an engine with weight streaming, this one is without"
    todo = "rebuild with --weight_streaming, or set it to 1.0"
    return [Problem(case.at("gpu_weights_percent"), what, "1.0", todo)]


def _sizes(case: Case) -> list[Problem]:
    limits, problems = case.engine.limits, []
    for name, most, flag in (
        ("triton_max_batch_size", limits.batch_size, "--max_batch_size"),
        ("max_beam_width", limits.beam_width, "--max_beam_width"),
    ):
        asked = int(case.value(name) or 1)
        if most is not None and asked > most:
            what, todo = (
                f"{asked}, the engine was built for {most}",
                f"set {name}: {most}, or rebuild with {flag} {asked}",
            )
            problems.append(Problem(case.at(name), what, f"at most {most}", todo))
    return problems


def _cache(case: Case) -> list[Problem]:
    engine, problems = case.engine, []
    for name in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if case.value(name) == "true" and not engine.paged_context:
            what = "needs an engine with paged context attention, this one is without"
            todo = "rebuild with --use_paged_context_fmha enable, or set it to false"
            problems.append(Problem(case.at(name), what, "false", todo))
    static = case.value("batching_strategy") in ("V1", "v1")
    if engine.paged_kv_cache is False and not static:
        what = "in-flight batching needs a paged KV cache, the engine's is not paged"
        problems.append(Problem(case.where, what, "kv_cache_type paged", "rebuild with --kv_cache_type paged"))
    if not engine.packed_input and not static:
        what = "in-flight batching needs packed input, the engine pads it"
        problems.append(Problem(case.where, what, "remove_input_padding", "rebuild with --remove_input_padding enable"))
    return problems


def _decoding(case: Case) -> list[Problem]:
    mode, built = case.value("decoding_mode"), case.engine.speculative
    needed = ENGINE_OF.get(mode or "")
    target = case.llm is case.arguments.main and case.arguments.draft is not None
    if needed is not None and built != needed:
        what = f"{mode} decoding needs an engine built for {needed}, this one is built for {built}"
        todo = f"rebuild with --speculative_decoding_mode {needed}, or choose another decoding_mode"
        return [Problem(case.at("decoding_mode"), what, needed, todo)]
    if target and (built != EXTERNAL or case.engine.limits.draft_len == 0):
        drafts = case.engine.limits.draft_len
        what = f"a draft model needs a target built for {EXTERNAL}, this one: {built}, max_draft_len {drafts}"
        todo = f"rebuild with --speculative_decoding_mode {EXTERNAL} --max_draft_len 10, or remove draft_model"
        return [Problem(case.where, what, EXTERNAL, todo)]
    return _lookahead(case) if mode == "lookahead" else []


def _lookahead(case: Case) -> list[Problem]:
    given = [case.value(name) for name in LOOKAHEAD]
    if None in given:
        return []
    window, ngram, verification = (int(text) for text in given if text is not None)
    draft, built = draft_length(window, ngram, verification), case.engine.limits.draft_len
    if draft == built:
        return []
    sizes = f"window {window}, n-gram {ngram}, verification {verification}"
    what = f"{sizes} make max_draft_len {draft}, the engine has {built}"
    todo = f"rebuild with --max_draft_len {draft}, or change the three sizes"
    return [Problem(case.at("lookahead_window_size"), what, "equal numbers", todo)]


def draft_length(window: int, ngram: int, verification: int) -> int:
    """Return the max_draft_len of lookahead decoding (examples/lookahead/README.md of TensorRT-LLM)."""
    return (0 if ngram == 1 else ngram - 2) + (window - 1 + verification) * (ngram - 1)


def _lora(case: Case) -> list[Problem]:
    if case.llm.name == DRAFT:
        return []
    given = [name for name in (*LORA_CACHE, "lora_prefetch_dir") if case.value(name) is not None]
    if given and not case.engine.lora:
        what, todo = "the engine was built without LoRA", "rebuild with --lora_plugin auto, or remove the lora_ keys"
        return [Problem(case.at(given[0]), what, todo=todo)]
    rank, most = case.engine.limits.lora_rank, int(case.value("lora_cache_max_adapter_size") or 64)
    if given and rank is not None and rank > most:
        what = f"{most}, the engine takes adapters of rank {rank}"
        todo = f"set lora_cache_max_adapter_size: {rank}"
        return [Problem(case.at("lora_cache_max_adapter_size"), what, f"at least {rank}", todo)]
    return []


def _inputs(case: Case) -> list[Problem]:
    images = MULTIMODAL in case.arguments.sections and case.llm is case.arguments.main
    engine, problems = case.engine, []
    if images and not engine.cross_attention and engine.limits.embedding_table == 0 and not _mllama(engine):
        what = "built without room for images: max_prompt_embedding_table_size is 0"
        todo = "rebuild with --max_multimodal_len (images × features × batch size)"
        problems.append(Problem(case.where, what, "more than 0", todo))
    if engine.cross_attention and not images and case.value("encoder_engine_dir") is None and not _mllama(engine):
        what, todo = "the decoder of an encoder-decoder model", "give encoder_engine_dir too"
        problems.append(Problem(case.where, what, "an encoder beside it", todo))
    return problems


def _mllama(engine: EngineDir) -> bool:
    """Its decoder takes images by cross attention, from the vision engine."""
    return "mllama" in engine.architecture.lower()
