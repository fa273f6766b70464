"""What the llmapi engine refuses before anything is submitted: arguments, launches and images that cannot work.

The rules are those of tensorrt_llm/llmapi/llm_args.py, tensorrt_llm/mapping.py and the LLM API's model.py in
NVIDIA/TensorRT-LLM; they hold for every version unless a problem names one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from slurm_llm.engines.known import check_names, check_present
from slurm_llm.engines.llmapi_arguments import (
    ARGUMENTS,
    BOOLEANS,
    CHOICES,
    COUNTS,
    FRACTIONS,
    NOT_FROM_YAML,
    POSITIVE,
    SECTIONS,
    USUAL,
    suggest,
    versions_of,
)
from slurm_llm.engines.releases import PLAIN, VLLM, release_of, version_numbers
from slurm_llm.engines.types import Known
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

OWN_KEYS = ("triton_config", "all_models", "gpu_device_ids")
"""Keys of `engine_args` that are no arguments of LLM(); `triton_config` is model.py's own."""

WRAPPER_KEYS = ("logits_post_processors",)
"""Keys of model.yaml that newer model.py files keep for themselves."""

ELSEWHERE = {
    "model": "`model` at the top of the spec",
    "tensor_parallel_size": "`tensor_parallel_size` at the top of the spec",
    "pipeline_parallel_size": "`pipeline_parallel_size` at the top of the spec",
    "context_parallel_size": "`context_parallel_size` at the top of the spec",
    "moe_tensor_parallel_size": "`moe_tensor_parallel_size` at the top of the spec",
    "moe_expert_parallel_size": "`moe_expert_parallel_size` at the top of the spec",
    "gpus_per_node": "`resources.gpus_per_node`",
}
TRITON_KEYS = ("max_batch_size", "decoupled", "cancellation_check_period_ms", "multimodal")
USABLE = ("leader", "llmapi_launch", "single")
_GPU = re.compile(r"[0-9]{1,4}\Z")
FIRST_IMAGE = "25.05"
"""The first Triton image with an llmapi model folder: v0.19.0 of tensorrtllm_backend has it, v0.18.2 has not."""
FIRST_COPIES = "26.02"
"""The first month in which docs/llmapi.md of tensorrtllm_backend tells of `gpu_device_ids` (February 2026)."""


def check(spec: JobSpec, sizes: ParallelSizes, image: str | None, known: Known | None = None) -> list[Problem]:
    """Return everything that is wrong with the spec's own keys of this engine, for the image that it gets."""
    problems = []
    if spec.model is None:
        problems.append(Problem("model", "the llmapi engine needs one", "a Hugging Face id or a path"))
    problems += _check_launch(spec, sizes)
    of_image = _check_image(spec, image)
    if not of_image and "all_models" not in spec.engine_args:
        of_image = check_present(known, "TensorRT-LLM", "take an image that has it") or _check_models(known)
    problems += of_image
    problems += _check_launcher(spec, sizes, known)
    problems += _check_names(spec.engine_args, known if known is not None and known.names else None)
    problems += _check_values(spec.engine_args)
    problems += _check_together(spec, sizes)
    problems += _check_triton_config(spec.engine_args.get("triton_config"))
    problems += _check_copies(spec, sizes, image)
    return problems


def read_gpu_sets(spec: JobSpec) -> tuple[tuple[int, ...], ...] | None:
    """Return `engine_args.gpu_device_ids`, the GPUs of each copy, or None when it is absent or not readable.

    The text is TensorRT-LLM's own: `;` between copies, `,` between GPUs ("0,1;2,3"); a list of lists is the same.
    """
    given = spec.engine_args.get("gpu_device_ids")
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    rows: list[object] = [part.split(",") for part in given.split(";")] if isinstance(given, str) else []
    if isinstance(given, list):
        rows = list(given)
    sets = []
    for row in rows:
        words = [str(word).strip() for word in row] if isinstance(row, list) else [str(row)]
        if not words or not all(_GPU.match(word) for word in words):
            return None
        sets.append(tuple(map(int, words)))
    return tuple(sets) or None


