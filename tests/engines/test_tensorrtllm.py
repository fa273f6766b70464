"""The engine path's arguments and launches: what planning refuses, and how its ranks start."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_llm.engines.tensorrtllm import ENGINE
from slurm_llm.engines.tensorrtllm_arguments import DRAFT_KEY, MODELS_KEY, OWN, POOL, VERSION
from slurm_llm.engines.tensorrtllm_parameters import DECODING_MODES, LOOKAHEAD, MODELS, PARAMETERS
from slurm_llm.errors import PlanError
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import Tree
from tests.engines.engine_specs import engine_plan, engine_spec


def complaints(
    arguments: Mapping[str, Tree] | None = None,
    version: str | None = "1.1.0",
    image: str | None = None,
    world: int = 1,
    **values: Tree,
) -> list[str]:
    """Return what the engine says of a spec, as one sentence each."""
    spec = engine_spec(arguments, version, **values)
    sizes = ParallelSizes(tensor_parallel_size=world, moe_tensor_parallel_size=world)
    return [str(problem) for problem in ENGINE.check(spec, sizes, image)]


def test_what_the_recipe_needs_is_enough() -> None:
    """An engine and a tokenizer make a job: everything else has a default."""
    assert complaints() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine_dir": None}, "engine_args.engine_dir: missing"),
        ({"engine_dir": "relative/engine"}, "engine_args.engine_dir: found 'relative/engine': an absolute path"),
        ({"engine_dir": '/a"b'}, "without quotation mark or backslash"),
        ({"tokenizer_dir": None}, "engine_args.tokenizer_dir: missing"),
        ({"engine_dri": "/x"}, "unknown parameter of the tensorrt_llm model: did you mean 'engine_dir'?"),
        ({"colour": 1}, "unknown parameter of the tensorrt_llm model: see docs/engines/tensorrtllm.md"),
        (
            {"bls_instance_count": 4},
            "of tensorrt_llm_bls, not of tensorrt_llm: write it below engine_args.tensorrt_llm_bls",
        ),
        ({"preprocessing": {"engine_dri": "/x"}}, "unknown parameter of the preprocessing model: did you mean"),
        (
            {"preprocessing": {"decoding_mode": "top_k"}},
            "of tensorrt_llm, not of preprocessing: write it below engine_args",
        ),
        ({"postprocessing": []}, "engine_args.postprocessing: found []: a section with keys"),
        ({"enable_trt_overlap": True}, "engine_args.enable_trt_overlap: not a parameter of a spec"),
        ({"worker_path": "/x"}, "the backend refuses it"),
        ({"batch_scheduler_policy": "max_utilisation"}, "guaranteed_no_evict, max_utilization"),
        ({"batching_strategy": "v2"}, "inflight_fused_batching, inflight_batching, V1, v1"),
        ({"decoupled_mode": "yes"}, "engine_args.decoupled_mode: found 'yes': true or false"),
        ({"triton_max_batch_size": 0}, "a whole number from 1"),
        ({"triton_max_batch_size": True}, "found True: a whole number from 1"),
        ({"kv_cache_free_gpu_mem_fraction": 1.5}, "found 1.5: a number above 0 and at most 1"),
        ({"kv_cache_free_gpu_mem_fraction": 0}, "found 0: a number above 0 and at most 1"),
        ({"max_attention_window_size": "a,b"}, "whole numbers: 4096, [4096, 256] or '4096,256'"),
        ({"gpu_device_ids": "0,x"}, "ids for each instance"),
        ({"logits_datatype": "FP16"}, "TYPE_FP32, TYPE_FP16, TYPE_BF16"),
        ({"decoding_mode": "greedy"}, "top_k, top_p, top_k_top_p, beam_search, medusa, redrafter, lookahead, eagle"),
        ({"decoding_mode": "top_k", "max_beam_width": 4}, "top_k samples one sequence, max_beam_width is 4"),
        ({"decoding_mode": "beam_search"}, "engine_args.max_beam_width: beam_search with max_beam_width 1"),
        (
            {"decoding_mode": "lookahead", "lookahead_ngram_size": 3},
            "needs lookahead_window_size, lookahead_verification",
        ),
        ({"lookahead_window_size": 3}, "lookahead_window_size given without lookahead decoding"),
        ({"medusa_choices": "{0, 1"}, "a tree of choices"),
        ({"medusa_choices": [[0], [0, 0]], "decoding_mode": "eagle"}, "medusa_choices with decoding_mode eagle"),
        ({"cross_kv_cache_fraction": 0.5}, "it is for encoder-decoder models only"),
        ({"encoder_engine_dir": "/e", "enable_chunked_context": True}, "do not run with chunked context"),
        ({"cuda_graph_cache_size": 4}, "a cache for CUDA graphs, which are off"),
        ({"speculative_decoding_fast_logits": True}, "orchestrator mode without spawning"),
        ({"guided_decoding_backend": "outlines"}, "found 'outlines': xgrammar"),
        ({"guided_decoding_backend": "xgrammar"}, "the C++ backend needs xgrammar_tokenizer_info_path"),
        ({"xgrammar_tokenizer_info_path": "/x.json"}, "it is read for guided decoding only"),
        (
            {"batching_strategy": "V1", "enable_chunked_context": True},
            "static batching (V1) with enable_chunked_context",
        ),
        ({"ensemble": False, "tensorrt_llm_bls": False}, "both are left out"),
        ({"tensorrt_llm_bls": False, "draft_model": {"engine_dir": "/d"}}, "used by the tensorrt_llm_bls model"),
        ({"draft_model": {}}, "engine_args.draft_model.engine_dir: missing"),
        (
            {"draft_model": {"engine_dir": "/d", "engine_dri": "/d"}},
            "engine_args.draft_model.engine_dri: unknown parameter",
        ),
        ({"tensorrt_llm_bls": {"tensorrt_llm_draft_model_name": "small"}}, "no tensorrt_llm model 'small'"),
        ({"multimodal_encoders": {}}, "engine_args.multimodal_encoders.multimodal_model_path: missing"),
        ({"models": {"ensemble": {}}}, "engine_args.models.ensemble: the repository has a model of this name"),
        ({"models": {"a b": {}}}, "engine_args.models.a b: found 'a b'"),
        ({"participant_ids": "1,2"}, "engine_args.participant_ids: found 1,2 in leader mode: 0: remove it"),
        ({"gpu_device_ids": [0, 1]}, "2 ids × 1 nodes (num_nodes), the engine has 1 ranks"),
        ({"orchestrator_spawn_processes": False}, "it is for orchestrator mode"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(arguments: dict[str, Tree], message: str) -> None:
    """Where, what, what is allowed, what to do; nothing else is complained about beside it."""
    found = complaints(arguments)
    assert len(found) == 1, found
    assert message in found[0]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    """A second try finds nothing new."""
    arguments: dict[str, Tree] = {"engine_dri": "/x", "max_beam_width": 0, "preprocessing": {"add_special_token": True}}
    wheres = [text.split(":")[0] for text in complaints(arguments, launch="ray")]
    expected = ["engine_dri", "max_beam_width", "preprocessing.add_special_token"]
    assert wheres == [*(f"engine_args.{name}" for name in expected), "launch"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"gpu_device_ids": [[0], [1]], "instance_count": 2}, "0;1"),
        ({"gpu_device_ids": "0; 1", "instance_count": 2}, "0;1"),
        ({"gpu_device_ids": [3]}, "3"),
        ({"max_attention_window_size": [4096, 256]}, "4096,256"),
        ({"max_attention_window_size": 4096}, "4096"),
        ({"medusa_choices": [[0, 0, 0], [0, 1]]}, "{0, 0, 0}, {0, 1}"),
        ({"medusa_choices": "{0, 0, 0}, {0, 1}"}, "{0, 0, 0}, {0, 1}"),
        ({"decoupled_mode": True}, "true"),
        ({"decoupled_mode": "True"}, "true"),
        ({"kv_cache_free_gpu_mem_fraction": 0.5}, "0.5"),
    ],
)
def test_values_reach_the_template_as_the_backend_reads_them(given: dict[str, Tree], text: str) -> None:
    """Lists become the texts that the page writes."""
    plan = engine_plan(given, launch="orchestrator")
    files = {file.path: dict(file.fill) for file in plan.server.image_files}
    assert files["tensorrt_llm/config.pbtxt"][next(iter(given))] == text


@pytest.mark.parametrize(
    ("version", "image", "message"),
    [
        (None, "/images/triton-26.08-trtllm.sqsh", "engine: Triton 26.08 is newer than 26.07"),
        (None, "nvcr.io/nvidia/tritonserver:26.08-trtllm-python-py3", "use engine: llmapi"),
        (None, "nvcr.io/nvidia/tritonserver:25.12-vllm-python-py3", "holds no TensorRT-LLM"),
        (None, "/images/own.sqsh", "the name of /images/own.sqsh tells no Triton release"),
        (None, None, "the ranks run outside a container"),
        ("1.4.0", None, "TensorRT-LLM 1.4 has no compiled engines"),
        ("0.8.0", None, "TensorRT-LLM 0.8 is older than the templates known here"),
        ("newest", None, "found 'newest': a version in quotes"),
        ("0.12.0", None, "engine_args.templates: images of TensorRT-LLM 0.12.0 are not known to hold the templates"),
    ],
)
def test_a_release_without_the_path_is_refused(version: str | None, image: str | None, message: str) -> None:
    """With a pointer to what takes its place; a release that cannot be told is asked for."""
    found = complaints({}, version, image)
    assert len(found) == 1, found
    assert message in found[0]


@pytest.mark.parametrize(
    ("version", "arguments", "message"),
    [
        ("0.18.0", {"lora_prefetch_dir": "/l"}, "template of TensorRT-LLM 0.18.0 does not know it: from 0.19 on"),
        ("1.0.0", {"prompt_embedding_table_data_type": "TYPE_BF16"}, "does not know it: from 1.1 on"),
        ("0.17.0", {"preprocessing": {"max_queue_size": 3}}, "engine_args.preprocessing.max_queue_size"),
        ("0.17.0", {"draft_model": {"engine_dir": "/d", "num_nodes": 1}}, "engine_args.draft_model.num_nodes"),
    ],
)
def test_what_a_release_does_not_know_is_refused(version: str, arguments: dict[str, Tree], message: str) -> None:
    """Each with the release that knows it."""
    found = complaints(arguments, version)
    assert len(found) == 1, found
    assert message in found[0]


def test_a_decoding_mode_waits_for_its_release() -> None:
    """Eagle came with 0.16; templates are in a checkout then."""
    found = complaints({"decoding_mode": "eagle", "templates": "/checkout"}, "0.15.0")
    assert found == [
        "engine_args.decoding_mode: eagle decoding: TensorRT-LLM 0.15.0 does not know it: from 0.16 on: remove it"
    ]


@pytest.mark.parametrize("mode", DECODING_MODES)
def test_every_decoding_mode_plans(mode: str) -> None:
    """With what each needs, and nothing more."""
    more: dict[str, dict[str, Tree]] = {
        "beam_search": {"max_beam_width": 4},
        "lookahead": dict.fromkeys(LOOKAHEAD, 3),
    }
    plan = engine_plan({"decoding_mode": mode, **more.get(mode, {})})
    files = {file.path: dict(file.fill) for file in plan.server.image_files}
    assert files["tensorrt_llm/config.pbtxt"]["decoding_mode"] == mode


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"participant_ids": "1,2"}, "not possible where the orchestrator spawns its workers"),
        ({"gpu_device_ids": [0, 1, 2]}, "a set of 3 GPUs, the engine has 2 ranks"),
        ({"instance_count": 2, "gpu_device_ids": [0, 1]}, "1 sets of GPUs for 2 instances"),
        ({"instance_count": 2}, "engine_args.gpu_device_ids: missing: several models or instances"),
        ({"gpu_device_ids": [0, 1], "models": {"b": {}}}, "engine_args.models.b.gpu_device_ids: missing"),
        ({"num_nodes": 2}, "spawned workers stay on one node"),
        ({"orchestrator_spawn_processes": False}, "workers started beforehand need one rank more than GPUs"),
    ],
)
def test_what_orchestrator_mode_cannot_do(arguments: dict[str, Tree], message: str) -> None:
    """As the documentation and the backend's own checks say."""
    found = complaints(arguments, world=2, launch="orchestrator")
    assert len(found) == 1, found
    assert message in found[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"instance_count": 2}, "2 instances of 2 ranks each in leader mode"),
        ({"models": {"b": {}}}, "further models (b) with 2 ranks each in leader mode"),
    ],
)
def test_leader_mode_has_one_world(arguments: dict[str, Tree], message: str) -> None:
    """Several instances or models of several ranks need replicas or an orchestrator."""
    found = complaints(arguments, world=2)
    assert len(found) == 1, found
    assert message in found[0]


