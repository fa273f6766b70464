"""The llmapi engine's commands and repository, run against stand-ins that behave as TensorRT-LLM documents.

Triton, its Python backend and MPI are real; tests/engines/launch_surface/table.py says what the stand-ins do and why.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_llm.agent import repository
from slurm_llm.engines.llmapi import ENGINE
from slurm_llm.engines.types import ServerPlan, SiteServer
from slurm_llm.process import run
from slurm_llm.topology import ParallelSizes
from slurm_llm.tritonhome import wheel_links
from slurm_llm.yamlio import Tree
from tests.engines.launch_surface.table import BEHAVIOURS
from tests.plan.sites_for_plans import make_spec

pytestmark = pytest.mark.rehearsal

SURFACE = Path(__file__).parent / "launch_surface"
MODELS = SURFACE / "image" / "app" / "all_models"
RANK = """
export SLURM_PROCID=${OMPI_COMM_WORLD_RANK:-0} SLURM_NTASKS=${OMPI_COMM_WORLD_SIZE:-1}
own=$1 && shift
words=("$@" --backend-config=python,shm-region-prefix-name="$PREFIX"_"$SLURM_PROCID"_)
if ((SLURM_PROCID == 0)); then
    words+=(--http-port="$HTTP" --allow-grpc=false --allow-metrics=false)
else
    words+=(--allow-http=false --allow-grpc=false --allow-metrics=false)
    read -ra more <<<"$own" && words+=("${more[@]}")
fi
exec "${words[@]}"
"""
Answer = tuple[int, str]


def launch(edition: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `words` by the launcher of `edition` alone, with nothing of a job around it but `variables`."""
    command = [str(SURFACE / edition / "trtllm-llmapi-launch"), *words]
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def shown(edition: str, variable: str, **variables: str) -> str:
    """Return what the launcher's task sees of `variable`."""
    done = launch(edition, "printenv", variable, **variables)
    return done.stdout.strip()


