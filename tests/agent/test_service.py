"""Handovers: what Slurm's words mean, the chain of jobs, others' requests, idleness, and when which order is given."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import fold, journal, successors, verdicts
from slurm_llm.agent.clues import Case
from slurm_llm.agent.service import Order, Service, Traffic, Voice

# As `scontrol --oneliner show job` of Slurm 22.05.8 printed them, a few words only.
RUNS = "JobState=RUNNING Requeue=0 EndTime=2026-11-30T16:46:29 PreemptEligibleTime=2026-11-30T16:36:29 PreemptTime=None"
GRACE = RUNS.replace("PreemptTime=None", "PreemptTime=2026-11-30T16:36:35").replace("16:46:29 ", "16:36:50 ")
ENDLESS = RUNS.replace("EndTime=2026-11-30T16:46:29", "EndTime=Unknown")


def facts(text: str) -> dict[str, str]:
    """Return the words of one line of scontrol."""
    return dict(word.partition("=")[::2] for word in text.split())


@pytest.mark.parametrize(
    ("text", "state", "end", "preempted"),
    [
        pytest.param(RUNS, "RUNNING", "2026-11-30 16:46:29", False, id="runs"),
        pytest.param(GRACE, "RUNNING", "2026-11-30 16:36:50", True, id="in its grace time: the state does not tell"),
        pytest.param(ENDLESS, "RUNNING", None, False, id="no limit"),
    ],
)
def test_slurms_words(text: str, state: str, end: str | None, preempted: bool) -> None:
    """A preempted job still RUNS until its grace time is over; its end is that of the grace time."""
    word = successors.parse_word(facts(text))
    assert word is not None
    shown = None if word.end is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(word.end))
    assert (word.state, shown, word.preempted, word.comes_back) == (state, end, preempted, False)


def test_no_answer_is_no_word() -> None:
    """A controller that does not answer says neither that the job runs nor that it has gone."""
    assert successors.parse_word(facts("")) is None


def test_the_chain_counts_the_jobs_of_one_first_job_only() -> None:
    """Two sbatches of one script do not use up each other's successors; a record that points to itself ends."""
    after = {"1": "", "2": "1", "3": "2", "7": "", "8": "7", "9": "9"}
    jobs = {job: {"after": before} for job, before in after.items()}
    assert successors.chain(jobs, "3") == successors.chain(jobs, "1") == ["2", "3"]
    assert successors.chain(jobs, "8") == ["8"]
    assert successors.chain(jobs, "9") == []


def test_a_successor_gets_the_environment_of_the_submission() -> None:
    """What Slurm and the job have set would be read as options, or hide GPUs; what locates the cluster stays."""
    dropped = {"SLURM_NNODES": "1", "SBATCH_PARTITION": "x", "SLURMD_NODENAME": "n", "CUDA_VISIBLE_DEVICES": "0"}
    kept = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "HF_TOKEN": "t", "SLURMY": "mine"}
    assert successors.clean_environment({**dropped, **kept, "LLMRUN_TAG": "1.0"}) == kept


def test_other_peoples_requests_are_told_from_our_own() -> None:
    """Our generations move Triton's counts too; a model may count one long after it was sent."""
    traffic = Traffic()
    start = traffic.last
    for now, counted, own in ((1, 0, 0), (2, 1, 1), (3, 1, 0), (4, 2, 1)):
        traffic.look(0, counted, own, start + now)
    assert traffic.last == start
    traffic.look(0, 3, 0, start + 5)
    assert traffic.last == start + 5
    traffic.look(0, 5, 1, start + 6)
    assert traffic.last == start + 6
    traffic.look(1, 40, 0, start + 7)
    assert traffic.last == start + 6
    traffic.look(1, None, 0, start + 8)
    assert traffic.last == start + 8


class Told:
    """Keeps what a service writes and says."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[str] = []

    def note(self, kind: str, **_fields: Any) -> None:
        self.notes.append(kind)


def service(folder: Path, **settings: Any) -> tuple[Service, Told]:
    """Return a service of job 7, and what keeps its words."""
    told = Told()
    given = {"handover_s": 60, "drain_s": 1, "successors": 1, "idle_stop_s": None, **settings}
    voice = Voice(1, told.note, told.lines.append)
    return Service({"service": given}, str(folder), "7", voice), told


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + 15
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def test_idleness_counts_from_readiness_and_the_last_request(tmp_path: Path) -> None:
    """A server that loads is not idle, nor one whose Triton does not count."""
    own, _ = service(tmp_path, idle_stop_s=0.2)
    assert own.traffic is not None
    own.traffic.look(0, 0, 0, time.monotonic())
    time.sleep(0.3)
    assert own.orders("LOADING") == []
    assert own.orders("READY") == []
    wait_for(lambda: own.orders("READY"))
    blind, told = service(tmp_path, idle_stop_s=0)
    assert blind.orders("READY") == []
    assert told.notes == ["warning"]


def job_record(folder: Path, job_id: int, after: str = "") -> Path:
    """Write a job's record and return its folder."""
    made = folder / f"job-{job_id}"
    made.mkdir()
    (made / "job.json").write_text(json.dumps({"job_id": str(job_id), "after": after}))
    return made


