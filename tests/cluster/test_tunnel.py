"""What a person does beside a served model: a tunnel to it, requests that are stopped, a shell where a rank runs, and
the clean-up afterwards. One job for all of it."""

from __future__ import annotations

import json
import os
import pty
import pwd
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster.background import background, environment_of
from tests.cluster.conftest import Cluster, Run, User, wait_for, watched_user
from tests.cluster.test_main_job import ask, small

pytestmark = pytest.mark.cluster

SINK = """
import hashlib, http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        data = hashlib.sha256(self.rfile.read(int(self.headers["Content-Length"]))).digest()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *words):
        pass
socketserver.ThreadingTCPServer.daemon_threads = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
"""A server on a node's loopback that says what it was sent."""


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[User]:
    """One user for the module."""
    yield from watched_user(cluster, "beside the ranks")


@pytest.fixture(scope="module")
def run(shared: User) -> Run:
    """Two ranks on two nodes that answer slowly enough to be interrupted."""
    spec = small(
        "beside", resources={"nodes": 2, "time": "00:10:00"}, engine_args={"step_ms": 20}, comment="zwei wörter"
    )
    made = shared.submit(spec)
    made.wait_ready()
    return made


def still_serves(run: Run) -> None:
    """Insist that the run serves."""
    assert json.loads(run.cli("status", "--json").stdout)["state"] == "READY"


def port_of(printed: str) -> int:
    """Return the port that `tunnel --json` has opened."""
    return int(urlsplit(str(json.loads(printed)["url"])).port or 0)


def post(place: int | Path, data: bytes) -> bytes:
    """Send a body through a tunnel's port or socket and return the answer's."""
    port = place if isinstance(place, int) else 80
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        if isinstance(place, Path):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(place))
        connection.request("POST", "/", data)
        return connection.getresponse().read()


def test_a_tunnel_carries_what_a_model_is_asked(run: Run) -> None:
    """Through one step of the job: an answer, a stream as it comes, twenty at a time; Ctrl-C leaves nothing."""
    before = steps(run)
    with background(run.user, "tunnel", str(run.path), "--via", "srun", "--json") as tunnel:
        port = port_of(tunnel.wait_says("\n"))
        url = f"http://127.0.0.1:{port}"
        text = ask(url, "Hello", sampling_param_max_tokens=4)["text_output"]
        assert text == ask(run.url(), "Hello", sampling_param_max_tokens=4)["text_output"]
        with ThreadPoolExecutor(20) as pool:
            texts = list(pool.map(lambda _: ask(url, "Hello", sampling_param_max_tokens=4)["text_output"], range(20)))
        assert set(texts) == {text}
        arrivals = stream(port, 40)
        assert arrivals[0] < arrivals[-1] / 2, arrivals
        assert steps(run) == before + 1
        tunnel.interrupt()
        assert tunnel.ended() == 0, tunnel.err
        assert tunnel.err == ""
    wait_for("the relay's step is gone", lambda: steps(run) == before)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1)


def steps(run: Run) -> int:
    """Return how many steps of the job run."""
    shown = run.user.cluster.slurm("squeue", "--noheader", "--steps", f"--jobs={run.job_id}").stdout
    return len(shown.splitlines())


