"""What is read from an engine directory: sizes, limits and kinds, in the spellings of several releases."""

from __future__ import annotations

import json

import pytest

from slurm_llm.engines.enginedir import EngineDir, Folder, Ranks, read_engine
from slurm_llm.engines.tensorrtllm_memory import token_bytes
from tests.engines.engine_specs import built_engine
from tests.engines.files import Files


def engine(ranks: int = 1, /, **changes: object) -> EngineDir:
    """Return the engine of `built_engine`, as it is read."""
    found = read_engine("/e", Files(built_engine("/e", ranks, **changes)))
    assert isinstance(found, EngineDir)
    return found


def test_what_a_build_writes_is_read() -> None:
    """The keys that the checks need."""
    found = engine(4, **{"pretrained_config.moe": {"num_experts": 8}, "pretrained_config.mapping.moe_ep_size": 2})
    assert found.mapping == Ranks(4, 4, 1, 1, moe_tensor=4, moe_expert=2, gpus_per_node=8)
    assert (found.version, found.architecture, found.dtype) == ("1.1.0", "LlamaForCausalLM", "float16")
    assert (found.limits.batch_size, found.limits.seq_len, found.limits.lora_rank) == (64, 2048, 64)
    assert [rank for rank, _ in found.files] == [0, 1, 2, 3]
    assert found.paged_context and found.paged_kv_cache and not found.lora


def test_sizes_that_an_old_build_leaves_out_are_one() -> None:
    """cp_size came late; -1 means the usual one; without experts there are no expert sizes."""
    own = engine(**{"pretrained_config.mapping": {"tp_size": 2, "pp_size": 2, "moe_tp_size": -1}}).mapping
    assert (own.world_size, own.context, own.moe_tensor, own.gpus_per_node) == (4, 1, None, None)
    older = engine(**{"pretrained_config.moe_num_experts": 8, "pretrained_config.mapping.moe_tp_size": -1}).mapping
    assert (older.moe_tensor, older.moe_expert) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "paged"),
    [
        ({"build_config.kv_cache_type": "paged"}, True),
        ({"build_config.kv_cache_type": "KVCacheType.PAGED"}, True),
        ({"build_config.kv_cache_type": "CONTINUOUS"}, False),
        ({"build_config.kv_cache_type": None, "build_config.plugin_config.paged_kv_cache": True}, True),
        ({"build_config.kv_cache_type": None, "build_config.plugin_config.paged_kv_cache": False}, False),
        ({"build_config.kv_cache_type": None}, None),
    ],
)
def test_each_spelling_of_a_paged_cache(changes: dict[str, object], paged: bool | None) -> None:
    """Releases name the kind, or the plugin that pages; what is not said is not known."""
    assert engine(**changes).paged_kv_cache is paged


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        *((1, "none"), (2, "draft_tokens_external"), (4, "medusa"), (8, "lookahead_decoding")),
        *((16, "explicit_draft_tokens"), (32, "eagle"), ("SpeculativeDecodingMode.EAGLE", "eagle"), (None, "none")),
    ],
)
def test_each_speculative_mode(written: object, mode: str) -> None:
    """Written as the number of a flag, or by name."""
    assert engine(**{"build_config.speculative_decoding_mode": written}).speculative == mode


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, Folder.UNREADABLE),
        ({"/e/rank0.engine": "x"}, Folder.EMPTY),
        ({"/e/config.json": "{"}, Folder.BROKEN),
        ({"/e/config.json": "[]"}, Folder.OTHER),
        ({"/e/config.json": "{}"}, Folder.OTHER),
        ({"/e/decoder/config.json": "{}", "/e/encoder/config.json": "{}"}, Folder.PAIR),
        ({"/e/config.json": json.dumps({"architecture": "LlamaForCausalLM", "dtype": "float16"})}, Folder.CHECKPOINT),
        ({"/e/config.json": json.dumps({"architectures": ["LlamaForCausalLM"]})}, Folder.HUGGING_FACE),
        ({"/e/config.json": json.dumps({"builder_config": {}, "plugin_config": {}})}, Folder.OLD),
    ],
)
def test_what_is_no_engine_is_told_apart(files: dict[str, str], kind: Folder) -> None:
    """Each of the folders that are easily taken for one."""
    assert read_engine("/e", Files(files)) is kind


def test_weights_beside_a_rank_count_with_it() -> None:
    """A fast build keeps them in a file of their own; other files do not count."""
    sizes = {"/e/rank0.engine": 10, "/e/rank0_managed_weights.safetensors": 90, "/e/rankx.engine": 5}
    found = read_engine("/e", Files({"/e/config.json": built_engine("/e")["/e/config.json"]}, sizes))
    assert isinstance(found, EngineDir)
    assert found.files == ((0, 100),)


@pytest.mark.parametrize(
    ("ranks", "changes", "expected"),
    [
        # 2 (keys and values) × 32 layers × 8 heads × 128 × 2 bytes
        (1, {}, 131072),
        (4, {}, 32768),
        (1, {"pretrained_config.quantization.kv_cache_quant_algo": "FP8"}, 65536),
        (1, {"pretrained_config.head_size": 64}, 65536),
        (1, {"pretrained_config.num_key_value_heads": None}, 524288),
        (1, {"pretrained_config.hidden_size": None}, None),
    ],
)
def test_the_bytes_of_a_cached_token(ranks: int, changes: dict[str, object], expected: float | None) -> None:
    """By layers and heads of a rank, and the cache's own type."""
    assert token_bytes(engine(ranks, **changes)) == expected
