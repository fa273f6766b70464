"""The tokenizer that counts tokens, without a network: the model's own folder, or one of bytes for rehearsals. Pure."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_llm.errors import InputError, Problem

FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
END = "<|end|>"


def byte_tokenizer() -> dict[str, str]:
    """Return name → text of a tokenizer of Hugging Face's format whose tokens are the 256 bytes, as a rehearsal's are.

    Byte-level BPE without merges. Each byte has a printable character: its own where that is printable Latin-1, else
    the next one from U+0100 on (the table of GPT-2's tokenizer, which `ByteLevel` of the tokenizers package has).
    """
    vocabulary = {character: byte for byte, character in enumerate(_characters())}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(vocabulary), "content": END, **flags, "special": True}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {**vocabulary, END: len(vocabulary)}, "merges": []},
    }
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": json.dumps(made), "tokenizer_config.json": json.dumps(about)}


def _characters() -> list[str]:
    spare = iter(range(256, 512))
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [chr(byte) if byte in own else chr(next(spare)) for byte in range(256)]


def tokenizer_folder(given: str, model: str, named: str, cwd: Path) -> Path:
    """Return the folder of the tokenizer: `given` by the user, else what the spec names, else the model's own.

    Raises:
        InputError: none is known here, or the folder has no tokenizer's files.
    """
    choice = given or next((one for one in (named, model) if one.startswith("/")), "")
    if not choice:
        what = "a tokenizer is needed to count tokens, and the spec's model is no folder"
        raise InputError(Problem("--tokenizer", what, "a folder with tokenizer.json", "nothing is downloaded here"))
    folder = (cwd / Path(choice).expanduser()).absolute()
    if not any((folder / name).is_file() for name in FILES):
        raise InputError(Problem("--tokenizer", f"{folder} has none of {', '.join(FILES[:3])}", "a tokenizer's folder"))
    return folder
