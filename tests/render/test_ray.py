"""rank.sh of the ray launch: its ranks run beside each other, with a stand-in for Ray and one for tritonserver.

The stand-in keeps Ray's words: `ray start` blocks, its head listens, and every node offers its resources.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.plan import Plan, build_plan
from slurm_llm.render import Target, render
from slurm_llm.spec import spec_from_mapping
from tests.cluster.conftest import wait_for
from tests.plan.sites_for_plans import make_site

LOW, HIGH = 23000, 23999
SERVER = f"""#!{sys.executable}
import json, os, sys, time
if "--help" in sys.argv:
    sys.exit("no such options")
told = {{"argv": sys.argv, "env": dict(os.environ)}}
open(os.environ["TOLD"] + ".part", "w").write(json.dumps(told))
os.rename(os.environ["TOLD"] + ".part", os.environ["TOLD"])
while not os.path.exists(os.environ["TOLD"] + ".stop"):
    time.sleep(0.05)
"""
RAY = """
import os
import json
folder = os.environ["NODES"]


def init(**given):
    pass


def nodes():
    return [json.load(open(os.path.join(folder, name))) for name in os.listdir(folder) if name.endswith(".json")]
"""
SCRIPTS = """
import json, os, socket, sys, time
given = dict(word[2:].partition("=")[::2] for word in sys.argv[2:])
rank = os.environ["LLMRUN_RANK"]
if rank in os.environ.get("FAILING", "").split(","):
    sys.exit(7)
place = os.path.join(given["temp-dir"], "session_latest", "logs")
# Here both nodes are one machine, and have one folder.
os.makedirs(place, exist_ok=True)
open(os.path.join(place, "raylet-%s.out" % rank), "w").write("words of rank " + rank)
if "head" in given:
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind((given["node-ip-address"], int(given["port"])))
    door.listen(16)
told = {"words": sys.argv[1:], "given": given, "env": dict(os.environ), "Alive": True, "pid": os.getpid()}
told["Resources"] = json.loads(given["resources"])
path = os.path.join(os.environ["NODES"], rank)
open(path, "w").write(json.dumps(told))
os.rename(path, path + ".json")
while not os.path.exists(os.path.join(os.environ["NODES"], "end-" + rank)):
    time.sleep(0.05)
sys.exit(3)
"""


def ray_plan(ready_s: int = 30, interface: str = "lo", **values: Any) -> Plan:
    """Return a plan of instances of two ranks on two nodes, which find each other on the loopback interface."""
    spec = {
        "name": "demo",
        "engine": "vllm",
        "launch": "ray",
        "model": "some/model",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "resources": {"nodes": 2},
        **values,
    }
    site = make_site(network={"interface": interface, "ports": f"{LOW}-{HIGH}"})
    plan = build_plan(spec_from_mapping(spec), site)
    return replace(plan, limits=replace(plan.limits, ready_s=ready_s))


@dataclass
class Stage:
    """A run directory of a plan, and the ranks of it that were started; sockets want a short `local` folder."""

    folder: Path
    plan: Plan
    local: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(dir="/tmp")))
    with_ray: bool = True
    ranks: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        home = self.folder / "triton"
        for path, text in {
            home / "bin" / "tritonserver": SERVER,
            # Triton's stub takes the first python3 on PATH, and so does Ray here.
            self.folder / "bin" / "python3": f'#!/bin/sh\nPYTHONPATH={self.folder}/ray exec {sys.executable} "$@"\n',
            self.folder / "ray" / "ray" / "__init__.py": RAY,
            self.folder / "ray" / "ray" / "scripts" / "scripts.py": SCRIPTS,
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        if not self.with_ray:
            (self.folder / "ray").rename(self.folder / "no ray")
        (self.attempt / "journal").mkdir(parents=True)
        self.nodes.mkdir()
        plan = replace(self.plan, server=replace(self.plan.server, home=str(home)), local_dir=str(self.local))
        for name, text in render(plan, Target(self.run_dir, str(self.folder / "bin" / "python3"), {})).items():
            path = self.run_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def attempt(self) -> Path:
        return self.folder / "attempt-0"

    @property
    def nodes(self) -> Path:
        """Where the stand-ins of Ray leave a file each."""
        return self.folder / "nodes"

    def start(self, rank: int, first: int = 0, **env: str) -> None:
        """Start a rank of the instance whose ranks are two, from `first` on."""
        around = {"PATH": os.environ["PATH"], "TOLD": str(self.told_file(rank)), "NODES": str(self.nodes)}
        around |= {"LLMRUN_RUN": str(self.run_dir), "LLMRUN_ATTEMPT": str(self.attempt), "LLMRUN_TAG": "77.0"}
        around |= {"SLURM_JOB_ID": "77", "SLURM_PROCID": str(rank - first), "SLURMD_NODENAME": f"n{rank}", **env}
        argv = ["bash", str(self.run_dir / "rank.sh"), str(first // 2), str(first)]
        self.ranks[rank] = subprocess.Popen(argv, env=around)

    def told_file(self, rank: int) -> Path:
        """Where a leader's server says what it was given; it ends once the same name with `.stop` is there."""
        return self.folder / f"told-{rank}"

    def told(self, rank: int = 0) -> dict[str, Any]:
        """Wait for a leader's server, and return what it was given."""
        return dict(json.loads(wait_for("the server", lambda: _text(self.told_file(rank)), 30)))

    def ray(self, rank: int) -> dict[str, Any]:
        """Wait for a rank's part of Ray, and return what it was given."""
        return dict(json.loads(wait_for(f"Ray of rank {rank}", lambda: _text(self.nodes / f"{rank}.json"), 30)))

    def where(self, instance: int) -> dict[str, Any]:
        """Wait for an instance's head of Ray, and return where it listens."""
        found = wait_for(f"ray-{instance}", lambda: _text(self.attempt / f"ray-{instance}"), 30)
        return dict(json.loads(found))

    def end(self, rank: int = 0) -> None:
        """End a leader's server in order."""
        self.told_file(rank).with_suffix(".stop").touch()

    def code(self, rank: int) -> int:
        """Return a rank's exit code once it has ended."""
        return self.ranks[rank].wait(60)

    def log(self, rank: int) -> str:
        return (self.attempt / f"rank-{rank}.log").read_text()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[Any]:
    """Make stages; their ranks are ended afterwards."""
    made: list[Stage] = []

    def make(plan: Plan | None = None, **values: Any) -> Stage:
        made.append(Stage(tmp_path, plan or ray_plan(), **values))
        return made[-1]

    yield make
    for stage in made:
        for rank, one in stage.ranks.items():
            stage.end(rank)
            (stage.nodes / f"end-{rank}").touch()
            one.wait(60)
        shutil.rmtree(stage.local, ignore_errors=True)