def test_the_mode_is_chosen_by_launch_alone() -> None:
    """A variable that the backend reads would make another mode of what was planned."""
    (found,) = complaints(env={"TRTLLM_ORCHESTRATOR": "1"})
    assert found.startswith("env.TRTLLM_ORCHESTRATOR: the launch sets it")


def test_leader_mode_starts_a_server_a_gpu() -> None:
    """Workers load the model with the engine only, by explicit control; no pool flags, no orchestrator."""
    plan = engine_plan(tensor_parallel_size=8, pipeline_parallel_size=2, resources={"nodes": 2})
    assert (plan.launch, len(plan.ranks), plan.allocation.nodes) == ("leader", 16, 2)
    assert plan.server.arguments == ("--disable-auto-complete-config",)
    assert plan.server.worker_arguments == ("--model-control-mode=explicit", "--load-model=tensorrt_llm")
    assert plan.server.env == (("PMIX_MCA_gds", "hash"),)


def test_workers_load_the_draft_model_too() -> None:
    """It runs on the same ranks as the target."""
    plan = engine_plan({"draft_model": {"engine_dir": "/d"}}, tensor_parallel_size=2)
    assert plan.server.worker_arguments[1:] == ("--load-model=tensorrt_llm", "--load-model=tensorrt_llm_draft")


