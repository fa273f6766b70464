"""The llmapi engine: TensorRT-LLM's LLM API in Triton's Python backend, any Hugging Face model without a build.

config.pbtxt and model.yaml are written here; model.py and its helpers are NVIDIA's and are taken from the image. Facts:
triton_backend/all_models/llmapi, triton_backend/scripts and tensorrt_llm/llmapi of NVIDIA/TensorRT-LLM, and
docs/llmapi.md of triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

import json
from dataclasses import replace

from slurm_llm.agent.image import LAUNCHER, MODEL_FOLDERS
from slurm_llm.engines.arguments import log_arguments
from slurm_llm.engines.llmapi_checks import OWN_KEYS, check, read_gpu_sets
from slurm_llm.engines.llmapi_inspect import inspect
from slurm_llm.engines.types import (
    LEADER,
    LLMAPI_LAUNCH,
    SINGLE,
    Engine,
    ImageFile,
    Launch,
    ProbePlan,
    RepositoryFile,
    ServerPlan,
    SiteServer,
)
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import dump

DEFAULT_MODEL_NAME = "tensorrt_llm"
"""The name in the curl lines of Triton's TensorRT-LLM page."""

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "1")
"""What TensorRT-LLM's LLM API page tells to put before a program on a Slurm node, and what launch_triton_server.py puts
before a lone tritonserver: the LLM starts its worker with MPI_Comm_spawn, which hangs under a bare srun. Without
`--bind-to none` Open MPI 4 puts a lone process, and with it all threads of the server, on one core."""

MPIRUN_ENV = (("OMPI_MCA_plm_rsh_agent", "true"),)
"""Open MPI 4 without a Slurm launcher of its own wants ssh or rsh, even for one process on its own node, and ends with
243 in an image that has neither (4.1.6); it never calls it there."""

LAUNCHES = {launch.name: launch for launch in (LEADER, LLMAPI_LAUNCH, SINGLE)}
LAUNCH_ENV = (("PMIX_MCA_gds", "hash"), ("UCX_UD_TIMEOUT", "120s"))
"""triton_backend/scripts/triton_task.sh exports both; PMIx's shared-memory store fails in containers."""

_SCALARS = (
    ("streaming", "BOOL"),
    ("sampling_param_best_of", "INT32"),
    ("sampling_param_temperature", "FP32"),
    ("sampling_param_top_k", "INT32"),
    ("sampling_param_top_p", "FP32"),
    ("sampling_param_frequency_penalty", "FP32"),
    ("sampling_param_presence_penalty", "FP32"),
    ("sampling_param_max_tokens", "INT32"),
    ("sampling_param_seed", "UINT64"),
    ("sampling_param_exclude_input_from_output", "BOOL"),
    ("sampling_param_return_perf_metrics", "BOOL"),
    ("return_finish_reason", "BOOL"),
    ("return_stop_reason", "BOOL"),
    ("return_cumulative_logprob", "BOOL"),
    ("stop", "BOOL"),
)
_LORA = (("lora_id", "UINT64"), ("lora_name", "STRING"), ("lora_path", "STRING"), ("lora_ckpt_source", "STRING"))
_LISTS = (
    ("text_output", "STRING"),
    ("finish_reason", "STRING"),
    ("stop_reason", "STRING"),
    ("cumulative_logprob", "FP32"),
    ("kv_cache_reused_block", "INT32"),
    ("kv_cache_missed_block", "INT32"),
    ("kv_cache_alloc_new_blocks", "INT32"),
    ("kv_cache_alloc_total_blocks", "INT32"),
    ("kv_cache_hit_rate", "FP32"),
)
_FIGURES = (
    ("arrival_time_ns", "INT64"),
    ("first_scheduled_time_ns", "INT64"),
    ("first_token_time_ns", "INT64"),
    ("last_token_time_ns", "INT64"),
    ("acceptance_rate", "FP32"),
    ("total_accepted_draft_tokens", "INT32"),
    ("total_draft_tokens", "INT32"),
)


def _launch(spec: JobSpec, sizes: ParallelSizes) -> Launch:
    """Return how the ranks start: as the spec says, else alone for one GPU and by NVIDIA's launcher for several."""
    sets = read_gpu_sets(spec)
    if sets is not None:
        # Copies of the model in one server; each sees only its GPUs.
        return replace(SINGLE, gpus=len({gpu for each in sets for gpu in each}))
    usual = SINGLE if sizes.world_size == 1 else LLMAPI_LAUNCH
    return usual if spec.launch is None else LAUNCHES.get(spec.launch, usual)


