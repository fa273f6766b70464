"""A tiny random Llama as Hugging Face lays one out, and LoRA adapters for it: made on the spot from a seed.

Two layers, hidden size 64, every byte a token. Rows of the output layer for anything but printable ASCII are zero, so
that whatever is generated is readable text and only ends when `max_tokens` does.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 64, 2, 4, 2, 32, 128
SPECIAL = ("<unk>", "<s>", "</s>")
VOCABULARY = 512
"""Bytes and special tokens, and room up to a number that tensor parallel sizes divide."""
CONTEXT = 2048
RANK = 8

Tensors = dict[str, npt.NDArray[np.float32]]


def write_model(folder: Path, seed: int = 0) -> Path:
    """Write config.json, tokenizer and bf16 weights (under 1 MB) into `folder`, and return it."""
    folder.mkdir(parents=True)
    _write_json(folder / "config.json", _config())
    _write_json(folder / "tokenizer.json", _tokenizer())
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, **special}
    _write_json(folder / "tokenizer_config.json", own)
    (folder / "model.safetensors").write_bytes(safetensors(_weights(np.random.default_rng(seed))))
    return folder


def write_adapter(folder: Path, seed: int = 1) -> Path:
    """Write a LoRA adapter for that model's query and value projections into `folder`, and return it."""
    folder.mkdir(parents=True)
    _write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": RANK,
            "lora_alpha": 32,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": ["q_proj", "v_proj"],
        },
    )
    random = np.random.default_rng(seed)
    tensors: Tensors = {}
    for layer in range(LAYERS):
        for name, width in (("q_proj", HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = _random(random, RANK, HIDDEN)
            tensors[f"{at}.lora_B.weight"] = _random(random, width, RANK)
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    return folder


def safetensors(tensors: Tensors) -> bytes:
    """Return tensors in the safetensors format, as bf16: length of the header, JSON header, then the numbers."""
    header, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        # bf16 is the upper half of a float32.
        data = (np.ascontiguousarray(tensor, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _tokenizer() -> dict[str, object]:
    tokens = [*SPECIAL, *_byte_letters()]
    added = [
        {
            "id": index,
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for index, token in enumerate(SPECIAL)
    ]
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": []}
    steps = {"normalizer": None, "pre_tokenizer": letters, "post_processor": None, "decoder": letters, "model": model}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **steps}


def _byte_letters() -> list[str]:
    """Return the letter that stands for each byte in byte-level BPE: its own where that is printable."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _weights(random: np.random.Generator) -> Tensors:
    tensors: Tensors = {"model.embed_tokens.weight": _random(random, VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        tensors.update({f"{at}.{name}.weight": _random(random, *shape) for name, shape in shapes.items()})
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    head = _random(random, VOCABULARY, HIDDEN)
    readable = [len(SPECIAL) + byte for byte in range(32, 127)]
    head[[token for token in range(VOCABULARY) if token not in readable]] = 0
    tensors["lm_head.weight"] = head
    return tensors


def _random(random: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return (random.standard_normal(shape) * 0.3).astype(np.float32)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=True, indent=1) + "\n")
