"""Which TensorRT-LLM the engine path meets in an image, whether it has that path, and what its templates know."""

from __future__ import annotations

from slurm_llm.engines.releases import PLAIN, VLLM, release_of, version_numbers
from slurm_llm.engines.tensorrtllm_arguments import DRAFT, VERSION, Arguments
from slurm_llm.engines.tensorrtllm_parameters import (
    DECODING_MODES,
    LAST_IN_AN_IMAGE,
    OLDEST,
    PARAMETERS,
    REMOVED,
    Version,
    words,
)
from slurm_llm.engines.types import Known
from slurm_llm.errors import Problem, did_you_mean
from slurm_llm.spec import JobSpec

LAST_IMAGE = "26.07"
"""The last Triton release that is known to hold the engine path, with TensorRT-LLM 1.2.1."""

TEMPLATES_IN_IMAGE: Version = (0, 17)
"""The first release whose page copies the templates from the image; before, from a checkout (README.md by tag)."""

INSTANCES_BY_COUNT: Version = (0, 12)
"""Triton 24.08: instance_group and gpu_device_ids place several instances (docs/llama_multi_instance.md)."""

_INSTEAD = "use engine: llmapi, which loads a Hugging Face checkpoint directly"


def find_version(spec: JobSpec, image: str | None, problems: list[Problem]) -> Version | None:
    """Return the TensorRT-LLM release that the templates belong to; name in `problems` why there is none to use."""
    where = f"engine_args.{VERSION}"
    said = spec.engine_args.get(VERSION)
    if said is not None:
        version = version_numbers(said) if isinstance(said, str) else ()
        if not version:
            problems.append(Problem(where, f"found {said!r}", 'a version in quotes, as "0.19.0"', "correct it"))
            return None
    else:
        found = _from_image(where, image, problems)
        if found is None:
            return None
        version = found
    short = words(version[:2])
    if version >= REMOVED:
        what = f"TensorRT-LLM {short} has no compiled engines: its engine path was removed in July 2026"
        problems.append(Problem("engine", what, f"TensorRT-LLM {words(OLDEST)} to {words(LAST_IN_AN_IMAGE)}", _INSTEAD))
        return None
    if version < OLDEST:
        what, allowed = f"TensorRT-LLM {short} is older than the templates known here", f"from {words(OLDEST)} on"
        problems.append(Problem("engine", what, allowed, "use a newer image"))
        return None
    return version


def _from_image(where: str, image: str | None, problems: list[Problem]) -> Version | None:
    release = release_of(image)
    if release is None:
        what = "the ranks run outside a container" if image is None else f"the name of {image} tells no Triton release"
        todo = "say which TensorRT-LLM it is: the templates differ by release"
        problems.append(Problem(where, what, 'a version in quotes, as "0.19.0"', todo))
        return None
    if release.flavour in (VLLM, PLAIN):
        what, allowed = f"{image} holds no TensorRT-LLM", "an image like …:25.12-trtllm-python-py3"
        problems.append(Problem("container.image", what, allowed, "choose a trtllm image"))
        return None
    if release.trtllm is not None:
        return version_numbers(release.trtllm)
    if release.triton > LAST_IMAGE:
        what = f"Triton {release.triton} is newer than {LAST_IMAGE}, the last image known to serve compiled engines"
        todo = f"{_INSTEAD}, or an older image; if this one does have them, set {where}"
        problems.append(Problem("engine", what, f"images up to {LAST_IMAGE}", todo))
        return None
    what, todo = f"no TensorRT-LLM is known of Triton {release.triton}", "use a newer image"
    problems.append(Problem("container.image", what, "images from 24.04 on", todo))
    return None


def check_release(arguments: Arguments, version: Version) -> list[Problem]:
    """Return what the spec gives that the templates or the backend of this release do not know."""
    problems = []
    for given in arguments.given:
        what = f"the {given.model} template of TensorRT-LLM"
        problems += [
            _too_new(f"{given.where}.{name}", what, version, since)
            for name in given.names
            if (since := PARAMETERS[given.model][name].since) > version
        ]
    for llm in arguments.llms:
        mode = llm.values.get("decoding_mode")
        if mode is not None and DECODING_MODES[mode] > version:
            where = f"{llm.where}.decoding_mode"
            problems.append(_too_new(where, f"{mode} decoding: TensorRT-LLM", version, DECODING_MODES[mode]))
        if llm.instances > 1 and version < INSTANCES_BY_COUNT and llm.name != DRAFT:
            problems.append(_too_new(f"{llm.where}.instance_count", "TensorRT-LLM", version, INSTANCES_BY_COUNT))
    if arguments.templates is None and version < TEMPLATES_IN_IMAGE:
        what = f"images of TensorRT-LLM {words(version)} are not known to hold the templates"
        todo = f"give the path of a checkout of tensorrtllm_backend v{words(version)}, as the ranks see it"
        allowed = f"templates in the image from {words(TEMPLATES_IN_IMAGE)} (Triton 25.01) on"
        problems.append(Problem("engine_args.templates", what, allowed, todo))
    return problems


def check_templates(arguments: Arguments, known: Known) -> list[Problem]:
    """Return what the spec gives that the image's own templates, where they were read, do not ask for."""
    what = f"template of {known.place} does not ask for it"
    return [
        Problem(f"{given.where}.{name}", f"the {given.model} {what}", "", did_you_mean(name, asked) or "remove it")
        for given in arguments.given
        if (asked := known.templates.get(given.model))
        for name in given.names
        if name not in asked
    ]


def _too_new(where: str, what: str, version: Version, since: Version) -> Problem:
    return Problem(where, f"{what} {words(version)} does not know it", f"from {words(since)} on", "remove it")
