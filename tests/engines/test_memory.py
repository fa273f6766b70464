"""Weights and KV cache of known models against the figures that their makers publish, and what follows from them.

The configurations are those of the models' own config.json, typed in; the sizes are their index files' total_size.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slurm_llm.engines.memory import GIB, Budget, fit, kv_token_bytes, rank_bytes
from slurm_llm.engines.types import Findings, Gpu
from slurm_llm.engines.weights import INDEX, ModelFacts, facts_of, missing_files, read_model
from slurm_llm.topology import ParallelSizes
from tests.engines.files import Files

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 56,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 65536,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
}
QWEN_TIED = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "sliding_window": 32768,
}
H100 = Gpu(memory_gb=80)


def sizes(tensor: int, stages: int = 1, experts: int = 1) -> ParallelSizes:
    """Return parallel sizes."""
    return ParallelSizes(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        moe_expert_parallel_size=experts,
        moe_tensor_parallel_size=tensor // experts,
    )


def texts(found: Findings) -> list[str]:
    """Return the problems in words."""
    return [str(problem) for problem in found.problems]


@pytest.mark.parametrize(
    ("config", "parameters", "within"),
    [
        pytest.param(LLAMA_70B, 70_553_706_496, 0.0, id="Llama-3-70B: its model card's number"),
        pytest.param(MIXTRAL, 140_620_634_112, 0.0, id="Mixtral-8x22B: half of its index's total_size"),
        pytest.param(DEEPSEEK, 671_026_419_200, 0.001, id="DeepSeek-V3: 671B in its report"),
        pytest.param(QWEN_TIED, 494_032_768, 0.001, id="Qwen2-0.5B: 0.49B, one table for both ends"),
    ],
)
def test_parameters_are_counted_from_the_configuration(
    config: dict[str, object], parameters: int, within: float
) -> None:
    """An estimate that is right for dense models, mixtures of experts, latent attention and tied tables."""
    estimate = facts_of(config)
    assert not estimate.exact
    assert estimate.weights_bytes / estimate.bytes_per_value == pytest.approx(parameters, rel=within)


@pytest.mark.parametrize(
    ("config", "each", "per_rank"),
    [
        pytest.param(LLAMA_70B, 327_680, {1: 327_680, 8: 40_960, 16: 40_960}, id="Llama-3-70B: 320 KiB, 8 heads"),
        pytest.param(MIXTRAL, 229_376, {1: 229_376, 4: 57_344}, id="Mixtral-8x22B: 224 KiB"),
        pytest.param(DEEPSEEK, 70_272, {1: 70_272, 8: 70_272}, id="DeepSeek-V3: 70.272 KB, the same in every rank"),
    ],
)
def test_kv_cache_of_a_token(config: dict[str, object], each: int, per_rank: dict[int, int]) -> None:
    """Heads are shared, and repeated where there are more ranks than heads; a latent vector is not shared."""
    model = facts_of(config)
    assert kv_token_bytes(model, sizes(1)) == each
    assert {tensor: kv_token_bytes(model, sizes(tensor)) for tensor in per_rank} == per_rank
    assert kv_token_bytes(model, sizes(1), "fp8") == each // 2


def test_stages_share_layers() -> None:
    """Two stages keep half of the cache each; 61 layers in two stages are 31 in the fuller one."""
    assert kv_token_bytes(facts_of(LLAMA_70B), sizes(4, 2)) == 40_960
    assert kv_token_bytes(facts_of(DEEPSEEK), sizes(1, 2)) == 31 * 576 * 2


@pytest.mark.parametrize(
    ("config", "split", "gigabytes"),
    [
        pytest.param(LLAMA_70B, sizes(8), 17.64, id="an eighth"),
        pytest.param(LLAMA_70B, sizes(4, 2), 17.64, id="four by two stages, a table at either end"),
        pytest.param(LLAMA_70B, sizes(1, 3), 48.3, id="80 layers in three stages: 27 in the fullest"),
        pytest.param(MIXTRAL, sizes(8, experts=4), 35.16, id="experts split the same eight ways"),
    ],
)
def test_weights_of_the_fullest_rank(config: dict[str, object], split: ParallelSizes, gigabytes: float) -> None:
    """In 10^9 bytes, as model cards count."""
    assert rank_bytes(facts_of(config), split) / 1e9 == pytest.approx(gigabytes, rel=0.002)


def test_attention_data_parallelism_repeats_attention() -> None:
    """DeepSeek-V3 on 8 GPUs: 11.4 GB of attention, of which each rank has all instead of an eighth."""
    model = facts_of(DEEPSEEK)
    assert model.attention_bytes / 1e9 == pytest.approx(61 * 187_105_280 / 1e9)
    more = rank_bytes(model, sizes(8), attention_dp=True) - rank_bytes(model, sizes(8))
    assert more == pytest.approx(model.attention_bytes * 7 / 8, rel=1e-6)


def test_sizes_come_from_the_index_before_files_before_an_estimate() -> None:
    """Mistral's repositories hold everything twice; only one of the two is loaded."""
    config = {"/m/config.json": json.dumps(LLAMA_70B)}
    index = {"metadata": {"total_size": 141_107_412_992}, "weight_map": {"a": "model-1.safetensors"}}
    with_index = read_model(Files({**config, f"/m/{INDEX}": json.dumps(index)}), "/m")
    assert with_index is not None and (with_index.weights_bytes, with_index.source) == (141_107_412_992, INDEX)
    files = {"/m/model-1.safetensors": 100, "/m/model-2.safetensors": 50, "/m/consolidated.safetensors": 150}
    by_files = read_model(Files(config, files), "/m")
    assert by_files is not None and (by_files.weights_bytes, by_files.source) == (150, "2 .safetensors files")
    estimated = read_model(Files(config), "/m")
    assert estimated is not None and estimated.source == "estimated from config.json"
    assert read_model(Files({}), "/m") is None


