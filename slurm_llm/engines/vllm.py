"""The vllm engine: Triton's Python-based vLLM backend, which starts vLLM and lets it choose GPUs and batches.

Facts: README.md, docs/ and src/ of triton-inference-server/vllm_backend. The repository is model.json (arguments of
AsyncEngineArgs), a minimal config.pbtxt, which the backend completes, and multi_lora.json where adapters are served.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from slurm_llm.engines.arguments import log_arguments
from slurm_llm.engines.types import RAY, SINGLE, Engine, Launch, ProbePlan, RepositoryFile, ServerPlan, SiteServer
from slurm_llm.engines.vllm_checks import (
    GPU_IDS,
    HEALTH_CHECK,
    LORA,
    METRICS,
    OWN_KEYS,
    TRITON_CONFIG,
    check,
    chosen_gpus,
    device_ids,
    is_on,
)
from slurm_llm.engines.vllm_files import inspect
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import Tree

DEFAULT_MODEL_NAME = "vllm_model"
"""The name in the curl line of the backend's README."""


def _launch(spec: JobSpec, sizes: ParallelSizes) -> Launch:
    """Return how vLLM starts: alone on a node, or through Ray where one instance is asked to lie on several nodes."""
    nodes = spec.resources.nodes
    across = sizes.world_size > 1 and nodes is not None and nodes > spec.replicas
    launch = RAY if spec.launch == RAY.name or (spec.launch is None and across) else SINGLE
    ids = chosen_gpus(spec)
    # The ids count the GPUs that the server sees: it must see the last of them.
    return launch if not ids else replace(launch, gpus=spec.resources.gpus_per_node or max(ids) + 1)


def engine_arguments(spec: JobSpec, sizes: ParallelSizes) -> dict[str, Tree]:
    """Return what model.json holds: the spec's own keys under vLLM's names, then its `engine_args`."""
    made: dict[str, Tree] = {
        "model": spec.model,
        "tensor_parallel_size": sizes.tensor_parallel_size,
        "pipeline_parallel_size": sizes.pipeline_parallel_size,
    }
    if sizes.moe_expert_parallel_size > 1:
        # vLLM has a switch in place of a size: experts are spread over all tensor parallel ranks, or not at all.
        made["enable_expert_parallel"] = True
    if _launch(spec, sizes).name == RAY.name:
        made["distributed_executor_backend"] = "ray"
    if spec.engine_args.get(LORA):
        made["enable_lora"] = True
    return {**made, **{name: value for name, value in spec.engine_args.items() if name not in OWN_KEYS}}


def triton_parameters(spec: JobSpec) -> dict[str, str]:
    """Return the parameters of config.pbtxt: vLLM's figures on Triton's metrics page unless the spec says otherwise."""
    given = spec.engine_args.get(TRITON_CONFIG)
    own: Mapping[str, Tree] = given if isinstance(given, dict) else {}
    made = {METRICS: "true", **{name: str(value).lower() for name, value in own.items() if name != GPU_IDS}}
    ids = device_ids(own.get(GPU_IDS))
    return made if ids is None else {**made, GPU_IDS: ",".join(ids)}


def config_pbtxt(name: str, parameters: Mapping[str, str]) -> str:
    """Return a config.pbtxt that leaves inputs, outputs and the transaction policy to the backend."""
    lines = [
        f'name: "{name}"',
        'backend: "vllm"',
        "# vLLM takes the GPUs that it sees; KIND_GPU would give it one.",
        "instance_group [ { count: 1, kind: KIND_MODEL } ]",
    ]
    lines += [
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in parameters.items()
    ]
    return "\n".join(lines) + "\n"


def _server(spec: JobSpec, sizes: ParallelSizes, site: SiteServer) -> ServerPlan:
    name = spec.triton.model_name or DEFAULT_MODEL_NAME
    # The health check unloads the model, which only explicit control allows.
    checked = is_on(spec, HEALTH_CHECK)
    control = ("--model-control-mode=explicit", f"--load-model={name}") if checked else ()
    files = [
        RepositoryFile(f"{name}/config.pbtxt", text=config_pbtxt(name, triton_parameters(spec))),
        RepositoryFile(f"{name}/1/model.json", text=_json(engine_arguments(spec, sizes))),
    ]
    if spec.engine_args.get(LORA):
        files.append(RepositoryFile(f"{name}/1/multi_lora.json", text=_json(spec.engine_args[LORA])))
    return ServerPlan(
        model_name=name,
        # Never --disable-auto-complete-config: the backend adds its inputs and outputs to the configuration.
        arguments=(*control, *log_arguments(spec), *spec.triton.extra_args),
        worker_arguments=(),
        home=site.home,
        exit_timeout_s=site.exit_timeout_s,
        repository=tuple(files),
        parameters={},
    )


def _json(value: Tree) -> str:
    return json.dumps(value, indent=4) + "\n"


def _probe(server: ServerPlan) -> ProbePlan:
    body = json.dumps({"text_input": "ready?", "parameters": {"stream": False, "temperature": 0, "max_tokens": 1}})
    return ProbePlan(f"/v2/models/{server.model_name}/generate", body)


ENGINE = Engine("vllm", _launch, check, _server, _probe, inspect)
