"""Engines and paths against a spec: what is refused before anything is submitted, with both numbers and a way out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_llm.engines.tensorrtllm import ENGINE
from slurm_llm.engines.types import Findings, Gpu
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import Tree
from tests.engines.engine_specs import built_engine, engine_spec
from tests.engines.files import Files

TOKENIZER = {"/models/hf/tokenizer.json": "{}"}
GIB = 1024**3


def inspected(
    arguments: Mapping[str, Tree] | None = None,
    changes: Mapping[str, object] | None = None,
    more: Mapping[str, str] | None = None,
    *,
    ranks: int = 1,
    sizes: ParallelSizes | None = None,
    gpu: Gpu | None = None,
    bytes_of: Mapping[str, int] | None = None,
    without: str | None = None,
    version: str = "1.1.0",
    **values: Tree,
) -> Findings:
    """Return the findings for a spec whose engine of `ranks` ranks is built with `changes`."""
    files = {**built_engine("/models/engine", ranks, **(changes or {})), **TOKENIZER, **(more or {})}
    if without is not None:
        del files[without]
    spec = engine_spec(arguments, version, **values)
    own = sizes or ParallelSizes(tensor_parallel_size=ranks, moe_tensor_parallel_size=ranks)
    return ENGINE.inspect(spec, own, Files(files, bytes_of), gpu or Gpu())


def test_an_engine_that_fits_says_what_it_is() -> None:
    """No complaint, no remark; facts for `plan` to show."""
    sizes = {"/models/engine/rank0.engine": 15 * GIB}
    found = inspected(gpu=Gpu(80, "H100-SXM-80GB"), bytes_of=sizes)
    assert (found.problems, found.warnings) == ((), ())
    assert found.facts == (
        (
            "engine",
            "LlamaForCausalLM, float16, tp1 · pp1 · cp1, batch at most 64, beams at most 1, sequence at most 2048, "
            "by TensorRT-LLM 1.1.0",
        ),
        ("weights", "15.0 GiB a GPU"),
        ("KV cache", "128 KiB a token and GPU"),
        ("tokens that fit", "about 479,232, less what activations take"),
    )


def test_each_engine_of_a_server_is_shown_by_its_name() -> None:
    """The draft and the encoder beside the main one."""
    arguments: dict[str, Tree] = {"draft_model": {"engine_dir": "/d"}, "encoder_engine_dir": "/models/encoder"}
    changes = {"build_config.speculative_decoding_mode": 2, "build_config.max_draft_len": 10}
    more = {**built_engine("/d"), **built_engine("/models/encoder")}
    shown = [text.partition(" ")[0] for name, text in inspected(arguments, changes, more).facts if name == "engine"]
    assert shown == ["LlamaForCausalLM,", "encoder:", "tensorrt_llm_draft:"]


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (
            {"triton_max_batch_size": 128},
            {},
            "engine_args.triton_max_batch_size: 128, the engine was built for 64: at most 64: "
            "set triton_max_batch_size: 64, or rebuild with --max_batch_size 128",
        ),
        (
            {"max_beam_width": 4},
            {},
            "engine_args.max_beam_width: 4, the engine was built for 1: at most 1: "
            "set max_beam_width: 1, or rebuild with --max_beam_width 4",
        ),
        (
            {"enable_kv_cache_reuse": True},
            {"build_config.plugin_config.use_paged_context_fmha": False},
            "engine_args.enable_kv_cache_reuse: needs an engine with paged context attention, this one is without: "
            "false: rebuild with --use_paged_context_fmha enable, or set it to false",
        ),
        (
            {"enable_chunked_context": True},
            {"build_config.plugin_config.use_paged_context_fmha": False},
            "engine_args.enable_chunked_context: needs an engine with paged context attention, this one is without: "
            "false: rebuild with --use_paged_context_fmha enable, or set it to false",
        ),
        (
            {},
            {"build_config.kv_cache_type": "continuous"},
            "engine_args.engine_dir: in-flight batching needs a paged KV cache, the engine's is not paged: "
            "kv_cache_type paged: rebuild with --kv_cache_type paged",
        ),
        (
            {},
            {"build_config.plugin_config.remove_input_padding": False},
            "engine_args.engine_dir: in-flight batching needs packed input, the engine pads it: remove_input_padding: "
            "rebuild with --remove_input_padding enable",
        ),
        (
            {},
            {"version": "0.21.0"},
            "engine_args.engine_dir: built by TensorRT-LLM 0.21.0, the image has 1.1.0: the same version: "
            "build it with this image, or take the image of its version",
        ),
        (
            {"gpu_weights_percent": 0.5},
            {},
            "engine_args.gpu_weights_percent: 0.5 needs an engine with weight streaming, this one is without: 1.0: "
            "rebuild with --weight_streaming, or set it to 1.0",
        ),
        (
            {"decoding_mode": "medusa"},
            {},
            "engine_args.decoding_mode: medusa decoding needs an engine built for medusa, this one is built for none: "
            "medusa: rebuild with --speculative_decoding_mode medusa, or choose another decoding_mode",
        ),
        (
            {"decoding_mode": "redrafter"},
            {"build_config.speculative_decoding_mode": 32},
            "engine_args.decoding_mode: redrafter decoding needs an engine built for explicit_draft_tokens, this one "
            "is built for eagle: explicit_draft_tokens: rebuild with --speculative_decoding_mode explicit_draft_tokens"
            ", or choose another decoding_mode",
        ),
        (
            {
                "decoding_mode": "lookahead",
                "lookahead_window_size": 7,
                "lookahead_ngram_size": 7,
                "lookahead_verification_set_size": 7,
            },
            {"build_config.speculative_decoding_mode": 8, "build_config.max_draft_len": 63},
            "engine_args.lookahead_window_size: window 7, n-gram 7, verification 7 make max_draft_len 83, the engine "
            "has 63: equal numbers: rebuild with --max_draft_len 83, or change the three sizes",
        ),
        (
            {"lora_cache_max_adapter_size": 32},
            {},
            "engine_args.lora_cache_max_adapter_size: the engine was built without LoRA: "
            "rebuild with --lora_plugin auto, or remove the lora_ keys",
        ),
        (
            {"lora_cache_max_adapter_size": 32},
            {"build_config.lora_config.lora_target_modules": ["attn_q"]},
            "engine_args.lora_cache_max_adapter_size: 32, the engine takes adapters of rank 64: at least 64: "
            "set lora_cache_max_adapter_size: 64",
        ),
        (
            {"multimodal_encoders": {"multimodal_model_path": "/models/hf"}},
            {},
            "engine_args.engine_dir: built without room for images: max_prompt_embedding_table_size is 0: more than 0: "
            "rebuild with --max_multimodal_len (images × features × batch size)",
        ),
        (
            {},
            {"pretrained_config.architecture": "DecoderModel"},
            "engine_args.engine_dir: the decoder of an encoder-decoder model: an encoder beside it: "
            "give encoder_engine_dir too",
        ),
    ],
)
def test_an_engine_that_does_not_fit_is_refused(
    arguments: dict[str, Tree], changes: dict[str, object], message: str
) -> None:
    """One sentence with both numbers, and what to do: set another value, or build again."""
    assert [str(problem) for problem in inspected(arguments, changes).problems] == [message]


@pytest.mark.parametrize(
    ("sizes", "changes", "messages"),
    [
        (
            ParallelSizes(tensor_parallel_size=2, pipeline_parallel_size=2, moe_tensor_parallel_size=2),
            {},
            [
                "the engine was built for tensor_parallel_size 4, the spec says 2: equal sizes: "
                "set tensor_parallel_size: 4, or rebuild with --tp_size 2",
                "the engine was built for pipeline_parallel_size 1, the spec says 2: equal sizes: "
                "set pipeline_parallel_size: 1, or rebuild with --pp_size 2",
            ],
        ),
        (
            ParallelSizes(tensor_parallel_size=4, moe_tensor_parallel_size=2, moe_expert_parallel_size=2),
            {"pretrained_config.moe": {"num_experts": 8}},
            [
                "the engine was built for moe_tensor_parallel_size 4, the spec says 2: equal sizes: "
                "set moe_tensor_parallel_size: 4, or rebuild with --moe_tp_size 2",
                "the engine was built for moe_expert_parallel_size 1, the spec says 2: equal sizes: "
                "set moe_expert_parallel_size: 1, or rebuild with --moe_ep_size 2",
            ],
        ),
        (
            ParallelSizes(tensor_parallel_size=4, moe_tensor_parallel_size=2, moe_expert_parallel_size=2),
            {},
            [],
        ),
        (
            ParallelSizes(tensor_parallel_size=4, moe_tensor_parallel_size=4),
            {"pretrained_config.mapping.world_size": 8},
            [
                "its config.json names 8 ranks, and tp × pp × cp = 4: equal numbers: build it again",
                "rank4.engine, rank5.engine, rank6.engine, rank7.engine: missing: rank0.engine to rank7.engine: "
                "copy the whole folder, or build it again",
            ],
        ),
    ],
)
def test_the_ranks_of_the_engine_are_the_specs(
    sizes: ParallelSizes, changes: dict[str, object], messages: list[str]
) -> None:
    """Every size that differs; expert sizes only where there are experts."""
    found = inspected(changes=changes, ranks=4, sizes=sizes)
    assert [str(problem) for problem in found.problems] == [f"engine_args.engine_dir: {text}" for text in messages]


@pytest.mark.parametrize(
    ("arguments", "per_node", "message"),
    [
        (
            {},
            4,
            "engine_args.engine_dir: the engine was built for 8 GPUs a node, this job has 4: rank 4 would take GPU 4: "
            "4 GPUs a node: rebuild with --gpus_per_node 4, or set gpu_device_ids: [0, 1, 2, 3] and num_nodes: 2",
        ),
        ({"gpu_device_ids": [0, 1, 2, 3], "num_nodes": 2}, 4, None),
        ({}, 8, None),
        ({}, None, None),
    ],
)
def test_gpus_a_node_are_in_the_engine(arguments: dict[str, Tree], per_node: int | None, message: str | None) -> None:
    """Ranks beyond the first node would take GPUs that are not there; on one node it does not matter."""
    found = inspected(arguments, ranks=8, gpu=Gpu(per_node=per_node))
    assert [str(problem) for problem in found.problems] == ([] if message is None else [message])


def test_every_rank_has_its_file() -> None:
    """Missing, left over and empty ones are listed."""
    missing = inspected(ranks=2, without="/models/engine/rank1.engine")
    assert "rank1.engine: missing: rank0.engine to rank1.engine" in str(missing.problems[0])
    extra = inspected(more={"/models/engine/rank1.engine": "x"})
    assert "rank1.engine: left from an engine of more ranks than 1" in str(extra.problems[0])
    empty = inspected(more={"/models/engine/rank0.engine": ""})
    assert "rank0.engine: empty: rank0.engine to rank0.engine: copy them again" in str(empty.problems[0])


@pytest.mark.parametrize(
    ("draft", "target", "message"),
    [
        ({}, {"speculative_decoding_mode": 2, "max_draft_len": 10}, None),
        ({}, {}, "a draft model needs a target built for draft_tokens_external, this one: none, max_draft_len 0"),
        (
            {"tp_size": 2, "world_size": 2},
            {"speculative_decoding_mode": 2, "max_draft_len": 10},
            "tensor_parallel_size 2",
        ),
    ],
)
def test_a_draft_model_needs_a_target_that_takes_drafts(
    draft: dict[str, int], target: dict[str, int], message: str | None
) -> None:
    """And ranks of its own number: in leader mode both run on the job's ranks."""
    changes = {f"build_config.{key}": value for key, value in target.items()}
    own = built_engine(
        "/d", draft.get("tp_size", 1), **{f"pretrained_config.mapping.{key}": draft[key] for key in draft}
    )
    found = inspected({"draft_model": {"engine_dir": "/d"}}, changes, own)
    texts = [str(problem) for problem in found.problems]
    assert len(texts) == (0 if message is None else 1), texts
    assert message is None or message in texts[0]


