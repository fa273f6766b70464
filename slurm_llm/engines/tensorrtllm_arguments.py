"""A spec's `engine_args` of the engine path as values for each model's template, with every wrong key and value named.

What several models share is given once: batch size, decoupled mode, tokenizer and data types go to every model whose
template has them. It reads no file and knows no release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_llm.engines.tensorrtllm_parameters import (
    BLS,
    DEFAULTS,
    ENSEMBLE,
    GONE,
    MODELS,
    MULTIMODAL,
    PARAMETERS,
    PREPROCESSING,
    SHARED,
    SHARED_TYPES,
    TENSORRT_LLM,
    models_with,
)
from slurm_llm.engines.tensorrtllm_values import Kind, boolean, name, path, whole
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.spec import JobSpec

DRAFT = "tensorrt_llm_draft"
SECTIONS = tuple(model for model in MODELS if model != TENSORRT_LLM)
LEAVABLE = (ENSEMBLE, BLS)
"""Models that `false` leaves out of the repository."""

OWN: dict[str, Kind] = {
    "templates": path(),
    "instance_count": whole(1),
    "orchestrator_spawn_processes": boolean(),
}
VERSION = "tensorrt_llm_version"
DRAFT_KEY = "draft_model"
MODELS_KEY = "models"
POOL = "cuda_memory_pool_bytes"
POOL_BYTES = "300000000"
"""What the multimodal page gives GPU 0 for passing embeddings between models, in bytes."""

_NOT_FOR_ANOTHER = frozenset(
    {
        *("gpu_device_ids", "participant_ids", "decoding_mode", "medusa_choices", "eagle_choices"),
        *("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size", "lora_prefetch_dir"),
    }
)
"""What belongs to one engine or its GPUs and is not handed on to a second tensorrt_llm model."""

_NOT_FOR_A_DRAFT = _NOT_FOR_ANOTHER | {"engine_dir", "encoder_engine_dir", "cross_kv_cache_fraction"}


@dataclass(frozen=True)
class LlmModel:
    """One model with an engine: its Triton `name`, where in the spec it stands, values by placeholder, instances."""

    name: str
    where: str
    values: dict[str, str]
    instances: int = 1
    tokenizer: str | None = None


@dataclass(frozen=True)
class Given:
    """The names of the template of `model` that the spec itself gives at `where`."""

    where: str
    model: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Arguments:
    """What the repository is made of.

    `llms` has the main model first, then the draft, then further ones; `sections` the values of all other models that
    are in the repository; `given` is what of all that the spec says itself.
    """

    llms: tuple[LlmModel, ...]
    sections: dict[str, dict[str, str]]
    given: tuple[Given, ...] = ()
    templates: str | None = None
    spawn: bool = True
    pool_bytes: str = POOL_BYTES

    @property
    def main(self) -> LlmModel:
        """The model that ensemble and bls call."""
        return self.llms[0]

    @property
    def draft(self) -> LlmModel | None:
        """The draft model of speculative decoding."""
        return next((llm for llm in self.llms if llm.name == DRAFT), None)

    @property
    def others(self) -> tuple[LlmModel, ...]:
        """Further models beside main and draft."""
        return tuple(llm for llm in self.llms[1:] if llm.name != DRAFT)


def read_arguments(spec: JobSpec, problems: list[Problem]) -> Arguments:
    """Return what `spec.engine_args` says; what is wrong in it is appended to `problems` and left out."""
    read = _Reading(problems)
    flat = read.values(TENSORRT_LLM, "engine_args", _flat(spec, problems))
    if flat.get("tokenizer_dir") is None and spec.model is not None and spec.model.startswith("/"):
        flat["tokenizer_dir"] = spec.model
    own = {key: read.one(f"engine_args.{key}", kind, spec.engine_args.get(key)) for key, kind in OWN.items()}
    sections, pool = _sections(spec, read)
    instances = int(own["instance_count"] or 1)
    tokenizer = flat.get("tokenizer_dir")
    main = LlmModel(TENSORRT_LLM, "engine_args", _engine_values(flat), instances, tokenizer)
    llms = (main, *_draft(spec, read, flat), *_others(spec, read, flat))
    _share(flat, sections)
    _connect(llms, sections)
    spawn = own["orchestrator_spawn_processes"] != "false"
    return Arguments(llms, sections, tuple(read.given), own["templates"], spawn, pool)


class _Reading:
    """Reads values by their kinds and collects what is wrong."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.given: list[Given] = []

    def one(self, where: str, kind: Kind, value: object) -> str | None:
        """Return the text of a value; None where it is not given or wrong."""
        if value is None:
            return None
        text = kind.read(value)
        if text is None:
            self.problems.append(Problem(where, f"found {value!r}", kind.allowed, "correct it"))
        return text

    def values(self, model: str, where: str, given: Mapping[str, object]) -> dict[str, str]:
        """Return the texts of the placeholders of `model`'s template."""
        texts = {}
        for key, value in given.items():
            parameter = PARAMETERS[model].get(key)
            if parameter is None:
                self.problems.append(_unknown(model, f"{where}.{key}", key))
            elif (text := self.one(f"{where}.{key}", parameter.kind, value)) is not None:
                texts[key] = text
        # A tokenizer is given for the models before and behind an engine, which itself seldom reads it.
        names = tuple(key for key in texts if (model, key) != (TENSORRT_LLM, "tokenizer_dir"))
        self.given.append(Given(where, model, names))
        return texts

    def mapping(self, where: str, value: object) -> dict[str, object]:
        """Return a section of the spec; empty where it is none."""
        if isinstance(value, dict):
            return value
        if value is not None:
            self.problems.append(Problem(where, f"found {value!r}", "a section with keys", "correct it"))
        return {}


