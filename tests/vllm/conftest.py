"""A real vLLM on the CPU under a real Triton, for jobs of an ordinary user on the devcluster.

The Python that has vLLM is in the folder that VLLM_VENV names, by default the one beside the tests' own that
`make test-vllm` sets up. The repository is what slurm_llm renders; the backend is the small one of this folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.process import run
from slurm_llm.tritonhome import home_links
from tests.cluster.conftest import Cluster, Run, User, cluster, insist_on_none, watched_user
from tests.vllm.tiny_model import CONTEXT, write_adapter, write_model

__all__ = ["cluster"]

VENV = Path(os.environ.get("VLLM_VENV", f"{sys.prefix}-vllm"))
BACKEND = Path(__file__).parent / "backend"
READY_S = 240.0
VLLM_ENV = {
    # Two cores for everything: one thread a rank, bound to no core, and no C++ compiled at the first request.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": 1,
    "TORCH_COMPILE_DISABLE": 1,
    "HF_HUB_OFFLINE": 1,
}


@dataclass(frozen=True)
class Stage:
    """What lies ready for jobs: a Triton home with the backend, a model, and two adapters."""

    home: Path
    model: Path
    adapters: dict[str, str]

    def spec(self, name: str, **changes: Any) -> dict[str, Any]:
        """Return a spec of the vllm engine; `changes` replace keys, those of `engine_args` are added."""
        arguments = {"max_model_len": CONTEXT, "enforce_eager": True, "kv_cache_memory_bytes": 64 << 20}
        own = {
            "name": name,
            "engine": "vllm",
            "model": str(self.model),
            "resources": {"nodes": 1, "time": "00:15:00"},
            # The devcluster's KillWait is 10 s; vLLM takes most of that to end its processes.
            "triton": {"server": str(self.home), "exit_timeout_s": 9},
            "env": VLLM_ENV,
            "site": {"python": str(VENV / "bin" / "python")},
        }
        return {**own, **changes, "engine_args": {**arguments, **changes.get("engine_args", {})}}


@pytest.fixture(scope="session")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Lay out Triton, backend, model and adapters where every simulated node and the user can read them."""
    folder = cluster.state.parent / f"vllm-stage-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o755)
    site_packages = next((VENV / "lib").glob("python3.*/site-packages"))
    version = tuple(int(part) for part in re.findall(r"\d+", site_packages.parent.name))
    home = folder / "triton"
    for name, target in home_links(site_packages / "pytriton", (version[0], version[1])).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        # Triton refuses a Python-based backend whose library is a link that leads out of the backends' folder.
        if name.startswith("backends"):
            shutil.copy2(target, home / name)
        else:
            (home / name).symlink_to(target)
    shutil.copytree(BACKEND, home / "backends" / "vllm", ignore=shutil.ignore_patterns("__pycache__"))
    model = write_model(folder / "model")
    adapters = {name: str(write_adapter(folder / name, seed)) for seed, name in enumerate(("ada", "bob"), 1)}
    yield Stage(home, model, adapters)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def vllm_user(cluster: Cluster) -> Iterator[User]:
    """The ordinary user of all runs here; when they are over, nothing is left of Triton nor of vLLM."""
    yield from watched_user(cluster, "vllm")
    insist_on_none("processes of vLLM", lambda: list(vllm_processes(cluster).values()))


@pytest.fixture(scope="session")
def everything(vllm_user: User, stage: Stage) -> Run:
    """One run with metrics, health check and adapters, for all tests that only ask; it lies on the first node."""
    more = {"lora": stage.adapters, "max_lora_rank": 8, "triton_config": {"ENABLE_VLLM_HEALTH_CHECK": True}}
    here = [f"--nodelist={vllm_user.cluster.nodes[0]}"]
    made = vllm_user.submit(stage.spec("everything", engine_args=more, sbatch_extra=here))
    made.wait_ready(READY_S)
    return made


def vllm_processes(cluster: Cluster) -> dict[int, str]:
    """Return process id → title of what vLLM has started for the user; nobody ends these when their parent dies."""
    rows = [
        row.split(maxsplit=2) for row in run(("ps", "-u", cluster.user, "-o", "pid=,stat=,args=")).stdout.splitlines()
    ]
    return {int(pid): title for pid, state, title in rows if "VLLM" in title and not state.startswith("Z")}


def post(url: str, body: dict[str, Any], verb: str = "generate") -> tuple[int, dict[str, Any]]:
    """Send one request to the model, past any proxy; return status and answer."""
    request = urllib.request.Request(f"{url}/v2/models/vllm_model/{verb}", json.dumps(body).encode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask(url: str, prompt: str, tokens: int = 8, **more: Any) -> str:
    """Return what the model goes on with, decoded greedily."""
    parameters = {"temperature": 0, "max_tokens": tokens, **more}
    body = {"text_input": prompt, "exclude_input_in_output": True, "parameters": parameters}
    status, answer = post(url, body)
    assert status == 200, answer
    return str(answer["text_output"])


def metrics(endpoint: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of the metrics page that vLLM has put there, without labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(endpoint["metrics"], timeout=10) as answer:
        rows = answer.read().decode().splitlines()
    found = {}
    for row in rows:
        name, _, value = row.rpartition(" ")
        if row.startswith("vllm:") and "_bucket" not in name:
            assert 'model="vllm_model"' in name
            found[name.partition("{")[0]] = float(value)
    return found
