"""From a YAML document to a validated pydantic model, every problem named at once; knows no particular model."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from slurm_llm.errors import InputError, Problem, did_you_mean
from slurm_llm.yamlio import FROM_FLAG, Document, Key, Tree, parse_scalar
from slurm_llm.yamlio import dotted as dotted

ModelT = TypeVar("ModelT", bound="Section")
MAX_SHOWN = 80

Remedy: TypeAlias = Callable[[Key, list[Any]], "str | None"]
"""From a path and pydantic's items about it to what to do; None leaves it to the words that any model has."""


class Section(BaseModel):
    """Base of every part of a spec or a site profile: frozen, strict about types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def validate(
    model: type[ModelT], document: Document, failure: type[InputError], remedy: Remedy | None = None
) -> ModelT:
    """Return `document` as `model`; `remedy` is what the model itself knows to do about a fault.

    Raises:
        InputError: (as `failure`) with one Problem for each fault, each with file and line.
    """
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise failure(list(_problems(model, document, error, remedy))) from None


def _problems(
    model: type[Section], document: Document, error: ValidationError, remedy: Remedy | None
) -> Iterator[Problem]:
    faults: dict[Key, list[Any]] = {}
    for item in error.errors(include_url=False):
        # A value that may be of several types has one fault for each: they are told as one.
        faults.setdefault(document_path(document.value, item["loc"]), []).append(item)
    for path, items in faults.items():
        yield problem_at(model, document, path, items, remedy)


def problem_at(
    model: type[Section], document: Document, path: Key, items: list[Any], remedy: Remedy | None = None
) -> Problem:
    """Return what pydantic's `items` say about the value at `path`, as one problem."""
    where, name, first = document.where(path), dotted(path) or "the file", items[0]
    known_todo = None if remedy is None else remedy(path, items)
    if first["type"] == "extra_forbidden":
        known = sorted(known_keys(model, path[:-1]))
        hint = known_todo or did_you_mean(str(path[-1]), known) or "remove it"
        return Problem(where, f"unknown key '{name}'", "known here: " + ", ".join(known), hint)
    if first["type"] == "missing":
        return Problem(where, f"'{name}' is missing", todo="add it")
    # Text that breaks a rule of ours is text: that it is no number either would only distract.
    items = [item for item in items if item["type"] == "value_error"] or items
    wanted = " or ".join(dict.fromkeys(_wanted(item) for item in items)).replace(" or must be ", " or ")
    found = "" if first["loc"][-1:] == ("[key]",) else _found(first["input"])
    return Problem(where, f"{name}: {wanted}{found}", todo=known_todo or _todo(items))


_WANTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "string_unicode": "must be text that UTF-8 can write",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "dict_type": "must be a mapping of `key: value` lines",
    "model_type": "must be a mapping of `key: value` lines",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "literal_error": "must be one of {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "invalid-json-value": "must be a plain YAML value",
}
_BOOLEANS_OF_OLD = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""What YAML 1.1 takes for booleans and YAML 1.2 for texts."""
_NOT_EMPTY = frozenset({"string_too_short", "too_short"})


def _wanted(item: Any) -> str:
    kind = item["type"]
    if kind in _NOT_EMPTY:
        return "must not be empty"
    if kind in _WANTED:
        return _WANTED[kind].format(**item.get("ctx", {}))
    if kind == "value_error":
        return str(item["ctx"]["error"])
    message = str(item["msg"])
    return message[:1].lower() + message[1:]


def _found(value: object) -> str:
    if isinstance(value, dict | list | tuple):
        return " (found: a mapping)" if isinstance(value, dict) else " (found: a list)"
    text = _yaml_word(value)
    return f" (found: {text})" if len(text) <= MAX_SHOWN else f" (found: {text[:MAX_SHOWN]}…)"


def _yaml_word(value: object) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _todo(items: list[Any]) -> str:
    kinds, value = {item["type"] for item in items}, items[0]["input"]
    if kinds == {"literal_error"} and isinstance(value, str):
        names = re.findall("'([^']*)'", items[0]["ctx"]["expected"])
        return did_you_mean(value, names) or "correct the value"
    if "bool_type" in kinds and str(value).lower() in _BOOLEANS_OF_OLD:
        return f"write {_BOOLEANS_OF_OLD[str(value).lower()]}"
    if kinds <= {"int_type", "bool_type", "float_type"} and isinstance(value, str):
        return "write it without quotes" if _reads_as_number(value) else "correct the value"
    if "string_type" in kinds and isinstance(value, int | float):
        return "put it in quotes"
    if kinds <= {"string_type"} and isinstance(value, list | tuple):
        return "write one text"
    if kinds & {"tuple_type", "list_type"} and isinstance(value, str):
        return "write it as [value]"
    if value is None:
        return "give a value, or remove the key"
    return "correct the value"


def _reads_as_number(text: str) -> bool:
    return isinstance(parse_scalar(text), int | float)


def document_path(value: Tree, loc: Iterable[str | int]) -> Key:
    """Return the part of pydantic's location that stands in the document: it adds names of union members."""
    path: list[str | int] = []
    at: Tree = value
    for step in loc:
        children = _children(at)
        if step in children:
            at = children[step]
            path.append(step)
        elif isinstance(at, dict) and not _is_union_member(step):
            return (*path, step)
    return tuple(path)


