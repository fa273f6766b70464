"""What planning refuses of a vllm spec: arguments of vLLM, parameters of Triton's backend, sizes. It reads no file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_llm.engines.known import check_names, check_present
from slurm_llm.engines.releases import TRTLLM, release_of, version_numbers
from slurm_llm.engines.types import RAY, SINGLE, Known
from slurm_llm.engines.vllm_arguments import ARGUMENTS, check_arguments, versions_of
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import Tree

TRITON_CONFIG = "triton_config"
LORA = "lora"
OWN_KEYS = (TRITON_CONFIG, LORA)
"""Keys of `engine_args` that do not go to vLLM: parameters of config.pbtxt, and adapters as name → path."""

_GPU = re.compile(r"[0-9]{1,4}\Z")
METRICS, HEALTH_CHECK, GPU_IDS = "REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK", "GPU_DEVICE_IDS"
PARAMETERS = (METRICS, HEALTH_CHECK, GPU_IDS)
GPU_IDS_AFTER = "26.01"
"""The newest release whose backend (its main branch of January 2026) does not know GPU_DEVICE_IDS; it ignores it."""

ELSEWHERE = {
    "model": "model",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "enable_expert_parallel": "moe_expert_parallel_size",
    "data_parallel_size": "replicas",
    "data_parallel_size_local": "replicas",
    "nnodes": "resources.nodes",
    "node_rank": "resources.nodes",
    "master_addr": "resources.nodes",
    "master_port": "resources.nodes",
    "device_ids": f"engine_args.{TRITON_CONFIG}.{GPU_IDS}",
    "worker_use_ray": "launch",
}
"""Arguments of vLLM that other keys of the spec decide."""

LARGER_WORLD = "prefill_context_parallel_size"
"""An argument that takes GPUs beyond tensor × pipeline, which Triton's backend does not count."""

WORDS = {
    "dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    "kv_cache_dtype": (
        *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4"),
        *("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head"),
    ),
    "quantization": (
        *("awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt", "modelopt_fp4"),
        *("compressed-tensors", "bitsandbytes", "gguf", "quark", "moe_wna16", "torchao", "mxfp4", "mxfp8", "inc"),
        *("experts_int8", "auto-round", "petit_nvfp4", "bitblas", "hqq", "ipex", "rtn", "tpu_int8"),
    ),
    "distributed_executor_backend": ("mp", "uni", "ray", "external_launcher"),
}
"""Words of arguments that are often mistyped. Releases and plugins add more: only what resembles one is refused."""

POSITIVE = (
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "max_loras", "max_lora_rank", "max_cpu_loras"),
    *("kv_cache_memory_bytes", "num_gpu_blocks_override", "decode_context_parallel_size"),
)


def device_ids(value: Tree) -> tuple[str, ...] | None:
    """Return the GPUs that GPU_DEVICE_IDS names, as a text or a list; None: it is left out."""
    if value is None:
        return None
    parts = value if isinstance(value, list) else str(value).split(",")
    return tuple(str(part).strip() for part in parts)


def chosen_gpus(spec: JobSpec) -> tuple[int, ...]:
    """Return the GPUs that the spec's GPU_DEVICE_IDS names; none where it names none, or not by numbers."""
    given = spec.engine_args.get(TRITON_CONFIG)
    ids = device_ids(given.get(GPU_IDS)) if isinstance(given, dict) else None
    return tuple(int(one) for one in ids or () if _GPU.match(one))


def is_on(spec: JobSpec, parameter: str) -> bool:
    """Return whether a parameter of config.pbtxt is true in the spec."""
    given = spec.engine_args.get(TRITON_CONFIG)
    return isinstance(given, dict) and given.get(parameter) is True


