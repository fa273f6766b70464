"""What the llmapi engine refuses or remarks on, each message whole: it is all that a user sees before the queue."""

from __future__ import annotations

import pytest

from slurm_llm.engines.llmapi_arguments import ARGUMENTS, SECTIONS, misfit, suggest, versions_of
from slurm_llm.engines.llmapi_checks import check
from slurm_llm.engines.llmapi_inspect import inspect
from slurm_llm.engines.types import Gpu
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import Tree
from tests.engines.files import Files
from tests.plan.sites_for_plans import make_spec

SIZES = ParallelSizes(tensor_parallel_size=4, pipeline_parallel_size=2, moe_tensor_parallel_size=4)
EXPERTS = ParallelSizes(tensor_parallel_size=4, context_parallel_size=2, moe_expert_parallel_size=4)
NGC = "nvcr.io/nvidia/tritonserver:%s-trtllm-python-py3"


def found(
    arguments: dict[str, Tree],
    sizes: ParallelSizes = SIZES,
    image: str | None = None,
    spec: dict[str, Tree] | None = None,
) -> list[str]:
    """Return the problems of a spec with `arguments`."""
    whole = make_spec(**{"engine": "llmapi", "model": "m", "engine_args": arguments, **(spec or {})})
    return [str(problem).removeprefix("engine_args.") for problem in check(whole, sizes, image)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            {"enable_chunked_prefil": True},
            "enable_chunked_prefil: no version of TensorRT-LLM that is known here has this argument of LLM(): "
            "did you mean 'enable_chunked_prefill'?",
            id="a slip",
        ),
        pytest.param(
            {"num_serve_frontend": 2},
            "num_serve_frontend: no version of TensorRT-LLM that is known here has this argument of LLM(): "
            "did you mean 'num_serve_frontends'? (TensorRT-LLM 1.4 and newer)",
            id="a slip of a newer one",
        ),
        pytest.param(
            {"use_cuda_graphs": True},
            "use_cuda_graphs: no version of TensorRT-LLM that is known here has this argument of LLM(): "
            "did you mean 'use_cuda_graph'? (TensorRT-LLM up to 0.21)",
            id="a slip of an older one",
        ),
        pytest.param(
            {"tensor_parallel_size": 4},
            "tensor_parallel_size: this has a place of its own: `tensor_parallel_size` at the top of the spec: "
            "move it there",
            id="ours",
        ),
        pytest.param(
            {"gpus_per_node": 8},
            "gpus_per_node: this has a place of its own: `resources.gpus_per_node`: move it there",
            id="the layout's",
        ),
        pytest.param(
            {"_mpi_session": 1},
            "_mpi_session: takes a Python object, which model.yaml cannot hold: remove it",
            id="an object",
        ),
        pytest.param(
            {"kv_cache_config": {"free_gpu_mem_fraction": 0.5}},
            "kv_cache_config.free_gpu_mem_fraction: unknown key: did you mean 'free_gpu_memory_fraction'?",
            id="a slip in a section",
        ),
        pytest.param(
            {"kv_cache_config": 0.5},
            "kv_cache_config: found 0.5: a mapping: see TensorRT-LLM's LLM API reference",
            id="no section",
        ),
        pytest.param(
            {"kv_cache_config": {"free_gpu_memory_fraction": 90}},
            "kv_cache_config.free_gpu_memory_fraction: found 90: a number from 0 to 1: correct it",
            id="a percentage",
        ),
        pytest.param(
            {"kv_cache_config": {"enable_block_reuse": "yes"}},
            "kv_cache_config.enable_block_reuse: found 'yes': true or false: correct it",
            id="no switch",
        ),
        pytest.param(
            {"max_batch_size": 0}, "max_batch_size: found 0: a whole number from 1: correct it", id="no batch"
        ),
        pytest.param(
            {"scheduler_config": {"capacity_scheduler_policy": "max_utilization"}},
            "scheduler_config.capacity_scheduler_policy: found 'max_utilization': MAX_UTILIZATION, "
            "GUARANTEED_NO_EVICT, STATIC_BATCH: correct it",
            id="the C++ backend's spelling",
        ),
        pytest.param(
            {"guided_decoding_backend": "xgramar"},
            "guided_decoding_backend: found 'xgramar': xgrammar, llguidance: did you mean 'xgrammar'?",
            id="guided decoding",
        ),
        pytest.param(
            {"moe_config": {"backend": "CUTLAS"}},
            "moe_config.backend: unknown value 'CUTLAS': did you mean 'CUTLASS'?",
            id="a near miss in a list that grows",
        ),
        pytest.param(
            {"pp_partition": [20, 20, 40]},
            "pp_partition: 3 numbers for 2 pipeline stages: one number for each stage: pipeline_parallel_size is 2",
            id="stages",
        ),
        pytest.param(
            {"enable_lm_head_tp_in_adp": True},
            "enable_lm_head_tp_in_adp: works with attention data parallelism only: set enable_attention_dp: true too",
            id="attention data parallelism",
        ),
        pytest.param(
            {"moe_cluster_parallel_size": 3},
            "moe_cluster_parallel_size: 3 does not divide tensor_parallel_size 4",
            id="clusters",
        ),
        pytest.param(
            {"peft_cache_config": {"lora_prefetch_dir": "/x"}},
            "peft_cache_config.lora_prefetch_dir: LLM() refuses it: remove it",
            id="lora prefetch",
        ),
        pytest.param(
            {"orchestrator_type": "ray"},
            "orchestrator_type: Ray would start workers of its own beside the ranks of this launch: rpc: remove it",
            id="ray",
        ),
        pytest.param(
            {"cuda_graph_config": {"batch_sizes": [1, 8], "max_batch_size": 16}},
            "cuda_graph_config.max_batch_size: 16, but the largest of batch_sizes is 8: leave one of the two out",
            id="graphs",
        ),
        pytest.param(
            {"speculative_config": {"decoding_type": "Eagle3", "max_draft_len": 3}},
            "speculative_config.speculative_model: Eagle3 needs a draft model: an id or a path",
            id="draft model",
        ),
        pytest.param(
            {"triton_config": {"decouple": True}},
            "triton_config.decouple: unknown key of model.py: max_batch_size, decoupled, cancellation_check_period_ms, "
            "multimodal: did you mean 'decoupled'?",
            id="triton_config",
        ),
        pytest.param(
            {"triton_config": {"decoupled": "True"}},
            "triton_config.decoupled: found 'True': true or false",
            id="a switch of model.py",
        ),
    ],
)
def test_a_wrong_argument_is_one_clear_line(arguments: dict[str, Tree], message: str) -> None:
    """Where, what, what is allowed, what to do; nothing else is said of it."""
    assert found(arguments) == [message]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"kv_cache_config": {"zeppelin": 1}}, id="a key like no other in a section"),
        pytest.param({"moe_config": {"backend": "TOMORROW"}}, id="a value like no other in a list that grows"),
        pytest.param({"use_cuda_graph": True, "post_processor_hook": "a.b"}, id="arguments of other versions"),
        pytest.param({"enable_lora": True, "lora_config": {"max_lora_rank": 16}}, id="lora"),
        pytest.param(
            {"enable_chunked_prefill": True, "quant_config": {"quant_algo": "FP8"}}, id="chunked prefill, quantization"
        ),
        pytest.param(
            {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 1}}, id="speculative decoding"
        ),
        pytest.param({"logits_post_processors": {"x": "a.b:C"}}, id="model.py's own key"),
    ],
)
def test_what_may_be_right_passes(arguments: dict[str, Tree]) -> None:
    """The tables lag behind the newest release: only what is surely wrong is refused."""
    assert found(arguments) == []


