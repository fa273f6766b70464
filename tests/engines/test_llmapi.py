"""The llmapi engine's repository, launches and command lines, as the plan of a job holds them."""

from __future__ import annotations

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.plan import Plan
from slurm_llm.yamlio import Tree, parse_document
from tests.plan.sites_for_plans import make_plan

LLAMA: dict[str, Tree] = {
    "engine": "llmapi",
    "model": "meta-llama/Meta-Llama-3-70B",
    "tensor_parallel_size": 4,
    "pipeline_parallel_size": 2,
}
MIXTRAL: dict[str, Tree] = {
    "engine": "llmapi",
    "model": "mistralai/Mixtral-8x22B-v0.1",
    "tensor_parallel_size": 8,
    "moe_expert_parallel_size": 4,
    "moe_tensor_parallel_size": 2,
}
ONE: dict[str, Tree] = {"engine": "llmapi", "model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}


def file_of(plan: Plan, name: str) -> str:
    """Return the text of the repository's file that ends with `name`."""
    found = [file.text for file in plan.server.repository if file.path.endswith(name)]
    assert len(found) == 1 and found[0] is not None
    return found[0]


def model_yaml(plan: Plan) -> dict[str, Tree]:
    """Return model.yaml as YAML 1.2 reads it."""
    return parse_document(file_of(plan, "model.yaml"), "model.yaml").value


@pytest.mark.parametrize("gpus", [4, 8])
@pytest.mark.parametrize(
    ("spec", "own"),
    [
        pytest.param(
            LLAMA,
            {
                "model": "meta-llama/Meta-Llama-3-70B",
                "backend": "pytorch",
                "tensor_parallel_size": 4,
                "pipeline_parallel_size": 2,
            },
            id="llama-3-70b",
        ),
        pytest.param(
            MIXTRAL,
            {
                "model": "mistralai/Mixtral-8x22B-v0.1",
                "backend": "pytorch",
                "tensor_parallel_size": 8,
                "pipeline_parallel_size": 1,
                "moe_expert_parallel_size": 4,
                "moe_tensor_parallel_size": 2,
            },
            id="mixtral-8x22b",
        ),
    ],
)
def test_the_models_of_the_backends_page(spec: dict[str, Tree], own: dict[str, Tree], gpus: int) -> None:
    """The page's two examples of parallelism: its own values, 8 ranks on one node of 8 GPUs or two of 4."""
    plan = make_plan({"gpus_per_node": gpus}, **spec)
    settings: dict[str, Tree] = {"max_batch_size": 0, "decoupled": True}
    assert model_yaml(plan) == {**own, "gpus_per_node": gpus, "triton_config": settings}
    assert len(plan.ranks) == 8
    assert plan.allocation.nodes == 8 // gpus
    assert plan.launch == "llmapi_launch"
    assert plan.server.wrapper == ("trtllm-llmapi-launch",)
    assert plan.server.env == (("PMIX_MCA_gds", "hash"), ("UCX_UD_TIMEOUT", "120s"))
    assert plan.server.worker_arguments == ()


def test_other_arguments_go_to_model_yaml_as_they_are() -> None:
    """Every key of engine_args that is not ours becomes an LLM() argument; null turns a section off there."""
    arguments: dict[str, Tree] = {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.5, "dtype": "fp8"},
        "cuda_graph_config": None,
        "revision": "no",
        "triton_config": {"decoupled": False, "cancellation_check_period_ms": 20},
    }
    plan = make_plan(None, **ONE, engine_args=arguments)
    own = model_yaml(plan)
    assert own["kv_cache_config"] == {"free_gpu_memory_fraction": 0.5, "dtype": "fp8"}
    assert own["cuda_graph_config"] is None
    assert own["revision"] == "no"
    settings = {"max_batch_size": 0, "decoupled": False, "cancellation_check_period_ms": 20}
    assert own["triton_config"] == settings
    assert "context_parallel_size" not in own and "moe_expert_parallel_size" not in own
    assert "decoupled: false" in file_of(plan, "config.pbtxt")


