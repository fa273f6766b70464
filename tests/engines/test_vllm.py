"""The vllm engine: its repository, its launch, what it refuses of a spec, what it reads of a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm_llm.engines.types import Gpu
from slurm_llm.engines.vllm import ENGINE
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.layout import build_sizes
from slurm_llm.spec import JobSpec, spec_from_mapping
from slurm_llm.yamlio import Tree
from tests.engines.files import Files
from tests.plan.sites_for_plans import make_site

IMAGE = "nvcr.io#nvidia/tritonserver:{}-vllm-python-py3"


def vllm_spec(**values: Tree) -> JobSpec:
    """Return a spec of the engine with `values`."""
    return spec_from_mapping({"name": "demo", "engine": "vllm", "model": "org/model", **values})


def vllm_plan(**values: Tree) -> Plan:
    """Return the plan of such a spec on nodes of eight GPUs."""
    return build_plan(vllm_spec(**values), make_site({"gpus_per_node": 8, "cpus": {"per_node": 64}}))


def complaints(release: str | None = None, **values: Tree) -> list[str]:
    """Return what the engine refuses, for the image of a Triton release."""
    spec = vllm_spec(**values)
    sizes = build_sizes(spec, [])
    return [str(problem) for problem in ENGINE.check(spec, sizes, None if release is None else IMAGE.format(release))]


def repository(plan: Plan) -> dict[str, str]:
    """Return path → text of the model repository."""
    return {file.path: file.text or "" for file in plan.server.repository}


def test_the_smallest_repository() -> None:
    """As the backend's sample has it: a model in model.json, KIND_MODEL in config.pbtxt; the rest is completed."""
    plan = vllm_plan()
    files = repository(plan)
    assert set(files) == {"vllm_model/config.pbtxt", "vllm_model/1/model.json"}
    assert json.loads(files["vllm_model/1/model.json"]) == {
        "model": "org/model",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
    }
    config = files["vllm_model/config.pbtxt"]
    assert 'backend: "vllm"' in config and "count: 1, kind: KIND_MODEL" in config
    assert 'key: "REPORT_CUSTOM_METRICS" value: { string_value: "true" }' in config
    assert "input" not in config and "decoupled" not in config
    assert plan.server.arguments == ()
    assert plan.launch == "single"


def test_everything_at_once() -> None:
    """Sizes, experts, arguments, adapters, parameters: each in its file; the health check brings explicit control."""
    plan = vllm_plan(
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        moe_expert_parallel_size=2,
        triton={"model_name": "mixtral", "log_verbose": 1},
        engine_args={
            "gpu_memory_utilization": 0.8,
            "enforce_eager": True,
            "max_lora_rank": 32,
            "lora": {"alpaca": "/loras/alpaca"},
            "triton_config": {
                "REPORT_CUSTOM_METRICS": False,
                "ENABLE_VLLM_HEALTH_CHECK": True,
                "GPU_DEVICE_IDS": [0, 1, 2, 3],
            },
        },
    )
    files = repository(plan)
    assert json.loads(files["mixtral/1/model.json"]) == {
        "model": "org/model",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "enable_expert_parallel": True,
        "enable_lora": True,
        "gpu_memory_utilization": 0.8,
        "enforce_eager": True,
        "max_lora_rank": 32,
    }
    assert json.loads(files["mixtral/1/multi_lora.json"]) == {"alpaca": "/loras/alpaca"}
    config = files["mixtral/config.pbtxt"]
    for key, value in (
        ("REPORT_CUSTOM_METRICS", "false"),
        ("ENABLE_VLLM_HEALTH_CHECK", "true"),
        ("GPU_DEVICE_IDS", "0,1,2,3"),
    ):
        assert f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' in config
    assert plan.server.arguments == ("--model-control-mode=explicit", "--load-model=mixtral", "--log-verbose=1")
    assert (len(plan.ranks), plan.ranks[0].gpus) == (1, (0, 1, 2, 3))
    assert plan.probe.path == "/v2/models/mixtral/generate"


def test_an_instance_over_several_nodes_starts_through_ray() -> None:
    """One rank a node with all its GPUs; vLLM's own executor spreads the model."""
    plan = vllm_plan(tensor_parallel_size=8, pipeline_parallel_size=2, resources={"nodes": 2})
    assert plan.launch == "ray"
    assert [len(rank.gpus) for rank in plan.ranks] == [8, 8]
    model = json.loads(repository(plan)["vllm_model/1/model.json"])
    assert model["distributed_executor_backend"] == "ray"