def test_orchestrator_mode_is_one_rank_with_all_gpus() -> None:
    """The flags that launch_triton_server.py adds when workers are spawned, for each GPU."""
    plan = engine_plan(launch="orchestrator", tensor_parallel_size=2)
    assert (plan.launch, [rank.gpus for rank in plan.ranks]) == ("orchestrator", [(0, 1)])
    assert plan.server.arguments[1:] == (
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        "--cuda-memory-pool-byte-size=0:0",
        "--cuda-memory-pool-byte-size=1:0",
    )
    env = dict(plan.server.env)
    assert (env["TRTLLM_ORCHESTRATOR"], env["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"]) == ("1", "1")


def test_old_orchestrators_keep_their_pools() -> None:
    """Triton 24.06 and before get no such flags: TensorRT-LLM 0.10."""
    plan = engine_plan({"templates": "/checkout"}, "0.10.0", launch="orchestrator")
    assert plan.server.arguments == ("--disable-auto-complete-config",)


def test_an_orchestrator_holds_the_gpus_of_all_its_models() -> None:
    """Two models of two ranks take four GPUs, though the spec's sizes say two."""
    arguments: dict[str, Tree] = {"gpu_device_ids": [0, 1], "models": {"b": {"gpu_device_ids": [2, 3]}}}
    plan = engine_plan(arguments, launch="orchestrator", tensor_parallel_size=2)
    assert ([rank.gpus for rank in plan.ranks], plan.allocation.gpus.per_node) == ([(0, 1, 2, 3)], 4)
    pools = [word for word in plan.server.arguments if word.startswith("--cuda-memory-pool-byte-size")]
    assert pools == [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)]
    with pytest.raises(
        PlanError, match="the orchestrator launch runs on one node, an instance of 16 GPUs would take 2"
    ):
        engine_plan({"gpu_device_ids": [14, 15]}, launch="orchestrator", tensor_parallel_size=2)