@pytest.mark.parametrize(
    ("config", "quantized", "each"),
    [
        pytest.param({"torch_dtype": "float16"}, {}, 2.0, id="half"),
        pytest.param({"torch_dtype": "float32"}, {}, 2.0, id="32 bits are loaded in 16"),
        pytest.param({"quantization_config": {"quant_method": "fp8"}}, {}, 1.0, id="fp8"),
        pytest.param({"quantization_config": {"quant_method": "awq", "bits": 4}}, {}, 0.525, id="4 bits and scales"),
        pytest.param({}, {"quantization": {"quant_algo": "NVFP4"}}, 0.5625, id="ModelOpt's NVFP4"),
    ],
)
def test_bytes_of_a_value(config: dict[str, object], quantized: dict[str, object], each: float) -> None:
    """Quantized checkpoints say so in their own ways."""
    assert facts_of({**LLAMA_70B, "torch_dtype": None, **config}, None, quantized).bytes_per_value == each


def test_a_checkpoint_names_its_cache_type() -> None:
    """ModelOpt's FP8 checkpoints bring scales for an FP8 cache, which `auto` then means."""
    model = facts_of(LLAMA_70B, None, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})
    assert kv_token_bytes(model, sizes(8)) == 20_480
    assert kv_token_bytes(model, sizes(8), "bfloat16") == 40_960


def test_weights_that_do_not_fit_are_refused() -> None:
    """With the numbers, and how many GPUs it takes."""
    stored = facts_of(LLAMA_70B, (141_107_412_992, INDEX))
    assert texts(fit(stored, sizes(1), H100, Budget(0.9))) == [
        "model: 131.4 GiB of weights over tensor 1 × pipeline 1 are 131.4 GiB a GPU, which has 80 GB: "
        "2 GPUs or more: raise tensor_parallel_size, or take a quantized checkpoint"
    ]
    assert texts(fit(stored, sizes(8), H100, Budget(0.9))) == []
    estimated = fit(facts_of(LLAMA_70B), sizes(1), H100, Budget(0.9))
    assert texts(estimated) == [] and "131.4 GiB of weights" in estimated.warnings[0]


def test_figures_for_the_plan() -> None:
    """What `plan` shows; without the GPU's memory there is no count of tokens."""
    stored = facts_of(LLAMA_70B, (141_107_412_992, INDEX))
    assert fit(stored, sizes(8), H100, Budget(0.9)).facts == (
        ("weights", f"131.4 GiB ({INDEX}), 16.43 GiB a GPU"),
        ("KV cache", "40 KiB a token and GPU"),
        ("tokens that fit", "about 1,429,094 in 54.52 GiB of each GPU"),
    )
    assert fit(stored, sizes(8), Gpu(), Budget(0.9)).facts[-1][0] == "KV cache"


