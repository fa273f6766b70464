"""The vllm stage: a Triton home with the vLLM backend, beside what the image has.

From README.md of triton-inference-server/vllm_backend: the backend is the files of its `src`, in a folder `vllm` among
Triton's backends, and vLLM is installed with pip; the same pip makes it a newer one. Nobody may write into a cluster's
image, so the home is a folder of links into it, and packages go to a Python user base (PEP 370).
"""

from __future__ import annotations

import shlex

from slurm_llm.engines.releases import VLLM, release_of
from slurm_llm.errors import Problem
from slurm_llm.plan.prepared import USER_BASE, python_folder
from slurm_llm.preparation import VllmStage
from slurm_llm.stages.recipe import Command, Product

OPT_TRITON = "/opt/tritonserver"
REPOSITORY = "https://github.com/triton-inference-server/vllm_backend.git"

_LINKS = """set -e
mkdir -p "$2/backends"
for one in bin lib; do [ ! -e "$1/$one" ] || ln -sfn "$1/$one" "$2/$one"; done
for one in "$1"/backends/*; do ln -sfn "$one" "$2/backends/${one##*/}"; done
[ -x "$2/bin/tritonserver" ] || { echo "slurm_llm: no bin/tritonserver in $1" >&2; exit 1; }
[ -e "$2/backends/python" ] || { echo "slurm_llm: no Python backend in $1/backends" >&2; exit 1; }"""
_BACKEND = """set -e
[ -e "$1/src/model.py" ] || { echo "slurm_llm: no src/model.py in $1: is it a checkout of vllm_backend?" >&2; exit 1; }
rm -rf "$2"
mkdir -p "$2"
cp -r "$1"/src/. "$2"/"""
_VERSION = 'import importlib.metadata as found; print("slurm_llm: vllm", found.version("vllm"))'


def vllm_commands(
    own: VllmStage, product: Product, image: str | None, places: tuple[str | None, str], problems: list[Problem]
) -> tuple[Command, ...]:
    """Return what makes the home; `places` are the site's Triton, where it says, and the image's Python."""
    triton, python = places
    part = product.part
    commands = [_shell(_LINKS, "links to Triton's own", triton or OPT_TRITON, part)]
    commands += _backend(own, part, image, problems)
    if own.version is not None or own.packages:
        wanted = [] if own.version is None else [f"vllm=={own.version}"]
        base = f"{USER_BASE}={python_folder(part)}"
        # Ubuntu 24.04 marks its Python as managed by apt, and pip refuses even a user's own folder without this.
        pip = ("env", base, "PIP_BREAK_SYSTEM_PACKAGES=1", python, "-m", "pip", "install", "--user", "--upgrade")
        commands.append(
            Command((*pip, "--no-warn-script-location", *own.pip_args, *wanted, *own.packages), inside=True)
        )
        commands.append(Command(("env", base, python, "-c", _VERSION), inside=True))
    return tuple(commands)


def needs_internet(own: VllmStage, image: str | None) -> bool:
    """Tell whether making the home fetches anything."""
    installs = bool(own.version or own.packages) and "--no-index" not in own.pip_args
    return installs or (_source(own, image) or "").startswith(("http", "git@", "ssh:"))


def _source(own: VllmStage, image: str | None) -> str | None:
    """Return where the backend is from; None is the image's own."""
    release = release_of(image)
    if own.backend is None and release is not None and release.flavour == VLLM:
        return None
    return own.backend or REPOSITORY


def _backend(own: VllmStage, part: str, image: str | None, problems: list[Problem]) -> list[Command]:
    source, target = _source(own, image), f"{part}/backends/vllm"
    if source is None:
        return []
    if source.startswith("/"):
        return [_shell(_BACKEND, "the backend's files", source, target)]
    release = release_of(image)
    ref = own.ref or (None if release is None else f"r{release.triton}")
    if ref is None:
        what = "the image's name tells no Triton release, so which backend fits is not known"
        problems.append(Problem("prepare.vllm.ref", what, "a branch of vllm_backend, as r25.09", "set it"))
        return []
    clone = f"{part}/vllm_backend"
    words = ("git", "clone", "--depth=1", f"--branch={ref}", source, clone)
    return [Command(words, inside=True), _shell(_BACKEND, "the backend's files", clone, target)]


def _shell(text: str, what: str, source: str, target: str) -> Command:
    shown = f"{what}: {shlex.quote(source)} -> {shlex.quote(target)}"
    return Command(("bash", "-c", text, "bash", source, target), inside=True, shown=shown)
