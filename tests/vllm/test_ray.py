"""Real vLLM on two nodes through a real Ray, under real Triton and Slurm: what the ray launch renders, unchanged.

vLLM has no Ray on CPUs: a platform of our own (`ray_on_cpu`) lets it take two nodes' CPUs for GPUs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.process import run
from tests.cluster.conftest import Cluster, Run, User, wait_for
from tests.vllm.conftest import READY_S, VENV, VLLM_ENV, Stage, ask

SITE_PACKAGES = next((VENV / "lib").glob("python3.*/site-packages"), Path("/nowhere"))

pytestmark = pytest.mark.vllm

PROMPT = "The future of AI is"


@pytest.fixture(scope="module")
def python(stage: Stage) -> Path:
    """A Python environment over that of vLLM, with the platform in it: Triton's stub reads no PYTHONPATH."""
    venv = stage.model.parent / "venv"
    subprocess.run([VENV / "bin" / "python3", "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    folder = venv / "lib" / SITE_PACKAGES.parent.name / "site-packages"
    below = [str(SITE_PACKAGES)]
    (folder / "below.pth").write_text("\n".join(below) + "\n")
    shutil.copy2(SITE_PACKAGES / "utf8.pth", folder)
    here = Path(__file__).parent / "ray_on_cpu"
    shutil.copytree(here, folder / here.name, ignore=shutil.ignore_patterns("__pycache__"))
    about = folder / "ray_on_cpu-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ray-on-cpu\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vllm.platform_plugins]\nray_on_cpu = ray_on_cpu:platform\n")
    return venv / "bin" / "python"


def submit(user: User, stage: Stage, python: Path, **changes: Any) -> Run:
    """Submit a model in two stages on two nodes."""
    own = {name: value for name, value in VLLM_ENV.items() if name != "TORCH_COMPILE_DISABLE"}
    # With stages vLLM's switch `enforce_eager` fails an assertion on CPUs; this is what it stands for.
    arguments = {"enforce_eager": False, "compilation_config": {"mode": 2, "backend": "eager"}}
    return user.submit(
        stage.spec(
            "over-ray",
            launch="ray",
            pipeline_parallel_size=2,
            # Ray's own processes take half a gigabyte on each node; memory goes by CPUs here.
            resources={"nodes": 2, "time": "00:15:00", "cpus_per_rank": 4},
            env=own,
            site={"python": str(python)},
            engine_args=arguments,
            **changes,
        )
    )


def ray_processes(cluster: Cluster) -> list[str]:
    """Return what of Ray runs for the user."""
    rows = run(("ps", "-u", cluster.user, "-o", "stat=,args=")).stdout.splitlines()
    return [row for row in rows if "ray" in row.split(maxsplit=1)[1] and not row.startswith("Z")]


def raylet(made: Run, rank: int) -> int:
    """Return the process id of a rank's raylet."""
    found = [item for item in made.records() if item["kind"] == "found" and item["name"] == "raylet"]
    (one,) = [item for item in found if item["rank"] == rank]
    return int(one["pid"])


def test_two_nodes_serve_one_model(everything: Run, vllm_user: User, stage: Stage, python: Path) -> None:
    """A stage on each node, and the text of one node alone; a killed raylet is named, and nothing of Ray stays."""
    made = submit(vllm_user, stage, python)
    endpoint = made.wait_ready(READY_S)
    assert "2 of 2 nodes have joined Ray" in (made.attempt / "rank-0.log").read_text(errors="replace")
    workers = {item["node"] for item in made.records() if item["kind"] == "sample" and len(item["ranks"])}
    assert len(workers) == 2
    assert ask(str(endpoint["instances"][0]["url"]), PROMPT) == ask(everything.url(), PROMPT)
    os.kill(raylet(made, 1), signal.SIGKILL)
    result = made.wait_ended(60)
    assert result["state"] == "FAILED"
    assert (result["first"]["rank"], result["first"]["name"]) == (1, "raylet"), json.dumps(result)
    assert (made.attempt / "ray-logs-1" / "raylet.out").exists()
    wait_for("nothing of Ray", lambda: not ray_processes(vllm_user.cluster))


def test_a_stop_while_ray_gathers_leaves_nothing(vllm_user: User, stage: Stage, python: Path) -> None:
    """The leader is not Triton yet, and its workers know nothing of an end but their head's."""
    made = submit(vllm_user, stage, python)
    wait_for("Ray's head", lambda: (made.attempt / "ray-0").exists())
    made.cli("cancel")
    assert made.wait_ended(60)["state"] == "CANCELLED"
    wait_for("nothing of Ray", lambda: not ray_processes(vllm_user.cluster))