def test_the_probe_asks_the_model_that_clients_ask() -> None:
    """The page's own request, to the ensemble or to the bls model."""
    probe = engine_plan().probe
    assert probe.path == "/v2/models/ensemble/generate"
    assert json.loads(probe.body) == {"text_input": "ready?", "max_tokens": 1, "bad_words": "", "stop_words": ""}
    assert engine_plan({"ensemble": False}).probe.path == "/v2/models/tensorrt_llm_bls/generate"
    assert engine_plan(triton={"model_name": "tensorrt_llm_bls"}).probe.path == "/v2/models/tensorrt_llm_bls/generate"
    with pytest.raises(PlanError, match="'llama' is not a model of the repository that takes text"):
        engine_plan(triton={"model_name": "llama"})


def test_a_model_that_wants_a_picture_is_asked_by_tokens() -> None:
    """The vision encoder asserts that there is one, but for mllama."""
    encoders: dict[str, Tree] = {"multimodal_encoders": {"multimodal_model_path": "/v"}}
    probe = engine_plan(encoders).probe
    assert probe.path == "/v2/models/tensorrt_llm/generate"
    assert json.loads(probe.body) == {"input_ids": [1], "input_lengths": 1, "request_output_len": 1}
    mllama = {**encoders, "encoder_input_features_data_type": "TYPE_BF16", "cross_kv_cache_fraction": 0.5}
    assert engine_plan(mllama).probe.path == "/v2/models/ensemble/generate"


