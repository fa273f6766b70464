"""Model files by the names that ranks use: paths, Hugging Face ids, and what a container's mounts make of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_llm.modelfiles import ModelFiles


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    """A working folder with a model in it, and a cache that holds two snapshots of another."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return ModelFiles({"HF_HOME": str(tmp_path / "hf")}, tmp_path)


def test_a_models_files(files: ModelFiles, tmp_path: Path) -> None:
    """Relative to the working folder, or absolute; None for what is not there."""
    for model in ("model", str(tmp_path / "model")):
        assert files.folder(model) == model
        assert files.names(model) == ("config.json",)
        assert (files.text(f"{model}/config.json"), files.size(f"{model}/config.json")) == ("{}", 2)
    assert (files.text("model"), files.names("model/config.json"), files.size("no/such")) == (None, None, None)


@pytest.mark.parametrize(
    ("path", "missing"),
    [("model/config.json", False), ("model", False), ("model/", False), ("model/x", True), ("no/such", False)],
)
def test_what_is_surely_missing(files: ModelFiles, path: str, missing: bool) -> None:
    """A parent that is not here either may be on the compute nodes alone."""
    assert files.missing(path) is missing


def test_an_id_is_looked_up_in_the_cache(files: ModelFiles, tmp_path: Path) -> None:
    """The newest snapshot counts; an id without one has no folder, and a path is no id."""
    assert files.folder("org/name") is None
    snapshots = tmp_path / "hf" / "hub" / "models--org--name" / "snapshots"
    for age, name in enumerate(("b", "a")):
        (snapshots / name).mkdir(parents=True)
        os.utime(snapshots / name, (1e9 - age, 1e9 - age))
    assert files.folder("org/name") == str(snapshots / "b")
    assert files.folder("/org/name") is None


def test_a_containers_paths_are_looked_up_at_the_mounts_source(tmp_path: Path) -> None:
    """What lies below no mount is the image's own: nothing is known of it here."""
    (tmp_path / "models" / "llama").mkdir(parents=True)
    (tmp_path / "models" / "llama" / "config.json").write_text("{}")
    inner = tmp_path / "other"
    inner.mkdir()
    mounts = [("/models", str(tmp_path / "models")), ("/models/inner", str(inner))]
    files = ModelFiles({}, tmp_path, mounts)
    assert files.text("/models/llama/config.json") == "{}"
    assert files.names("/models/inner") == ()
    assert (files.missing("/models/mistral"), files.missing("/app/all_models")) == (True, False)
    assert files.text(str(tmp_path / "models" / "llama" / "config.json")) is None
