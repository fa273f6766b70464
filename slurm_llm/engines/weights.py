"""What a model's own files say about its size: bytes of weights, layers, heads; pure, all reading is Look's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_llm.engines.configs import read_object, section, text_at
from slurm_llm.engines.types import Look
from slurm_llm.errors import Problem
from slurm_llm.fields import MOST_LONG

INDEX = "model.safetensors.index.json"
_HOLLOW_GATE = frozenset(
    ("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "opt", "phi", "starcoder2", "mpt")
)
"""`model_type`s whose feed-forward part has two matrices a layer, not three."""

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "float8": 1.0, "int8": 1.0, "nvfp4": 0.5625}
"""Bytes a value. NVFP4 has 4 bits and a scale of 8 bits for every 16 values."""


@dataclass(frozen=True)
class ModelFacts:
    """A model's sizes, as its files state them.

    `weights_bytes` of the whole model as it is loaded, `source` where that is from, `exact` False for an estimate.
    `embedding_bytes` is the part of one vocabulary table (0 where unknown), `tables` how many of them are stored.
    `kv_values` a token and layer, of all heads; with `latent` (multi-head latent attention) they are not split over
    tensor ranks. `uniform` False: some layers keep less (sliding windows, state-space layers), so the cache is smaller.
    `kv_algo`: the cache's data type when the checkpoint names one.
    """

    weights_bytes: int
    source: str
    exact: bool = True
    bytes_per_value: float = 2.0
    layers: int = 0
    kv_heads: int = 0
    kv_values: int = 0
    latent: bool = False
    uniform: bool = True
    embedding_bytes: int = 0
    tables: int = 0
    attention_bytes: int = 0
    max_positions: int | None = None
    kv_algo: str | None = None


def read_model(look: Look, model: str) -> ModelFacts | None:
    """Return the sizes of `model`, a path or a Hugging Face id in the user's cache; None: not readable here."""
    folder = look.folder(model)
    config = None if folder is None else read_object(look.text(f"{folder}/config.json"))
    if folder is None or config is None:
        return None
    quantized = read_object(look.text(f"{folder}/hf_quant_config.json")) or {}
    stored = _stored(look, folder)
    return facts_of(config, stored, quantized)


