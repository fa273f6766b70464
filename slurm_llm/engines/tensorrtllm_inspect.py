"""What the engine path finds in the files that a spec names: engines that do not fit, and paths that are not there."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_llm.engines.enginedir import EngineDir, Folder, read_engine
from slurm_llm.engines.tensorrtllm_arguments import Arguments, LlmModel, read_arguments
from slurm_llm.engines.tensorrtllm_fit import Case, check_fit, fit_warnings
from slurm_llm.engines.tensorrtllm_memory import check_memory, memory_facts, memory_warnings
from slurm_llm.engines.tensorrtllm_parameters import MULTIMODAL, PREPROCESSING
from slurm_llm.engines.tensorrtllm_releases import find_version
from slurm_llm.engines.types import ORCHESTRATOR, Findings, Gpu, Known, Look
from slurm_llm.errors import Problem
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

ENGINES = ("engine_dir", "encoder_engine_dir")
ADAPTER_FILES = ("model.lora_config.npy", "model.lora_weights.npy")

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "spiece.model")
_TODO = {
    Folder.EMPTY: "give the folder that trtllm-build wrote (--output_dir)",
    Folder.BROKEN: "copy or build the engine again",
    Folder.PAIR: "give its decoder folder here, and its encoder folder as encoder_engine_dir",
    Folder.CHECKPOINT: "build it: trtllm-build --checkpoint_dir, and give its --output_dir",
    Folder.HUGGING_FACE: "use engine: llmapi with it as `model`, or convert and build it first",
    Folder.OLD: "build it again with the image's TensorRT-LLM",
    Folder.OTHER: "give the folder that trtllm-build wrote (--output_dir)",
}


@dataclass
class _Found:
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)


def inspect_engines(spec: JobSpec, sizes: ParallelSizes, look: Look, gpu: Gpu, _known: Known | None = None) -> Findings:
    """Return what is wrong with the engines and paths of `spec`, as far as they can be read where it is submitted."""
    arguments, found = read_arguments(spec, []), _Found()
    version = find_version(spec, None if spec.container is None else spec.container.image, [])
    _check_paths(arguments, look, found)
    for llm in arguments.llms:
        for key in ENGINES:
            engine = _read(llm, key, look, found)
            if engine is not None:
                case = Case(spec, sizes, arguments, llm, key, engine, version, gpu.per_node)
                found.problems += check_fit(case) + check_memory(case, gpu)
                found.warnings += fit_warnings(case) + memory_warnings(case, gpu)
                found.facts += memory_facts(case, gpu)
        found.problems += _check_adapters(llm, look)
    found.warnings += _remarks(spec, arguments)
    return Findings(tuple(found.problems), tuple(found.warnings), tuple(found.facts))


def _read(llm: LlmModel, key: str, look: Look, found: _Found) -> EngineDir | None:
    path, where = llm.values.get(key), f"{llm.where}.{key}"
    if path is None:
        return None
    engine = read_engine(path, look)
    if isinstance(engine, EngineDir):
        return engine
    if engine is not Folder.UNREADABLE:
        what = f"{path} holds {engine.value}"
        found.problems.append(Problem(where, what, "config.json and rank0.engine …", _TODO[engine]))
    elif look.missing(path):
        found.problems.append(_missing(where, path))
    else:
        found.warnings.append(f"{where}: {path} cannot be read where this is submitted: its engine was not checked")
    return None


def _missing(where: str, path: str) -> Problem:
    return Problem(where, f"there is no {path}", "a path that the ranks see", "correct it")


def _check_paths(arguments: Arguments, look: Look, found: _Found) -> None:
    named = [("engine_args.templates", arguments.templates)]
    named += [(f"engine_args.{MULTIMODAL}.{key}", arguments.sections.get(MULTIMODAL, {}).get(key)) for key in _IMAGES]
    keys = ("xgrammar_tokenizer_info_path", "lora_prefetch_dir")
    named += [(f"{llm.where}.{key}", llm.values.get(key)) for llm in arguments.llms for key in keys]
    tokenizer = arguments.sections[PREPROCESSING].get("tokenizer_dir")
    named.append(("engine_args.tokenizer_dir", tokenizer))
    found.problems += [_missing(where, path) for where, path in named if path is not None and look.missing(path)]
    names = None if tokenizer is None else look.names(tokenizer)
    if names is not None and not set(_TOKENIZER_FILES) & set(names):
        found.warnings.append(f"engine_args.tokenizer_dir: {tokenizer} holds none of {', '.join(_TOKENIZER_FILES)}")


_IMAGES = ("multimodal_model_path", "hf_model_path")


def _check_adapters(llm: LlmModel, look: Look) -> list[Problem]:
    """Adapters lie in folders named by their numeric task id (docs/lora.md)."""
    path, where = llm.values.get("lora_prefetch_dir"), f"{llm.where}.lora_prefetch_dir"
    names = None if path is None else look.names(path)
    if path is None or names is None:
        return []
    problems = [
        Problem(where, f"'{name}' is no number", "folders named by LoRA task id", "rename or move it")
        for name in names
        if not name.isdecimal() and not name.startswith(".")
    ]
    for name in names:
        there = look.names(f"{path}/{name}") if name.isdecimal() else None
        lacking = [] if there is None else [file for file in ADAPTER_FILES if file not in there]
        if lacking:
            what, todo = f"task {name} lacks {' and '.join(lacking)}", "convert the adapter with hf_lora_convert.py"
            problems.append(Problem(where, what, " and ".join(ADAPTER_FILES), todo))
    if not names:
        problems.append(Problem(where, f"{path} is empty", "a folder for each LoRA task id", "fill it, or remove it"))
    return problems


def _remarks(spec: JobSpec, arguments: Arguments) -> list[str]:
    remarks = []
    if spec.launch == ORCHESTRATOR.name:
        remarks.append(
            "launch: orchestrator starts its workers by MPI_Comm_spawn, which NVIDIA says may not work under Slurm; "
            "leader mode needs none"
        )
    static = [llm for llm in arguments.llms if llm.values["batching_strategy"] in ("V1", "v1")]
    remarks += [f"{llm.where}.batching_strategy: static batching (V1) is deprecated" for llm in static]
    owners: dict[str, list[str]] = {}
    for llm in arguments.llms:
        for each in llm.values.get("gpu_device_ids", "").replace(";", ",").split(","):
            owners.setdefault(each, []).append(llm.name)
    shared = [(each, names) for each, names in owners.items() if each and len(names) > 1]
    remarks += [f"GPU {each} is given to {' and '.join(names)}: their KV caches share it" for each, names in shared]
    return remarks
