"""The rehearsal engine: the real launch with a tiny language model in place of weights; needs no GPU."""

from __future__ import annotations

import json

from slurm_llm.engines.arguments import log_arguments
from slurm_llm.engines.types import LEADER, Engine, Known, Launch, ProbePlan, RepositoryFile, ServerPlan, SiteServer
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.rehearsal.faults import FORM, Complaint, Fault, join_faults, misfits, read_fault
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes

DEFAULT_MODEL_NAME = "tensorrt_llm"
"""The name in the curl lines of Triton's TensorRT-LLM page."""

ARGUMENTS = {"seed": "0", "step_ms": "0", "join_timeout_s": "600"}
HOLD_MIB = "hold_mib"
DEVICE, FAULT = "device", "fault"
DEVICES = CPU, CUDA = "cpu", "cuda"
_PARTS = ("cuda", "engine", "faults", "layers", "layout", "model", "strikes", "texts", "world")
ASSETS = tuple(f"{name}.py" for name in _PARTS)


def _launch(_spec: JobSpec, _sizes: ParallelSizes) -> Launch:
    return LEADER


def _check(spec: JobSpec, sizes: ParallelSizes, _image: str | None, _known: Known | None = None) -> list[Problem]:
    known = (*ARGUMENTS, DEVICE, HOLD_MIB, FAULT)
    problems = []
    for name in spec.engine_args:
        if name not in known:
            todo = did_you_mean(name, known) or "remove it"
            what = "unknown argument of the rehearsal engine"
            problems.append(Problem(f"engine_args.{name}", what, ", ".join(known), todo))
    for name, value in spec.engine_args.items():
        if name in (*ARGUMENTS, HOLD_MIB) and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            problems.append(Problem(f"engine_args.{name}", f"found {value!r}", "a whole number from 0", "correct it"))
    device = spec.engine_args.get(DEVICE, CPU)
    if device not in DEVICES:
        problems.append(Problem(f"engine_args.{DEVICE}", f"found {device!r}", ", ".join(DEVICES), "correct it"))
    elif device == CPU and spec.engine_args.get(HOLD_MIB):
        what = "takes memory of a GPU, and the rehearsal uses none"
        todo = f"set engine_args.{DEVICE} to cuda, or remove it"
        problems.append(Problem(f"engine_args.{HOLD_MIB}", what, todo=todo))
    return problems + _read_faults(spec, sizes.world_size)[1]


def _read_faults(spec: JobSpec, world: int) -> tuple[list[Fault], list[Problem]]:
    """Return the faults that the spec asks for, and what is wrong with their texts."""
    given = spec.engine_args.get(FAULT, [])
    texts = given if isinstance(given, list) else [given]
    faults, problems = [], []
    for index, text in enumerate(texts):
        where = f"engine_args.{FAULT}" + (f"[{index}]" if isinstance(given, list) else "")
        if not isinstance(text, str):
            problems.append(Problem(where, f"found {text!r}", f"a text: {FORM}", "correct it"))
            continue
        fault, complaints = read_fault(text)
        if fault is not None:
            faults.append(fault)
            complaints = misfits(fault, world, spec.replicas)
        problems += [_problem(where, complaint) for complaint in complaints]
    return faults, problems


def _problem(where: str, complaint: Complaint) -> Problem:
    todo = did_you_mean(complaint.word, complaint.choices) or "correct it"
    return Problem(where, complaint.what, complaint.allowed, todo)


def _server(spec: JobSpec, sizes: ParallelSizes, site: SiteServer) -> ServerPlan:
    name = spec.triton.model_name or DEFAULT_MODEL_NAME
    moe = spec.moe_expert_parallel_size is not None or spec.moe_tensor_parallel_size is not None
    parameters = {
        "tensor_parallel_size": str(sizes.tensor_parallel_size),
        "pipeline_parallel_size": str(sizes.pipeline_parallel_size),
        "context_parallel_size": str(sizes.context_parallel_size),
        "moe_tensor_parallel_size": str(sizes.moe_tensor_parallel_size),
        "moe_expert_parallel_size": str(sizes.moe_expert_parallel_size),
        "moe": "true" if moe else "false",
        # Requests must have ended before Triton's exit timeout, or it gives up with exit status 1.
        "finish_s": str(max(1, site.exit_timeout_s - 2)),
        **ARGUMENTS,
        **{key: str(value) for key, value in spec.engine_args.items() if key != FAULT},
    }
    faults, _ = _read_faults(spec, sizes.world_size)
    if faults:
        parameters[FAULT] = join_faults(faults)
    return ServerPlan(
        model_name=name,
        # The model's own configuration is complete; completing it would start every rank's stub twice.
        arguments=("--disable-auto-complete-config", *log_arguments(spec), *spec.triton.extra_args),
        worker_arguments=("--model-control-mode=explicit", f"--load-model={name}"),
        home=site.home,
        exit_timeout_s=site.exit_timeout_s,
        repository=(
            RepositoryFile(f"{name}/config.pbtxt", template="rehearsal.config.pbtxt.j2"),
            *(RepositoryFile(f"{name}/1/{asset}", asset=asset) for asset in ASSETS),
        ),
        parameters=parameters,
    )


def _probe(server: ServerPlan) -> ProbePlan:
    body = json.dumps({"text_input": "ready?", "sampling_param_max_tokens": 1})
    return ProbePlan(f"/v2/models/{server.model_name}/generate", body)


ENGINE = Engine("rehearsal", _launch, _check, _server, _probe)
