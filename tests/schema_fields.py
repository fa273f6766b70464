"""Finding the field of a schema that a dotted key names, for tests of the pages that list every key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from slurm_llm.schema import Section


def sections_of(annotation: Any) -> Iterator[type[Section]]:
    """Yield the sections that an annotation holds, below unions and collections too."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_of(argument)


def field_of(model: type[Section], key: str) -> FieldInfo:
    """Return the field of `model` that `key` names, with dots."""
    sections: list[type[Section]] = [model]
    for name in key.split("."):
        field = next(section.model_fields[name] for section in sections if name in section.model_fields)
        sections = [*sections_of(field.annotation)]
    return field
