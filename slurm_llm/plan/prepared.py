"""What a spec's `prepare` section changes in the serving job itself: its products are there, and used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from slurm_llm.errors import InputError, Problem
from slurm_llm.expansion import expand
from slurm_llm.preparation import Prepare
from slurm_llm.schema import Section
from slurm_llm.spec import JobSpec

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
PLACES = ("to", "source", "script", "backend")
"""Fields of stages that may be paths."""
USER_BASE = "PYTHONUSERBASE"
"""Python looks there for packages before those of the system (PEP 370), in the embedded interpreter of a stub too."""

SectionT = TypeVar("SectionT", bound=Section)


def python_folder(home: str) -> str:
    """Return where a vLLM stage puts packages for the Triton home that it makes."""
    return f"{home.rstrip('/')}/python"


def with_products(spec: JobSpec) -> JobSpec:
    """Return the spec of the server that uses what `prepare` makes; what the spec says itself stays.

    Weights that are there are not looked for on the hub again. For the vllm engine its home takes the image's place.
    """
    own = spec.prepare
    if own is None:
        return spec
    env: dict[str, str | int | float | bool] = {}
    triton = spec.triton
    if own.weights is not None:
        env.update(dict.fromkeys(OFFLINE, "1"))
    if own.vllm is not None and spec.engine == "vllm":
        triton = triton.model_copy(update={"server": triton.server or own.vllm.to})
        if own.vllm.version is not None or own.vllm.packages:
            env[USER_BASE] = python_folder(own.vllm.to)
    return spec.model_copy(update={"triton": triton, "env": {**env, **spec.env}})


def with_paths(spec: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """Return the spec with `$NAME` and `~` replaced in the paths of `prepare`.

    Raises:
        InputError: every variable that is not set.
    """
    if spec.prepare is None:
        return spec
    problems: list[Problem] = []
    stages = {
        name: None if stage is None else _expanded(stage, environ, f"prepare.{name}", problems)
        for name, stage in ((name, getattr(spec.prepare, name)) for name in Prepare.model_fields)
    }
    if problems:
        raise InputError(problems)
    return spec.model_copy(update={"prepare": spec.prepare.model_copy(update=stages)})


def _expanded(stage: SectionT, environ: Mapping[str, str], where: str, problems: list[Problem]) -> SectionT:
    changes = {}
    for name in PLACES:
        value = getattr(stage, name, None)
        if isinstance(value, str) and value[:1] in ("/", "~", "$") and "#" not in value:
            try:
                changes[name] = expand(value, environ, f"{where}.{name}").rstrip("/") or "/"
            except InputError as error:
                problems += error.problems
    return stage.model_copy(update=changes)
