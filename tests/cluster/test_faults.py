"""Faults on a real cluster, as an ordinary user: the rank that is meant fails, in the phase that is meant, silently.

A dozen rows of the matrix that `benchmarks/faults.py` runs as a whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Run, User
from tests.cluster.test_main_job import ask, small

pytestmark = pytest.mark.cluster

LIMITS = {"stall_s": 3, "answer_s": 3, "probe_s": 1}
SPEC = small("faults", 4, resources={"nodes": 2, "time": "00:10:00"}, preflight={"mpi": False}, timeouts=LIMITS)


def rehearse(user: User, *faults: str) -> Run:
    """Start four ranks on two nodes with faults."""
    flags = [word for fault in faults for word in ("--fault", fault)]
    done = user.cli("rehearse", str(user.write_spec(SPEC)), "--site", "devcluster", "--json", *flags)
    value = json.loads(done.stdout)
    made = Run(user, Path(value["directory"]), int(value["job_id"]))
    user.runs.append(made)
    return made


def words_of(run: Run) -> str:
    """Return everything that the ranks and those who watch them have written."""
    paths = [*run.attempt.glob("rank-*.log"), *run.attempt.glob("journal/*.jsonl")]
    return "\n".join(path.read_text(errors="replace") for path in paths)


def failed(run: Run) -> dict[str, Any]:
    """Wait for the end, insist that the job failed and that nothing tells of a fault, and return the result."""
    result = run.wait_ended(60)
    assert (result["state"], run.slurm_state()) == ("FAILED", "FAILED"), result
    words = words_of(run)
    assert "strikes" not in words
    assert "kind=" not in words
    return result


@pytest.mark.parametrize(
    ("fault", "rank"),
    [
        ("rank=3,at=start,kind=exit:3", 3),
        ("rank=2,at=mpi,kind=signal:KILL", 2),
        ("rank=1,at=load,kind=signal:SEGV", 1),
        ("rank=0,at=mpi,kind=raise", 0),
        ("rank=3,at=load,kind=signal:KILL,who=server", 3),
    ],
)
def test_a_rank_that_fails_on_its_way_up_is_the_one_that_is_named(user: User, fault: str, rank: int) -> None:
    """Leader or worker, before, in and after MPI, stub or server."""
    result = failed(rehearse(user, fault))
    assert (result["first"]["rank"], result["ready"]) == (rank, None)


@pytest.mark.parametrize(
    ("fault", "rank"), [("rank=0,at=serve,kind=signal:ABRT", 0), ("rank=3,at=serve,kind=signal:KILL", 3)]
)
def test_a_rank_that_serves_fails_with_the_next_request(user: User, fault: str, rank: int) -> None:
    """Readiness has been proved before, and the request is what brings it about."""
    run = rehearse(user, fault)
    url = run.url()
    assert run.slurm_state() == "RUNNING"
    with pytest.raises(OSError, match=r"."):
        ask(url, "hello")
    assert failed(run)["first"]["rank"] == rank


@pytest.mark.parametrize(
    ("fault", "rank", "kind", "words"),
    [
        ("rank=1,at=mpi,kind=hang:sleep", 1, "hang", "no rank has logged or worked"),
        ("rank=0,at=serve,kind=hang:sleep", 0, "hang", "has not answered a request"),
        ("rank=0,at=serve,kind=raise", 0, "raise", "answers each request with an error: HTTP 400"),
    ],
)
def test_a_rank_that_does_not_end_is_named_too(user: User, fault: str, rank: int, kind: str, words: str) -> None:
    """Others poll in MPI_Init for one that never comes; a leader sleeps, or answers errors, while its health is 200."""
    found = failed(rehearse(user, fault))["diagnosis"]
    assert (found["kind"], found["rank"]) == (kind, rank), found
    assert words in found["cause"]


def test_a_port_that_is_taken_meanwhile(user: User) -> None:
    """After everything has been loaded Triton cannot open it, and the leader's log says so."""
    result = failed(rehearse(user, "rank=0,at=mpi,kind=noport"))
    assert result["first"]["rank"] == 0
    assert any("already in use" in row for row in result["log"])


def test_a_slow_rank_is_no_failure(user: User) -> None:
    """Slow to load and slow to answer, with the right text in the end."""
    run = rehearse(user, "rank=3,at=load,kind=slow:3", "rank=1,at=serve,kind=slow:0.2")
    url = run.url()
    assert ask(url, "The future of AI is", sampling_param_max_tokens=8)["text_output"] == "egilo wo"
    run.cli("cancel")
    assert run.wait_ended(60)["state"] == "COMPLETED"