def facts_of(
    config: Mapping[str, object],
    stored: tuple[int, str] | None = None,
    quantized: Mapping[str, object] | None = None,
) -> ModelFacts:
    """Return the sizes that a config.json gives, with `stored` bytes and their source where the weights were seen.

    `quantized` is ModelOpt's hf_quant_config.json.
    """
    text = config.get("text_config")
    inner: Mapping[str, object] = {**config, **text} if isinstance(text, dict) else config
    each = _bytes_per_value(config, quantized or {})
    own = _Shape(inner)
    estimate = int(own.parameters * each)
    size, source = stored or (estimate, "estimated from config.json")
    # Engines load 32-bit checkpoints in 16 bits.
    size, each = (size // 2, 2.0) if each > 2 else (size, each)
    attention = own.layers * own.attention
    return ModelFacts(
        weights_bytes=size,
        source=source,
        exact=stored is not None,
        bytes_per_value=each,
        layers=own.layers,
        kv_heads=own.kv_heads,
        kv_values=own.kv_values,
        latent=own.latent,
        uniform=own.uniform,
        # Vocabulary tables stay in 16 bits in quantized checkpoints.
        embedding_bytes=int(own.vocabulary * own.hidden * max(each, 2.0)),
        tables=1 if inner.get("tie_word_embeddings") is True else 2,
        attention_bytes=int(attention * each),
        max_positions=_number(inner, "max_position_embeddings") or None,
        kv_algo=text_at(section(quantized or {}, "quantization"), "kv_cache_quant_algo"),
    )


def missing_files(look: Look, model: str) -> list[Problem]:
    """Return what is surely missing of `model`: its path, or files that its own index lists."""
    if model.startswith("/") and look.missing(model):
        return [Problem("model", f"there is no {model}", "a path that exists, or a Hugging Face id")]
    folder = look.folder(model)
    names = None if folder is None else look.names(folder)
    if folder is None or names is None:
        return []
    index = read_object(look.text(f"{folder}/{INDEX}")) or {}
    listed = {str(name) for name in section(index, "weight_map").values()}
    absent = sorted(listed - set(names))
    if not absent:
        return []
    what = f"{len(absent)} of {len(listed)} weight files are missing in {folder}: {absent[0]}" + ", …" * (
        len(absent) > 1
    )
    return [Problem("model", what, todo="finish its download")]


def _stored(look: Look, folder: str) -> tuple[int, str] | None:
    """Return the bytes of the weights in `folder` and what says so."""
    index = read_object(look.text(f"{folder}/{INDEX}"))
    total = _number(section(index or {}, "metadata"), "total_size")
    if total:
        return total, INDEX
    names = look.names(folder) or ()
    # Some repositories hold the same weights twice, as model-*.safetensors and as consolidated*.safetensors.
    for start, end in (("model", ".safetensors"), ("", ".safetensors"), ("pytorch_model", ".bin")):
        files = [name for name in names if name.startswith(start) and name.endswith(end)]
        sizes = [look.size(f"{folder}/{name}") for name in files]
        if files and None not in sizes:
            return sum(size or 0 for size in sizes), f"{len(files)} {end} files"
    return None


class _Shape:
    """Parameters of a decoder-only transformer, counted from the fields of its config.json."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self.hidden = _number(config, "hidden_size", "n_embd", "d_model")
        self.layers = _number(config, "num_hidden_layers", "n_layer", "num_layers")
        self.heads = _number(config, "num_attention_heads", "n_head")
        self.vocabulary = _number(config, "vocab_size")
        self.kv_heads = _number(config, "num_key_value_heads", "multi_query_group_num") or self.heads
        self.head_size = _number(config, "head_dim") or (self.hidden // self.heads if self.heads else 0)
        self._latent = _number(config, "kv_lora_rank")
        self._rope = _number(config, "qk_rope_head_dim")

    @property
    def latent(self) -> bool:
        """Whether one compressed vector a token is kept for all heads (DeepSeek's multi-head latent attention)."""
        return self._latent > 0

    @property
    def uniform(self) -> bool:
        """Whether every layer keeps every token."""
        config = self._config
        window = config.get("sliding_window") is not None and config.get("use_sliding_window") is not False
        mixed = any(
            key in config for key in ("layer_types", "hybrid_override_pattern", "attn_type_list", "mamba_d_state")
        )
        return not window and not mixed

    @property
    def kv_values(self) -> int:
        """Values that a layer keeps for a token."""
        return self._latent + self._rope if self.latent else 2 * self.kv_heads * self.head_size

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention."""
        if not self.latent:
            return 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        nope, value = _number(self._config, "qk_nope_head_dim"), _number(self._config, "v_head_dim")
        low, query = _number(self._config, "q_lora_rank"), self.heads * (nope + self._rope)
        queries = low * (self.hidden + query) if low else self.hidden * query
        keys = self.hidden * (self._latent + self._rope) + self._latent * self.heads * (nope + value)
        return queries + keys + self.heads * value * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; norms and biases are left out of small parts."""
        config = self._config
        experts = _number(config, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
        dense = _number(config, "intermediate_size", "ffn_dim", "n_inner") or 4 * self.hidden
        matrices = 2 if config.get("model_type") in _HOLLOW_GATE else 3
        flat = matrices * self.hidden * dense
        mixed = flat
        if experts:
            width = _number(config, "moe_intermediate_size", "expert_ffn_hidden_size") or dense
            shared = _number(config, "shared_expert_intermediate_size") or width * _number(config, "n_shared_experts")
            mixed = matrices * self.hidden * (experts * width + shared) + self.hidden * experts
        first = _number(config, "first_k_dense_replace") if experts else 0
        layers = first * flat + (self.layers - first) * mixed + self.layers * (self.attention + 2 * self.hidden)
        tables = 1 if config.get("tie_word_embeddings") is True else 2
        return layers + tables * self.vocabulary * self.hidden + self.hidden


def _bytes_per_value(config: Mapping[str, object], quantized: Mapping[str, object]) -> float:
    algorithm = (text_at(section(quantized, "quantization"), "quant_algo") or "").lower()
    own = section(config, "quantization_config")
    method = (text_at(own, "quant_method") or "").lower()
    bits = _number(own, "bits", "w_bit")
    for word in (algorithm, method):
        for name in ("nvfp4", "fp8"):
            if name in word:
                return _BYTES[name]
        if word.startswith("w4") or word in ("mxfp4",):
            return _BYTES["nvfp4"]
    if bits:
        return bits / 8 * 1.05
    kind = text_at(config, "torch_dtype") or text_at(config, "dtype") or "bfloat16"
    return _BYTES.get(kind.removeprefix("torch."), 2.0)


def _number(config: Mapping[str, object], *names: str) -> int:
    """Return the first of `names` that holds a positive whole number, else 0."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MOST_LONG:
            return int(value)
    return 0
