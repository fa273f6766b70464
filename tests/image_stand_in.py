"""The files of an image that `image` reads, with an engine whose import would end the program."""

from __future__ import annotations

from pathlib import Path

LLM_ARGS = """
from typing import Optional

from pydantic import BaseModel, Field


class KvCacheConfig(BaseModel):
    free_gpu_memory_fraction: float = 0.9
    brand_new_key: int = 1


class BaseLlmArgs(BaseModel):
    model: str
    dtype: str = "auto"
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)


class TorchLlmArgs(BaseLlmArgs):
    max_batch_size: Optional[int] = None
    brand_new_argument: bool = False
"""
ARG_UTILS = """
from dataclasses import dataclass


@dataclass
class EngineArgs:
    model: str = "org/model"
    max_model_len: int | None = None
    brand_new_argument: bool = False


@dataclass
class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
"""
TEMPLATE = 'parameters: { key: "gpt_model_path" value: { string_value: "${engine_dir} ${brand_new_name}" } }\n'
IMPORTED = 'raise SystemExit("imported")\n'
NEW_LAUNCHER = "#!/bin/bash\npython3 -m tensorrt_llm.llmapi.mgmn_leader_node --action stop\n"
OLD_LAUNCHER = "#!/bin/bash\npython3 -m tensorrt_llm.llmapi.mgmn_leader_node\n"


def write(path: Path, text: str, *, program: bool = False) -> None:
    """Write a file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if program else 0o644)


def write_package(packages: Path, name: str, version: str, arguments: str, source: str) -> None:
    """Install an engine that cannot be imported."""
    write(packages / name / "__init__.py", IMPORTED)
    write(packages / name / arguments, source)
    write(packages / f"{name}-{version}.dist-info" / "METADATA", f"Name: {name}\nVersion: {version}\n")


def write_engine(packages: Path, root: Path) -> None:
    """Put TensorRT-LLM, its launcher and its model folders where NVIDIA's images have them, below `root`."""
    write_package(packages, "tensorrt_llm", "1.2.9", "llmapi/llm_args.py", LLM_ARGS)
    write(root / "usr/local/bin/trtllm-llmapi-launch", NEW_LAUNCHER, program=True)
    write(root / "app/all_models/llmapi/tensorrt_llm/1/model.py", IMPORTED)
    write(root / "app/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt", TEMPLATE)