@pytest.mark.parametrize(
    ("model", "budget", "problem", "remark"),
    [
        pytest.param(
            facts_of(LLAMA_70B),
            Budget(0.9, max_seq_len=100_000),
            "engine_args.max_seq_len: a sequence of 100,000 tokens does not fit: at most",
            "",
            id="a length that the spec asks for",
        ),
        pytest.param(
            replace(facts_of(LLAMA_70B), max_positions=131_072),
            Budget(0.9),
            "",
            "engine_args.max_seq_len: a sequence of 131,072 tokens does not fit: at most",
            id="the model's own length is cut by TensorRT-LLM",
        ),
        pytest.param(
            replace(facts_of(LLAMA_70B), max_positions=131_072),
            Budget(0.9, "total", max_seq_len_key="engine_args.max_model_len", strict=True),
            "engine_args.max_model_len: a sequence of 131,072 tokens does not fit: at most",
            "",
            id="vLLM refuses it",
        ),
        pytest.param(
            facts_of({**LLAMA_70B, "sliding_window": 4096}),
            Budget(0.9, max_seq_len=100_000),
            "",
            "engine_args.max_seq_len: a sequence of 100,000 tokens does not fit",
            id="layers with a window keep less than is counted",
        ),
        pytest.param(
            facts_of(LLAMA_70B),
            Budget(0.8, "total", fraction_key="engine_args.gpu_memory_utilization"),
            "engine_args.gpu_memory_utilization: 0.8 of 80 GB leaves nothing beside 65.71 GiB of weights: more",
            "",
            id="a share of the whole GPU below the weights",
        ),
        pytest.param(
            replace(facts_of(LLAMA_70B), max_positions=4096),
            Budget(0.05),
            "",
            "memory: only about 3,700 tokens fit beside the weights",
            id="few tokens",
        ),
    ],
)
def test_the_cache_of_two_gpus(model: ModelFacts, budget: Budget, problem: str, remark: str) -> None:
    """Llama-3-70B on two GPUs of 80 GB leaves some 13 GiB each for a cache of 160 KiB a token."""
    found = fit(model, sizes(2), H100, budget)
    assert [one[: len(problem)] for one in texts(found)] == ([problem] if problem else [])
    assert [one[: len(remark)] for one in found.warnings] == ([remark] if remark else [])


def test_copies_share_a_gpu() -> None:
    """Two copies of 16 GiB and a cache each of 0.3 of what is free: as many tokens as one copy with 0.3 of that."""
    model = replace(facts_of(LLAMA_70B), weights_bytes=16 * GIB, embedding_bytes=0, tables=0, exact=True)
    two = fit(model, sizes(1), H100, Budget(0.3, copies=2))
    assert two.facts[0] == ("weights", "16 GiB (estimated from config.json), 32 GiB a GPU")
    assert "in 13.5 GiB of each GPU" in two.facts[2][1]
    assert texts(fit(model, sizes(1), Gpu(memory_gb=30), Budget(0.3, copies=2))) != []


@pytest.mark.parametrize(
    ("files", "model", "problems"),
    [
        ({"/models/other/config.json": "{}"}, "/models/llama", ["model: there is no /models/llama"]),
        ({"/models/llama/config.json": "{}"}, "/models/llama", []),
        ({}, "meta-llama/Meta-Llama-3-70B", []),
        (
            {
                "/m/config.json": "{}",
                f"/m/{INDEX}": json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}),
                "/m/1.safetensors": "",
            },
            "/m",
            ["model: 1 of 2 weight files are missing in /m: 2.safetensors: finish its download"],
        ),
    ],
)
def test_a_model_that_is_not_there(files: dict[str, str], model: str, problems: list[str]) -> None:
    """A download that broke off has its index and lacks some of its parts."""
    found = [str(problem) for problem in missing_files(Files(files), model)]
    assert [text[: len(want)] for text, want in zip(found, problems, strict=True)] == problems
