"""A run at one moment: what the live view shows is what the run directory, Slurm and the servers said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurm_llm.observe.facts import Endpoint, load_evidence
from slurm_llm.observe.live import (
    GpuNow,
    Look,
    Seen,
    Snapshot,
    build_snapshot,
    head_page,
    metrics_pages,
    snapshot_to_json,
)
from slurm_llm.observe.livefigures import Figures
from slurm_llm.observe.livejournal import LiveReading
from slurm_llm.observe.status import SlurmWord
from slurm_llm.runs import status_by
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import SlurmState
from tests.observe.run_dirs import T0, RunDir, around, make_plan


def snapshot_of(
    run: RunDir, state: SlurmState | None, now: float = 60.0, looks: Mapping[int, Look] | None = None
) -> Snapshot:
    """Return the picture of a run `now` seconds after T0; `state` is Slurm's, None where it knows no such job."""
    reading = LiveReading()
    facts = None if state is None else JobFacts(JobId(run.job_id), state, "squeue", time_left_s=540)
    evidence = load_evidence(run.paths, run.job.job, reading=reading)
    status = status_by(run.job, SlurmWord(facts), around(run.root), reading=reading)
    attempt = evidence.attempt
    seen = Seen(
        records=reading.records(attempt) if attempt else (),
        samples=reading.journal_of(attempt).samples if attempt else {},
        looks=looks or {},
        asked=T0 + now - 5,
    )
    return build_snapshot(status, evidence, seen, T0 + now)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return the demo's run directory: eight ranks on four nodes."""
    return RunDir(tmp_path / "run")


def phases(snapshot: Snapshot) -> dict[str, tuple[float | None, bool, int | None]]:
    """Return phase → seconds, whether it goes on, ranks that have come through."""
    return {one.name: (one.seconds, one.going, one.done) for one in snapshot.phases}


def begun(run: RunDir) -> RunDir:
    """Write what the job's script does first."""
    return run.submitted().note("job", 1, "begin").state(1, "STARTING")


STARTS: list[tuple[str, Callable[[RunDir], object], float, dict[str, tuple[float | None, bool, int | None]]]] = [
    ("waiting", RunDir.submitted, 30, {"queue": (30, True, None), "check": (None, False, None)}),
    ("checking", begun, 3, {"queue": (1, False, None), "check": (2, True, None), "launch": (None, False, None)}),
    (
        "launching",
        lambda run: begun(run).note("job", 4, "server").note("rank-0", 5, "start", rank=0, node="node1"),
        6,
        {"check": (3, False, None), "launch": (2, True, 1), "load": (None, False, None)},
    ),
    (
        "loading",
        lambda run: (
            begun(run).loading().note("job", 1.5, "server"),
            run.note("node1", 4, "loaded", rank=0, node="node1", pid=100),
        ),
        10,
        {"launch": (1, False, None), "load": (7.5, True, 1), "answer": (None, False, None)},
    ),
]


@pytest.mark.parametrize(("name", "write", "now", "expected"), STARTS, ids=[row[0] for row in STARTS])
def test_how_far_a_start_is(
    run: RunDir,
    name: str,
    write: Callable[[RunDir], object],
    now: float,
    expected: dict[str, tuple[float | None, bool, int | None]],
) -> None:
    """A phase that has ended has its time, the present one what it has taken so far and how many ranks are through."""
    write(run)
    made = snapshot_of(run, SlurmState.PENDING if name == "waiting" else SlurmState.RUNNING, now)
    assert made.starting
    assert {name: own for name, own in phases(made).items() if name in expected} == expected


def test_a_run_that_serves(run: RunDir) -> None:
    """Ranks by node, memory and GPUs as the newest sample has them, figures of the instance, events in order."""
    run.serving()
    run.note("node2", 3, "gpus", node="node2", gpus=[{"gpu": 0, "uuid": "GPU-a", "total_mib": 81559}])
    for at, mib in ((6, 100.0), (16, 150.5)):
        held = {"2": {"rss_mib": mib, "cpu_s": 1}, "3": {"rss_mib": 200.0, "cpu_s": 1}}
        run.note("node2.samples", at, "sample", node="node2", ranks=held, gpus={"0": [70000, 97], "1": [10, None]})
    look = Look(Figures(2.0, 50, 0, 12.5), T0 + 59)
    made = snapshot_of(run, SlurmState.RUNNING, looks={0: look})
    assert {(one.name, *one.states.items()) for one in made.nodes} == {
        (f"node{number}", ("ready", 2)) for number in range(1, 5)
    }
    node = made.nodes[1]
    assert (node.rss_mib, node.sampled) == (350.5, T0 + 16)
    assert node.gpus == (GpuNow(0, 70000, 81559, 97), GpuNow(1, 10, None, None))
    assert made.nodes[0].rss_mib is None and made.nodes[0].gpus == ()
    assert [(one.instance, one.node, one.ready, one.ranks, one.look) for one in made.instances] == [
        (0, "node1", 8, 8, look)
    ]
    assert made.total == look.figures
    assert [event.text for event in made.events] == ["STARTING", "LOADING", "READY"]
    assert not made.starting


