"""The engine inside a real Triton, one server for each rank, started by mpirun as Slurm would."""

from __future__ import annotations

import importlib.util
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jinja2
import pytest

pytestmark = pytest.mark.rehearsal

REPO = Path(__file__).parents[2]
PROMPT = "The future of AI is"
TEXT = "egilo wobu wila "
ABSENT = "from mpi4py import MPI; import time; time.sleep(60)"
Answer = tuple[int, dict[str, object]]


def await_true(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def build_backend(directory: Path, packages: Path) -> Path:
    """Lay Triton's Python backend and this Python's stub side by side, as links."""
    server = packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = directory / "python"
    python.mkdir(parents=True)
    for file in (
        server / "backends" / "python" / "libtriton_python.so",
        server / "backends" / "python" / "triton_python_backend_utils.py",
        server / "python_backend_stubs" / version / "triton_python_backend_stub",
    ):
        assert file.exists(), f"install the extra slurm-llm[rehearsal]: {file} is missing"
        (python / file.name).symlink_to(file)
    return directory


def build_repository(directory: Path, parameters: dict[str, str]) -> Path:
    """Write a model repository as a run directory has it."""
    version = directory / "tensorrt_llm" / "1"
    version.mkdir(parents=True)
    for file in (REPO / "slurm_llm" / "rehearsal").glob("*.py"):
        if file.name != "__init__.py":
            shutil.copy(file, version)
    template = (REPO / "job_templates" / "rehearsal.config.pbtxt.j2").read_text()
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    config = environment.from_string(template).render(model_name="tensorrt_llm", parameters=parameters)
    (version.parent / "config.pbtxt").write_text(config)
    return directory


class Step:
    """One mpirun with a tritonserver for each rank; rank 0 has ports."""

    def __init__(self, directory: Path, ranks: int, parameters: dict[str, str], absent: int = 0) -> None:
        found = importlib.util.find_spec("pytriton")
        assert found is not None and found.origin is not None, "install the extra slurm-llm[rehearsal]"
        packages = Path(found.origin).parents[1]
        self._prefix = f"t{uuid.uuid4().hex[:8]}"
        self.http, self._grpc, self._metrics = free_ports(3)
        self._log = directory / "log"
        common = [
            str(packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
            f"--model-repository={build_repository(directory / 'models', parameters)}",
            f"--backend-directory={build_backend(directory / 'backends', packages)}",
            "--disable-auto-complete-config",
        ]
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
        for rank in range(ranks):
            words += [":"] * (rank > 0) + ["-n", "1", *common, *self._rank_words(rank)]
        for _ in range(absent):
            words += [":", "-n", "1", sys.executable, "-c", ABSENT]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                words, env=self._environment(packages, directory), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        """Everything that the ranks have written."""
        return self._log.read_text(errors="replace")

    def servers(self) -> list[int]:
        """Return the ranks' tritonserver processes, rank 0 first."""
        return [pid for pid in children(self.process.pid) if b"tritonserver" in command(pid)]

    def ready(self) -> bool:
        """Whether rank 0 says that it is ready; fails when the step has ended."""
        assert self.process.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def post(self, way: str, **body: object) -> tuple[int, str]:
        """Post to the model and return status and text."""
        url = f"http://127.0.0.1:{self.http}/v2/models/tensorrt_llm/{way}"
        try:
            with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def generate(self, **body: object) -> Answer:
        """Ask for a text."""
        status, text = self.post("generate", **body)
        answer: dict[str, object] = json.loads(text)
        return status, answer

    def end(self) -> None:
        """End what is left and remove its shared memory."""
        family = [pid for server in self.servers() for pid in (server, *children(server))]
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in family:
            if str(self._prefix).encode() in command(pid):
                os.kill(pid, signal.SIGKILL)
        for region in Path("/dev/shm").glob(f"{self._prefix}*"):
            region.unlink(missing_ok=True)

    def _rank_words(self, rank: int) -> list[str]:
        prefix = f"--backend-config=python,shm-region-prefix-name={self._prefix}_{rank}_"
        if rank == 0:
            ports = ("--http-port", str(self.http), "--grpc-port", str(self._grpc))
            return [prefix, *ports, "--metrics-port", str(self._metrics)]
        closed = [f"--allow-{service}=false" for service in ("http", "grpc", "metrics")]
        return [prefix, *closed, "--model-control-mode=explicit", "--load-model=tensorrt_llm"]

    @staticmethod
    def _environment(packages: Path, scratch: Path) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        path = [str(Path(sys.executable).parent), environment.get("PATH", "")]
        libraries = [str(packages / "nvidia_pytriton.libs"), environment.get("LD_LIBRARY_PATH", "")]
        environment["PATH"] = os.pathsep.join(path)
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        # Ranks that are killed leave Open MPI's segments behind; here they go with the test's directory.
        environment["OMPI_MCA_btl_vader_backing_directory"] = str(scratch)
        return environment


def children(pid: int) -> list[int]:
    """Return the children of a process, eldest first; none when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command(pid: int) -> bytes:
    """Return a process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def events(stream: str) -> list[dict[str, object]]:
    """Read the answers of a stream."""
    return [json.loads(line[len("data: ") :]) for line in stream.splitlines() if line.startswith("data: ")]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Step]:
    """Four ready ranks, tensor 2 x pipeline 2, 20 ms a token."""
    parameters = {"tensor_parallel_size": "2", "pipeline_parallel_size": "2", "step_ms": "20"}
    started = Step(tmp_path_factory.mktemp("step"), 4, parameters)
    try:
        await_true(started.ready, "ready")
        yield started
    finally:
        started.end()


def test_generate_answers_the_documented_request(step: Step) -> None:
    """The request of Triton's page gets one answer: the text that one rank would write."""
    status, answer = step.generate(text_input=PROMPT, sampling_param_max_tokens=10)
    assert (status, answer["text_output"], answer["finish_reason"]) == (200, TEXT[:10], "length")


def test_every_documented_parameter_is_accepted(step: Step) -> None:
    """Sampling parameters do nothing to greedy decoding; the others do what they say."""
    status, answer = step.generate(
        text_input=PROMPT,
        sampling_param_best_of=1,
        sampling_param_temperature=0.7,
        sampling_param_top_k=5,
        sampling_param_top_p=0.9,
        sampling_param_frequency_penalty=0.1,
        sampling_param_presence_penalty=0.1,
        sampling_param_seed=42,
        sampling_param_return_perf_metrics=True,
        sampling_param_stop=["wila", "zzz"],
        sampling_param_exclude_input_from_output=False,
        return_finish_reason=True,
        return_stop_reason=True,
        return_cumulative_logprob=True,
    )
    assert status == 200
    assert answer["text_output"] == PROMPT + "egilo wobu "
    assert (answer["finish_reason"], answer["stop_reason"], answer["cumulative_logprob"]) == ("stop", "wila", 0.0)


def test_a_stream_has_an_answer_for_each_token(step: Step) -> None:
    """The pieces make up the text; only the last says why it ended."""
    status, stream = step.post("generate_stream", text_input=PROMPT, sampling_param_max_tokens=12, streaming=True)
    assert status == 200
    assert [event["text_output"] for event in events(stream)] == list(TEXT[:12])
    assert [event["finish_reason"] for event in events(stream)] == ["None"] * 11 + ["length"]


def test_a_stream_without_streaming_has_one_answer(step: Step) -> None:
    """`streaming` decides, not the way that was asked."""
    _, stream = step.post("generate_stream", text_input=PROMPT, sampling_param_max_tokens=12)
    assert [event["text_output"] for event in events(stream)] == [TEXT[:12]]


def test_cancel_stops_the_named_request_only(step: Step) -> None:
    """Of two requests in flight the named one ends early with what it has; the other is whole."""
    with ThreadPoolExecutor() as pool:
        ask = {"text_input": PROMPT, "sampling_param_max_tokens": 50}
        named = pool.submit(step.generate, id="first", **ask)
        other = pool.submit(step.generate, id="second", **ask)
        stream = pool.submit(
            step.post, "generate_stream", id="third", text_input=PROMPT, streaming=True, sampling_param_max_tokens=3
        )
        assert stream.result()[0] == 200
        assert step.generate(id="first", text_input="", stop=True) == (400, {"error": "Request cancelled by client"})
        (_, stopped), (_, whole) = named.result(), other.result()
    assert (stopped["finish_reason"], whole["finish_reason"]) == ("cancelled", "length")
    assert len(str(whole["text_output"])) == 50
    assert len(str(stopped["text_output"])) < 50
    assert str(whole["text_output"]).startswith(str(stopped["text_output"]))


def test_an_empty_id_cancels_nothing(step: Step) -> None:
    """A stop without id is answered with an error, and requests without id go on."""
    with ThreadPoolExecutor() as pool:
        running = pool.submit(step.generate, text_input=PROMPT, sampling_param_max_tokens=30)
        status, answer = step.generate(text_input="", stop=True)
        assert (status, answer["error"]) == (400, "A request id must be provided for request cancellation")
        assert running.result()[1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"text_input": PROMPT, "sampling_param_max_tokens": 0}, "must be at least 1"),
        ({"text_input": ["a", "b"]}, "text_input must be one text"),
        ({"sampling_param_max_tokens": 3}, "text_input"),
    ],
)
def test_a_wrong_request_is_refused(step: Step, body: dict[str, object], part: str) -> None:
    """The answer says what is wrong, and the server goes on."""
    status, answer = step.generate(**body)
    assert status == 400
    assert part in str(answer["error"])