@pytest.mark.parametrize("successors_allowed", [1, 2])
def test_without_sbatch_that_is_said_and_the_job_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, successors_allowed: int
) -> None:
    """Compute nodes of some clusters have no sbatch; and a chain that is used up asks for none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    job_record(tmp_path, 6)
    job_record(tmp_path, 7, after="6")
    own, told = service(tmp_path, successors=successors_allowed)
    own.voice = own.voice._replace(script=0)
    own.warn()
    wait_for(lambda: own.orders("READY") or "no-successor" in told.notes)
    assert any(("sbatch cannot be run" if successors_allowed == 2 else "successors is 1") in one for one in told.lines)
    own.settle()
    assert own.orders("READY") == []


class Ready(BaseHTTPRequestHandler):
    """A server that is ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def ready_url() -> Iterator[str]:
    """The address of a server that is ready."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_successor_that_serves_makes_the_old_job_drain_and_stop(tmp_path: Path, ready_url: str) -> None:
    """An earlier attempt's successor is taken for ours; only a server that answers counts as one."""
    job_record(tmp_path, 7)
    new = job_record(tmp_path, 8, after="7")
    own, _ = service(tmp_path, drain_s=1)
    own.warn()
    (new / "endpoint.0.json").write_text(json.dumps({"instances": [{"url": "http://127.0.0.1:9"}]}))
    time.sleep(1.5)
    assert own.orders("READY") == []
    (new / "endpoint.1.json").write_text(json.dumps({"instances": [{"url": ready_url}]}))
    orders: list[Order] = []

    def both() -> bool:
        orders.extend(own.orders("READY"))
        return len(orders) == 2

    wait_for(both)
    assert orders == [Order("", "job 8 serves now"), Order("handed over to job 8", "job 8 serves now")]


def record(t: float, kind: str, **fields: Any) -> journal.Record:
    """Return a record at `t`."""
    return {"t": t, "kind": kind, **fields}


ENDS = {
    "handed over": ([record(3, "stop", why="handed over to job 8")], "COMPLETED", "handed over to job 8"),
    "idle": ([record(3, "stop", why="idle for 60 s")], "COMPLETED", "idle for 60 s"),
    "not ready in time": (
        [record(2, "successor", job="8"), record(3, "stop", why="time limit")],
        "TIMED_OUT",
        "the time limit was near; job 8 is to take over",
    ),
    "preempted": (
        [record(2, "preempted"), record(3, "stop", why="asked")],
        "PREEMPTED",
        "Slurm took the nodes for another job",
    ),
    "preempted with a successor": (
        [record(2, "preempted"), record(2, "successor", job="8"), record(3, "stop", why="asked")],
        "COMPLETED",
        "Slurm took the nodes for another job; job 8 is to take over",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_a_service_ends(name: str) -> None:
    """The result says who takes over, and calls a handover a success."""
    records, state, cause = ENDS[name]
    ready = [record(1, "state", state="READY")]
    material = verdicts.Material(fold.fold([*ready, *records], 1), [*ready, *records], [], [])
    found = verdicts.judge(Case(material.facts, material.records, [], []), material)
    assert (found.state, found.cause) == (state, cause)


def test_slurms_sigterm_to_the_steps_alone_blames_no_rank() -> None:
    """A preempted job's script hears nothing at first: its agents do, and the server's ends are no failures.

    A worker's stub dies by SIGKILL: its wrapper ends what the server has left.
    """
    base = {"node": "n1", "rank": 1}
    records = [
        record(1, "found", main=True, pid=1, **base),
        record(1, "found", main=False, pid=2, **base),
        record(9.99, "ended", main=True, pid=1, how="signal SIGTERM", **base),
        record(9.99, "ended", main=False, pid=2, how="signal SIGKILL", name="triton_python_b", lived_s=9, **base),
    ]
    assert fold.fold(records, 2).first_end is not None
    assert fold.fold([*records, record(10, "term", node="n1")], 2).first_end is None


@pytest.mark.parametrize(
    ("left_s", "why"),
    [(30.0, "the time limit is near"), (140.0, "the time limit is near"), (600.0, "asked by a warning signal (USR1)")],
)
def test_a_warning_long_before_the_limit_was_sent_by_hand(tmp_path: Path, left_s: float, why: str) -> None:
    """Slurm itself warns so many seconds ahead, and up to a minute early."""
    own, _ = service(tmp_path, handover_s=60, drain_s=1)
    assert own._warned_of(left_s) == why