def test_each_model_of_an_orchestrator_has_gpus_for_its_own_engine() -> None:
    """A second model may have other sizes: its set of GPUs must have as many."""
    arguments: dict[str, Tree] = {
        "gpu_device_ids": [0],
        "models": {
            "b": {"engine_dir": "/b", "gpu_device_ids": [1]},
            "c": {"engine_dir": "/b", "gpu_device_ids": [1, 2]},
        },
    }
    found = inspected(arguments, more=built_engine("/b", 2), launch="orchestrator")
    assert [str(problem) for problem in found.problems] == [
        "engine_args.models.b.gpu_device_ids: a set of 1 GPUs, the engine has 2 ranks: 2 ids a set: make them equal"
    ]
    assert [text.split(":")[0] for text in found.warnings] == ["launch", "GPU 1 is given to b and c"]
    assert "MPI_Comm_spawn, which NVIDIA says may not work under Slurm" in found.warnings[0]


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"/models/engine/rank0.engine": "x"}, "/models/engine holds no config.json"),
        ({"/models/engine/config.json": '{"architectures": []}'}, "a Hugging Face model, not a built engine"),
        ({"/models/engine/config.json": '{"architecture": "x", "dtype": "y"}'}, "a TensorRT-LLM checkpoint"),
        ({"/models/engine/decoder/config.json": "", "/models/engine/encoder/config.json": ""}, "folders of their own"),
        ({}, "there is no /models/engine"),
    ],
)
def test_what_is_no_engine_is_refused(files: dict[str, str], what: str) -> None:
    """With what it is instead, and the step that is missing."""
    found = ENGINE.inspect(engine_spec(), ParallelSizes(), Files({**files, **TOKENIZER}), Gpu())
    (problem,) = found.problems
    assert problem.where == "engine_args.engine_dir"
    assert what in problem.what
    assert problem.todo


