"""Finding the Triton of the `nvidia-pytriton` wheel on this machine, without importing or changing it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = "pytriton"
LIBRARIES = "nvidia_pytriton.libs"


def wheel_links(version: tuple[int, int] = sys.version_info[:2]) -> dict[str, Path]:
    """Return the links of a Triton home made of the installed wheel's files; empty when there is no wheel."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return {}
    return home_links(Path(next(iter(spec.submodule_search_locations))), version)


def home_links(package: Path, version: tuple[int, int]) -> dict[str, Path]:
    """Return link name → target of a Triton home made of the unpacked wheel's `pytriton` folder; empty if it lacks any.

    Triton wants its Python stub beside `libtriton_python.so`; the wheel keeps one a Python version elsewhere, and its
    libraries in a folder of their own (nvidia-pytriton 0.5.3 and 0.7.0).
    """
    server = package / "tritonserver"
    stub = server / "python_backend_stubs" / f"{version[0]}.{version[1]}" / "triton_python_backend_stub"
    backend = server / "backends" / "python"
    links = {
        "bin/tritonserver": server / "bin" / "tritonserver",
        "lib": package.parent / LIBRARIES,
        "backends/python/triton_python_backend_stub": stub,
        "backends/python/libtriton_python.so": backend / "libtriton_python.so",
        "backends/python/triton_python_backend_utils.py": backend / "triton_python_backend_utils.py",
    }
    return links if all(target.exists() for target in links.values()) else {}
