"""The JSON Schema of profile files, for editors: made from the models, their docstrings, and the rules of merging."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from slurm_llm.fields import SlurmMemory, SlurmTime
from slurm_llm.schema import Section
from slurm_llm.sites.merge import APPEND
from slurm_llm.sites.profile import SiteProfile

DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_NUMBERS_TOO = (SlurmTime, SlurmMemory)
"""Types whose texts may be written as whole numbers: `time: 60`."""


def profile_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of profile files: of sites, bases and users' overlays alike.

    An editor cannot know what a file inherits, so a key is required only where it cannot be inherited.
    """
    schema = SiteProfile.model_json_schema()
    root = {key: value for key, value in schema.items() if key != "$defs"}
    sections = {section.__name__: section for section in _sections(SiteProfile)}
    definitions = {name: _section(body, sections.get(name)) for name, body in schema["$defs"].items()}
    listed = {name for name, body in definitions.items() if f"#/$defs/{name}" in _item_references(schema)}
    whole = _section(root, SiteProfile)
    for name, body in (("", whole), *definitions.items()):
        if name not in listed:
            body.pop("required", None)
    whole["properties"]["extends"] = _walked(root["properties"]["extends"], appends=False)
    named = whole["properties"]["partitions"]
    # `debug:` alone is a partition that has only what all of them have.
    named["additionalProperties"] = {"anyOf": [named["additionalProperties"], {"type": "null"}]}
    return {
        "$schema": DRAFT,
        "title": "Site profile of slurm_llm",
        **whole,
        "$defs": definitions,
    }


def _section(body: Schema, section: type[Section] | None) -> Schema:
    """Return a section's schema with its keys described and its lists appendable."""
    described = {} if section is None else _described(section)
    numbers = set() if section is None else _number_keys(section)
    result: Schema = _walked({key: value for key, value in body.items() if key != "properties"})
    result["properties"] = {}
    for key, value in body.get("properties", {}).items():
        own = _walked(value)
        if key in numbers:
            own = {"anyOf": [*own.pop("anyOf", [{"type": own.pop("type", "string")}]), {"type": "integer"}], **own}
        if key in described:
            own = {"description": described[key], **own}
        result["properties"][key] = own
    return result


def _walked(schema: Any, *, appends: bool = True) -> Any:
    """Return a schema without generated titles and bulky defaults, in which each list may also be appended to."""
    if isinstance(schema, list):
        return [_walked(item, appends=appends) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key != "title" and not _is_bulky(key, value)}
    plain = {key: value if key == "default" else _walked(value, appends=appends) for key, value in plain.items()}
    if plain.get("type") != "array" or not appends:
        return plain
    kept = {key: plain.pop(key) for key in ("description", "default") if key in plain}
    return {**kept, "anyOf": [plain, _appending(plain)]}


def _is_bulky(key: str, value: object) -> bool:
    return key == "default" and isinstance(value, dict | list)


def _appending(array: Schema) -> Schema:
    text = "Adds to the list below, instead of replacing it."
    return {
        "description": text,
        "type": "object",
        "properties": {APPEND: array},
        "required": [APPEND],
        "additionalProperties": False,
    }


def _item_references(schema: Any, inside: bool = False) -> set[str]:
    """Return the references to sections that are items of a list: those are always written whole."""
    if isinstance(schema, list):
        return {found for item in schema for found in _item_references(item, inside)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"]} if inside and isinstance(schema.get("$ref"), str) else set()
    return own | {found for key, value in schema.items() for found in _item_references(value, key == "items")}


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    """Yield a model and every model below it; some more than once."""
    yield section
    for hint in get_type_hints(section, include_extras=True).values():
        for part in _parts(hint):
            if isinstance(part, type) and issubclass(part, Section):
                yield from _sections(part)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in get_args(hint):
        yield from _parts(argument)


def _number_keys(section: type[Section]) -> set[str]:
    hints = get_type_hints(section, include_extras=True)
    return {key for key, hint in hints.items() if any(part in _NUMBERS_TOO for part in _parts(hint))}


def _described(section: type[Section]) -> dict[str, str]:
    """Return key → the text that stands below it in the class's source; nothing where there is no source."""
    texts: dict[str, str] = {}
    for ancestor in reversed(section.__mro__):
        if issubclass(ancestor, Section):
            texts |= _texts_in(ancestor)
    return texts


def _texts_in(section: type[Section]) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    except (OSError, TypeError):
        return {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    found = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = inspect.cleandoc(text.value)
    return found