def _flat(spec: JobSpec, problems: list[Problem]) -> dict[str, object]:
    """Return the keys of the tensorrt_llm model, and name those that belong nowhere."""
    beside = (*OWN, VERSION, DRAFT_KEY, MODELS_KEY, *SECTIONS)
    flat: dict[str, object] = {}
    for key, value in spec.engine_args.items():
        if key in PARAMETERS[TENSORRT_LLM]:
            flat[key] = value
        elif key not in beside:
            problems.append(_unknown(TENSORRT_LLM, f"engine_args.{key}", key, beside))
    return flat


def _unknown(model: str, where: str, key: str, beside: tuple[str, ...] = ()) -> Problem:
    if key in GONE:
        return Problem(where, "not a parameter of a spec", todo=GONE[key])
    owners = models_with(key)
    if owners:
        place = " or ".join("engine_args" if owner == TENSORRT_LLM else f"engine_args.{owner}" for owner in owners)
        return Problem(where, f"a parameter of {' and '.join(owners)}, not of {model}", todo=f"write it below {place}")
    here = (*PARAMETERS[model], *beside)
    hint = did_you_mean(key, here)
    if not hint:
        anywhere = {each: owner for owner in MODELS for each in PARAMETERS[owner]}
        hint = did_you_mean(key, anywhere)
    what = f"unknown parameter of the {model} model"
    return Problem(where, what, hint or "see docs/engines/tensorrtllm.md for all", "" if hint else "remove it")


def _sections(spec: JobSpec, read: _Reading) -> tuple[dict[str, dict[str, str]], str]:
    sections, pool = {}, POOL_BYTES
    for model in SECTIONS:
        value, where = spec.engine_args.get(model), f"engine_args.{model}"
        if value is False and model in LEAVABLE:
            continue
        if model == MULTIMODAL and value is None:
            continue
        keys = dict(read.mapping(where, value))
        if model == MULTIMODAL and POOL in keys:
            pool = read.one(f"{where}.{POOL}", whole(1), keys.pop(POOL)) or pool
        sections[model] = read.values(model, where, keys)
    return sections, pool


def _engine_values(flat: Mapping[str, str]) -> dict[str, str]:
    values = {**DEFAULTS[TENSORRT_LLM], **flat}
    if "encoder_engine_dir" in flat:
        # Without it the backend ends with an error for an encoder-decoder model; 0.5 is the documented default.
        values.setdefault("cross_kv_cache_fraction", "0.5")
    if values["triton_backend"] != "python" or "guided_decoding_backend" not in flat:
        # Only the Python runtime reads it, for guided decoding.
        values.pop("tokenizer_dir", None)
    return values


def _draft(spec: JobSpec, read: _Reading, flat: Mapping[str, str]) -> tuple[LlmModel, ...]:
    value, where = spec.engine_args.get(DRAFT_KEY), f"engine_args.{DRAFT_KEY}"
    if value is None:
        return ()
    own = read.values(TENSORRT_LLM, where, read.mapping(where, value))
    kept = {key: text for key, text in flat.items() if key not in _NOT_FOR_A_DRAFT}
    return (LlmModel(DRAFT, where, _engine_values({**kept, **own})),)


def _others(spec: JobSpec, read: _Reading, flat: Mapping[str, str]) -> tuple[LlmModel, ...]:
    found = []
    for key, value in read.mapping(f"engine_args.{MODELS_KEY}", spec.engine_args.get(MODELS_KEY)).items():
        where = f"engine_args.{MODELS_KEY}.{key}"
        if read.one(where, name(), key) is None:
            continue
        if key in (*MODELS, DRAFT):
            read.problems.append(Problem(where, "the repository has a model of this name", todo="choose another name"))
            continue
        keys = dict(read.mapping(where, value))
        count = read.one(f"{where}.instance_count", whole(1), keys.pop("instance_count", None))
        own = read.values(TENSORRT_LLM, where, keys)
        kept = {each: text for each, text in flat.items() if each not in _NOT_FOR_ANOTHER}
        merged = {**kept, **own}
        found.append(LlmModel(key, where, _engine_values(merged), int(count or 1), merged.get("tokenizer_dir")))
    return tuple(found)


def _share(flat: Mapping[str, str], sections: dict[str, dict[str, str]]) -> None:
    """Give each section what it shares with the tensorrt_llm model, then the recipes' defaults."""
    values = {**DEFAULTS[TENSORRT_LLM], **flat}
    for model, own in sections.items():
        for key in (*SHARED, *SHARED_TYPES):
            if key in PARAMETERS[model] and key in values:
                own.setdefault(key, values[key])
        for key, text in DEFAULTS[model].items():
            own.setdefault(key, text)


def _connect(llms: tuple[LlmModel, ...], sections: dict[str, dict[str, str]]) -> None:
    """Name to each section the models and paths that others of the repository give it."""
    main, bls = llms[0], sections.get(BLS)
    if bls is not None and any(llm.name == DRAFT for llm in llms):
        bls.setdefault("tensorrt_llm_model_name", main.name)
        bls.setdefault("tensorrt_llm_draft_model_name", DRAFT)
    encoders = sections.get(MULTIMODAL)
    if encoders is None:
        return
    if main.tokenizer is not None:
        encoders.setdefault("hf_model_path", main.tokenizer)
    before = sections[PREPROCESSING]
    for key, text in (
        ("multimodal_model_path", encoders.get("multimodal_model_path")),
        ("engine_dir", main.values.get("engine_dir")),
    ):
        if text is not None:
            before.setdefault(key, text)
    before.setdefault("max_num_images", "1")
    if bls is not None:
        bls.setdefault("tensorrt_llm_model_name", main.name)
        bls.setdefault("multimodal_encoders_name", MULTIMODAL)