def test_experts_and_context_parallelism() -> None:
    """Expert parallelism with context parallelism is for HELIX alone (tensorrt_llm/mapping.py)."""
    assert found({}, EXPERTS) == [
        "moe_expert_parallel_size: with context_parallel_size 2 and context parallelism of type ULYSSES: "
        "1, or cp_config.cp_type HELIX"
    ]
    assert found({"cp_config": {"cp_type": "HELIX"}}, EXPERTS) == []


@pytest.mark.parametrize(
    ("spec", "image", "message"),
    [
        pytest.param(
            {"launch": "orchestrator"},
            None,
            "launch: the llmapi engine has no orchestrator launch: leader, llmapi_launch, single: "
            "leave it out for the usual one",
            id="no such launch",
        ),
        pytest.param(
            {"triton": {"extra_args": ["--log-file=/a b"]}},
            None,
            "triton.extra_args: '--log-file=/a b': trtllm-llmapi-launch joins its arguments unquoted in most releases: "
            "no blanks, *, ? or [: or use `launch: leader`",
            id="a blank for the launcher",
        ),
        pytest.param(
            {},
            NGC % "25.04",
            "container.image: Triton 25.04 has no llmapi model in its image: Triton 25.05 or newer: "
            "take a newer image, or name a checkout in engine_args.all_models",
            id="an image before llmapi",
        ),
        pytest.param(
            {},
            "nvcr.io/nvidia/tritonserver:25.12-vllm-python-py3",
            "container.image: nvcr.io/nvidia/tritonserver:25.12-vllm-python-py3 holds no TensorRT-LLM: "
            "an image for TensorRT-LLM: the one with the tag 25.12-trtllm-python-py3, say",
            id="vLLM's image",
        ),
        pytest.param(
            {"launch": "leader"},
            NGC % "25.05",
            "launch: TensorRT-LLM 0.19.0 does not join the ranks of a leader launch: llmapi_launch: or a newer image",
            id="leader in the first release",
        ),
    ],
)
def test_launch_and_image(spec: dict[str, Tree], image: str | None, message: str) -> None:
    """What the image cannot do is refused before it is pulled."""
    assert found({}, image=image, spec=spec) == [message]


