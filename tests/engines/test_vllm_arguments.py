"""vLLM's arguments: the table by version, and reading a vLLM's own declarations without running them."""

from __future__ import annotations

import pytest

from slurm_llm.engines.vllm_arguments import ARGUMENTS, VERSIONS, check_arguments, read_engine_arguments

SOURCE = '''
import torch  # would start CUDA
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Optional, Union

Device = Literal["auto", "cuda", "cpu"]


def get_kwargs(cls):
    raise RuntimeError("never run")


@dataclass
class EngineArgs:
    """Arguments for an engine."""

    model: str = "facebook/opt-125m"
    served: Optional[Union[str, list[str]]] = None
    seed: int | None = None
    swap: float = 4
    eager: bool = False
    device: Device = "auto"
    limits: dict[str, int] = field(default_factory=dict)
    parser: "str | None" = None
    config: CompilationConfig = None
    dtype: str | torch.dtype = "auto"
    names: "list[str] | type[Processor] | None" = None
    _hidden: int = 1
    shared: ClassVar[int] = 1

    def __post_init__(self):
        inner: int = 0


@dataclass
class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
'''


def test_declarations_are_read_as_text() -> None:
    """Names of both classes with what their annotations allow; a type that only vLLM knows allows anything."""
    assert read_engine_arguments(SOURCE) == {
        "model": {"text"},
        "served": {"text", "list"},
        "seed": {"int"},
        "swap": {"float"},
        "eager": {"bool"},
        "device": {"text"},
        "limits": {"map"},
        "parser": {"text"},
        "config": set(),
        "dtype": set(),
        "names": set(),
        "enable_log_requests": {"bool"},
    }


@pytest.mark.parametrize(
    ("source", "message"), [("class AsyncEngineArgs(:", "cannot be read"), ("x = 1", "declares no AsyncEngineArgs")]
)
def test_another_file_is_told(source: str, message: str) -> None:
    """A probe that read the wrong file must not make every argument unknown."""
    with pytest.raises(ValueError, match=message):
        read_engine_arguments(source)


def test_what_was_read_counts_alone() -> None:
    """The vLLM in use knows best: an argument that no table has is fine, one that it lacks is not."""
    probed = read_engine_arguments(SOURCE)
    assert check_arguments({"served": ["a"], "swap": 2, "config": 7, "seed": None}, None, probed) == []
    told = [str(problem) for problem in check_arguments({"max_num_seqs": 1, "eager": 1}, "0.32.0", probed)]
    assert told == [
        "engine_args.max_num_seqs: vLLM's AsyncEngineArgs has no such argument: remove it",
        "engine_args.eager: found 1: true or false: correct it",
    ]


@pytest.mark.parametrize(
    ("version", "name", "refused"),
    [
        ("0.5.5", "kv_transfer_config", True),
        ("0.7.3", "kv_transfer_config", False),
        ("0.7.0", "kv_transfer_config", False),
        ("0.32.0", "kv_transfer_config", False),
        ("0.40.0", "kv_transfer_config", False),
        ("0.9.0rc1", "num_scheduler_steps", False),
        ("0.10.0", "num_scheduler_steps", False),
        ("0.11.0", "num_scheduler_steps", True),
        ("0.40.0", "num_scheduler_steps", True),
        ("0.27.1", "brand_new_argument", True),
        ("0.40.0", "brand_new_argument", False),
        (None, "brand_new_argument", False),
        (None, "max_model_length", True),
        ("0.40.0", "max_model_length", True),
    ],
)
def test_a_name_is_refused_only_when_it_is_surely_wrong(version: str | None, name: str, refused: bool) -> None:
    """A release between two of the table gets the benefit of the doubt, and so does one newer than it."""
    assert bool(check_arguments({name: None}, version)) is refused


def test_the_table_is_consistent() -> None:
    """Every border is one of the table's versions, in order."""
    for name, argument in ARGUMENTS.items():
        until = argument.until or VERSIONS[-1]
        assert VERSIONS.index(argument.since) <= VERSIONS.index(until), name
