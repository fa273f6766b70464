"""The engine path's model repository: which of the image's templates it takes, and what fills each of them.

Names are exact where the templates hold them fixed: a second tensorrt_llm model is a copy of the template in which
`name: "tensorrt_llm"` is replaced, as NVIDIA's own page does with sed (docs/llama_multi_instance.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_llm.agent.image import MODEL_FOLDERS
from slurm_llm.engines.tensorrtllm_arguments import Arguments, LlmModel
from slurm_llm.engines.tensorrtllm_parameters import (
    BLS,
    ENSEMBLE,
    MULTIMODAL,
    PARAMETERS,
    POSTPROCESSING,
    PREPROCESSING,
    TENSORRT_LLM,
    Version,
)
from slurm_llm.engines.types import ImageFile, RepositoryFile

CHECKOUT_PLACES = ("/all_models", "/triton_backend/all_models", "/tensorrt_llm/triton_backend/all_models", "")
"""Below a path that the spec names: a checkout of tensorrtllm_backend (until 0.19), of TensorRT-LLM (from 0.19 on), one
with the other as a submodule, or the folder all_models itself."""

LOGITS_WITH_IMAGES: Version = (0, 19)
"""The multimodal ensemble names the type of its logits from here on; the other one did two releases before."""

TEXT = "inflight_batcher_llm"
IMAGES = "multimodal"

_VERSION_FOLDER = "Triton wants a version folder of every model; this one needs nothing in it.\n"


def image_files(arguments: Arguments, version: Version) -> tuple[ImageFile, ...]:
    """Return the files that come from the image, in the order in which the repository shows them."""
    maker = _Maker(arguments, version)
    files = [*maker.section(PREPROCESSING), *maker.section(POSTPROCESSING)]
    for llm in arguments.llms:
        files += maker.llm(llm)
    if MULTIMODAL in arguments.sections:
        files += maker.section(MULTIMODAL, IMAGES)
    if BLS in arguments.sections:
        files += maker.section(BLS)
    if ENSEMBLE in arguments.sections:
        files.append(maker.ensemble())
        files += [file for llm in arguments.others for file in maker.further(llm)]
    return tuple(files)


def own_files(arguments: Arguments) -> tuple[RepositoryFile, ...]:
    """Return the files that are written without the image: version folders, which ensembles and engines leave empty."""
    names = [llm.name for llm in arguments.llms]
    if ENSEMBLE in arguments.sections:
        names += [ENSEMBLE, *(ensemble_of(llm) for llm in arguments.others)]
    return tuple(RepositoryFile(f"{name}/1/README", text=_VERSION_FOLDER) for name in names)


def ensemble_of(llm: LlmModel) -> str:
    """Return the ensemble that takes text for a further model."""
    return f"{ENSEMBLE}_{llm.name}"


def fill(model: str, values: Mapping[str, str], version: Version) -> tuple[tuple[str, str], ...]:
    """Return the values for the placeholders that the template of `model` has in this release."""
    found = []
    for name, parameter in PARAMETERS[model].items():
        if name in values and parameter.since <= version and not parameter.appended:
            old = parameter.old is not None and version < parameter.renamed
            found.append(((parameter.old or name) if old else name, values[name]))
    return tuple(found)


def _appended(values: Mapping[str, str]) -> str:
    """Return what no template has and the backend reads, as parameters of config.pbtxt."""
    names = [name for name, parameter in PARAMETERS[TENSORRT_LLM].items() if parameter.appended and name in values]
    one = 'parameters: {{\n  key: "{}"\n  value: {{\n    string_value: "{}"\n  }}\n}}\n'
    return "".join(one.format(name, values[name]) for name in names)


class _Maker:
    """Makes the files of each model from the same places, for the same release."""

    def __init__(self, arguments: Arguments, version: Version) -> None:
        self.arguments = arguments
        self.version = version
        named = arguments.templates
        self.places = MODEL_FOLDERS if named is None else tuple(named.rstrip("/") + each for each in CHECKOUT_PLACES)

    def section(self, model: str, kind: str = TEXT, name: str | None = None, **other: str) -> list[ImageFile]:
        """Return configuration and code of one model, as `name` with `other` values where it is a further copy."""
        values = {**self.arguments.sections[model], **other}
        renamed = () if name is None else ((f'name: "{model}"', f'name: "{name}"'),)
        return [
            self._config(name or model, f"{kind}/{model}", fill(model, values, self.version), renamed),
            self._code(name or model, f"{kind}/{model}"),
        ]

    def llm(self, llm: LlmModel) -> list[ImageFile]:
        """Return configuration and code of a model with an engine."""
        changes = []
        if llm.name != TENSORRT_LLM:
            changes.append((f'name: "{TENSORRT_LLM}"', f'name: "{llm.name}"'))
        if llm.instances > 1:
            changes.append(("count: 1", f"count: {llm.instances}"))
        place, values = f"{TEXT}/{TENSORRT_LLM}", fill(TENSORRT_LLM, llm.values, self.version)
        config = self._config(llm.name, place, values, tuple(changes), _appended(llm.values))
        return [config, self._code(llm.name, place)]

    def ensemble(self, name: str = ENSEMBLE, changes: tuple[tuple[str, str], ...] = ()) -> ImageFile:
        """Return the configuration of an ensemble: the multimodal one where images are taken too."""
        images = MULTIMODAL in self.arguments.sections
        values = fill(ENSEMBLE, self.arguments.sections[ENSEMBLE], self.version)
        if images and self.version < LOGITS_WITH_IMAGES:
            values = tuple((key, text) for key, text in values if key != "logits_datatype")
        return self._config(name, f"{IMAGES if images else TEXT}/{ENSEMBLE}", values, changes)

    def further(self, llm: LlmModel) -> list[ImageFile]:
        """Return the ensemble of a further model, and its tokenizing models where its tokenizer is another."""
        name = ensemble_of(llm)
        changes = [(f'name: "{ENSEMBLE}"', f'name: "{name}"'), (_step(TENSORRT_LLM), _step(llm.name))]
        files = []
        if llm.tokenizer is not None and llm.tokenizer != self.arguments.main.tokenizer:
            for model in (PREPROCESSING, POSTPROCESSING):
                own = f"{model}_{llm.name}"
                files += self.section(model, name=own, tokenizer_dir=llm.tokenizer)
                changes.append((_step(model), _step(own)))
        return [*files, self.ensemble(name, tuple(changes))]

    def _config(
        self,
        name: str,
        place: str,
        values: tuple[tuple[str, str], ...],
        changes: tuple[tuple[str, str], ...],
        append: str = "",
    ) -> ImageFile:
        sources = tuple(f"{base}/{place}/config.pbtxt" for base in self.places)
        return ImageFile(f"{name}/config.pbtxt", sources, values, append, changes)

    def _code(self, name: str, place: str) -> ImageFile:
        return ImageFile(f"{name}/1", tuple(f"{base}/{place}/1" for base in self.places))


def _step(model: str) -> str:
    return f'model_name: "{model}"'
