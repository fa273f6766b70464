"""The vllm stage's commands, run for real on folders like an image's: links, the backend's files, pip's user base."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from slurm_llm.errors import Problem
from slurm_llm.plan.prepared import python_folder
from slurm_llm.preparation import VllmStage
from slurm_llm.process import Completed, run
from slurm_llm.stages.recipe import FOLDER, Command, Product, beside
from slurm_llm.stages.vllmhome import needs_internet, vllm_commands

PLAIN = "nvcr.io/nvidia/tritonserver:25.12-py3"
WITH_VLLM = "nvcr.io/nvidia/tritonserver:25.12-vllm-python-py3"
SYSTEM_PYTHON = "/usr/bin/python3"


def _commands(own: VllmStage, product: Product, image: str | None, triton: str = "/opt/x") -> tuple[Command, ...]:
    problems: list[Problem] = []
    made = vllm_commands(own, product, image, (triton, SYSTEM_PYTHON), problems)
    assert not problems
    return made


def _run(commands: tuple[Command, ...], **environ: str) -> list[Completed]:
    return [run(command.argv, env={**os.environ, **environ}) for command in commands]


@pytest.fixture
def triton(tmp_path: Path) -> Path:
    """Return a folder that looks like /opt/tritonserver."""
    home = tmp_path / "opt tritonserver"
    for name in ("bin", "lib", "backends/python", "backends/vllm"):
        (home / name).mkdir(parents=True)
    (home / "bin" / "tritonserver").write_text("#!/bin/sh\n")
    (home / "bin" / "tritonserver").chmod(0o755)
    (home / "backends" / "vllm" / "model.py").write_text("old")
    return home


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder that looks like a checkout of vllm_backend."""
    (tmp_path / "checkout" / "src" / "utils").mkdir(parents=True)
    (tmp_path / "checkout" / "src" / "model.py").write_text("new")
    return tmp_path / "checkout"


def test_a_home_has_the_images_triton_and_its_own_backend(tmp_path: Path, triton: Path, checkout: Path) -> None:
    """What Triton looks for is there by links; the backend is the checkout's, and the image's own is untouched."""
    product = beside(str(tmp_path / "vllm home"), FOLDER, "r")
    commands = _commands(VllmStage(to=product.path, backend=str(checkout)), product, PLAIN, str(triton))
    assert [done.returncode for done in _run(commands)] == [0, 0]
    home = Path(product.part)
    assert (home / "bin" / "tritonserver").is_file() and (home / "backends" / "python").is_dir()
    assert (home / "backends" / "vllm" / "model.py").read_text() == "new"
    assert (home / "backends" / "vllm" / "utils").is_dir()
    assert (triton / "backends" / "vllm" / "model.py").read_text() == "old"


def test_what_is_no_triton_or_no_checkout_is_said(tmp_path: Path, triton: Path) -> None:
    """The stage fails with a line of its own, before anything is installed."""
    product = beside(str(tmp_path / "home"), FOLDER, "r")
    own = VllmStage(to=product.path, backend=str(tmp_path))
    nothing, _ = _run(_commands(own, product, PLAIN, str(tmp_path)))
    assert nothing.returncode == 1 and "no bin/tritonserver in" in nothing.stderr
    fine, no_checkout = _run(_commands(own, product, PLAIN, str(triton)))
    assert fine.returncode == 0
    assert no_checkout.returncode == 1 and "is it a checkout of vllm_backend?" in no_checkout.stderr


def test_the_backend_follows_the_image(tmp_path: Path) -> None:
    """A plain image gets the branch of its release from git, a vLLM image keeps its own backend; unknown is refused."""
    product = beside("/s/home", FOLDER, "r")
    plain = [command.text for command in _commands(VllmStage(to="/s/home"), product, PLAIN)]
    assert any("git clone --depth=1 --branch=r25.12 https://github.com/" in text for text in plain)
    own = VllmStage(to="/s/home", version="0.11.1")
    newer = [command.text for command in _commands(own, product, WITH_VLLM)]
    assert not any("git" in text for text in newer)
    assert any("PYTHONUSERBASE=/s/.home.r.part/python" in text and "vllm==0.11.1" in text for text in newer)
    problems: list[Problem] = []
    vllm_commands(VllmStage(to="/s/home"), product, "/i/mine.sqsh", (None, "python3"), problems)
    assert [problem.where for problem in problems] == ["prepare.vllm.ref"]


@pytest.mark.parametrize(
    ("own", "image", "wanted"),
    [
        (VllmStage(to="/h"), PLAIN, True),
        (VllmStage(to="/h"), WITH_VLLM, False),
        (VllmStage(to="/h", backend="/c"), PLAIN, False),
        (VllmStage(to="/h", backend="/c", version="1"), PLAIN, True),
        (VllmStage(to="/h", backend="/c", version="1", pip_args=("--no-index", "--find-links=/w")), PLAIN, False),
    ],
)
def test_it_is_known_what_needs_the_internet(own: VllmStage, image: str, wanted: bool) -> None:
    """Offline sites take a checkout and a folder of wheels."""
    assert needs_internet(own, image) is wanted


def _wheel(folder: Path) -> None:
    """Write a wheel called vllm that holds one module."""
    folder.mkdir()
    about = "vllm-9.9.dist-info"
    with zipfile.ZipFile(folder / "vllm-9.9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("vllm/__init__.py", "")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(
            f"{about}/RECORD", f"vllm/__init__.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n"
        )


def test_packages_of_the_user_base_come_before_the_systems(tmp_path: Path, triton: Path) -> None:
    """pip installs into the home although the system's Python is managed by apt, and the moved home still works."""
    _wheel(tmp_path / "wheels")
    product = beside(str(tmp_path / "home"), FOLDER, "r")
    offline = ("--no-index", f"--find-links={tmp_path / 'wheels'}", "--no-cache-dir")
    own = VllmStage(to=product.path, version="9.9", pip_args=offline)
    done = _run(_commands(own, product, WITH_VLLM, str(triton)), HOME=str(tmp_path), PIP_CONFIG_FILE=os.devnull)
    assert [one.returncode for one in done] == [0, 0, 0], done[-2].stderr
    assert "slurm_llm: vllm 9.9" in done[-1].stdout
    Path(product.part).rename(product.path)
    base = python_folder(product.path)
    look = (SYSTEM_PYTHON, "-c", "import sys, vllm; print(vllm.__file__, sys.path, sep='\\n')")
    file, folders = run(look, env={"PYTHONUSERBASE": base}).stdout.splitlines()
    assert file.startswith(base)
    assert folders.index(base) < folders.index("dist-packages")
