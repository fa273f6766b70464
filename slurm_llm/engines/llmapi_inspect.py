"""What the llmapi engine finds in the model's files and says about the spec without refusing it."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_llm.engines.llmapi_arguments import ARGUMENTS, misfit
from slurm_llm.engines.llmapi_checks import read_gpu_sets
from slurm_llm.engines.memory import Budget, fit
from slurm_llm.engines.releases import release_of
from slurm_llm.engines.types import Findings, Gpu, Known, Look
from slurm_llm.engines.weights import missing_files, read_model
from slurm_llm.errors import Problem
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

DEFAULT_FRACTION = 0.9
"""kv_cache_config.free_gpu_memory_fraction of LLM()."""


def inspect(spec: JobSpec, sizes: ParallelSizes, look: Look, gpu: Gpu, known: Known | None = None) -> Findings:
    """Return whether the model is there and fits its GPUs, and remarks on arguments of other versions."""
    remarks = tuple(_remarks(spec, known))
    problems = (*missing_files(look, spec.model or ""), *_check_workdir(spec, look))
    model = None if spec.model is None or problems else read_model(look, spec.model)
    if model is None:
        return Findings(problems, remarks)
    found = fit(model, sizes, gpu, _budget(spec))
    stages = sizes.pipeline_parallel_size
    if model.layers and stages > model.layers:
        what = f"{stages} stages for {model.layers} layers"
        problems = (*problems, Problem("pipeline_parallel_size", what, f"1 to {model.layers}"))
    if found.problems and spec.engine_args.get("load_format") == "dummy":
        # Random weights may be of any size in the end: model_kwargs can cut layers off.
        return Findings(problems, (*remarks, *map(str, found.problems)), found.facts)
    return Findings((*problems, *found.problems), (*remarks, *found.warnings), found.facts)


def _budget(spec: JobSpec) -> Budget:
    cache, longest = spec.engine_args.get("kv_cache_config"), spec.engine_args.get("max_seq_len")
    own: Mapping[str, object] = cache if isinstance(cache, dict) else {}
    fraction, dtype = own.get("free_gpu_memory_fraction"), own.get("dtype", "auto")
    sets = read_gpu_sets(spec) or ()
    return Budget(
        fraction=float(fraction) if isinstance(fraction, int | float) else DEFAULT_FRACTION,
        max_seq_len=longest if isinstance(longest, int) else None,
        kv_dtype=str(dtype),
        attention_dp=spec.engine_args.get("enable_attention_dp") is True,
        copies=max((sum(gpu in each for each in sets) for each in sets for gpu in each), default=1),
    )


def _remarks(spec: JobSpec, known: Known | None) -> list[str]:
    remarks: list[str] = []
    release = release_of(None if spec.container is None else spec.container.image)
    # What was read in the image itself is certain, and refused by the checks.
    if known is None and release is not None and release.trtllm is not None:
        own = ((name, misfit(name, release.trtllm)) for name in spec.engine_args if name in ARGUMENTS)
        remarks += [f"engine_args.{name}: {why}" for name, why in own if why]
    config = spec.engine_args.get("triton_config")
    if isinstance(config, dict):
        if config.get("decoupled") is False:
            remarks.append("engine_args.triton_config.decoupled: false answers no request with `streaming`")
        if config.get("max_batch_size"):
            remarks.append("engine_args.triton_config.max_batch_size: model.py takes one request at a time (0)")
    return remarks


def _check_workdir(spec: JobSpec, look: Look) -> list[Problem]:
    """Refuse to start inside a TensorRT-LLM checkout: Python takes its sources for the installed package."""
    folder = None if spec.container is None else spec.container.workdir
    names = None if folder is None else look.names(f"{folder.rstrip('/')}/tensorrt_llm")
    if names is None or "llmapi" not in names or any(name.startswith("bindings.") for name in names):
        return []
    what = f"{folder} is a TensorRT-LLM checkout, where `import tensorrt_llm.bindings` fails"
    return [Problem("container.workdir", what, "any other folder", "e.g. its parent")]