def test_a_probe_is_the_pages_own_form() -> None:
    """Sampling parameters go into `parameters`, as in the README's curl line."""
    body = json.loads(vllm_plan().probe.body)
    assert body == {"text_input": "ready?", "parameters": {"stream": False, "temperature": 0, "max_tokens": 1}}


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({"model": None}, ["model: the vllm engine needs one: an absolute path or a Hugging Face id: set it"]),
        (
            {"model": "~/models/llama"},
            [
                "model: '~/models/llama' is not the same path in the job: an absolute path or a Hugging Face id: "
                "write it out"
            ],
        ),
        (
            {"launch": "leader"},
            ["launch: vLLM does not start that way: 'leader': single or ray: leave it out"],
        ),
        (
            {"tensor_parallel_size": 4, "moe_expert_parallel_size": 2},
            [
                "moe_expert_parallel_size: 2: vLLM spreads experts over all 4 tensor parallel ranks, "
                "or cuts each into 4: 1 or 4: choose one"
            ],
        ),
        (
            {"context_parallel_size": 2},
            [
                "context_parallel_size: vLLM has none that adds GPUs: 1: vLLM's own is "
                "engine_args.decode_context_parallel_size, which divides tensor_parallel_size"
            ],
        ),
        (
            {"engine_args": {"tensor_parallel_size": 2, "data_parallel_size": 2}},
            [
                "engine_args.tensor_parallel_size: decided by another key of the spec: tensor_parallel_size: "
                "set that and remove this",
                "engine_args.data_parallel_size: decided by another key of the spec: replicas: "
                "set that and remove this",
            ],
        ),
        (
            {"engine_args": {"enforce_eager": "true", "max_model_len": 0, "gpu_memory_utilization": 1.5}},
            [
                "engine_args.enforce_eager: found 'true': true or false: correct it",
                "engine_args.gpu_memory_utilization: found 1.5: above 0, at most 1: it is a share of the GPU's memory",
                "engine_args.max_model_len: found 0: 1 or more, or -1 for what fits: correct it",
            ],
        ),
        (
            {"engine_args": {"max_num_sequences": 8}},
            [
                "engine_args.max_num_sequences: vLLM's AsyncEngineArgs has no such argument: "
                "did you mean 'max_num_seqs'?"
            ],
        ),
        (
            {"engine_args": {"lora": {"a": "loras/a"}, "enable_lora": False}},
            [
                "engine_args.lora.a: found 'loras/a': an absolute path: write it out",
                "engine_args.enable_lora: found False beside adapters: true: remove it",
            ],
        ),
        (
            {"engine_args": {"enable_lora": True}},
            [
                "engine_args.lora: enable_lora is true, and the backend does not start without adapters: "
                "a mapping of names to absolute paths: add the adapters, or remove enable_lora"
            ],
        ),
        (
            {
                "tensor_parallel_size": 2,
                "engine_args": {"triton_config": {"GPU_DEVICE_IDS": "0", "REPORT_METRICS": True}},
            },
            [
                "engine_args.triton_config.REPORT_METRICS: unknown parameter: REPORT_CUSTOM_METRICS, "
                "ENABLE_VLLM_HEALTH_CHECK, GPU_DEVICE_IDS: did you mean 'REPORT_CUSTOM_METRICS'?",
                "engine_args.triton_config.GPU_DEVICE_IDS: names 1 GPUs: 2, tensor × pipeline parallel size: "
                "change one of them",
            ],
        ),
        (
            {"triton": {"extra_args": ["--disable-auto-complete-config"]}},
            [
                "triton.extra_args: the backend adds its inputs and outputs to the configuration, which this forbids: "
                "remove --disable-auto-complete-config"
            ],
        ),
        (
            {"engine_args": {"distributed_executor_backend": "ray"}},
            [
                "engine_args.distributed_executor_backend: Ray is started in the allocation by its own launch: "
                "mp or uni: set `launch: ray` and remove this"
            ],
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(values: dict[str, Any], messages: list[str]) -> None:
    """One sentence each: where, what, what is allowed, what to do."""
    assert complaints(**values) == messages


@pytest.mark.parametrize(
    ("name", "word", "meant"),
    [("quantization", "fp_8", "fp8"), ("kv_cache_dtype", "fp8_e5m3", "fp8_e5m2"), ("dtype", "float17", "float16")],
)
def test_a_mistyped_word_is_told(name: str, word: str, meant: str) -> None:
    """Words that resemble none are left to vLLM: plugins bring their own."""
    (told,) = complaints(engine_args={name: word})
    assert told.startswith(f"engine_args.{name}: unknown '{word}'") and told.endswith(f"did you mean '{meant}'?")
    assert complaints(engine_args={name: "zzz"}) == []


@pytest.mark.parametrize(
    ("release", "values", "message"),
    [
        ("25.01", {"engine_args": {"async_scheduling": True}}, "vLLM 0.6.3.post1 does not know it yet"),
        ("26.08", {"engine_args": {"swap_space": 4}}, "vLLM 0.27.1 knows it no more: vLLM 0.5.5 to 0.17.1 know it"),
        ("24.12", {"tensor_parallel_size": 2, "moe_expert_parallel_size": 2}, "does not know enable_expert_parallel"),
        (
            "25.12",
            {"engine_args": {"triton_config": {"GPU_DEVICE_IDS": "3"}}},
            "the backend of Triton 25.12 ignores it",
        ),
        # Between two releases that the table has nobody knows: 0.15.1 lies between 0.13.0 and 0.16.0.
        ("26.02", {"engine_args": {"ubatch_size": 2}}, None),
        ("26.08", {"engine_args": {"triton_config": {"GPU_DEVICE_IDS": "3"}}}, None),
    ],
)
def test_arguments_are_checked_for_the_images_vllm(release: str, values: dict[str, Any], message: str | None) -> None:
    """The image's name says which release of Triton, and that which vLLM."""
    told = complaints(release, **values)
    assert told == [] if message is None else len(told) == 1 and message in told[0]


def test_an_image_without_vllm_is_refused() -> None:
    """TensorRT-LLM's image has no vLLM in it."""
    image = "nvcr.io#nvidia/tritonserver:25.12-trtllm-python-py3"
    spec = vllm_spec()
    (told,) = ENGINE.check(spec, build_sizes(spec, []), image)
    assert str(told).endswith("holds no vLLM: tritonserver:25.12-vllm-python-py3: change it")


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
MODEL = {"/m/config.json": json.dumps(CONFIG), "/m/tokenizer.json": "{}", "/m/model.safetensors": ""}
ADAPTER = {"/a/adapter_config.json": '{"r": 64}'}


def found(
    files: dict[str, str], values: dict[str, Tree] | None = None, gpu: Gpu | None = None, weights_gib: int = 16
) -> list[str]:
    """Return what the engine reads out of a model at /m, with weights of some GiB."""
    spec = vllm_spec(**{"model": "/m", **(values or {})})
    sizes = {path: weights_gib << 30 for path in files if path.endswith(".safetensors")}
    findings = ENGINE.inspect(spec, build_sizes(spec, []), Files(files, sizes), gpu or Gpu())
    return [str(problem) for problem in findings.problems]


@pytest.mark.parametrize(
    ("files", "values", "messages"),
    [
        (MODEL, {}, []),
        ({}, {"model": "org/not-in-the-cache"}, []),
        ({"/x": ""}, {}, ["model: there is no /m: a path that exists, or a Hugging Face id"]),
        ({"/m/README": ""}, {}, ["model: /m has no config.json: a Hugging Face model: correct the path"]),
        ({"/m/model.gguf": ""}, {}, []),
        (
            {"/m/config.json": json.dumps(CONFIG)},
            {},
            [
                "model: /m has no tokenizer: tokenizer.json or tokenizer.model or tokenizer_config.json: "
                "add it, or name one in engine_args.tokenizer"
            ],
        ),
        ({"/m/config.json": json.dumps(CONFIG)}, {"engine_args": {"tokenizer": "org/other"}}, []),
        (
            MODEL,
            {"tensor_parallel_size": 3, "pipeline_parallel_size": 40},
            [
                "tensor_parallel_size: 3 does not divide the model's 32 attention heads: a divisor: choose another",
                "pipeline_parallel_size: 40 stages for 32 layers: at most 32: lower it",
            ],
        ),
        (
            MODEL,
            {"engine_args": {"max_model_len": 16384}},
            ["engine_args.max_model_len: 16384, but the model was made for 8192 positions: at most 8192: lower it"],
        ),
        (MODEL, {"engine_args": {"max_model_len": 16384}, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": 1}}, []),
        (
            {**MODEL, **ADAPTER},
            {"engine_args": {"lora": {"big": "/a", "gone": "/b"}}},
            [
                "engine_args.lora.big: its rank is 64: at most 16: set engine_args.max_lora_rank to 64 or more",
                "engine_args.lora.gone: /b does not exist: an adapter's folder: correct the path",
            ],
        ),
        ({**MODEL, **ADAPTER}, {"engine_args": {"lora": {"big": "/a"}, "max_lora_rank": 64}}, []),
    ],
)
def test_the_models_files_are_read_before_the_queue(
    files: dict[str, str], values: dict[str, Tree], messages: list[str]
) -> None:
    """What vLLM would refuse after minutes in the queue and of loading."""
    assert found(files, values) == messages


def test_a_model_that_does_not_fit_is_refused() -> None:
    """70 GiB in two GPUs of 24 GB; and a context that leaves no room in what gpu_memory_utilization grants."""
    (heavy,) = found(MODEL, {"tensor_parallel_size": 2}, Gpu(24), 70)
    assert heavy.startswith("model: 70 GiB of weights over tensor 2 × pipeline 1 are 35")
    (narrow,) = found(MODEL, {"engine_args": {"gpu_memory_utilization": 0.7}}, Gpu(24))
    assert narrow.startswith("engine_args.max_model_len: a sequence of 8,192 tokens does not fit")
    assert found(MODEL, {"engine_args": {"gpu_memory_utilization": 0.95}}, Gpu(24)) == []
    assert found(MODEL, {"engine_args": {"cpu_offload_gb": 60}}, Gpu(24), 70) == []
