"""Whole llmapi jobs under Slurm: every rendered line is real, TensorRT-LLM's launch surface is a stand-in."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import urllib.request
from pathlib import Path

import pytest

from slurm_llm.process import run as execute
from tests.cluster.conftest import Run, Spec, User

pytestmark = pytest.mark.cluster

SURFACE = Path(__file__).parents[1] / "engines" / "launch_surface"


def llmapi(user: User, launch: str, tensor: int, edition: str = "new", **arguments: object) -> Spec:
    """Return a spec whose image is the stand-in, copied to where the user's jobs can read it."""
    surface = user.folder / "stand-in"
    shutil.copytree(SURFACE, surface)
    account = pwd.getpwnam(user.cluster.user)
    for path in (surface, *surface.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid)
    return {
        "name": f"echo-{launch}",
        "engine": "llmapi",
        "launch": launch,
        "model": "echo",
        "tensor_parallel_size": tensor,
        "engine_args": {"all_models": str(surface / "image/app/all_models"), **arguments},
        "resources": {"nodes": 2 if tensor > 1 else 1, "time": "00:10:00"},
        "site": {"step_prologue": f'PATH="{surface / edition}:$PATH"'},
    }


def ask(run: Run, text: str) -> str:
    """Return the model's answer."""
    url = f"{run.url(120)}/v2/models/tensorrt_llm/generate"
    body = json.dumps({"text_input": text, "sampling_param_max_tokens": 2}).encode()
    with urllib.request.urlopen(url, body, timeout=30) as answer:
        return str(json.loads(answer.read())["text_output"])


def servers(run: Run) -> dict[int, int]:
    """Return the ranks that run a tritonserver and its process; its node-local folder bears the rank's number."""
    rows = execute(("ps", "-ww", "-u", run.user.cluster.user, "-o", "pid=,args=")).stdout.splitlines()
    start = re.compile(rf"\s*(\d+) \S*/llmrun-{run.job_id}\.0/(\d+)/triton/bin/tritonserver ")
    return {int(found[2]): int(found[1]) for row in rows if (found := start.match(row))}


@pytest.mark.parametrize(
    ("launch", "tensor", "ranks"),
    [
        pytest.param("llmapi_launch", 4, {0}, id="a server on rank 0"),
        pytest.param("leader", 4, {0, 1, 2, 3}, id="a server on every rank"),
        pytest.param("single", 1, {0}, id="one rank under mpirun"),
    ],
)
def test_a_job_answers_and_ends(user: User, launch: str, tensor: int, ranks: set[int]) -> None:
    """Ready, one answer, a cancel that leaves nothing behind."""
    run = user.submit(llmapi(user, launch, tensor))
    assert ask(run, "one two three") == " one two"
    assert set(servers(run)) == ranks
    run.cli("cancel")
    assert run.wait_ended(90)["state"] in ("CANCELLED", "COMPLETED"), run.output()


def test_an_argument_that_the_image_does_not_know_ends_the_job(user: User) -> None:
    """It passes the checks because another version has it; the job says what TensorRT-LLM said."""
    run = user.submit(llmapi(user, "single", 1, use_cuda_graph=True))
    assert run.wait_ended(120)["state"] == "FAILED", run.output()
    assert "unknown arguments: use_cuda_graph" in (run.attempt / "rank-0.log").read_text()


@pytest.mark.parametrize("edition", ["new", "old", "oldest"])
def test_a_server_that_dies_behind_the_launcher_fails_the_job(user: User, edition: str) -> None:
    """Old editions end with 0 and the oldest one not at all: the job must see the server itself."""
    spec = llmapi(user, "llmapi_launch", 2, edition)
    run = user.submit({**spec, "timeouts": {"unready_s": 5, "probe_s": 2, "answer_s": 5}})
    run.wait_ready(120)
    os.kill(servers(run)[0], signal.SIGKILL)
    assert run.wait_ended(120)["state"] == "FAILED", run.output()
