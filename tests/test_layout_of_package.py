"""House rules that a machine can check: sizes, docstrings, no leftovers, no path of one machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "slurm_llm").rglob("*.py"))
FOLDERS = ("slurm_llm", "job_templates", "site_configs", "tests", "docs", "benchmarks", ".ci")
TEXTS = sorted(
    path
    for path in (
        *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")),
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", ".gitignore")),
    )
    if path.is_file()
    and not {"__pycache__", "captures"} & set(path.parts)
    and path.suffix not in {".pyc", ".png", ".svg"}
)
MOST_LINES = 400
MOST_FUNCTION_LINES = 50
MOST_PARAMETERS = 6

# The environment of `make` and the devcluster's state have a documented place, for root on a fresh machine.
DEFAULT_STATE = (
    "Makefile",
    "slurm_llm/devcluster/",
    "slurm_llm/cli/devcluster.py",
    "tests/",
    "docs/",
    "README.md",
    ".ci/",
)
MACHINE_PATHS = re.compile(r"(?<![\w.~}])/(?:work/(?:main|shared|\.)|root/[\w.]|Users/|mnt/data/)")
STATE_PATH = re.compile(r"/var/lib/slurm_llm")
LEFTOVERS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_is_short(path: Path) -> None:
    """A module that grows is split along the data flow."""
    assert len(path.read_text(encoding="utf-8").splitlines()) < MOST_LINES


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_functions_are_small(path: Path) -> None:
    """At most 50 lines and six parameters; click's commands take one parameter for each of their options."""
    for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
        assert (function.end_lineno or 0) - function.lineno < MOST_FUNCTION_LINES, function.name
        if function.decorator_list and path.parent.name == "cli":
            continue
        own = [word for word in function.args.args + function.args.kwonlyargs if word.arg not in {"self", "cls"}]
        assert len(own) <= MOST_PARAMETERS, function.name


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_everything_public_is_documented(path: Path) -> None:
    """Every module has a docstring, and so has every public class and function of it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} in line {node.lineno}"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=_name)
def test_every_test_says_what_it_proves(path: Path) -> None:
    """Each test function has a docstring."""
    for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
        if function.name.startswith("test_"):
            assert ast.get_docstring(function), function.name


def test_there_is_something_to_check() -> None:
    """The tables above are not empty by a mistake in a path."""
    assert len(MODULES) > 20
    assert len(TEXTS) > 50


@pytest.mark.parametrize("path", TEXTS, ids=_name)
def test_nothing_unfinished_and_no_machine_of_ours_is_left(path: Path) -> None:
    """No note to ourselves, and no path that only one machine has."""
    text = path.read_text(encoding="utf-8")
    assert LEFTOVERS.findall(text) == []
    assert [found for found in MACHINE_PATHS.findall(text) if path != Path(__file__).resolve()] == []
    if not _name(path).startswith(DEFAULT_STATE):
        assert STATE_PATH.findall(text) == []
