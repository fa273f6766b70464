"""What each layer loads, measured in a fresh Python, and the rules of imports that import-linter cannot express."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "slurm_llm"
MODULES = sorted(PACKAGE.rglob("*.py"))
IN_JOB = [path for path in MODULES if path.parent.name in {"agent", "rehearsal"}]
OLDEST = (3, 6)
"""The oldest Python that a compute node or an image runs what runs in the job with."""

NEWER_THAN_OLDEST = {"contextvars", "dataclasses", "graphlib", "tomllib", "zoneinfo", "importlib.metadata"}
SCHEMA = {"pydantic", "pydantic_core"}
HEAVY = SCHEMA | {"jinja2", "yaml", "httpx", "rich", "numpy", "mpi4py"}

LOADS: dict[str, set[str]] = {
    "slurm_llm": HEAVY | {"click", "subprocess", "ssl"},
    "slurm_llm.errors": HEAVY | {"click", "subprocess"},
    "slurm_llm.rundir": HEAVY | {"click", "subprocess"},
    "slurm_llm.record": HEAVY | {"click", "subprocess"},
    "slurm_llm.topology": HEAVY | {"click", "subprocess"},
    "slurm_llm.slurm.client": HEAVY | {"click", "subprocess"},
    "slurm_llm.observe.facts": HEAVY | {"click", "subprocess"},
    "slurm_llm.observe.health": HEAVY | {"click", "subprocess"},
    "slurm_llm.observe.logs": HEAVY | {"click", "subprocess"},
    "slurm_llm.observe.status": HEAVY | {"click", "subprocess"},
    "slurm_llm.observe.live": HEAVY | {"click", "subprocess"},
    "slurm_llm.observe.livejournal": HEAVY | {"click", "subprocess"},
    "slurm_llm.observe.report": HEAVY | {"click", "subprocess"},
    "slurm_llm.page": HEAVY - {"jinja2"} | {"click", "subprocess", "ssl"},
    "slurm_llm.runs": HEAVY | {"click", "ssl"},
    "slurm_llm.waiting": HEAVY | {"click", "ssl"},
    "slurm_llm.api": HEAVY | {"click", "ssl"},
    "slurm_llm.cli": HEAVY | {"subprocess", "ssl"},
    "slurm_llm.cli.watch": HEAVY | {"ssl"},
    "slurm_llm.cli.logs": HEAVY | {"ssl"},
    "slurm_llm.cli.logschoice": HEAVY | {"ssl"},
    "slurm_llm.cli.act": HEAVY | {"ssl"},
    "slurm_llm.cli.endpoint": HEAVY | {"ssl"},
    "slurm_llm.cli.metrics": HEAVY | {"ssl"},
    "slurm_llm.cli.reporting": HEAVY | {"ssl"},
    "slurm_llm.cli.top": HEAVY | {"ssl"},
    "slurm_llm.observe.metricsnotes": HEAVY | {"click", "subprocess"},
    "slurm_llm.cli.devcluster": HEAVY | {"slurm_llm.devcluster"},
    "slurm_llm.yamlio": SCHEMA | {"jinja2", "click", "subprocess"},
    "slurm_llm.spec": {"jinja2", "click", "httpx", "rich", "numpy", "subprocess"},
    "slurm_llm.sites.load": {"jinja2", "click", "httpx", "rich", "numpy", "subprocess"},
    "slurm_llm.plan": {"jinja2", "click", "httpx", "rich", "numpy", "subprocess"},
    "slurm_llm.render": {"click", "httpx", "rich", "numpy", "mpi4py"},
    "slurm_llm.app": {"click", "httpx", "rich", "numpy", "mpi4py"},
    "slurm_llm.triton": SCHEMA | {"jinja2", "yaml", "numpy"},
    "slurm_llm.devcluster": HEAVY | {"click"},
}


@pytest.mark.parametrize("module", LOADS)
def test_a_layer_loads_nothing_heavy_that_it_does_not_use(module: str) -> None:
    """`--help`, `status` and `logs` start fast: no schema, template or HTTP library is loaded on the way."""
    code = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not LOADS[module] & set(done.stdout.split())


def _imports(path: Path) -> Iterator[str]:
    """Yield the full name of every module that `path` imports anywhere, relative ones resolved."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join((*base, *(node.module or "").split("."))).strip(".")


def _name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", IN_JOB, ids=_name)
def test_what_runs_in_the_job_imports_nothing_of_ours(path: Path) -> None:
    """Agent and rehearsal are copied into run directories: they know only their own folder, by relative imports."""
    own = f"slurm_llm.{path.parent.name}"
    ours = {name for name in _imports(path) if name.split(".")[0] == "slurm_llm"}
    assert all(name == own or name.startswith(own + ".") for name in ours)


@pytest.mark.parametrize("path", IN_JOB, ids=_name)
def test_what_runs_in_the_job_needs_only_python(path: Path) -> None:
    """The standard library as old Pythons have it; the rehearsal adds numpy and Triton's own module, both mpi4py."""
    allowed = {"mpi4py"} | ({"numpy", "triton_python_backend_utils"} if path.parent.name == "rehearsal" else set())
    own = {file.stem for file in path.parent.glob("*.py")} | {"slurm_llm"}
    others = {name.split(".")[0] for name in _imports(path)} - set(sys.stdlib_module_names) - allowed - own
    assert others == set()
    if path.parent.name == "agent":
        assert not NEWER_THAN_OLDEST & set(_imports(path))


@pytest.mark.parametrize("path", [path for path in IN_JOB if path.parent.name == "agent"], ids=_name)
def test_the_agent_is_written_for_old_pythons(path: Path) -> None:
    """No syntax and no future import that Python 3.6 does not have."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]


def _shell_calls(path: Path) -> Iterator[int]:
    """Yield the lines that hand a text to a shell."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        shell = [word for word in node.keywords if word.arg == "shell"]
        if called in {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"} or any(
            not (isinstance(word.value, ast.Constant) and word.value.value is False) for word in shell
        ):
            yield node.lineno


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_nothing_is_handed_to_a_shell(path: Path) -> None:
    """Commands are lists of words everywhere."""
    assert list(_shell_calls(path)) == []


def test_the_layers_of_imports_hold() -> None:
    """import-linter's contracts in pyproject.toml are kept."""
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([str(program), "--no-cache"], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
