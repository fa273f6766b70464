"""The survey of a probe job, run as the processes that it is: a node and its ranks on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import journal, leftovers, meeting, sights, survey

AGENT = Path(survey.__file__).parent
JOB = str(os.getpid())
EXPECTED: dict[str, Any] = {
    "ranks": 2,
    "nodes": 1,
    "ranks_per_node": 2,
    "by_srun": True,
    "mpi": False,
    "suffix": "",
    "ports": [21000, 21999],
    "local": "/tmp",
    "homes": ["/opt/tritonserver"],
    "variables": ["SET", "UNSET"],
    "internet": [],
}


def left_over() -> list[Path]:
    """Return what the probe has left outside of its folder."""
    return [*Path("/dev/shm").glob(f"llm{JOB}a0r*"), *Path("/tmp").glob(f"llmrun-{JOB}.*")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A probe's folder; whatever is left outside of it is an error."""
    (tmp_path / survey.EXPECTED).write_text(json.dumps(EXPECTED))
    yield tmp_path
    assert left_over() == []


def start(folder: Path, of: str, *argv: str, **variables: str) -> subprocess.Popen[str]:
    """Start one surveying process as a job's script does."""
    words = [sys.executable, "-I", str(AGENT), "survey", "--folder", str(folder), "--of", of, *argv]
    own = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB, "SLURMD_NODENAME": "localhost", "SET": "a b", **variables}
    return subprocess.Popen(words, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def survey_node(folder: Path) -> None:
    """Run a node and its two ranks to their end."""
    node = start(folder, "node", SLURM_NODEID="0")
    deadline = time.monotonic() + 20
    while not (folder / "node-0.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    since = repr(time.time())
    ranks = [start(folder, "rank", "--since", since, SLURM_PROCID=str(n), SLURM_LOCALID=str(n)) for n in (0, 1)]
    for rank in ranks:
        assert rank.communicate(timeout=60)[0] == ""
        assert rank.returncode == 0
    (folder / survey.DONE).touch()
    assert node.communicate(timeout=20)[0] == ""


def test_ranks_of_a_node_meet_and_leave_nothing(folder: Path) -> None:
    """Each writes one record: it saw the other and their host in both folders, reached rank 0, knows its variables."""
    survey_node(folder)
    records = {record["rank"]: record for n in (0, 1) for record in journal.read(str(folder / f"rank-{n}.jsonl"))}
    assert sorted(records) == [0, 1]
    for record in records.values():
        assert record["together"] == {"/dev/shm": ["0", "1", "node"], "/tmp": ["0", "1", "node"]}
        assert record["writable"] == {"/dev/shm": True, "/tmp": True}
        assert record["env"] == {"SET": "a b", "UNSET": None}
        assert record["interfaces"]["lo"] == "127.0.0.1"
        assert 0 <= record["launch_s"] < 30
    assert records[0]["reach"]["address"] == "127.0.0.1"
    assert abs(records[0]["reach"]["clock_s"]) < 1
    assert records[1]["reach"] is None
    [node, seen] = journal.read(str(folder / "node-0.jsonl"))
    assert node["root"] == records[0]["root"]
    assert node["ports"]["tried"] > 50
    assert seen["files"] == {}


def test_what_a_killed_probe_leaves_is_known_to_whatever_clears_up(folder: Path) -> None:
    """A run's next start on the node finds it by its names, as the epilog script does."""
    node = start(folder, "node", SLURM_NODEID="0")
    deadline = time.monotonic() + 20
    while len(left_over()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    node.kill()
    node.communicate(timeout=20)
    assert sorted(path.parent for path in left_over()) == [Path("/dev/shm"), Path("/tmp")]
    assert all(leftovers._SHM_NAME.match(path.name) for path in left_over() if path.parent == Path("/dev/shm"))
    assert leftovers.remove(f"{JOB}.0", "/tmp", ()) >= 2


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    """A link in the folder's place would lead the files elsewhere."""
    (tmp_path / "llmrun-1.0").symlink_to(tmp_path)
    with pytest.raises(OSError, match="somebody else's"):
        meeting.Place(str(tmp_path), "1").leave("0")


def test_a_batch_host_without_slurm_says_so(folder: Path) -> None:
    """What cannot be learnt is told in its place, and costs nothing else."""
    done = start(folder, "batch", PATH="/nonexistent")
    assert done.communicate(timeout=60)[0] == ""
    [record] = journal.read(str(folder / "batch.jsonl"))
    assert record["scontrol"].startswith("error: ")
    assert record["scancel"].startswith("error: ")
    assert record["python"].startswith("3.")


def test_a_fact_that_fails_or_hangs_is_a_value() -> None:
    """Whatever a foreign node does, the survey goes on."""
    assert sights.attempt(os.environ.__getitem__, "NO_SUCH") == "error: 'NO_SUCH'"
    assert sights.attempt(os.statvfs, "/nonexistent").startswith("error: [Errno 2]")
    assert sights.attempt(time.sleep, 5, seconds=0.05) == "error: no answer within 0.05 s"
    assert sights.attempt(sights.output, "false") == "error: exit status 1: no word"


def test_a_port_in_use_is_counted() -> None:
    """A sample of a small range finds the one that somebody holds."""
    with socket.socket() as held:
        held.bind(("0.0.0.0", 0))
        held.listen()
        port = held.getsockname()[1]
        assert sights.sample_ports(port, port) == {"tried": 1, "busy": [port]}


def test_rank_0_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    """The name, the port and the cause are what an admin needs to see."""
    with pytest.raises(OSError, match="rank 0 does not listen"):
        meeting.reach(str(tmp_path), "", 0.1)
    (tmp_path / meeting.LISTEN).write_text('{"node": "localhost", "port": 1}')
    with pytest.raises(OSError, match=r"localhost port 1: .*refused"):
        meeting.reach(str(tmp_path), "", 0.5)


def test_files_that_never_come_are_left_out(tmp_path: Path) -> None:
    """A node that does not see the others' files waits for its time and tells what it saw."""
    (tmp_path / "a").touch()
    assert list(meeting.watch_for(str(tmp_path), {"a", "b"}, 0.1)) == ["a"]


def test_the_gist_of_an_error_is_the_same_for_every_process() -> None:
    """Node names and process ids go, and so do rulers: equal causes fold into one row."""
    said = "[node7:123] OPAL ERROR: Unreachable\n-----\nThe application was\n\nlaunched\nmore"
    assert survey._gist(said) == "OPAL ERROR: Unreachable The application was launched"
    assert survey._gist("--\n") == "no word"


def test_a_folder_that_cannot_be_written_reads_alike_for_every_rank(tmp_path: Path) -> None:
    """Each process has a file of its own: its name in the words would make one fault look like many."""
    folder = tmp_path / "missing"
    said = {sights.attempt(meeting.Place(str(folder), "1").leave, str(number)) for number in range(4)}
    assert said == {"error: [Errno 2] No such file or directory"}