def test_any_text_is_a_prompt(step: Step) -> None:
    """Prompts are bytes: empty, long and not English."""
    for prompt in ("", "ätsch 世界", "x" * 3000):
        status, answer = step.generate(text_input=prompt, sampling_param_max_tokens=3)
        assert (status, len(str(answer["text_output"]))) == (200, 3)


def test_a_client_that_hangs_up_leaves_the_server_serving(step: Step) -> None:
    """HTTP hang-ups do not reach the model in this release; the text is written for nobody."""
    with socket.create_connection(("127.0.0.1", step.http)) as connection:
        body = json.dumps({"text_input": PROMPT, "streaming": True, "sampling_param_max_tokens": 20})
        head = (
            f"POST /v2/models/tensorrt_llm/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall((head + body).encode())
        assert connection.recv(1)
    assert step.generate(text_input=PROMPT)[1]["text_output"] == TEXT


def test_the_log_says_where_every_rank_stands(step: Step) -> None:
    """Each rank logs as real engines do."""
    for rank, place in enumerate(("tp 0 pp 0", "tp 1 pp 0", "tp 0 pp 1", "tp 1 pp 1")):
        assert f"rehearsal: rank {rank}/4 {place} on " in step.log
    assert "all 4 ranks ready" in step.log


def test_leader_then_workers_end_by_themselves(tmp_path: Path) -> None:
    """TERM to the leader lets a running text end and releases the workers; TERM to them ends all with 0."""
    step = Step(tmp_path, 2, {"tensor_parallel_size": "2", "step_ms": "20"})
    try:
        await_true(step.ready, "ready")
        leader, *workers = step.servers()
        with ThreadPoolExecutor() as pool:
            running = pool.submit(
                step.post, "generate_stream", text_input=PROMPT, streaming=True, sampling_param_max_tokens=40
            )
            assert step.generate(text_input=PROMPT, sampling_param_max_tokens=4)[0] == 200
            os.kill(leader, signal.SIGTERM)
            assert len(events(running.result()[1])) == 40
        await_true(lambda: "tp 1 pp 0: released" in step.log, "workers released")
        await_true(lambda: step.log.count("| READY") == 2, "worker out of initialize")
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        assert step.process.wait(20) == 0, step.log
    finally:
        step.end()


def test_a_step_with_a_missing_rank_ends_and_names_it(tmp_path: Path) -> None:
    """A rank that never joins fails the load within the time limit, not at the scheduler's."""
    step = Step(tmp_path, 2, {"tensor_parallel_size": "3", "join_timeout_s": "1"}, absent=1)
    try:
        assert step.process.wait(20) != 0
        assert "1 of 3 ranks did not join within 1 s: rank 2" in step.log
    finally:
        step.end()


def test_ranks_outside_a_step_say_so(tmp_path: Path) -> None:
    """A world of the wrong size fails the load with both numbers."""
    step = Step(tmp_path, 1, {"tensor_parallel_size": "4", "moe": "true", "moe_expert_parallel_size": "2"})
    try:
        assert step.process.wait(20) != 0
        assert "MPI world size is 1 but the plan has 4 ranks" in step.log
    finally:
        step.end()