def _check_launch(spec: JobSpec, sizes: ParallelSizes) -> list[Problem]:
    problems = []
    allowed = ", ".join(USABLE)
    if spec.launch is not None and spec.launch not in USABLE:
        what = f"the llmapi engine has no {spec.launch} launch"
        problems.append(Problem("launch", what, allowed, "leave it out for the usual one"))
    if spec.launch == "leader" and sizes.world_size == 1:
        what = "a single rank in leader mode would start its worker with MPI_Comm_spawn, which hangs under srun"
        problems.append(Problem("launch", what, "single, llmapi_launch", "leave it out"))
    if _uses_launcher(spec, sizes):
        for argument in spec.triton.extra_args:
            if any(character in argument for character in " \t*?["):
                what = f"'{argument}': trtllm-llmapi-launch joins its arguments unquoted in most releases"
                problems.append(Problem("triton.extra_args", what, "no blanks, *, ? or [", "or use `launch: leader`"))
    return problems


def _check_image(spec: JobSpec, image: str | None) -> list[Problem]:
    release = release_of(image)
    if release is None or "all_models" in spec.engine_args:
        return []
    if release.flavour in (VLLM, PLAIN):
        what = f"{image} holds no TensorRT-LLM"
        todo = f"the one with the tag {release.triton}-trtllm-python-py3, say"
        return [Problem("container.image", what, "an image for TensorRT-LLM", todo)]
    if release.triton < FIRST_IMAGE:
        what = f"Triton {release.triton} has no llmapi model in its image"
        todo = "take a newer image, or name a checkout in engine_args.all_models"
        return [Problem("container.image", what, f"Triton {FIRST_IMAGE} or newer", todo)]
    if spec.launch == "leader" and release.trtllm is not None and version_numbers(release.trtllm) < (0, 20):
        what = f"TensorRT-LLM {release.trtllm} does not join the ranks of a leader launch"
        return [Problem("launch", what, "llmapi_launch", "or a newer image")]
    return []


def _check_models(known: Known | None) -> list[Problem]:
    if known is None or known.models is None or "llmapi" in known.models:
        return []
    what, todo = f"{known.place} has no llmapi model folder", "or name a checkout in engine_args.all_models"
    return [Problem("container.image", what, f"Triton {FIRST_IMAGE} or newer", todo)]


def _check_launcher(spec: JobSpec, sizes: ParallelSizes, known: Known | None) -> list[Problem]:
    if known is None or known.launcher is not False or not _uses_launcher(spec, sizes):
        return []
    return [Problem("launch", f"{known.place} has no trtllm-llmapi-launch", "leader", "set `launch: leader`")]


def _uses_launcher(spec: JobSpec, sizes: ParallelSizes) -> bool:
    usual = spec.launch is None and sizes.world_size > 1 and spec.engine_args.get("gpu_device_ids") is None
    return spec.launch == "llmapi_launch" or usual


def _check_names(given: Mapping[str, object], known: Known | None) -> list[Problem]:
    problems = []
    for name, value in given.items():
        where = f"engine_args.{name}"
        if name in ELSEWHERE:
            problems.append(Problem(where, "this has a place of its own", ELSEWHERE[name], "move it there"))
        elif name.lstrip("_") in NOT_FROM_YAML:
            problems.append(Problem(where, "takes a Python object, which model.yaml cannot hold", todo="remove it"))
        elif name in OWN_KEYS or name in WRAPPER_KEYS:
            continue
        elif known is not None and name not in known.names:
            problems += check_names((name,), known, lambda one: versions_of(one) if one in ARGUMENTS else "")
        elif known is None and name not in ARGUMENTS:
            what = "no version of TensorRT-LLM that is known here has this argument of LLM()"
            problems.append(Problem(where, what, "", suggest(name) or "remove it"))
        elif value is not None and (keys := _keys_of(name, known)):
            problems += _check_section(name, value, keys)
    return problems


def _keys_of(name: str, known: Known | None) -> Collection[str]:
    """Return the keys of a section: those of the image, where they were read, and of the tables."""
    return {*SECTIONS.get(name, ()), *(() if known is None else known.sections.get(name, ()))}


def _check_section(name: str, value: object, keys: Collection[str]) -> list[Problem]:
    """Name keys that are nearly known ones; the lists are not complete, so a key like no other may be right."""
    if not isinstance(value, Mapping):
        return [Problem(f"engine_args.{name}", f"found {value!r}", "a mapping", "see TensorRT-LLM's LLM API reference")]
    hints = {key: did_you_mean(key, keys) for key in value if key not in keys}
    return [Problem(f"engine_args.{name}.{key}", "unknown key", "", hint) for key, hint in hints.items() if hint]