def test_a_lone_server_needs_no_ssh(tmp_path: Path) -> None:
    """Many images have no ssh, and Open MPI ends with 243 there unless it is told of another program."""
    for name in ("mpirun", "orted", "true", "hostname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    server = plan_server("single", {}, ParallelSizes())
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    for environ, code in ((bare, 243), ({**bare, **dict(server.env)}, 0)):
        done = subprocess.run([*server.wrapper, "hostname"], env=environ, capture_output=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr


def plan_server(launch: str, arguments: dict[str, Tree], sizes: ParallelSizes) -> ServerPlan:
    """Return what the engine plans for the stand-in image."""
    spec = make_spec(
        engine="llmapi",
        model="echo",
        launch=launch,
        tensor_parallel_size=sizes.tensor_parallel_size,
        pipeline_parallel_size=sizes.pipeline_parallel_size,
        engine_args={"all_models": str(MODELS), **arguments},
    )
    assert ENGINE.check(spec, sizes, None) == []
    return ENGINE.server(spec, sizes, SiteServer(None, 10, None, sizes.world_size))


class Served:
    """The ranks of one instance, started as the engine plans it; `ranks` are MPI processes."""

    def __init__(self, directory: Path, server: ServerPlan, ranks: int, edition: str = "new") -> None:
        self._directory, self._log = directory, directory / "log"
        self._prefix = f"s{uuid.uuid4().hex[:8]}"
        own, models, home = directory / "own", directory / "models", directory / "triton"
        for file in server.repository:
            place = own / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(file.text or "")
        files = [{"path": one.path, "sources": list(one.sources)} for one in server.image_files]
        repository.build({"own": str(own), "files": files}, str(models))
        links = wheel_links()
        assert links, "install the extra slurm-llm[rehearsal]"
        for name, target in links.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(target)
        triton = [str(home / "bin" / "tritonserver"), f"--model-repository={models}"]
        triton += [f"--backend-directory={home / 'backends'}", *server.arguments]
        words = ["bash", "-c", RANK, "rank", " ".join(server.worker_arguments), *server.wrapper, *triton]
        if server.env and server.wrapper[:1] != ("mpirun",):
            words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *words]
        self.http = free_port()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                words, env=self._environ(server, edition, home), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _environ(self, server: ServerPlan, edition: str, home: Path) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        path = [str(SURFACE / edition), str(Path(sys.executable).parent), environ["PATH"]]
        return {
            **environ,
            **dict(server.env),
            "PATH": os.pathsep.join(path),
            "LD_LIBRARY_PATH": str(home / "lib"),
            "HTTP": str(self.http),
            "PREFIX": self._prefix,
            "OMPI_MCA_btl_vader_backing_directory": str(self._directory),
        }

    @property
    def log(self) -> str:
        """Everything that the ranks have written."""
        return self._log.read_text(errors="replace")

    def await_ready(self) -> Served:
        """Wait until rank 0 is ready; fail with the log when the ranks end before."""
        await_true(self._ready, lambda: self.log)
        return self

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def post(self, way: str, **body: object) -> Answer:
        """Post to the model and return status and text."""
        url = f"http://127.0.0.1:{self.http}/v2/models/tensorrt_llm/{way}"
        try:
            with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def servers(self) -> list[int]:
        """Return the tritonserver processes of this instance."""
        rows = run(("ps", "-ww", "-eo", "pid=,args=")).stdout.splitlines()
        own = [row.split(None, 1) for row in rows if str(self._directory) in row]
        return [int(pid) for pid, words in own if words.split()[0].endswith("/bin/tritonserver")]

    def end(self) -> None:
        """End what is left and remove its shared memory."""
        for pid in self.servers():
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for region in Path("/dev/shm").glob(f"{self._prefix}*"):
            region.unlink(missing_ok=True)


def await_true(condition: Callable[[], bool], what: Callable[[], str], seconds: float = 60) -> None:
    """Poll until `condition` holds; else fail with `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Return a function that starts an instance; what it starts ends with the test."""
    started: list[Served] = []

    def start(launch: str, tensor: int, arguments: dict[str, Tree] | None = None, edition: str = "new") -> Served:
        sizes = ParallelSizes(tensor_parallel_size=tensor, moe_tensor_parallel_size=tensor)
        server = plan_server(launch, arguments or {}, sizes)
        ranks = 1 if launch == "single" else tensor
        started.append(Served(tmp_path, server, ranks, edition))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_every_behaviour_has_its_test() -> None:
    """A row of the table without a test would be a claim."""
    assert [row.what for row in BEHAVIOURS if not callable(globals().get(row.test))] == []


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "PMI_RANK": "1"},
        {"PMI_RANK": "0", "PMI_ID": "1"},
        {"PMI_ID": "0"},
        {},
    ],
)
def test_rank(variables: dict[str, str]) -> None:
    """Slurm's own number counts first: it is what rank.sh goes by too. Any other rank would wait for a leader."""
    assert "task ran" in launch("new", "echo", "task ran", **variables).stdout


@pytest.mark.parametrize(
    ("variables", "size"),
    [({"SLURM_NTASKS": "1", "OMPI_COMM_WORLD_SIZE": "9"}, "1"), ({"OMPI_COMM_WORLD_SIZE": "4"}, "4"), ({}, "1")],
)
def test_size(variables: dict[str, str], size: str) -> None:
    """The number of the step's tasks, which the plan makes the world size."""
    assert shown("new", "tllm_mpi_size", **variables) == size


def test_task_on_rank_0_only() -> None:
    """On every other rank the command line is not run at all."""
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", str(SURFACE / "new/trtllm-llmapi-launch")]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*words, "echo", "task ran"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.count("task ran")) == (0, 1), done.stderr


@pytest.mark.parametrize("edition", ["new", "old"])
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("SLURM_JOB_ID", False),
        ("UCX_TLS", False),
        ("PMIX_MCA_gds", False),
        ("OMPI_MCA_btl", False),
        ("CUDA_VISIBLE_DEVICES", True),
        ("LLMRUN_RANK", True),
    ],
)
def test_stripped(edition: str, name: str, seen: bool) -> None:
    """What tritonserver needs of the job must stand in its command line, and what MPI needs in the launcher's."""
    assert shown(edition, name, **{name: "7"}) == ("7" if seen else "")


def test_proxy_variables() -> None:
    """They are how the LLM inside tritonserver finds the ranks."""
    done = launch("new", "env")
    assert "TLLM_SPAWN_PROXY_PROCESS=1\n" in done.stdout
    assert "TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=ipc:///" in done.stdout
    assert "TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=tcp://127.0.0.1:" in launch("old", "env").stdout


