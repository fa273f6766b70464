"""The engine path of TensorRT-LLM: compiled engines in Triton's C++ backend, from the image's own templates."""

from __future__ import annotations

import json
from dataclasses import replace

from slurm_llm.engines.arguments import log_arguments
from slurm_llm.engines.tensorrtllm_arguments import Arguments, read_arguments
from slurm_llm.engines.tensorrtllm_inspect import inspect_engines
from slurm_llm.engines.tensorrtllm_parameters import BLS, ENSEMBLE, MULTIMODAL, TENSORRT_LLM, Version
from slurm_llm.engines.tensorrtllm_releases import check_release, check_templates, find_version
from slurm_llm.engines.tensorrtllm_repository import image_files, own_files
from slurm_llm.engines.tensorrtllm_rules import MISSING, check_rules
from slurm_llm.engines.tensorrtllm_values import split_ids
from slurm_llm.engines.types import LEADER, ORCHESTRATOR, Engine, Known, Launch, ProbePlan, ServerPlan, SiteServer
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

LAUNCHES = (LEADER.name, ORCHESTRATOR.name)
SPAWN = "engine_args.orchestrator_spawn_processes"

AFTER_2406: Version = (0, 11)
"""The TensorRT-LLM of Triton 24.07: from then on spawning wants Triton's own memory pools off."""

USUAL_POOL = 64 * 1024 * 1024
"""What Triton gives each GPU's CUDA memory pool unless told otherwise, in bytes."""


def _orchestrator(spec: JobSpec) -> bool:
    return spec.launch == ORCHESTRATOR.name


def _launch(spec: JobSpec, _sizes: ParallelSizes) -> Launch:
    if not _orchestrator(spec):
        return LEADER
    ids = [
        each
        for llm in read_arguments(spec, []).llms
        if "gpu_device_ids" in llm.values
        for ids in split_ids(llm.values["gpu_device_ids"])
        for each in ids
    ]
    return replace(ORCHESTRATOR, gpus=max(ids) + 1) if ids else ORCHESTRATOR


def _check(spec: JobSpec, sizes: ParallelSizes, image: str | None, known: Known | None = None) -> list[Problem]:
    problems: list[Problem] = []
    arguments = read_arguments(spec, problems)
    problems += _check_launch(spec, arguments)
    version = find_version(spec, image, problems)
    if version is not None:
        problems += check_release(arguments, version)
    if known is not None and arguments.templates is None:
        problems += check_templates(arguments, known)
    told = {problem.where for problem in problems}
    rules = check_rules(arguments, spec, sizes.world_size, orchestrator=_orchestrator(spec))
    # A wrong value is not missing too.
    return problems + [rule for rule in rules if rule.what != MISSING or rule.where not in told]


def _check_launch(spec: JobSpec, arguments: Arguments) -> list[Problem]:
    problems = []
    if spec.launch is not None and spec.launch not in LAUNCHES:
        what, todo = f"engine tensorrtllm does not start as {spec.launch}", did_you_mean(spec.launch, LAUNCHES)
        problems.append(Problem("launch", what, ", ".join(LAUNCHES), todo or "leave it out"))
    if "orchestrator_spawn_processes" in spec.engine_args and not _orchestrator(spec):
        what, todo = "it is for orchestrator mode", "set launch: orchestrator, or remove it"
        problems.append(Problem(SPAWN, what, todo=todo))
    elif not arguments.spawn:
        what = "workers started beforehand need one rank more than GPUs: rank 0 only orchestrates"
        todo = "leave it out, or use leader mode with replicas, which needs no spawning either"
        problems.append(Problem(SPAWN, what, "true", todo))
    return problems


def _server(spec: JobSpec, sizes: ParallelSizes, site: SiteServer) -> ServerPlan:
    arguments = read_arguments(spec, [])
    # Planning has refused what is in no release; the newest templates stand in where nobody planned.
    version = find_version(spec, site.image, []) or (1, 2)
    orchestrated = _orchestrator(spec)
    pools = _spawning(site.gpus_per_node) if orchestrated and version >= AFTER_2406 else ()
    loaded = [llm.name for llm in arguments.llms]
    workers: tuple[str, ...] = ()
    if MULTIMODAL in arguments.sections:
        loaded.append(MULTIMODAL)
        pools = (*pools, f"--cuda-memory-pool-byte-size=0:{arguments.pool_bytes}")
        # Only the leader passes embeddings on; its neighbours would take the same memory of GPU 0 again.
        workers = (f"--cuda-memory-pool-byte-size=0:{USUAL_POOL}",)
    return ServerPlan(
        model_name=spec.triton.model_name or (ENSEMBLE if ENSEMBLE in arguments.sections else BLS),
        # launch_triton_server.py gives it to every rank: the templates are complete.
        arguments=("--disable-auto-complete-config", *log_arguments(spec), *pools, *spec.triton.extra_args),
        worker_arguments=("--model-control-mode=explicit", *(f"--load-model={name}" for name in loaded), *workers),
        home=site.home,
        exit_timeout_s=site.exit_timeout_s,
        repository=own_files(arguments),
        parameters={},
        image_files=image_files(arguments, version),
        env=_environment(sizes, orchestrated),
    )


def _environment(sizes: ParallelSizes, orchestrated: bool) -> tuple[tuple[str, str], ...]:
    # NVIDIA's multimodal page and triton_task.sh: MPI_Init_thread fails in containers without it.
    pmix = ("PMIX_MCA_gds", "hash")
    if orchestrated:
        return (pmix, ("TRTLLM_ORCHESTRATOR", "1"), ("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES", "1"))
    return (pmix,) if sizes.world_size > 1 else ()


def _spawning(gpus: int) -> tuple[str, ...]:
    """Return what launch_triton_server.py adds for an orchestrator that spawns."""
    pools = (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(gpus))
    return ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools)


def _probe(server: ServerPlan) -> ProbePlan:
    if _wants_picture(server):
        # Its vision encoder answers no request without a picture; the language model behind it does.
        tokens = {"input_ids": [1], "input_lengths": 1, "request_output_len": 1}
        return ProbePlan(f"/v2/models/{TENSORRT_LLM}/generate", json.dumps(tokens))
    body = {"text_input": "ready?", "max_tokens": 1, "bad_words": "", "stop_words": ""}
    return ProbePlan(f"/v2/models/{server.model_name}/generate", json.dumps(body))


def _wants_picture(server: ServerPlan) -> bool:
    """Only mllama takes text alone, of all that multimodal_encoders knows: its KV cache has a part for the encoder."""
    fills = {file.path.partition("/")[0]: dict(file.fill) for file in server.image_files if file.fill}
    return MULTIMODAL in fills and "cross_kv_cache_fraction" not in fills[TENSORRT_LLM]


ENGINE = Engine("tensorrtllm", _launch, _check, _server, _probe, inspect_engines)