class Hidden(Files):
    """Files of a container: nothing here says that something is missing."""

    def missing(self, path: str) -> bool:
        """Say nothing."""
        return False


def test_what_cannot_be_read_here_is_only_a_remark() -> None:
    """Inside an image, or on nodes alone, things may be as they should."""
    found = ENGINE.inspect(engine_spec(), ParallelSizes(), Hidden({}), Gpu())
    assert found.problems == ()
    assert found.warnings == (
        "engine_args.engine_dir: /models/engine cannot be read where this is submitted: its engine was not checked",
    )


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"tokenizer_dir": "/models/hg"}, "engine_args.tokenizer_dir"),
        ({"templates": "/checkout"}, "engine_args.templates"),
        (
            {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": "/x.json"},
            "engine_args.xgrammar_tokenizer_info_path",
        ),
        (
            {"multimodal_encoders": {"multimodal_model_path": "/v"}},
            "engine_args.multimodal_encoders.multimodal_model_path",
        ),
    ],
)
def test_paths_that_are_not_there_are_refused(arguments: dict[str, Tree], where: str) -> None:
    """All that a spec names, not the engine alone."""
    found = inspected(arguments, {"build_config.max_prompt_embedding_table_size": 576})
    assert [problem.where for problem in found.problems] == [where]