def test_images_take_a_pool_of_the_leaders_gpu() -> None:
    """Workers keep Triton's usual pool: the same memory of GPU 0 again would be lost."""
    plan = engine_plan({"multimodal_encoders": {"multimodal_model_path": "/v"}}, tensor_parallel_size=2)
    assert plan.server.arguments[-1] == "--cuda-memory-pool-byte-size=0:300000000"
    assert plan.server.worker_arguments == (
        "--model-control-mode=explicit",
        "--load-model=tensorrt_llm",
        "--load-model=multimodal_encoders",
        "--cuda-memory-pool-byte-size=0:67108864",
    )


def test_the_plan_keeps_its_json_form() -> None:
    """What is written to the run directory is what was planned."""
    plan = engine_plan({"draft_model": {"engine_dir": "/d"}, "recv_poll_period_ms": 2})
    assert plan_from_json(plan_to_json(plan)) == plan


def test_every_parameter_belongs_to_a_model() -> None:
    """The tables hold what the page documents for each of its models."""
    assert set(PARAMETERS) == set(MODELS)
    documented = {
        "triton_max_batch_size",
        "decoupled_mode",
        "bls_instance_count",
        "logits_datatype",
        "accumulate_tokens",
    }
    assert documented <= set(PARAMETERS["tensorrt_llm_bls"])


def test_the_page_names_every_parameter() -> None:
    """A reader finds each key of each model, and each of our own."""
    page = (Path(__file__).parent.parent.parent / "docs" / "engines" / "tensorrtllm.md").read_text()
    names = {name for parameters in PARAMETERS.values() for name in parameters} | set(MODELS) | set(OWN)
    missing = {name for name in (*names, VERSION, DRAFT_KEY, MODELS_KEY, POOL) if f"`{name}`" not in page}
    assert missing == set()


def test_the_page_names_every_example() -> None:
    """And no other one."""
    docs = Path(__file__).parent.parent.parent / "docs"
    page = (docs / "engines" / "tensorrtllm.md").read_text()
    there = {path.stem.removeprefix("tensorrtllm-") for path in (docs / "examples").glob("tensorrtllm-*.yaml")}
    named = set(re.findall(r"`tensorrtllm-([a-z0-9-]+)\.yaml`", page))
    named |= {f"decoding{short}" for short in re.findall(r"`…(-[a-z-]+)`", page)}
    assert named == there