def _children(value: Tree) -> dict[str | int, Tree]:
    if isinstance(value, dict):
        return dict(value.items())
    return dict(enumerate(value)) if isinstance(value, list | tuple) else {}


def _is_union_member(step: str | int) -> bool:
    if isinstance(step, int) or step in {"str", "int", "float", "bool", "none", "list", "dict"}:
        return True
    return "[" in step or step.startswith("constrained-")


def _sections(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, Annotated, list, tuple):
        for argument in get_args(annotation):
            yield from _sections(argument)
    elif origin is dict:
        yield from _sections(get_args(annotation)[1])


def known_keys(model: type[Section], path: Key) -> set[str]:
    """Return the keys that `model` takes at `path`."""
    current: list[type[Section]] = [model]
    inside_map = False
    for step in path:
        if inside_map or isinstance(step, int):
            # A name of the file's own, as a partition's: it may be that of a key, too.
            inside_map = False
            continue
        fields = [section.model_fields[step] for section in current if step in section.model_fields]
        inside_map = any(get_origin(field.annotation) is dict for field in fields)
        current = [section for field in fields for section in _sections(field.annotation)]
    return {name for section in current for name in section.model_fields}


def apply_settings(document: Document, settings: Iterable[str], failure: type[InputError]) -> Document:
    """Return `document` with every `a.b.c=value` of `settings` laid over it; the value is read as YAML.

    Raises:
        InputError: (as `failure`) a setting without `=`, or one that goes through something that is no mapping.
    """
    value = _copy(document.value)
    lines, sources = dict(document.lines), dict(document.sources)
    problems: list[Problem] = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            problems.append(Problem(f"--set {setting}", "not of the form key=value", "a.b.c=value"))
            continue
        made: list[Key] = []
        parent = _parent(value, keys, made)
        if parent is None:
            problems.append(Problem(f"--set {setting}", f"'{name}' goes through a value that is no mapping"))
            continue
        parent[keys[-1]] = parse_scalar(text)
        here = tuple(keys)
        lines = {path: line for path, line in lines.items() if path[: len(keys)] != here}
        sources = {path: source for path, source in sources.items() if path[: len(keys)] != here}
        lines |= dict.fromkeys((*made, here), FROM_FLAG)
        # A fault of a mapping that stands in no file is the flag's that made it.
        sources |= dict.fromkeys(made, f"--set {dotted(here)}")
    if problems:
        raise failure(problems)
    return Document(document.source, value, lines, sources)


def _copy(value: dict[str, Tree]) -> dict[str, Tree]:
    return {key: _copy(item) if isinstance(item, dict) else item for key, item in value.items()}


def _parent(value: dict[str, Tree], keys: list[str], made: list[Key]) -> dict[str, Tree] | None:
    """Return the mapping that holds the last of `keys`; the paths of those that were made for it go to `made`."""
    at = value
    for index, key in enumerate(keys[:-1], 1):
        if key not in at:
            made.append(tuple(keys[:index]))
        following = at.setdefault(key, {})
        if following is None:
            following = at[key] = {}
        if not isinstance(following, dict):
            return None
        at = following
    return at
