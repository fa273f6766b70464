"""rank.sh as it runs: which GPUs, options and variables a rank's server gets; a script in its place writes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.engines.types import ImageFile
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.steps import world_step
from slurm_llm.render import Target, render
from tests.plan.sites_for_plans import make_site, make_spec

SERVER = f"""#!{sys.executable}
import json, os, sys
names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GIVEN", "OMPI_MCA_btl_vader_backing_directory")
told = {{"argv": sys.argv, "env": {{name: os.environ.get(name) for name in names}}}}
root = [word.partition("=")[2] for word in sys.argv if word.startswith("--model-repository=")][0]
told["files"] = sorted(os.path.relpath(os.path.join(at, name), root)
                       for at, _, names in os.walk(root) for name in names)
open(os.environ["TOLD"], "w").write(json.dumps(told))
"""


WHOLE_NODES = {"gpus_per_node": 4, "cpus": {"per_node": 32}, "gpu_request": {"style": "none"}, "whole_node": True}


class Rank:
    """Runs rank.sh of a plan, and keeps what its server was given, exit code and log."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.home = folder / "triton home"
        (self.home / "bin").mkdir(parents=True)
        for name in ("tritonserver", "trtllm-llmapi-launch"):
            (self.home / "bin" / name).write_text(SERVER)
            (self.home / "bin" / name).chmod(0o755)
        self.run_dir, self.attempt = folder / "run", folder / "attempt-0"
        (self.attempt / "journal").mkdir(parents=True)
        plan = replace(plan, server=replace(plan.server, home=str(self.home)), local_dir=str(folder))
        for name, text in render(plan, Target(self.run_dir, sys.executable, {})).items():
            path = self.run_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(
        self, instance: int = 0, first: int = 0, task: int = 0, env: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Start one rank; return what its server was given, with `code` and `log`."""
        told = self.folder / "told.json"
        told.unlink(missing_ok=True)
        around = {"PATH": f"{self.home}/bin:{os.environ['PATH']}", "TOLD": str(told), "SLURM_PROCID": str(task)}
        around |= {"LLMRUN_RUN": str(self.run_dir), "LLMRUN_ATTEMPT": str(self.attempt), "LLMRUN_TAG": "77.0"}
        argv = ["bash", str(self.run_dir / "rank.sh"), str(instance), str(first)]
        done = subprocess.run(argv, env={**around, "SLURM_JOB_ID": "77", **(env or {})}, timeout=60, check=False)
        found = json.loads(told.read_text()) if told.is_file() else {}
        log = (self.attempt / f"rank-{first + task}.log").read_text()
        return {**found, "code": done.returncode, "log": log}


def _plan(partition: dict[str, Any] | None = None, **values: Any) -> Plan:
    return build_plan(make_spec(**values), make_site(partition))


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
@pytest.mark.parametrize(
    ("shown", "own"),
    [
        ("0,1,2,3", ["0,1", "2,3"]),
        ("4,5,6,7", ["4,5", "6,7"]),
        ("MIG-a,MIG-b,MIG-c,MIG-d", ["MIG-a,MIG-b", "MIG-c,MIG-d"]),
    ],
)
def test_instances_of_a_node_see_their_own_gpus(tmp_path: Path, variable: str, shown: str, own: list[str]) -> None:
    """Of those that are shown, whatever their names; every rank of an instance sees all of the instance's."""
    rank = Rank(tmp_path, _plan(WHOLE_NODES, tensor_parallel_size=2, replicas=2))
    for instance, task in ((0, 0), (0, 1), (1, 0), (1, 1)):
        told = rank.start(instance, 2 * instance, task, {variable: shown})
        assert (told["code"], told["env"][variable]) == (0, own[instance])


def test_too_few_gpus_for_two_instances_are_told(tmp_path: Path) -> None:
    """Two servers on one GPU would only fail later, and worse."""
    rank = Rank(tmp_path, _plan(WHOLE_NODES, tensor_parallel_size=2, replicas=2))
    told = rank.start(1, 2, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert told["code"] == 1
    assert "CUDA_VISIBLE_DEVICES shows 2 GPUs, instance 1 needs 2 from number 2 on" in told["log"]


def test_instances_of_a_node_that_says_nothing_of_its_gpus(tmp_path: Path) -> None:
    """Where whole nodes are given no variable may be set at all: GPUs are told apart by their numbers."""
    rank = Rank(tmp_path, _plan(WHOLE_NODES, tensor_parallel_size=2, replicas=2))
    assert rank.start(1, 2)["env"]["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_slurm_gives_instances_of_a_node_their_own_gpus(tmp_path: Path) -> None:
    """Where steps ask for GPUs each instance's own step does; nothing is taken from what it is shown."""
    plan = _plan(tensor_parallel_size=2, replicas=2)
    steps = [world_step(plan, "/run", instance) for instance in plan.instances]
    assert all("--exact" in step and "--gpus-per-node=2" in step for step in steps)
    assert Rank(tmp_path, plan).start(1, 2, env={"CUDA_VISIBLE_DEVICES": "0,1"})["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_an_instance_alone_on_its_nodes_sees_all_gpus(tmp_path: Path) -> None:
    """Nothing is taken from what Slurm shows: the engine chooses by its rank."""
    told = Rank(tmp_path, _plan(tensor_parallel_size=4)).start(task=2, env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert (told["code"], told["env"]["CUDA_VISIBLE_DEVICES"]) == (0, "0,1,2,3")


def test_an_engines_launcher_and_variables(tmp_path: Path) -> None:
    """The launcher's words come first; a variable that is set already keeps its value, an empty one too."""
    plan = _plan()
    server = replace(plan.server, wrapper=("trtllm-llmapi-launch",), env=(("GIVEN", "a 'b' $c"),))
    rank = Rank(tmp_path, replace(plan, server=server))
    told = rank.start()
    assert told["argv"][0].endswith("trtllm-llmapi-launch")
    assert told["argv"][1].endswith("bin/tritonserver")
    assert told["env"]["GIVEN"] == "a 'b' $c"
    assert rank.start(env={"GIVEN": ""})["env"]["GIVEN"] == ""


def test_mpis_memory_bears_the_ranks_mark_and_goes(tmp_path: Path) -> None:
    """A folder of /dev/shm of its own, unless the site has chosen another one."""
    rank = Rank(tmp_path, _plan())
    name = "OMPI_MCA_btl_vader_backing_directory"
    own = rank.start()["env"][name]
    assert own == "/dev/shm/llm77a0r0_mpi"
    assert not Path(own).exists()
    assert rank.start(env={name: "/scratch"})["env"][name] == "/scratch"


def test_parts_of_the_repository_are_the_images(tmp_path: Path) -> None:
    """The run's own files and those of the image make one repository; the first source that is there counts."""
    image = tmp_path / "image"
    image.mkdir()
    (image / "model.py").write_text("# NVIDIA's")
    (image / "config.txt").write_text("size: ${size}\n")
    files = (
        ImageFile("model/1/model.py", (str(tmp_path / "nowhere"), str(image / "model.py"))),
        ImageFile("model/extra.txt", (str(image / "config.txt"),), fill=(("size", "8"),), append="more\n"),
    )
    plan = _plan()
    rank = Rank(tmp_path, replace(plan, server=replace(plan.server, image_files=files)))
    told = rank.start()
    assert told["code"] == 0
    assert {"model/1/model.py", "model/extra.txt", "tensorrt_llm/config.pbtxt"} <= set(told["files"])
    (image / "model.py").unlink()
    told = rank.start()
    assert told["code"] == 73
    assert "the model repository cannot be put together" in told["log"]
    assert str(image / "model.py") in told["log"]


KNOWS = "# --http-restricted-api --grpc-restricted-protocol\n"
"""What a program of Triton from 23.11 on has among its texts."""


def _knowing(rank: Rank, text: str) -> None:
    program = rank.home / "bin" / "tritonserver"
    program.write_text(SERVER.replace("\n", f"\n{text}", 1))


def _restricted(told: dict[str, Any]) -> list[str]:
    return [word for word in told["argv"] if "-restricted-" in word]


def test_what_nobody_may_do_is_closed_with_a_value_of_each_start(tmp_path: Path) -> None:
    """Over both protocols, in the leader alone; the value is another one each time, and stands in no file."""
    rank = Rank(tmp_path, _plan(tensor_parallel_size=2))
    _knowing(rank, KNOWS)
    closed = "model-repository,shared-memory,trace,logging:slurm-llm-closed="
    values = set()
    for _ in range(2):
        told = rank.start()
        http, grpc = _restricted(told)
        assert http.startswith(f"--http-restricted-api={closed}")
        assert grpc == http.replace("--http-restricted-api", "--grpc-restricted-protocol")
        values.add(http.rpartition("=")[2])
        assert http.rpartition("=")[2] not in told["log"]
    assert {len(value) for value in values} == {48}
    assert len(values) == 2
    assert _restricted(rank.start(task=1)) == []


def test_the_key_is_that_of_the_attempt(tmp_path: Path) -> None:
    """All instances take the one that the job's script wrote; without it none starts."""
    rank = Rank(tmp_path, _plan(access={"key": True}))
    _knowing(rank, KNOWS)
    told = rank.start()
    assert (told["code"], "no key for inference" in told["log"]) == (78, True)
    (tmp_path / "key.0").write_text(f"slurm-llm-key: {'0a' * 24}\n")
    first = _restricted(rank.start())
    assert f"--http-restricted-api=inference:slurm-llm-key={'0a' * 24}" in first
    assert f"--grpc-restricted-protocol=inference:slurm-llm-key={'0a' * 24}" in first
    assert len(first) == 4


@pytest.mark.parametrize(
    ("access", "knows", "code", "options"),
    [
        pytest.param({}, "", 0, 0, id="one of before 23.04 starts as ever"),
        pytest.param({}, "# --grpc-restricted-protocol\n", 0, 1, id="one of before 23.11 closes what it can"),
        pytest.param({"key": True}, "# --grpc-restricted-protocol\n", 78, 0, id="and cannot have a key"),
        pytest.param({}, 'if "--help" in sys.argv: print("--http-restricted-api")\n', 0, 1, id="a script that says so"),
    ],
)
def test_an_older_triton(tmp_path: Path, access: dict[str, Any], knows: str, code: int, options: int) -> None:
    """An option that it does not know would keep it from starting."""
    rank = Rank(tmp_path, _plan(access=access))
    program = rank.home / "bin" / "tritonserver"
    # The name in the script itself would count as known: it stands there in two parts.
    program.write_text(SERVER.replace("names = (", knows.replace("--http-res", '--http-" "res') + "names = (", 1))
    (tmp_path / "key.0").write_text(f"slurm-llm-key: {'0a' * 24}\n")
    told = rank.start()
    assert (told["code"], len(_restricted(told)) if "argv" in told else 0) == (code, options)
    assert "slurm_llm: this tritonserver has no --" in told["log"]
    assert ("inference cannot have a key" if code else "it closes nothing") in told["log"]