def stream(port: int, tokens: int) -> list[float]:
    """Ask for a stream and return when each of its pieces came, in seconds."""
    body = json.dumps({"text_input": "x", "streaming": True, "sampling_param_max_tokens": tokens}).encode()
    begun, times = time.monotonic(), []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = (
            f"POST /v2/models/tensorrt_llm/generate_stream HTTP/1.0\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        # Half-closed, as a client that has said everything: the answer comes all the same.
        for line in connection.makefile("rb"):
            times += [time.monotonic() - begun] if line.startswith(b"data:") else []
    assert len(times) >= tokens
    return times


def test_a_tunnel_follows_the_run_to_another_port(run: Run) -> None:
    """A server on the node's loopback alone, where the endpoint file says now: 50 MB go there, and by ssh too."""
    endpoint = run.job / "endpoint.0.json"
    was = endpoint.read_text()
    value: dict[str, Any] = json.loads(was)
    with (
        background(run.user, "shell", str(run.path), "--", sys.executable, "-c", SINK) as sink,
        background(run.user, "tunnel", str(run.path), "--port", str(free_port()), "--json") as tunnel,
    ):
        first = json.loads(tunnel.wait_says("\n"))
        assert first["via"] == "direct"
        value["instances"][0]["url"] = f"http://127.0.0.1:{sink.wait_says(chr(10)).strip()}"
        try:
            endpoint.write_text(json.dumps(value))
            wait_for("the tunnel has moved", lambda: "the run serves at" in tunnel.err)
            data = os.urandom(1 << 20) * 50
            assert post(port_of(json.dumps(first)), data) == sha256(data).digest()
            private = run.user.folder / "my socket"
            words = ("tunnel", str(run.path), "--via", "ssh", "--socket", private.name)
            with background(run.user, *words, path=fake_ssh(run.user)) as other:
                other.wait_says("Ctrl-C")
                assert post(private, b"by ssh") == sha256(b"by ssh").digest()
            assert not private.exists()
        finally:
            endpoint.write_text(was)
    still_serves(run)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def fake_ssh(user: User) -> str:
    """Write an `ssh` that has srun take the node's command line to the node, through a shell as sshd does."""
    folder = user.folder / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "ssh"
    program.write_text(
        '#!/bin/bash\nwhile [[ $1 == -* ]]; do [[ $1 != -o ]] || shift; shift; done\nnode=$1; shift\necho "a banner"\n'
        'exec srun --jobid="$(squeue --me --noheader -o %A | head -1)" --overlap -N1 -n1 -w "$node" sh -c "$*"\n'
    )
    program.chmod(0o755)
    return str(folder)


def test_a_port_that_is_taken(run: Run) -> None:
    """One clear line where the port was asked for; elsewhere another one is taken."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        done = run.cli("tunnel", "--port", str(one.getsockname()[1]), check=False)
    assert done.returncode == 3
    assert "cannot be taken" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_request_is_stopped_by_its_id(run: Run) -> None:
    """From another terminal, and by Ctrl-C: the server computes no further for it."""
    with background(
        run.user, "generate", str(run.path), "go on", "--max-tokens", "3000", "-v", "--id", "mine"
    ) as asked:
        wait_for("it computes", lambda: busy(run))
        run.cli("generate", "--cancel", "mine")
        assert asked.ended() == 0
        assert 0 < len(asked.out) < 3000
    with background(run.user, "generate", str(run.path), "go on", "--max-tokens", "3000", "--stream") as asked:
        wait_for("it streams", lambda: len(asked.out) > 3)
        asked.interrupt()
        assert asked.ended() == 130
    wait_for("nothing computes any more", lambda: not busy(run), 5)


def busy(run: Run) -> bool:
    """Return whether the leader's model takes steps: its CPU time grows while it does."""
    pid = run.pid(0, main=False)

    def spent() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = spent()
    time.sleep(0.6)
    return spent() - before > 1


def test_a_prompt_comes_from_standard_input_or_a_file(run: Run) -> None:
    """Long, with line ends, and the same as the one that is given as a word."""
    text = "line one\nline two\n" * 100
    (run.user.folder / "prompt").write_text(text)
    words = ("--max-tokens", "6", "--json")
    by_file = json.loads(run.cli("generate", "--file", "prompt", *words).stdout)["text_output"]
    script = f"{sys.executable} -m slurm_llm generate '{run.path}' - --max-tokens 6 --json <prompt"
    assert json.loads(run.user.run("bash", "-c", script).stdout)["text_output"] == by_file
    assert json.loads(run.cli("generate", text, *words).stdout)["text_output"] == by_file


def test_a_shell_is_where_the_rank_is(run: Run) -> None:
    """Node, variables, folder and status are the rank's; no agent takes the command for an engine; GPUs are shared."""
    found = [item for item in run.records() if item["kind"] == "found"]
    said = run.cli(
        "shell", "--rank", "1", "--", "bash", "-c", 'echo "$SLURMD_NODENAME $LLMRUN_RANK $CUDA_VISIBLE_DEVICES"; pwd'
    )
    (gpus,) = (item["gpus"] for item in run.records() if item["kind"] == "start" and item["rank"] == 1)
    assert said.stdout.splitlines() == [f"{run.user.cluster.nodes[1]} 1 {gpus}", str(run.path)]
    names = run.cli("shell", "--rank", "1", "--", "env").stdout
    variables = dict(line.split("=", 1) for line in names.splitlines() if "=" in line)
    assert variables["TMPDIR"].endswith(f"llmrun-{run.job_id}.0")
    assert not {"LLMRUN_TAG", "LLMRUN_NODE"} & set(variables)
    assert not [name for name in variables if name.startswith("PMIX_")]
    assert run.cli("shell", "--", "bash", "-c", "exit 7", check=False).returncode == 7
    assert run.cli("shell", "--", "no such program", check=False).returncode == 127
    assert run.cli("shell", "--rank", "2", check=False).returncode == 3
    assert [item for item in run.records() if item["kind"] == "found"] == found
    still_serves(run)


@dataclass
class Typed:
    """A shell at a terminal: what it shows, and what is typed."""

    pid: int
    terminal: int
    seen: bytearray

    def wait_shows(self, text: str) -> None:
        """Wait until it shows `text`."""
        wait_for(f"{text!r} shown", lambda: text.encode() in self.seen)

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self.terminal, line.encode() + b"\n")

    def status(self) -> int:
        """Return the program's exit status, once it has ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def at_a_terminal(run: Run, *argv: str) -> Iterator[Typed]:
    """Start `shell` on the run at a terminal of its own, as the user."""
    account = pwd.getpwnam(run.user.cluster.user)
    words = (sys.executable, "-m", "slurm_llm", "shell", str(run.path), *argv)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(run.user.folder)
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        os.execve(words[0], words, environment_of(run.user))
    typed = Typed(pid, terminal, bytearray())
    reading = threading.Thread(target=follow, args=(terminal, typed.seen), daemon=True)
    reading.start()
    yield typed
    os.close(terminal)
    reading.join(5)


def test_a_shell_has_a_terminal(run: Run) -> None:
    """What is typed runs there, and the shell's end is the command's."""
    with at_a_terminal(run, "--rank", "1") as typed:
        typed.wait_shows("[rank 1 on ")
        typed.type("tty && echo $((6 * 7)) on $SLURMD_NODENAME")
        typed.wait_shows(f"42 on {run.user.cluster.nodes[1]}")
        typed.wait_shows("/dev/pts/")
        typed.type("exit 5")
        assert typed.status() == 5
    still_serves(run)


def follow(terminal: int, seen: bytearray) -> None:
    """Read a terminal until it is closed."""
    try:
        while data := os.read(terminal, 4096):
            seen.extend(data)
    except OSError:
        return


def test_a_comment_and_a_dependency_reach_slurm(run: Run) -> None:
    """The comment is the job's; a job that is to start after it says what it waits for, and mails whom it should."""
    spec = run.user.write_spec(small("after", 1), "after.yaml")
    words = ("--site", "devcluster", "--dependency", f"afterany:{run.job_id}", "--mail-type", "fail", "--json")
    value = json.loads(run.user.cli("submit", str(spec), *words).stdout)
    later = Run(run.user, Path(value["directory"]), int(value["job_id"]))
    run.user.runs.append(later)
    shown = run.user.cluster.slurm("scontrol", "show", "job", str(run.job_id)).stdout
    assert "Comment=zwei wörter" in shown
    status = json.loads(later.cli("status", "--json").stdout)
    assert (status["state"], status["pending"]["code"]) == ("PENDING", "Dependency")
    # The script itself may be submitted again: what it depended on is not in it.
    script = (later.path / "job.sub").read_text()
    assert "#SBATCH --mail-type=FAIL" in script and "dependency" not in script
    later.cli("cancel")


