"""`image` on a real cluster: the same is seen by this machine's runtime and by a job, in an image and on the nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.process import Completed
from tests.cluster.conftest import Spec, User
from tests.cluster.test_containers import image
from tests.image_stand_in import write_engine

pytestmark = pytest.mark.cluster

__all__ = ["image"]


@pytest.fixture(scope="module")
def trtllm(image: Path) -> Iterator[Path]:
    """An image with what NVIDIA's has of TensorRT-LLM as files; linked to the tests' own one, not copied."""
    made = image.with_name(f"{image.name}-trtllm")
    shutil.rmtree(made, ignore_errors=True)
    subprocess.run(["cp", "-al", str(image), str(made)], check=True, timeout=60)
    write_engine(made / "usr/lib/python3/dist-packages", made)
    yield made
    shutil.rmtree(made)


def spec_for(place: Path, **arguments: object) -> Spec:
    """Return a spec whose ranks run in that image."""
    return {
        "name": "seen",
        "engine": "llmapi",
        "model": "org/model",
        "container": {"image": str(place)},
        "site": {"container": {"runtime": "charliecloud"}},
        "engine_args": arguments,
    }


def cli(user: User, verb: str, *words: str, check: bool = True) -> Completed:
    """Run a verb with a cache of the test's own: what is seen here is not to count for other tests' specs."""
    cache = f"XDG_CACHE_HOME={user.folder / 'cache'}"
    return user.run("env", cache, *user.program, verb, *words, "--site", "devcluster", check=check)


def look(user: User, path: Path, *words: str) -> tuple[dict[str, Any], str]:
    """Return what `image` prints, and what it tells meanwhile."""
    done = cli(user, "image", str(path), "--json", *words)
    value: dict[str, Any] = json.loads(done.stdout)
    return value, done.stderr


def test_here_and_in_a_job_the_same_is_seen(user: User, trtllm: Path) -> None:
    """Then the image's own arguments count: what it alone knows passes, and what it does not know is refused."""
    path = user.write_spec(spec_for(trtllm, brand_new_argument=True))
    here, _ = look(user, path)
    job, told = look(user, path, "--job")
    assert (here["by"], job["by"].split()[0]) == ("this machine", "job")
    assert job["by"] in told
    assert {key: here[key] for key in here if key not in ("by", "seen")} == {
        key: job[key] for key in job if key not in ("by", "seen")
    }
    assert here["engines"]["tensorrt_llm"]["names"][0] == "brand_new_argument"
    assert here["launcher"] == {"path": "/usr/local/bin/trtllm-llmapi-launch", "ends_with_task": True}

    assert cli(user, "validate", str(path)).stdout.startswith("valid: ")
    user.write_spec(spec_for(trtllm, brand_new_argumnet=True), path.name)
    refused = cli(user, "validate", str(path), check=False)
    assert f"image {trtllm} (1.2.9) knows no such argument" in refused.stderr
    assert "did you mean 'brand_new_argument'?" in refused.stderr
    assert not list(user.folder.glob("logs/image-*"))


def test_the_nodes_are_looked_at_by_a_job(user: User) -> None:
    """Without a container the job's Python is asked, as the ranks' Triton will take it."""
    path = user.write_spec({"name": "seen", "engine": "vllm", "model": "/org/model"})
    seen, _ = look(user, path)
    assert seen["by"].startswith("job ") and seen["image"] == "a node of site devcluster"
    assert seen["versions"]["numpy"]
    assert seen["engines"]["vllm"] is None
    refused = cli(user, "validate", str(path), check=False)
    assert "a node of site devcluster holds no vLLM" in refused.stderr


def test_a_job_that_cannot_look_says_why(user: User) -> None:
    """The runtime's own words, and nothing is kept: what was not seen is not known."""
    path = user.write_spec(spec_for(Path("/nowhere/image")))
    done = cli(user, "image", str(path), check=False)
    assert done.returncode != 0
    assert "there is no image /nowhere/image" in done.stderr
    kept = cli(user, "image", str(path), "--kept", "--job", check=False)
    assert "the image was not looked into" in kept.stderr