def _server(spec: JobSpec, sizes: ParallelSizes, site: SiteServer) -> ServerPlan:
    launch = _launch(spec, sizes)
    name = spec.triton.model_name or DEFAULT_MODEL_NAME
    folders = (
        MODEL_FOLDERS if "all_models" not in spec.engine_args else (str(spec.engine_args["all_models"]).rstrip("/"),)
    )
    leader = launch.name == LEADER.name
    return ServerPlan(
        model_name=name,
        # config.pbtxt is complete; completing it would start the model's Python once more in every rank.
        arguments=("--disable-auto-complete-config", *log_arguments(spec), *spec.triton.extra_args),
        worker_arguments=("--model-control-mode=explicit", f"--load-model={name}") if leader else (),
        home=site.home,
        exit_timeout_s=site.exit_timeout_s,
        repository=(
            RepositoryFile(f"{name}/config.pbtxt", text=_config(name, spec)),
            RepositoryFile(f"{name}/1/model.yaml", text=dump(_model_yaml(spec, sizes, site))),
        ),
        parameters={},
        image_files=(ImageFile(f"{name}/1", tuple(f"{folder}/llmapi/tensorrt_llm/1" for folder in folders)),),
        wrapper=_wrapper(spec, launch),
        env=LAUNCH_ENV if launch.needs_mpi else MPIRUN_ENV if _wrapper(spec, launch) == MPIRUN else (),
    )


def _wrapper(spec: JobSpec, launch: Launch) -> tuple[str, ...]:
    if launch.name == LLMAPI_LAUNCH.name:
        return (LAUNCHER,)
    # Copies in one server would all be rank 0 of mpirun's world; they need a start without MPI (docs/llmapi.md).
    return MPIRUN if launch.name == SINGLE.name and read_gpu_sets(spec) is None else ()


def triton_config(spec: JobSpec) -> dict[str, object]:
    """Return model.yaml's `triton_config`: the spec's over `max_batch_size: 0` and `decoupled: true`, for streams."""
    given = spec.engine_args.get("triton_config")
    return {"max_batch_size": 0, "decoupled": True, **(given if isinstance(given, dict) else {})}


def _model_yaml(spec: JobSpec, sizes: ParallelSizes, site: SiteServer) -> dict[str, object]:
    own: dict[str, object] = {
        "model": spec.model,
        "backend": "pytorch",
        "tensor_parallel_size": sizes.tensor_parallel_size,
        "pipeline_parallel_size": sizes.pipeline_parallel_size,
    }
    if sizes.context_parallel_size > 1:
        own["context_parallel_size"] = sizes.context_parallel_size
    if spec.moe_expert_parallel_size is not None or spec.moe_tensor_parallel_size is not None:
        own["moe_expert_parallel_size"] = sizes.moe_expert_parallel_size
        own["moe_tensor_parallel_size"] = sizes.moe_tensor_parallel_size
    if read_gpu_sets(spec) is None:
        # model.py sets it for copies in one server.
        own["gpus_per_node"] = site.gpus_per_node
    arguments = {name: value for name, value in spec.engine_args.items() if name not in OWN_KEYS}
    return {**own, **arguments, "triton_config": triton_config(spec)}


def _config(name: str, spec: JobSpec) -> str:
    """Return config.pbtxt: the inputs and outputs of NVIDIA's own, optional ones only where the spec turns them on.

    An older model.py ignores an input that it does not know, and would answer a LoRA request with the bare model.
    """
    settings = triton_config(spec)
    scalars = [*_SCALARS, *(_LORA if _lora(spec) else ())]
    if spec.engine_args.get("logits_post_processors"):
        scalars.append(("sampling_param_logits_post_processor_name", "STRING"))
    lists = ["sampling_param_stop", *(["image_url"] if settings.get("multimodal") else [])]
    inputs = [
        _tensor("text_input", "STRING", -1),
        *(_tensor(key, kind, 1, optional=True) for key, kind in scalars),
        *(_tensor(key, "STRING", -1, optional=True) for key in lists),
    ]
    outputs = [_tensor(*one, -1) for one in _LISTS] + [_tensor(*one, 1) for one in _FIGURES]
    sets = read_gpu_sets(spec)
    lines = [
        f'name: "{name}"',
        'backend: "python"',
        f"max_batch_size: {settings['max_batch_size']}",
        "# tritonserver runs with --disable-auto-complete-config, so model.yaml's triton_config does not reach it.",
        f"model_transaction_policy {{ decoupled: {'true' if settings['decoupled'] else 'false'} }}",
        f"instance_group [ {{ count: {1 if sets is None else len(sets)}, kind: KIND_CPU }} ]",
        "input [\n" + ",\n".join(inputs) + "\n]",
        "output [\n" + ",\n".join(outputs) + "\n]",
    ]
    if sets is not None:
        ids = ";".join(",".join(map(str, each)) for each in sets)
        lines.append(f'parameters {{ key: "gpu_device_ids" value: {{ string_value: "{ids}" }} }}')
    return "\n".join(lines) + "\n"


def _lora(spec: JobSpec) -> bool:
    return spec.engine_args.get("enable_lora") is True or bool(spec.engine_args.get("lora_config"))


def _tensor(name: str, kind: str, size: int, *, optional: bool = False) -> str:
    return f'  {{ name: "{name}", data_type: TYPE_{kind}, dims: [ {size} ]{", optional: true" if optional else ""} }}'


def _probe(server: ServerPlan) -> ProbePlan:
    body = json.dumps({"text_input": "ready?", "sampling_param_max_tokens": 1})
    return ProbePlan(f"/v2/models/{server.model_name}/generate", body)


ENGINE = Engine("llmapi", _launch, check, _server, _probe, inspect)