def _flat(given: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    for name, value in given.items():
        yield name, value
        if name in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", one) for key, one in value.items())


def _whole(least: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


_KINDS: tuple[tuple[frozenset[str], Callable[[object], bool], str], ...] = (
    (BOOLEANS, lambda value: isinstance(value, bool), "true or false"),
    (FRACTIONS, _fraction, "a number from 0 to 1"),
    (POSITIVE, _whole(1), "a whole number from 1"),
    (COUNTS, _whole(0), "a whole number from 0"),
)


def _check_values(given: Mapping[str, object]) -> list[Problem]:
    problems = []
    for name, value in _flat(given):
        where = f"engine_args.{name}"
        if value is None:
            continue
        for names, fits, allowed in _KINDS:
            if name in names and not fits(value):
                problems.append(Problem(where, f"found {value!r}", allowed, "correct it"))
        if name in CHOICES and value not in CHOICES[name]:
            hint = did_you_mean(str(value), CHOICES[name]) or "correct it"
            problems.append(Problem(where, f"found {value!r}", ", ".join(CHOICES[name]), hint))
        if name in USUAL and value not in USUAL[name] and (hint := did_you_mean(str(value), USUAL[name])):
            problems.append(Problem(where, f"unknown value {value!r}", "", hint))
    return problems


def _section(given: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = given.get(name)
    return value if isinstance(value, Mapping) else {}


def _check_together(spec: JobSpec, sizes: ParallelSizes) -> list[Problem]:
    """Return what the arguments contradict each other and the parallel sizes in."""
    given = spec.engine_args
    problems = [*_check_partition(given, sizes), *_check_experts(spec, sizes), *_check_draft(given)]
    if given.get("enable_lm_head_tp_in_adp") is True and given.get("enable_attention_dp") is not True:
        where, todo = "engine_args.enable_lm_head_tp_in_adp", "set enable_attention_dp: true too"
        problems.append(Problem(where, "works with attention data parallelism only", todo=todo))
    if given.get("orchestrator_type") == "ray" and spec.launch != "single":
        what = "Ray would start workers of its own beside the ranks of this launch"
        problems.append(Problem("engine_args.orchestrator_type", what, "rpc", "remove it"))
    if _section(given, "peft_cache_config").get("lora_prefetch_dir") is not None:
        what = "LLM() refuses it"
        problems.append(Problem("engine_args.peft_cache_config.lora_prefetch_dir", what, todo="remove it"))
    if given.get("mm_encoder_only") is True:
        for other in ("encode_only", "disable_mm_encoder"):
            if given.get(other) is True:
                what = "contradicts mm_encoder_only: true"
                problems.append(Problem(f"engine_args.{other}", what, todo="remove one of the two"))
    graphs = _section(given, "cuda_graph_config")
    batches, most = graphs.get("batch_sizes"), graphs.get("max_batch_size")
    if isinstance(batches, list) and batches and all(_whole(1)(one) for one in batches) and most is not None:
        largest = max(int(str(one)) for one in batches)
        if most != largest:
            what = f"{most}, but the largest of batch_sizes is {largest}"
            todo = "leave one of the two out"
            problems.append(Problem("engine_args.cuda_graph_config.max_batch_size", what, todo=todo))
    return problems


def _check_partition(given: Mapping[str, object], sizes: ParallelSizes) -> list[Problem]:
    layers, stages = given.get("pp_partition"), sizes.pipeline_parallel_size
    if layers is None:
        return []
    where = "engine_args.pp_partition"
    if not isinstance(layers, list) or not all(_whole(1)(one) for one in layers):
        return [Problem(where, f"found {layers!r}", "a list of layers, one number for each pipeline stage")]
    if len(layers) != stages:
        what = f"{len(layers)} numbers for {stages} pipeline stages"
        return [Problem(where, what, "one number for each stage", f"pipeline_parallel_size is {stages}")]
    return []


def _check_experts(spec: JobSpec, sizes: ParallelSizes) -> list[Problem]:
    problems, given, tensor = [], spec.engine_args, sizes.tensor_parallel_size
    clusters = given.get("moe_cluster_parallel_size")
    if isinstance(clusters, int) and clusters > 1:
        where = "engine_args.moe_cluster_parallel_size"
        if tensor % clusters:
            problems.append(Problem(where, f"{clusters} does not divide tensor_parallel_size {tensor}"))
        if sizes.moe_expert_parallel_size > 1:
            what = f"{clusters} clusters with moe_expert_parallel_size {sizes.moe_expert_parallel_size}"
            problems.append(Problem(where, what, "1 of either", "LLM() takes clusters without expert parallelism only"))
    kind = _section(given, "cp_config").get("cp_type", "ULYSSES")
    if sizes.context_parallel_size > 1 and sizes.moe_expert_parallel_size > 1 and str(kind).upper() != "HELIX":
        what = f"with context_parallel_size {sizes.context_parallel_size} and context parallelism of type {kind}"
        problems.append(Problem("moe_expert_parallel_size", what, "1, or cp_config.cp_type HELIX"))
    return problems


def _check_draft(given: Mapping[str, object]) -> list[Problem]:
    draft = _section(given, "speculative_config")
    where = "engine_args.speculative_config"
    if not draft:
        return []
    kind = draft.get("decoding_type")
    if kind is None:
        return [Problem(where, "decoding_type is missing", ", ".join(USUAL["speculative_config.decoding_type"]))]
    problems = []
    if kind in ("Eagle", "Eagle3", "DraftTarget", "Draft_Target"):
        if not any(draft.get(key) for key in ("speculative_model", "speculative_model_dir", "pytorch_weights_path")):
            problems.append(Problem(f"{where}.speculative_model", f"{kind} needs a draft model", "an id or a path"))
        if not _whole(1)(draft.get("max_draft_len")):
            problems.append(Problem(f"{where}.max_draft_len", f"{kind} needs it", "a whole number from 1"))
    return problems


def _check_triton_config(value: object) -> list[Problem]:
    where = "engine_args.triton_config"
    if value is None:
        return []
    if not isinstance(value, Mapping):
        return [Problem(where, f"found {value!r}", "a mapping: " + ", ".join(TRITON_KEYS))]
    problems = []
    for key, one in value.items():
        if key not in TRITON_KEYS:
            todo = did_you_mean(key, TRITON_KEYS) or "remove it"
            problems.append(Problem(f"{where}.{key}", "unknown key of model.py", ", ".join(TRITON_KEYS), todo))
        elif key in ("decoupled", "multimodal") and not isinstance(one, bool):
            problems.append(Problem(f"{where}.{key}", f"found {one!r}", "true or false"))
        elif key == "max_batch_size" and not _whole(0)(one):
            problems.append(Problem(f"{where}.{key}", f"found {one!r}", "a whole number from 0"))
        elif key == "cancellation_check_period_ms" and not _whole(1)(one):
            problems.append(Problem(f"{where}.{key}", f"found {one!r}", "a whole number of milliseconds"))
    return problems


def _check_copies(spec: JobSpec, sizes: ParallelSizes, image: str | None) -> list[Problem]:
    """Check `gpu_device_ids`, copies of the model in one server."""
    where = "engine_args.gpu_device_ids"
    if spec.engine_args.get("gpu_device_ids") is None:
        return []
    sets = read_gpu_sets(spec)
    if sets is None:
        found = spec.engine_args["gpu_device_ids"]
        return [Problem(where, f"found {found!r}", "GPU numbers: ',' in a copy, ';' between copies ('0,1;2,3')")]
    problems = []
    for gpus in sets:
        if len(set(gpus)) != sizes.world_size:
            what = f"a copy has GPUs {', '.join(map(str, gpus))}, its parallel sizes take {sizes.world_size}"
            problems.append(Problem(where, what, f"{sizes.world_size} different numbers a copy"))
    used = {gpu for each in sets for gpu in each}
    if used != set(range(len(used))):
        what = f"GPUs {', '.join(map(str, sorted(used)))}"
        problems.append(Problem(where, what, "numbers from 0 on, none left out", "the job's GPUs are numbered from 0"))
    if spec.launch not in (None, "single"):
        what = f"copies in one server and the {spec.launch} launch"
        problems.append(Problem("launch", what, "single", "or use replicas, each with a server of its own"))
    release = release_of(image)
    if release is not None and release.triton < FIRST_COPIES and "all_models" not in spec.engine_args:
        what = f"the model.py of Triton {release.triton} knows no copies"
        problems.append(Problem(where, what, f"Triton {FIRST_COPIES} or newer", "use replicas instead"))
    return problems