def test_decoupled_stands_in_both_files() -> None:
    """With --disable-auto-complete-config nothing of model.yaml's triton_config reaches Triton's core."""
    plan = make_plan(None, **ONE)
    assert "--disable-auto-complete-config" in plan.server.arguments
    assert "model_transaction_policy { decoupled: true }" in file_of(plan, "config.pbtxt")
    assert "max_batch_size: 0" in file_of(plan, "config.pbtxt")
    assert model_yaml(plan)["triton_config"] == {"max_batch_size": 0, "decoupled": True}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, set()),
        ({"enable_lora": True}, {"lora_id", "lora_name", "lora_path", "lora_ckpt_source"}),
        ({"triton_config": {"multimodal": True}}, {"image_url"}),
        ({"logits_post_processors": {"x": "a.b:C"}}, {"sampling_param_logits_post_processor_name"}),
    ],
)
def test_inputs_that_only_newer_models_read_are_declared_on_demand(arguments: dict[str, Tree], names: set[str]) -> None:
    """An older model.py ignores what it does not know: it would answer a LoRA request with the bare model."""
    text = file_of(make_plan(None, **ONE, engine_args=arguments), "config.pbtxt")
    optional = {"lora_id", "lora_name", "lora_path", "lora_ckpt_source", "image_url"}
    optional |= {"sampling_param_logits_post_processor_name"}
    assert {name for name in optional if f'"{name}"' in text} == names
    assert all(f'"{name}"' in text for name in ("text_input", "streaming", "stop", "sampling_param_max_tokens"))


def test_a_leader_launch_is_a_server_for_each_rank() -> None:
    """Ranks above 0 load the one model explicitly, since only the leader may serve."""
    plan = make_plan(None, **LLAMA, launch="leader", triton={"model_name": "llama"})
    assert (plan.launch, plan.server.wrapper) == ("leader", ())
    assert plan.server.worker_arguments == ("--model-control-mode=explicit", "--load-model=llama")
    assert [file.path for file in plan.server.repository] == ["llama/config.pbtxt", "llama/1/model.yaml"]
    assert plan.probe.path == "/v2/models/llama/generate"


def test_one_gpu_starts_alone_under_mpirun() -> None:
    """LLM() starts its worker with MPI_Comm_spawn even for one GPU; NVIDIA's remedy on Slurm is this prefix."""
    plan = make_plan(None, **ONE)
    assert plan.launch == "single"
    assert plan.server.wrapper == ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "1")
    assert plan.server.env == (("OMPI_MCA_plm_rsh_agent", "true"),)


def test_model_py_comes_from_the_image_or_a_checkout() -> None:
    """The folder is taken whole: what helpers a model.py imports differs from release to release."""
    taken = make_plan(None, **ONE).server.image_files
    assert [(file.path, file.sources) for file in taken] == [
        (
            "tensorrt_llm/1",
            (
                "/app/all_models/llmapi/tensorrt_llm/1",
                "/app/tensorrt_llm/triton_backend/all_models/llmapi/tensorrt_llm/1",
            ),
        )
    ]
    plan = make_plan(None, **ONE, engine_args={"all_models": "/src/TensorRT-LLM/triton_backend/all_models/"})
    assert plan.server.image_files[0].sources == ("/src/TensorRT-LLM/triton_backend/all_models/llmapi/tensorrt_llm/1",)
    assert "all_models" not in model_yaml(plan)


@pytest.mark.parametrize(
    ("given", "text", "gpus"),
    [("0,1;2,3", "0,1;2,3", 4), ([[0, 1], [2, 3]], "0,1;2,3", 4), ("0, 1", "0,1", 2)],
)
def test_copies_in_one_server(given: Tree, text: str, gpus: int) -> None:
    """`gpu_device_ids` is config.pbtxt's; the start has no MPI, and model.py sets gpus_per_node itself."""
    from slurm_llm.engines.llmapi import ENGINE
    from slurm_llm.engines.types import SiteServer
    from slurm_llm.topology import ParallelSizes
    from tests.plan.sites_for_plans import make_spec

    spec = make_spec(**ONE, tensor_parallel_size=2, engine_args={"gpu_device_ids": given})
    sizes = ParallelSizes(tensor_parallel_size=2, moe_tensor_parallel_size=2)
    launch = ENGINE.launch(spec, sizes)
    assert (launch.name, launch.gpus, launch.needs_mpi) == ("single", gpus, False)
    server = ENGINE.server(spec, sizes, SiteServer(None, 10, None, gpus))
    config, own = (file.text or "" for file in server.repository)
    assert f'string_value: "{text}"' in config
    assert f"count: {gpus // 2}, kind: KIND_CPU" in config
    assert "gpus_per_node" not in own and "gpu_device_ids" not in own
    assert server.wrapper == ()


def test_the_model_is_needed() -> None:
    """Without one, TensorRT-LLM would say so an hour later."""
    with pytest.raises(PlanError, match="model: the llmapi engine needs one: a Hugging Face id or a path"):
        make_plan(None, engine="llmapi")