@pytest.mark.parametrize(
    ("given", "image", "spec", "message"),
    [
        ("0;1", None, {}, "gpu_device_ids: a copy has GPUs 0, its parallel sizes take 2: 2 different numbers a copy"),
        (
            "2,3;4,5",
            None,
            {},
            "gpu_device_ids: GPUs 2, 3, 4, 5: numbers from 0 on, none left out: the job's GPUs are numbered from 0",
        ),
        ("a,b", None, {}, "gpu_device_ids: found 'a,b': GPU numbers: ',' in a copy, ';' between copies ('0,1;2,3')"),
        (
            "0,1;2,3",
            NGC % "25.12",
            {},
            "gpu_device_ids: the model.py of Triton 25.12 knows no copies: Triton 26.02 or newer: use replicas instead",
        ),
        (
            "0,1;2,3",
            None,
            {"launch": "leader"},
            "launch: copies in one server and the leader launch: single: "
            "or use replicas, each with a server of its own",
        ),
    ],
)
def test_copies_in_one_server(given: str, image: str | None, spec: dict[str, Tree], message: str) -> None:
    """model.py would take the wrong GPUs in silence."""
    two = ParallelSizes(tensor_parallel_size=2, moe_tensor_parallel_size=2)
    problems = found({"gpu_device_ids": given}, two, image, spec)
    assert message in problems
    assert len({problem.partition(":")[0] for problem in problems}) == 1


def test_arguments_of_another_version_are_remarked_on() -> None:
    """Borders between versions are known roughly: such a job may run."""
    arguments: dict[str, Tree] = {"attention_dp_config": {}, "kv_cache_dtype": "fp8", "dtype": "auto"}
    image: dict[str, Tree] = {"image": NGC % "25.09"}
    spec = make_spec(engine="llmapi", model="m", engine_args=arguments, container=image)
    assert inspect(spec, SIZES, Files({}), Gpu()).warnings == (
        "engine_args.attention_dp_config: known to TensorRT-LLM 1.1 and newer, the image has 1.0.0",
    )


def test_a_checkout_is_no_place_to_start_in() -> None:
    """Python takes the sources for the installed package, and their bindings are not built."""
    spec = make_spec(engine="llmapi", model="m", container={"workdir": "/src/TensorRT-LLM"})
    look = Files({"/src/TensorRT-LLM/tensorrt_llm/llmapi": "x", "/src/TensorRT-LLM/tensorrt_llm/mapping.py": "x"})
    assert [str(problem) for problem in inspect(spec, SIZES, look, Gpu()).problems] == [
        "container.workdir: /src/TensorRT-LLM is a TensorRT-LLM checkout, where `import tensorrt_llm.bindings` fails: "
        "any other folder: e.g. its parent"
    ]


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        ("kv_cache_dtype", "1.0.3.2510", ""),
        ("kv_cache_dtype", "1.1.0", "known to TensorRT-LLM up to 1.0, the image has 1.1.0"),
        ("post_processor_hook", "1.2.1", "known to TensorRT-LLM 1.4 and newer, the image has 1.2.1"),
        ("post_processor_hook", "1.4.0rc4", ""),
        ("model", "0.19.0", ""),
    ],
)
def test_versions(name: str, version: str, why: str) -> None:
    """A minor version counts as known from its first release candidate on."""
    assert misfit(name, version) == why


def test_the_tables_agree() -> None:
    """Every section is an argument, and each argument has at most one border."""
    assert set(SECTIONS) <= set(ARGUMENTS)
    assert all(since is None or until is None for since, until in ARGUMENTS.values())
    assert versions_of("dtype") == "" and suggest("dtpe") == "did you mean 'dtype'?"