@pytest.fixture
def pair(make_stage: Any) -> Stage:
    """Both ranks, started beside each other."""
    stage: Stage = make_stage()
    stage.start(1, CUDA_VISIBLE_DEVICES="4,5,6,7")
    stage.start(0, CUDA_VISIBLE_DEVICES="0,1,2,3")
    return stage


def test_the_leader_becomes_the_server_once_all_have_joined(pair: Stage) -> None:
    """One process from the start to the end: the node agent watches it, and reads its ports before Ray is there."""
    told = pair.told()
    where = pair.where(0)
    assert told["argv"][0].endswith("bin/tritonserver")
    assert (told["env"]["RAY_ADDRESS"], told["env"]["VLLM_HOST_IP"]) == (where["address"], "127.0.0.1")
    assert "2 of 2 nodes have joined Ray" in pair.log(0)
    assert [pair.attempt.joinpath(name).stat().st_mode & 0o777 for name in ("ray-0", "ray-0.token")] == [0o600] * 2
    assert int(pair.ray(0)["given"]["port"]) == where["port"]
    assert pair.ray(1)["given"]["address"] == where["address"]


def test_ray_gets_ports_of_the_site_gpus_and_a_token(pair: Stage) -> None:
    """Nothing listens elsewhere, nothing twice on a node, and nobody without the token is let in."""
    told = pair.told()
    for rank in (0, 1):
        own = pair.ray(rank)
        given = own["given"]
        ports = [int(port) for name, port in given.items() if name.endswith("port")]
        ports += [int(port) for port in given["worker-port-list"].split(",")]
        if rank == 0:
            ports += [int(word.partition("=")[2]) for word in told["argv"] if "-port=" in word]
        assert len(ports) == len(set(ports)) > 30
        assert all(LOW <= port <= HIGH for port in ports)
        assert (given["num-gpus"], given["num-cpus"]) == ("4", "4")
        assert given["node-ip-address"] == own["env"]["VLLM_HOST_IP"] == "127.0.0.1"
        assert own["env"]["RAY_AUTH_MODE"] == "token"
        assert Path(own["env"]["RAY_AUTH_TOKEN_PATH"]) == pair.attempt / "ray-0.token"
        assert {"block", "disable-usage-stats"} <= set(given)
    assert pair.ray(0)["given"]["include-dashboard"] == "false"