def test_preset_address(tmp_path: Path) -> None:
    """Only the new edition can be told where to listen."""
    address = f"ipc://{tmp_path}/own"
    name = "TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"
    assert shown("new", name, **{name: address}) == address
    assert shown("old", name, **{name: address}) != address


@pytest.mark.parametrize(("edition", "lines"), [("new", ["a  b", "*.toml"]), ("old", ["a", "b", "pyproject.toml"])])
def test_blanks(edition: str, lines: list[str]) -> None:
    """The engine refuses such arguments for this launch; this is why."""
    assert launch(edition, "printf", "%s\\n", "a  b", "*.toml").stdout.splitlines() == lines


@pytest.mark.parametrize(("edition", "code"), [("new", 3), ("old", 0)])
def test_exit_code(edition: str, code: int) -> None:
    """With an old edition a tritonserver that failed looks like one that was told to stop."""
    assert launch(edition, "sh", "-c", "exit${IFS}3").returncode == code


def test_oldest_stays() -> None:
    """Its step goes on without a server: only watching the server tells."""
    with pytest.raises(subprocess.TimeoutExpired):
        command = [str(SURFACE / "oldest" / "trtllm-llmapi-launch"), "false"]
        environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        started = subprocess.Popen(command, env=environ, start_new_session=True)
        try:
            started.wait(5)
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def test_launcher_serves(served: Callable[..., Served]) -> None:
    """Two ranks, one tritonserver; the job's variables reach the ranks, and the answer comes back."""
    instance = served("llmapi_launch", 2).await_ready()
    assert len(instance.servers()) == 1
    status, text = instance.post("generate", text_input="one two three", sampling_param_max_tokens=2)
    assert (status, json.loads(text)["text_output"]) == (200, " one two")
    os.kill(instance.servers()[0], signal.SIGTERM)
    assert instance.process.wait(60) == 0, instance.log


def test_leader_serves(served: Callable[..., Served]) -> None:
    """Two ranks, two tritonservers, of which one has ports; a stream comes in pieces."""
    instance = served("leader", 2).await_ready()
    assert len(instance.servers()) == 2
    assert "surface: rank 1 waits for the leader" in instance.log
    status, text = instance.post("generate_stream", text_input="one two three", streaming=True)
    pieces = [
        json.loads(line[len("data: ") :])["text_output"] for line in text.splitlines() if line.startswith("data:")
    ]
    assert (status, pieces) == (200, [" one", " two", " three"])


@pytest.mark.parametrize(("launch", "ranks"), [("llmapi_launch", 2), ("leader", 3)])
def test_world_size(tmp_path: Path, launch: str, ranks: int) -> None:
    """Ranks that are not tensor × pipeline × context: the model fails to load, and says why.

    How the step ends is not asked here: a worker that waits inside MPI holds the leader's own end up.
    """
    sizes = ParallelSizes(tensor_parallel_size=2, pipeline_parallel_size=2, moe_tensor_parallel_size=2)
    instance = Served(tmp_path, plan_server(launch, {}, sizes), ranks)
    try:
        refusal = f"n_workers 4 should be equal to the MPI world size {ranks}"
        await_true(lambda: refusal in instance.log, lambda: instance.log)
    finally:
        instance.end()


def test_model_yaml(served: Callable[..., Served]) -> None:
    """One rank under mpirun, as NVIDIA starts it; the stand-in refuses files that differ in decoupled."""
    instance = served("single", 1, {"triton_config": {"decoupled": False}, "dtype": "auto"}).await_ready()
    status, text = instance.post("generate", text_input="one two")
    assert (status, json.loads(text)["text_output"]) == (200, " one two")


def test_unknown_argument(tmp_path: Path) -> None:
    """What the checks let pass because another version knows it still ends the server at once."""
    one = ParallelSizes()
    instance = Served(tmp_path, plan_server("single", {"use_cuda_graph": True}, one), 1)
    try:
        assert instance.process.wait(60) == 1
        assert "unknown arguments: use_cuda_graph" in instance.log
    finally:
        instance.end()


def test_copies(served: Callable[..., Served]) -> None:
    """Two copies in one server, without mpirun before it; requests go to either."""
    instance = served("single", 1, {"gpu_device_ids": "0;1"}).await_ready()
    assert "surface: tensorrt_llm_0_0 leads, GPUs 0" in instance.log
    assert "surface: tensorrt_llm_0_1 leads, GPUs 1" in instance.log
    assert instance.post("generate", text_input="one")[0] == 200
