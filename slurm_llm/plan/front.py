"""What stands before the instances: the OpenAI-compatible front end of a leader, and the balancer of all of them."""

from __future__ import annotations

from slurm_llm.plan.types import BalancerPlan, FrontendPlan
from slurm_llm.spec import JobSpec

OPENAI_FRONTEND = "/opt/tritonserver/python/openai/openai_frontend/main.py"
"""Where Triton's images have it (triton-inference-server/server, python/openai/README.md)."""

_BACKENDS = {"vllm": "vllm"}


def plan_balancer(spec: JobSpec) -> BalancerPlan | None:
    """Return the balancer that the spec asks for."""
    return None if spec.balancer is None else BalancerPlan(spec.balancer.program, spec.balancer.port)


def plan_frontend(spec: JobSpec) -> FrontendPlan | None:
    """Return the front end that the leaders start in place of tritonserver; None for tritonserver itself.

    Its options are those of `openai_frontend/main.py --help`: the tokenizer makes prompts of chats, the backend says
    which names a request's fields have.
    """
    if spec.frontend == "triton":
        return None
    own = (spec.engine_args.get(name) for name in ("tokenizer", "tokenizer_dir"))
    tokenizer = spec.triton.tokenizer or next((one for one in own if isinstance(one, str)), spec.model)
    arguments = [f"--backend={_BACKENDS.get(spec.engine, 'tensorrtllm')}"]
    arguments += [] if tokenizer is None else [f"--tokenizer={tokenizer}"]
    arguments += [f"--tritonserver-log-verbose-level={spec.triton.log_verbose}"] if spec.triton.log_verbose else []
    return FrontendPlan(spec.triton.openai_frontend or OPENAI_FRONTEND, tuple(arguments))