def test_all_of_ray_goes_with_the_server(pair: Stage) -> None:
    """The server's end is in order, so that of every rank is; no process and no folder stays."""
    pair.told()
    processes = [pair.ray(rank)["pid"] for rank in (0, 1)]
    temp = Path(pair.ray(0)["given"]["temp-dir"])
    assert temp.is_dir()
    pair.end()
    assert [pair.code(rank) for rank in (0, 1)] == [0, 0]
    assert "rank 0 has ended Ray, so this node leaves it" in pair.log(1)
    wait_for("no process", lambda: not any(Path(f"/proc/{pid}/environ").exists() for pid in processes), 10)
    assert not temp.exists()
    assert not list(pair.attempt.glob("ray-logs-*"))


def test_a_nodes_end_of_ray_is_told_and_its_logs_are_kept(pair: Stage) -> None:
    """What Ray wrote on the node is gone with the node's folder otherwise."""
    pair.told()
    pair.ray(1)
    (pair.nodes / "end-1").touch()
    assert pair.code(1) == 3
    assert "this node's part of Ray ended with exit code 3" in pair.log(1)
    assert (pair.attempt / "ray-logs-1" / "raylet-1.out").read_text() == "words of rank 1"


def test_every_instance_has_a_ray_of_its_own(make_stage: Any) -> None:
    """Workers join their own leader; both leaders become servers."""
    stage = make_stage(ray_plan(replicas=2, resources={"nodes": 4}))
    for rank, first in ((3, 2), (1, 0), (2, 2), (0, 0)):
        stage.start(rank, first)
    heads = [stage.where(instance) for instance in (0, 1)]
    assert [stage.ray(rank)["given"]["address"] for rank in (1, 3)] == [one["address"] for one in heads]
    assert heads[0]["port"] != heads[1]["port"]
    for rank in (0, 2):
        assert stage.told(rank)["env"]["RAY_ADDRESS"] == heads[rank // 2]["address"]
        stage.end(rank)
    assert [stage.code(rank) for rank in range(4)] == [0] * 4


def test_an_interface_without_an_address_is_told(make_stage: Any) -> None:
    """By its name, and where it is set."""
    stage = make_stage(ray_plan(interface="nowhere0"))
    stage.start(0)
    assert stage.code(0) == 1
    assert "interface nowhere0 has no address here (network.interface in the site profile)" in stage.log(0)


def test_a_node_that_does_not_join_is_named(make_stage: Any) -> None:
    """The server never starts: vLLM would wait half an hour for GPUs that are not there."""
    stage = make_stage(ray_plan(ready_s=2))
    stage.start(0)
    assert stage.code(0) == 1
    assert "1 of 2 nodes have not joined Ray within" in stage.log(0)
    assert "s: rank 1 (its log says why)" in stage.log(0)
    assert not stage.told_file(0).exists()


def test_a_head_that_never_comes_is_told(make_stage: Any) -> None:
    """The worker's own log says where to look."""
    stage = make_stage(ray_plan(ready_s=1))
    stage.start(1)
    assert stage.code(1) == 1
    assert "rank 0 has not started Ray within 1 s: rank-0.log says why" in stage.log(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ray_that_cannot_start_is_told(make_stage: Any, rank: int) -> None:
    """With its exit code, and at once."""
    stage = make_stage()
    for one in range(rank + 1):
        stage.start(one, FAILING=str(rank))
    assert stage.code(rank) == (1, 7)[rank]
    said = ("Ray's head ended with exit code 7 before it listened", "this node's part of Ray ended with exit code 7")
    assert said[rank] in stage.log(rank)


def test_an_image_without_ray_is_told(make_stage: Any) -> None:
    """Before anything is started."""
    stage = make_stage(with_ray=False)
    stage.start(0)
    assert stage.code(0) == 1
    assert "no Ray in the python3 that Triton takes" in stage.log(0)


def test_a_long_local_folder_is_no_place_for_sockets(make_stage: Any, tmp_path: Path) -> None:
    """Unix sockets have 107 bytes for their path, and Ray's own part of it takes 64: its folder goes to /dev/shm."""
    stage = make_stage(local=tmp_path / "a folder with quite a long name")
    stage.start(0)
    stage.start(1)
    temp = stage.ray(0)["given"]["temp-dir"]
    assert temp == stage.ray(1)["given"]["temp-dir"] == "/dev/shm/llm77a0r0_ray"
    stage.told()
    stage.end()
    assert [stage.code(rank) for rank in (0, 1)] == [0, 0]
    assert not Path(temp).exists()