def check(spec: JobSpec, sizes: ParallelSizes, image: str | None, known: Known | None = None) -> list[Problem]:
    """Return what is wrong with the spec for this engine, and for the vLLM that `image` holds as its name says."""
    release = release_of(image)
    version = None if release is None else release.vllm
    given = {name: value for name, value in spec.engine_args.items() if name not in OWN_KEYS and name not in ELSEWHERE}
    problems = [*_check_model(spec), *_check_launch(spec), *_check_sizes(spec, sizes, version, known)]
    if release is not None and release.flavour == TRTLLM:
        what = f"{image} holds no vLLM"
        problems.append(Problem("container.image", what, f"tritonserver:{release.triton}-vllm-python-py3", "change it"))
    for name in spec.engine_args:
        if name in ELSEWHERE:
            what = "decided by another key of the spec"
            problems.append(Problem(f"engine_args.{name}", what, ELSEWHERE[name], "set that and remove this"))
    if release is None or release.flavour != TRTLLM:
        problems += check_present(known, "vLLM", "take an image that has it, or add it with `prepare.vllm`")
    problems += _check_names(given, version, known)
    problems += _check_values(given)
    problems += _check_lora(spec)
    triton = None if release is None else release.triton
    return problems + _check_triton(spec, sizes, triton)


def _check_names(given: Mapping[str, Tree], version: str | None, known: Known | None) -> list[Problem]:
    """Return what is wrong with names and types: by the vLLM in the image where it was read, else by its release."""
    if known is None or not known.names:
        return check_arguments(given, version)
    there = {name: value for name, value in given.items() if name in known.names}
    kinds = {name: ARGUMENTS[name].kinds if name in ARGUMENTS else frozenset() for name in known.names}
    return [*check_names(given, known, versions_of), *check_arguments(there, version, kinds)]


def _check_model(spec: JobSpec) -> list[Problem]:
    allowed = "an absolute path or a Hugging Face id"
    if spec.model is None:
        return [Problem("model", "the vllm engine needs one", allowed, "set it")]
    if spec.model.startswith(("./", "../", "~", "$")):
        return [Problem("model", f"'{spec.model}' is not the same path in the job", allowed, "write it out")]
    return []


def _check_launch(spec: JobSpec) -> list[Problem]:
    known = (SINGLE.name, RAY.name)
    if spec.launch is None or spec.launch in known:
        return []
    what = f"vLLM does not start that way: '{spec.launch}'"
    return [Problem("launch", what, " or ".join(known), "leave it out")]


def _check_sizes(spec: JobSpec, sizes: ParallelSizes, version: str | None, known: Known | None) -> list[Problem]:
    problems = []
    if sizes.context_parallel_size > 1:
        todo = "vLLM's own is engine_args.decode_context_parallel_size, which divides tensor_parallel_size"
        problems.append(Problem("context_parallel_size", "vLLM has none that adds GPUs", "1", todo))
    experts, tensor = sizes.moe_expert_parallel_size, sizes.tensor_parallel_size
    if experts not in (1, tensor):
        what = f"{experts}: vLLM spreads experts over all {tensor} tensor parallel ranks, or cuts each into {tensor}"
        problems.append(Problem("moe_expert_parallel_size", what, f"1 or {tensor}", "choose one"))
    if experts > 1 and _check_names({"enable_expert_parallel": True}, version, known):
        what = f"vLLM {version or (known.version if known is not None else None)} does not know enable_expert_parallel"
        problems.append(Problem("moe_expert_parallel_size", what, "1", "use a newer image"))
    own = spec.engine_args.get("decode_context_parallel_size")
    if isinstance(own, int) and own > 0 and tensor % own:
        what = f"{own} does not divide tensor_parallel_size {tensor}"
        problems.append(Problem("engine_args.decode_context_parallel_size", what, "", "choose a divisor"))
    return problems