def test_adapters_lie_in_numbered_folders() -> None:
    """The cache takes the names as task ids, and needs both files."""
    own = {
        "/lora/0/model.lora_config.npy": "x",
        "/lora/0/model.lora_weights.npy": "x",
        "/lora/1/a": "",
        "/lora/luo/b": "",
    }
    changes = {"build_config.lora_config.lora_target_modules": ["attn_q"]}
    found = inspected({"lora_prefetch_dir": "/lora"}, changes, own)
    assert [problem.what for problem in found.problems] == [
        "'luo' is no number",
        "task 1 lacks model.lora_config.npy and model.lora_weights.npy",
    ]


@pytest.mark.parametrize(
    ("kind", "gpu", "fits"),
    [
        *(("FP8", name, False) for name in ("A100-SXM4-40GB", "V100-32GB", "A40-48GB")),
        *(("FP8", name, True) for name in ("H100-SXM-80GB", "L40S-48GB", "GB200", "B200")),
        *(("NVFP4", name, False) for name in ("H100-SXM-80GB", "A100", "L40S")),
        *(("NVFP4", name, True) for name in ("B200", "GB200")),
        ("W4A16_AWQ", "A100", True),
        (None, "A100", True),
    ],
)
def test_a_quantization_needs_a_gpu_that_computes_with_it(kind: str | None, gpu: str, fits: bool) -> None:
    """FP8 from Ada and Hopper on, FP4 on Blackwell."""
    found = inspected(changes={"pretrained_config.quantization.quant_algo": kind}, gpu=Gpu(80, gpu))
    assert [problem.where for problem in found.problems] == ([] if fits else ["engine_args.engine_dir"])


def test_weights_that_no_gpu_holds_are_refused() -> None:
    """By the heaviest rank's file; streaming keeps a part of it on the host."""
    sizes = {"/models/engine/rank0.engine": 100 * GIB}
    found = inspected(gpu=Gpu(80), bytes_of=sizes)
    assert [str(problem) for problem in found.problems] == [
        "engine_args.engine_dir: the weights of a rank take 100.0 GiB, a GPU of this partition has 80: less than "
        "80 GiB: rebuild for more ranks or with a smaller quantization, or choose another partition"
    ]
    streaming = {"build_config.weight_streaming": True}
    assert inspected({"gpu_weights_percent": 0.5}, streaming, gpu=Gpu(80), bytes_of=sizes).problems == ()


def test_what_may_be_meant_so_is_a_remark() -> None:
    """Logits of another type, a cache too small for one request, static batching."""
    arguments: dict[str, Tree] = {
        "logits_datatype": "TYPE_FP16",
        "max_tokens_in_paged_kv_cache": 1000,
        "batching_strategy": "V1",
    }
    found = inspected(arguments)
    assert found.problems == ()
    assert found.warnings == (
        "engine_args.logits_datatype is TYPE_FP16, the engine's logits are TYPE_FP32: "
        "logits that a client asks for would be wrong",
        "engine_args.max_tokens_in_paged_kv_cache is 1000: "
        "a request of the engine's full 2048 tokens can never be served",
        "engine_args.batching_strategy: static batching (V1) is deprecated",
    )


def test_a_cache_without_room_for_one_request_is_told() -> None:
    """Before a queue wait: weights leave too little."""
    sizes = {"/models/engine/rank0.engine": int(79.8 * GIB)}
    (remark,) = inspected(gpu=Gpu(80), bytes_of=sizes).warnings
    assert remark == (
        "engine_args.engine_dir: about 1474 tokens fit in the KV cache, one full request of the engine has 2048"
    )
