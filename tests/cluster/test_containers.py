"""A rehearsal on two nodes in a real container: PMIx, shared memory, mounts, variables and signals cross its wall."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Run, Spec, User
from tests.cluster.test_main_job import ask

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
BUILD_S = 300
PODMAN = Path("/var/lib/slurm_llm/podman-hpc")
VALUE = 'it\'s = "quoted" $HOME `id` \\'
TELL = "cat /etc/slurm_llm-image\nprintf 'TOLD=<%s>\\n' \"$TOLD\" && cat /mnt/1/weights"


@dataclass(frozen=True)
class Box:
    """How the ranks get into the image: its name, and the site's rules for containers."""

    image: str
    rules: dict[str, Any]


def script(name: str, *words: str) -> str:
    """Run a script beside this file and return the last line that it printed."""
    command = ["bash", str(HERE / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().rpartition("\n")[2]


@pytest.fixture(scope="session")
def image() -> Path:
    """The image's folder; building it takes a minute, once."""
    return Path(script("image.sh", sys.executable))


@pytest.fixture(params=["charliecloud", "podman_hpc"])
def box(request: pytest.FixtureRequest, user: User, image: Path) -> Iterator[Box]:
    """A container runtime that works on two nodes."""
    if request.param == "charliecloud":
        yield Box(str(image), {"runtime": "charliecloud"})
        return
    script("podman.sh", "install", str(PODMAN))

    def everywhere(*words: str) -> list[str]:
        def on(node: str) -> str:
            done = user.cluster.on_node(node, "bash", str(HERE / "podman.sh"), *words)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        with ThreadPoolExecutor() as pool:
            return list(pool.map(on, user.cluster.nodes[:2]))

    try:
        name = everywhere("load", str(PODMAN), user.cluster.user, str(image))[0]
        yield Box(name, {"runtime": "podman_hpc", "program": f"{PODMAN}/podman-hpc", "podman_hpc": {"gpu": False}})
    finally:
        everywhere("unload", user.cluster.user)


@pytest.fixture
def data(user: User) -> Path:
    """A folder of the user's with a space and an equals sign in its name, to be mounted."""
    folder = user.folder / "data = weights"
    folder.mkdir()
    (folder / "weights").write_text("heavy\n")
    return folder


def inside(box: Box, data: Path) -> Spec:
    """Return a spec of two nodes × two ranks in a container with `data` mounted, whose ranks say where they are."""
    return {
        **two_nodes("inside"),
        "container": {"image": box.image, "mounts": [f"{data}:/mnt/1"]},
        "site": {
            "container": box.rules,
            "step_prologue": TELL,
            # NVIDIA's images have this variable; not every runtime reads an image's variables.
            "env": {"prepend": {"LD_LIBRARY_PATH": ["/opt/tritonserver/lib"]}},
        },
        "env": {"TOLD": VALUE},
    }


def two_nodes(name: str) -> Spec:
    """Return a spec of two nodes × two ranks."""
    return {
        "name": name,
        "engine": "rehearsal",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "resources": {"nodes": 2, "time": "00:10:00"},
    }


def rank_log(run: Run, rank: int) -> str:
    """Return what a rank has said so far."""
    return (run.attempt / f"rank-{rank}.log").read_text(errors="replace")


def test_a_rehearsal_in_a_container_is_the_same_rehearsal(user: User, image: Path, box: Box, data: Path) -> None:
    """Ready, the same text, every rank inside; cancel ends it in order and leaves nothing (the fixture looks)."""
    within, without = user.submit(inside(box, data)), user.submit(two_nodes("outside"))
    texts = {
        ask(run.url(), "The quick brown fox", sampling_param_max_tokens=24)["text_output"] for run in (within, without)
    }
    assert len(texts) == 1, texts
    status = json.loads(within.cli("status", "--json").stdout)
    assert (status["state"], status["ranks_ready"], status["ranks_total"]) == ("READY", 4, 4)

    marker = (image / "etc" / "slurm_llm-image").read_text()
    for rank in range(4):
        said = rank_log(within, rank)
        assert marker in said
        assert f"TOLD=<{VALUE}>\nheavy\n" in said
        mapped = Path(f"/proc/{within.pid(rank, main=True)}/maps").read_text()
        assert "/opt/tritonserver/" in mapped
        assert sys.prefix not in mapped
    assert marker not in rank_log(without, 0)
    command = 'cat /etc/slurm_llm-image; echo "$SLURMD_NODENAME $LLMRUN_RANK $TOLD"; tty -s; exit 9'
    inner = within.cli("shell", "--rank", "3", "--", "bash", "-c", command, check=False)
    assert inner.stdout == f"{marker}{user.cluster.nodes[1]} 3 {VALUE}\n", inner.stderr
    assert inner.returncode == 9

    without.cli("cancel")
    within.cli("cancel")
    result = within.wait_ended()
    assert (result["state"], result["exit_code"], within.slurm_state()) == ("COMPLETED", 0, "COMPLETED")


def test_a_rank_killed_in_its_container_is_named(user: User, box: Box, data: Path) -> None:
    """The agents on the nodes see into containers: the right rank, node and signal."""
    run = user.submit(inside(box, data))
    run.wait_ready()
    os.kill(run.pid(3, main=False), signal.SIGKILL)
    result = run.wait_ended(60)
    assert (result["state"], run.slurm_state()) == ("FAILED", "FAILED"), result
    first = result["first"]
    assert (first["rank"], first["node"], first["how"]) == (3, user.cluster.nodes[1], "signal SIGKILL"), result


def test_an_image_that_nodes_do_not_have(user: User, data: Path) -> None:
    """The job ends at once, with the image and the node in one line."""
    missing = data / "no image"
    run = user.submit(inside(Box(str(missing), {"runtime": "charliecloud"}), data))
    result = run.wait_ended(60)
    assert result["state"] == "FAILED"
    lines = (run.attempt / "preflight.log").read_text().splitlines()
    found = {line.partition("slurm_llm: ")[2] for line in lines if "slurm_llm: " in line}
    assert found == {f"node {node}: there is no image {missing}" for node in user.cluster.nodes[:2]}
