"""One rank's model repository: what is the run's own, what comes from the image, and what is said when it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import repository

AGENT = Path(repository.__file__).parent
TEMPLATE = 'a: "${alpha}"\nb: "${beta}"\nsaid: "${alpha}"\n'


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Lay out what an image holds, as read-only as a squashed one."""
    folder = tmp_path / "image" / "llmapi" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("print(1)\n")
    (folder / "model.yaml").write_text("model: theirs\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "model.pyc").write_bytes(b"\x00")
    (tmp_path / "image" / "config.pbtxt").write_text(TEMPLATE)
    for path in (folder / "model.py", folder / "model.yaml", folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return tmp_path / "image"


@pytest.fixture
def built(tmp_path: Path, image: Path) -> Callable[..., Path]:
    """Return a function that builds a repository of the run's own files and of `files`."""
    own = tmp_path / "run" / "repository"
    (own / "llm" / "1").mkdir(parents=True)
    (own / "llm" / "config.pbtxt").write_text('name: "llm"\n')
    (own / "llm" / "1" / "model.yaml").write_text("model: ours\n")

    def build(*files: dict[str, Any]) -> Path:
        into = tmp_path / "place"
        repository.build({"own": str(own), "files": list(files)}, str(into))
        return into

    return build


def test_a_folder_of_the_image_joins_the_runs_own_files(built: Callable[..., Path], image: Path) -> None:
    """model.py and all beside it come from the image; our model.yaml is not undone by the one that lies there."""
    into = built({"path": "llm/1", "sources": ["/absent/llmapi/1", str(image / "llmapi" / "1")]})
    assert (into / "llm" / "1" / "model.py").read_text() == "print(1)\n"
    assert (into / "llm" / "1" / "model.yaml").read_text() == "model: ours\n"
    assert (into / "llm" / "config.pbtxt").read_text() == 'name: "llm"\n'
    assert sorted(path.name for path in (into / "llm" / "1").iterdir()) == ["model.py", "model.yaml"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({}, TEMPLATE, id="as it is"),
        pytest.param(
            {"fill": {"alpha": "1:2,3"}}, 'a: "1:2,3"\nb: "${beta}"\nsaid: "1:2,3"\n', id="the rest stays unfilled"
        ),
        pytest.param({"append": "tail\n"}, TEMPLATE + "tail\n", id="appended"),
        pytest.param(
            {"replace": [["${beta}", "${gamma}"]], "fill": {"gamma": "3"}},
            'a: "${alpha}"\nb: "3"\nsaid: "${alpha}"\n',
            id="replaced before it is filled",
        ),
    ],
)
def test_a_file_of_the_image_is_changed(
    built: Callable[..., Path], image: Path, changes: dict[str, Any], text: str
) -> None:
    """Filling is that of NVIDIA's fill_template.py: only `${name}` that is named, everywhere."""
    into = built({"path": "llm/config.pbtxt", "sources": [str(image / "config.pbtxt")], **changes})
    assert (into / "llm" / "config.pbtxt").read_text() == text


@pytest.mark.parametrize(
    ("one", "message"),
    [
        pytest.param(
            {"path": "x", "sources": ["/a/x", "/b/x"]},
            "x must come from the image: there is no /a/x nor /b/x where the ranks run",
            id="no source",
        ),
        pytest.param(
            {"path": "x", "sources": ["IMAGE/config.pbtxt"], "fill": {"alpha": "1", "delta": "2", "e": "3"}},
            "IMAGE/config.pbtxt has no ${delta}, ${e}",
            id="unknown names",
        ),
        pytest.param(
            {"path": "x", "sources": ["IMAGE/config.pbtxt"], "replace": [["KIND_GPU", "KIND_CPU"]]},
            "IMAGE/config.pbtxt does not hold 'KIND_GPU', which was to be replaced",
            id="nothing to replace",
        ),
        pytest.param(
            {"path": "x", "sources": ["IMAGE/llmapi"], "append": "y"},
            "IMAGE/llmapi is a folder, only files can be filled",
            id="a folder to fill",
        ),
        pytest.param({"path": "../x", "sources": ["IMAGE/config.pbtxt"]}, "is not inside the repository", id="outside"),
    ],
)
def test_what_cannot_be_made_is_said(
    built: Callable[..., Path], image: Path, one: dict[str, Any], message: str
) -> None:
    """Each reason names the file: the person who reads it knows neither the image nor the template."""
    given = {**one, "sources": [source.replace("IMAGE", str(image)) for source in one["sources"]]}
    with pytest.raises(repository.Unusable) as caught:
        built(given)
    assert message.replace("IMAGE", str(image)) in str(caught.value)


def test_as_the_job_calls_it(tmp_path: Path, built: Callable[..., Path], image: Path) -> None:
    """By a bare python, with one line and exit status 73 when it fails; never into a folder that is there already."""
    into = built()
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"own": str(tmp_path / "run" / "repository"), "files": []}))
    words = [sys.executable, "-I", str(AGENT), "repository", "--recipe", str(recipe), "--into"]
    again = subprocess.run([*words, str(into)], capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, again.stdout) == (73, "")
    assert again.stderr == f"slurm_llm: no model repository: {into} is there already\n"
    fresh = subprocess.run([*words, str(tmp_path / "new")], capture_output=True, text=True, timeout=60, check=False)
    assert (fresh.returncode, fresh.stderr) == (0, "")
    assert (tmp_path / "new" / "llm" / "1" / "model.yaml").read_text() == "model: ours\n"