def _check_values(given: Mapping[str, Tree]) -> list[Problem]:
    problems = []
    share = given.get("gpu_memory_utilization")
    if isinstance(share, int | float) and not 0 < share <= 1:
        where, allowed = "engine_args.gpu_memory_utilization", "above 0, at most 1"
        problems.append(Problem(where, f"found {share!r}", allowed, "it is a share of the GPU's memory"))
    length = given.get("max_model_len")
    if isinstance(length, int) and length < 1 and length != -1:
        allowed = "1 or more, or -1 for what fits"
        problems.append(Problem("engine_args.max_model_len", f"found {length!r}", allowed, "correct it"))
    for name in POSITIVE:
        value = given.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            problems.append(Problem(f"engine_args.{name}", f"found {value!r}", "1 or more", "correct it"))
    if given.get(LARGER_WORLD, 1) not in (1, None):
        what = "it takes GPUs beyond tensor × pipeline, which Triton's backend does not count"
        problems.append(Problem(f"engine_args.{LARGER_WORLD}", what, "1", "remove it"))
    for name, words in WORDS.items():
        word = given.get(name)
        if isinstance(word, str) and word not in words and (todo := did_you_mean(word, words)):
            problems.append(Problem(f"engine_args.{name}", f"unknown '{word}'", ", ".join(words), todo))
    if given.get("distributed_executor_backend") == "ray":
        where, what = "engine_args.distributed_executor_backend", "Ray is started in the allocation by its own launch"
        problems.append(Problem(where, what, "mp or uni", "set `launch: ray` and remove this"))
    return problems


def _check_lora(spec: JobSpec) -> list[Problem]:
    adapters, enabled = spec.engine_args.get(LORA), spec.engine_args.get("enable_lora")
    where, form = f"engine_args.{LORA}", "a mapping of names to absolute paths"
    if adapters is None:
        if enabled is True:
            what = "enable_lora is true, and the backend does not start without adapters"
            return [Problem(where, what, form, "add the adapters, or remove enable_lora")]
        return []
    if not isinstance(adapters, dict) or not adapters:
        return [Problem(where, f"found {adapters!r}", form, "correct it")]
    problems = [
        Problem(f"{where}.{name}", f"found {path!r}", "an absolute path", "write it out")
        for name, path in adapters.items()
        if not isinstance(path, str) or not path.startswith("/")
    ]
    if enabled is False:
        problems.append(Problem("engine_args.enable_lora", "found False beside adapters", "true", "remove it"))
    return problems


def _check_triton(spec: JobSpec, sizes: ParallelSizes, triton: str | None) -> list[Problem]:
    given, where = spec.engine_args.get(TRITON_CONFIG), f"engine_args.{TRITON_CONFIG}"
    problems: list[Problem] = []
    if "--disable-auto-complete-config" in spec.triton.extra_args:
        what = "the backend adds its inputs and outputs to the configuration, which this forbids"
        problems.append(Problem("triton.extra_args", what, "", "remove --disable-auto-complete-config"))
    if given is None:
        return problems
    if not isinstance(given, dict):
        return [*problems, Problem(where, f"found {given!r}", "a mapping: " + ", ".join(PARAMETERS), "correct it")]
    for name, value in given.items():
        if name not in PARAMETERS:
            todo = did_you_mean(name, PARAMETERS) or "remove it"
            problems.append(Problem(f"{where}.{name}", "unknown parameter", ", ".join(PARAMETERS), todo))
        elif name != GPU_IDS and not isinstance(value, bool):
            problems.append(Problem(f"{where}.{name}", f"found {value!r}", "true or false", "correct it"))
    return problems + _check_gpu_ids(device_ids(given.get(GPU_IDS)), f"{where}.{GPU_IDS}", sizes, triton)


def _check_gpu_ids(ids: tuple[str, ...] | None, where: str, sizes: ParallelSizes, triton: str | None) -> list[Problem]:
    if ids is None:
        return []
    problems = []
    count = sizes.tensor_parallel_size * sizes.pipeline_parallel_size
    if not all(_GPU.match(one) for one in ids) or len(set(ids)) < len(ids):
        problems.append(Problem(where, f"found {','.join(ids)!r}", 'different GPUs, as in "0,1"', "correct it"))
    elif len(ids) != count:
        what = f"names {len(ids)} GPUs"
        problems.append(Problem(where, what, f"{count}, tensor × pipeline parallel size", "change one of them"))
    if triton is not None and version_numbers(triton) <= version_numbers(GPU_IDS_AFTER):
        what = f"the backend of Triton {triton} ignores it"
        problems.append(Problem(where, what, f"a release after {GPU_IDS_AFTER}", "use a newer image"))
    return problems
