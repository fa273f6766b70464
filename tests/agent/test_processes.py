from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_llm.agent import leftovers, processes

TAG = f"{os.getpid()}.7"


def start(code: str, **env: str) -> subprocess.Popen[bytes]:
    """Start a Python child that says when it is ready."""
    child = subprocess.Popen(
        (sys.executable, "-c", code + "\nimport time; print('up', flush=True); time.sleep(60)"),
        env={"PATH": os.environ["PATH"], **env},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """Start what looks like rank 3 of this test's run."""
    marks = {processes.TAG: TAG, processes.RANK: "3", processes.ROLE: "worker", processes.NODE: "here"}
    child = start("", **marks)
    yield child
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_a_rank_is_found_by_tag_node_and_rank(rank: subprocess.Popen[bytes]) -> None:
    """Only processes with all three marks of this run and node are ours."""
    found = processes.find(TAG, "here", processes.pids())
    assert [(item.pid, item.rank, item.role, item.group) for item in found] == [(rank.pid, 3, "worker", os.getpgrp())]
    assert processes.find(TAG, "elsewhere", processes.pids()) == []
    assert processes.find("1.1", "here", processes.pids()) == []
    assert TAG in processes.live_tags(processes.pids())


@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGKILL, "signal SIGKILL"), (signal.SIGSEGV, "signal SIGSEGV")], ids=["KILL", "SEGV"]
)
def test_how_a_process_ended_is_read_before_it_is_reaped(
    rank: subprocess.Popen[bytes], number: signal.Signals, how: str
) -> None:
    """An observer that is not the parent still learns the status, while the process is a zombie."""
    assert processes.ended_how(rank.pid) is None
    handle = os.pidfd_open(rank.pid)
    rank.send_signal(number)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOWAIT)
    os.close(handle)
    assert processes.ended_how(rank.pid) == how
    assert not processes.alive(rank.pid)


def test_a_handler_for_term_is_seen() -> None:
    """A process with a handler has left its start-up; one without would die of SIGTERM."""
    plain, handling = start(""), start("import signal; signal.signal(signal.SIGTERM, lambda *_: None)")
    try:
        assert not processes.handles_term(plain.pid)
        assert processes.handles_term(handling.pid)
    finally:
        for child in (plain, handling):
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit 0"), (3, "exit 3"), (137, "signal SIGKILL"), (139, "signal SIGSEGV"), (255, "exit 255")],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    """A shell's code above 128 stands for a signal."""
    assert processes.describe_exit_code(code) == words


def test_only_this_runs_leftovers_go(tmp_path: Path) -> None:
    """Regions, MPI's own folder of them, and the folder of the run go; a neighbour's stay, whose tag begins alike."""
    shm = Path("/dev/shm")
    job, _, attempt = TAG.partition(".")
    own, other = shm / f"llm{job}a{attempt}r0_abc", shm / f"llm{job}a{attempt}1r0_abc"
    of_mpi = shm / f"llm{job}a{attempt}r0_mpi"
    of_mpi.mkdir()
    (of_mpi / "vader_segment.node.0").write_text("")
    folder, neighbour = tmp_path / f"llmrun-{TAG}", tmp_path / f"llmrun-{TAG}1"
    for path in (own, other):
        path.write_text("")
    for path in (folder, neighbour):
        path.mkdir()
    try:
        assert leftovers.remove(TAG, str(tmp_path), ()) >= 3
        assert [path.exists() for path in (own, other, folder, neighbour, of_mpi)] == [False, True, False, True, False]
    finally:
        other.unlink()


def test_a_mapped_file_goes_unless_another_process_uses_it(tmp_path: Path) -> None:
    """MPI's segments bear no tag: those that only this run's processes had mapped are removed."""
    used, unused = (Path(f"/dev/shm/segment-{os.getpid()}-{name}") for name in ("used", "unused"))
    for path in (used, unused):
        path.write_bytes(b"x" * 4096)
    code = f"import mmap, os; f = os.open({str(used)!r}, os.O_RDWR); m = mmap.mmap(f, 4096)"
    child = start(code)
    try:
        assert processes.shared_files(child.pid) == {str(used)}
        leftovers.remove("1.1", str(tmp_path), (str(used), str(unused)))
        assert (used.exists(), unused.exists()) == (True, False)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
        used.unlink()


def test_what_a_lost_node_left_is_swept_by_the_next_run(tmp_path: Path, rank: subprocess.Popen[bytes]) -> None:
    """Old folders of runs without a live process go; young ones and those of live runs stay."""
    old, young, live = (tmp_path / f"llmrun-{tag}" for tag in ("11.0", "12.0", TAG))
    for path in (old, young, live):
        path.mkdir()
    for path in (old, live):
        os.utime(path, (1, 1))
    leftovers.sweep(str(tmp_path), "99.0")
    assert [path.exists() for path in (old, young, live)] == [False, True, True]


@pytest.mark.parametrize(
    ("models", "name", "completes"),
    [
        (["m"], "m", True),
        (["m"], "m_0", False),
        (["m_0"], "m_0", True),
        (["m_0"], "m_0_0", False),
        (None, "m", True),
        (None, "m_0_0", False),
    ],
    ids=str,
)
def test_a_stub_that_completes_a_configuration_bears_the_models_name(
    tmp_path: Path, models: list[str] | None, name: str, completes: bool
) -> None:
    """Instances bear a number behind it; where the repository cannot be read the number alone decides."""
    repository = tmp_path / "repository"
    for model in models or []:
        (repository / model).mkdir(parents=True)
    stub = f"exec -a /x/triton_python_backend_stub tail -f /dev/null /dev/null {name} DEFAULT 2>&-"
    server = subprocess.Popen(
        ("bash", "-c", f"({stub}) & echo $!; wait", "tritonserver", f"--model-repository={repository}"),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        deadline = time.monotonic() + 10
        while processes.name_of(pid) != "tail" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert processes.completes_config(pid) is completes
        assert not processes.completes_config(server.pid)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def test_what_tidies_up_after_a_process_is_known() -> None:
    """It is killed beside a worker by Ray, and would be named in its place."""
    code = "from multiprocessing import resource_tracker as r; r.ensure_running(); print(r._resource_tracker._pid)"
    words = (sys.executable, "-c", code + "; import sys; sys.stdout.flush(); sys.stdin.read()")
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        deadline = time.monotonic() + 10
        while not processes.tracks_resources(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert processes.tracks_resources(pid)
        assert not processes.tracks_resources(child.pid)
    finally:
        child.communicate()
