"""The convert and build stages of TensorRT-LLM's compiled engines, for releases that have them.

Arguments: examples/models/core/llama/convert_checkpoint.py and tensorrt_llm/commands/build.py of NVIDIA/TensorRT-LLM.
A checkpoint has its parallel mapping in it, and trtllm-build takes it from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_llm.engines.tensorrtllm_releases import find_version
from slurm_llm.errors import Problem
from slurm_llm.preparation import BuildStage, ConvertStage
from slurm_llm.spec import JobSpec
from slurm_llm.stages.recipe import BUILD, CONVERT, Command, Product
from slurm_llm.topology import ParallelSizes

USUAL_GPUS_PER_NODE = 8
"""trtllm-build's own default."""
_OURS = {
    CONVERT: ("model_dir", "output_dir", "tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size"),
    BUILD: ("checkpoint_dir", "output_dir", "workers", "gpus_per_node"),
}
_FIELDS = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "cp_size": "context_parallel_size",
    "moe_tp_size": "moe_tensor_parallel_size",
    "moe_ep_size": "moe_expert_parallel_size",
    "workers": "prepare.build.gpus",
    "gpus_per_node": "resources.gpus_per_node",
    "output_dir": "to",
    "model_dir": "source",
    "checkpoint_dir": "source",
}


def check_release(spec: JobSpec, image: str | None, problems: list[Problem]) -> None:
    """Append to `problems` why the image has no compiled engines, when it has none."""
    find_version(spec, image, problems)


def convert_command(own: ConvertStage, source: str, sizes: ParallelSizes, product: Product, python: str) -> Command:
    """Return the conversion of the model in `source`; expert sizes are given where they say something."""
    words = [python, own.script, "--model_dir", source, "--output_dir", product.part]
    words += ["--tp_size", str(sizes.tensor_parallel_size), "--pp_size", str(sizes.pipeline_parallel_size)]
    if sizes.context_parallel_size > 1:
        words += ["--cp_size", str(sizes.context_parallel_size)]
    if sizes.moe_expert_parallel_size > 1:
        words += ["--moe_tp_size", str(sizes.moe_tensor_parallel_size)]
        words += ["--moe_ep_size", str(sizes.moe_expert_parallel_size)]
    return Command((*words, *_flags(own.args)), inside=True)


def build_command(own: BuildStage, source: str, gpus: tuple[int, int], product: Product) -> Command:
    """Return the build from the checkpoint in `source`; `gpus` are those of a serving node, and all ranks."""
    per_node, ranks = gpus
    words = ["trtllm-build", "--checkpoint_dir", source, "--output_dir", product.part]
    if per_node != USUAL_GPUS_PER_NODE:
        words += ["--gpus_per_node", str(per_node)]
    workers = min(own.gpus, ranks)
    words += ["--workers", str(workers)] if workers > 1 else []
    return Command((*words, *_flags(own.args)), inside=True)


def check_flags(stage: str, args: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what is wrong with a stage's free arguments."""
    for name, value in args.items():
        where, plain = f"prepare.{stage}.args.{name}", name.replace("-", "_")
        if plain in _OURS[stage]:
            yield Problem(where, "is set by slurm_llm itself", todo=f"use {_FIELDS[plain]}")
        elif isinstance(value, dict):
            yield Problem(where, "a mapping is no argument", "text, a number, true, or a list of these")


def check_mapping(source: str, sizes: ParallelSizes) -> Iterator[Problem]:
    """Yield what the checkpoint in `source` is made for and the spec is not, as far as this machine can read it."""
    try:
        value = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
        mapping = value["mapping"]
        found = {name: int(mapping.get(name, 1)) for name in ("tp_size", "pp_size", "cp_size")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    for name, size in found.items():
        wanted = getattr(sizes, _FIELDS[name])
        if size != wanted:
            what = f"the checkpoint {source} is made for {name} {size}, the spec has {_FIELDS[name]} {wanted}"
            yield Problem("prepare.build.source", what, todo="convert it anew, or correct the spec")


def _flags(args: Mapping[str, object]) -> Iterator[str]:
    for name, value in args.items():
        if value is None or value is False:
            continue
        yield f"--{name}"
        if value is not True:
            yield from (str(one) for one in (value if isinstance(value, list) else [value]))
