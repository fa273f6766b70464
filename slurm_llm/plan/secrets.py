"""Secrets in a spec: they would stand in the job's script, which Slurm keeps; they are refused, and never repeated."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_llm.errors import Problem
from slurm_llm.sites.secrets import find_secrets, is_secret_value, names_secret
from slurm_llm.spec import JobSpec

ALLOWED = "a variable of your shell: jobs inherit it"
_ARGUMENTS = frozenset({"hf_token", "api_key", "auth_token", "access_token", "password"})
"""Names of programs' arguments that hold secrets; other words end in token too: eos_token, image_token."""


def check_secrets(spec: JobSpec) -> list[Problem]:
    """Return where the spec holds what looks like a secret."""
    return list(_below((), spec.model_dump(exclude_unset=True)))


def _below(path: tuple[str, ...], value: object) -> Iterator[Problem]:
    if isinstance(value, dict):
        for name, item in value.items():
            key = str(name)
            if isinstance(item, str | int) and _is_named(path, key) and is_secret_value(str(item)):
                yield _problem((*path, key), f"`export {key}=…` there" if _holds_variables(path) else "")
            else:
                yield from _below((*path, key), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _below((*path[:-1], f"{path[-1]}[{index}]"), item)
    elif isinstance(value, str) and any(next(find_secrets(line), None) for line in value.splitlines()):
        yield _problem(path, "or read it from a file of yours: NAME=$(cat FILE)")


def _is_named(path: tuple[str, ...], key: str) -> bool:
    return names_secret(key) if _holds_variables(path) else key.lower() in _ARGUMENTS


def _holds_variables(path: tuple[str, ...]) -> bool:
    return path[-1:] == ("env",) or path[-2:] == ("env", "set")


def _problem(path: tuple[str, ...], todo: str) -> Problem:
    what = "what looks like a secret would stand in the job's script, which Slurm keeps"
    return Problem(".".join(path), what, ALLOWED, todo)
