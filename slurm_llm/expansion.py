"""Paths with `~` and `$NAME`: the only expansion that anything of a spec or a profile gets."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_llm.errors import InputError, Problem


def expand(text: str, environ: Mapping[str, str], where: str) -> str:
    """Replace `~` at the beginning and `$NAME`; `where` is the field that holds `text`, for messages.

    Slurm and most programs expand neither in file names.

    Raises:
        InputError: a variable that is not set.
    """
    if text == "~" or text.startswith("~/"):
        text = environ.get("HOME", "~") + text[1:]
    parts = text.split("$")
    result = parts[0]
    for part in parts[1:]:
        name = part[1 : part.find("}")] if part.startswith("{") and "}" in part else _name_at(part)
        if not name:
            what = f"'{text}' holds a $ that names no variable"
            raise InputError(Problem(where, what, "$NAME or ${NAME}; nothing else is expanded"))
        if name not in environ:
            raise InputError(Problem(where, f"'{text}' uses ${name}, which is not set", todo=f"export {name}"))
        result += environ[name] + part[len(name) + (2 if part.startswith("{") else 0) :]
    return result


def _name_at(text: str) -> str:
    end = 0
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return text[:end]