def test_clean_spares_what_lives_and_all_else_ends_with_the_run(run: Run) -> None:
    """A run whose job Slurm has stays; once it has ended it goes, with nothing else of the folder."""

    def clean(*words: str) -> Any:
        # A list of runs of its own: other tests of this user have theirs.
        state = f"XDG_STATE_HOME={run.user.folder}/state"
        argv = ("env", state, *run.user.program, "clean", "--older", "0", "--json", *words)
        return json.loads(run.user.run(*argv).stdout)

    kept = run.user.folder / "logs" / "notes.txt"
    kept.write_text("mine")
    first = clean("--yes")
    assert str(run.path) not in str(first["runs"]) and run.path.is_dir()
    assert first["stay"]["a job of it is in the queue or runs"] == 1
    with background(run.user, "tunnel", str(run.path), "--json") as tunnel, at_a_terminal(run) as typed:
        tunnel.wait_says("\n")
        typed.wait_shows("[rank 0 on ")
        run.cli("cancel")
        assert tunnel.ended() == 0
        assert "COMPLETED" in tunnel.err
        # It heeds the job's end, for which Slurm would wait until it kills.
        assert typed.status() != 128 + signal.SIGKILL
    shown = clean()
    assert [row["folders"] for row in shown["runs"]] == [[str(run.path)]] and run.path.is_dir()
    assert clean("--yes")["runs"][0]["removed"]
    assert [path.name for path in kept.parent.iterdir()] == ["notes.txt"]