def test_a_run_that_failed(run: RunDir) -> None:
    """The first end and why, one line for those that it took along; no memory, no figures of what is not there."""
    run.serving().killed(5)
    run.note("node3.samples", 8, "sample", node="node3", ranks={"4": {"rss_mib": 5.0}}, gpus={"0": [5, 5]})
    for rank in (0, 1, 2):
        fields = {"rank": rank, "node": "node1", "pid": rank, "name": "tritonserver", "main": True, "asked": False}
        run.note("node1", 10 + rank, "ended", how="signal SIGKILL", at=T0 + 10 + rank, **fields)
    run.state(
        9.5,
        "FAILED",
        "rank 5 on node node3 went first: triton_python_backend_stub ended: signal SIGKILL, while serving",
    )
    first = {"rank": 5, "node": "node3", "name": "stub", "how": "signal SIGKILL", "phase": "serving", "at": T0 + 9}
    run.result("FAILED", "rank 5 on node node3 went first", first)
    made = snapshot_of(run, SlurmState.FAILED, looks={0: Look(Figures(2.0, 50, 0, 12.5), T0 + 8)})
    assert [(event.level, event.text) for event in made.events[-3:]] == [
        ("bad", "rank 5 on node node3 went first: triton_python_backend_stub ended: signal SIGKILL, while serving"),
        ("bad", "FAILED"),
        ("plain", "3 other ranks have ended too"),
    ]
    assert made.status.first is not None and made.status.first.rank == 5
    assert {one.state for one in made.ranks} == {"ended", "gone"}
    assert made.total is None and all(node.rss_mib is None and not node.gpus for node in made.nodes)


EVENTS: list[tuple[str, dict[str, object], str, str]] = [
    ("warning", {"text": "GPU 1 of node node2: Xid 79\x1b[31m"}, "warning", "GPU 1 of node node2: Xid 79"),
    ("complaint", {"rank": 3, "node": "n", "text": "failed to load 'm' version 1"}, "bad", "rank 3 on node n: failed"),
    ("stall", {"rank": 2, "what": "rank 2 stands still"}, "bad", "rank 2 stands still"),
    ("lost", {"node": "node4", "why": "it does not answer"}, "bad", "node node4 is lost: it does not answer"),
    ("restart", {"in_s": 10.0}, "warning", "the server is started again in 10 s"),
    ("requeue", {"why": "a node is lost"}, "warning", "the job is requeued: a node is lost"),
    ("no-restart", {"why": "none is left"}, "bad", "the server is not started again: none is left"),
    ("no-successor", {"text": "sbatch refused"}, "warning", "sbatch refused"),
]


@pytest.mark.parametrize(("kind", "fields", "level", "text"), EVENTS, ids=[row[0] for row in EVENTS])
def test_what_is_told(run: RunDir, kind: str, fields: dict[str, object], level: str, text: str) -> None:
    """Each kind of record that a person at night wants to see is an event, made safe to print."""
    run.loading().note("head", 4, kind, **fields)
    (event,) = (one for one in snapshot_of(run, SlurmState.RUNNING).events if one.at == T0 + 4)
    assert event.level == level
    assert event.text.startswith(text) and event.text.isprintable()


def test_what_is_written_twice_has_happened_once(run: RunDir) -> None:
    """A writer to whom the file system was lost writes again all that may not have arrived."""
    run.serving()
    path = run.paths.job(run.job_id).attempt(0).journal / "head.jsonl"
    path.write_text(path.read_text() * 2)
    events = snapshot_of(run, SlurmState.RUNNING).events
    assert [event.text for event in events] == ["STARTING", "LOADING", "READY"]


def test_instances_that_answer_add_up(tmp_path: Path) -> None:
    """One that does not answer keeps its old figures in its row, but not in the sum."""
    plan = make_plan(replicas=3, tensor_parallel_size=1, pipeline_parallel_size=1, resources={"nodes": 3})
    run = RunDir(tmp_path / "run", plan=plan).serving()
    looks = {
        0: Look(Figures(2.0, 1, 0, 2.0), T0 + 59),
        1: Look(Figures(2.0, 1, 0, 3.0), T0 + 59),
        2: Look(Figures(2.0, 1, 0, 7.0), T0 + 9, "no answer within 2 s"),
    }
    made = snapshot_of(run, SlurmState.RUNNING, looks=looks)
    assert made.total is not None and made.total.requests_per_s == 5.0
    assert made.instances[2].look == looks[2]


def test_a_balancer_has_no_page() -> None:
    """Only instances are asked."""
    found = (Endpoint(None, "http://f:1", "", ""), Endpoint(1, "http://n:1", "", "http://n:2/metrics"))
    assert metrics_pages(found) == {1: "http://n:2/metrics"}
    assert head_page(found) == ""
    own = (Endpoint(0, "http://n:1", "", "", exporter="http://n:9/metrics"),)
    assert head_page(own) == "http://n:9/metrics?ranks=0&instances=0"


def test_its_json(run: RunDir) -> None:
    """Everything is there under plain names; nothing that JSON does not know."""
    run.serving()
    value = json.loads(snapshot_to_json(snapshot_of(run, SlurmState.RUNNING, looks={0: Look(Figures(2.0), T0 + 59)})))
    assert set(value) >= {"schema", "at", "status", "total", "instances", "phases", "nodes", "ranks", "events"}
    assert value["status"]["state"] == "READY"
    assert [rank["state"] for rank in value["ranks"]] == ["ready"] * 8
    assert value["instances"][0]["look"]["figures"]["requests_per_s"] is None
