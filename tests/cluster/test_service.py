"""A service outlives its jobs: the next one takes over before the end, and no client loses a request by it."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from slurm_llm.agent import probe
from tests.cluster.conftest import Run, Spec, User, wait_for
from tests.cluster.test_main_job import ask, small

pytestmark = pytest.mark.cluster

HANDS_OVER = {"successors": 1, "handover_s": 60, "drain_s": 20}
CLIENT = """
import json, pathlib, sys, threading, time
import slurm_llm
from slurm_llm.errors import SlurmLlmError
run, stop = slurm_llm.find_run(sys.argv[1]), pathlib.Path(sys.argv[2])
told = {"answered": 0, "long": 0, "lost": [], "jobs": set()}
def work(tokens):
    while not stop.exists():
        job, began = run.job_id, time.time()
        try:
            run.generate("Hello", max_tokens=tokens)
        except SlurmLlmError as error:
            told["lost"].append([job, tokens, round(time.time() - began, 2), str(error)])
            continue
        told["answered"] += 1
        told["long"] += tokens > 2
        told["jobs"].add(job)
threads = [threading.Thread(target=work, args=(tokens,)) for tokens in (1, 2, 100)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({**told, "jobs": sorted(told["jobs"])}))
"""


class Load:
    """Clients of the ordinary user that ask without a pause, a new look-up of the run for each request, no retry."""

    def __init__(self, run: Run) -> None:
        self.stop = run.user.folder / "stop"
        self.told: dict[str, Any] = {}
        words = (sys.executable, "-c", CLIENT, str(run.path), str(self.stop))
        self.thread = threading.Thread(target=lambda: self.told.update(json.loads(run.user.run(*words).stdout)))
        self.thread.start()

    def end(self) -> dict[str, Any]:
        """Stop asking, and return how the requests went."""
        self.stop.touch()
        self.thread.join(60)
        assert self.told, "the clients hang, or have failed"
        return self.told


def warn(run: Run) -> None:
    """Send what Slurm sends ahead of the time limit."""
    run.user.cluster.slurm("scancel", "--batch", "--signal=USR1", str(run.job_id))


def successor_of(run: Run) -> Run:
    """Wait for the job that is to take over from this one."""

    def find() -> int:
        found = [json.loads(path.read_text()) for path in run.path.glob("job-*/job.json") if path.stat().st_size]
        return next((int(one["job_id"]) for one in found if one.get("after") == str(run.job_id)), 0)

    made = Run(run.user, run.path, int(wait_for("a successor", find, 30)))
    run.user.runs.append(made)
    return made


def status_of(run: Run) -> dict[str, Any]:
    """Return the status of the run as a whole."""
    value: dict[str, Any] = json.loads(run.user.cli("status", str(run.path), "--json").stdout)
    return value


def requests_so_far(run: Run) -> int:
    """Return how many requests the model has had, as Triton counts them."""
    url = urlsplit(run.url())
    counts = probe.requests_answered(url.hostname or "", url.port or 0, "tensorrt_llm")
    return 0 if counts is None else counts.answered


def alone(run_spec: Spec, node: str) -> Spec:
    """Return the spec of a job that takes a whole node: its successor must wait for its end."""
    resources = {**run_spec["resources"], "cpus_per_rank": 4}
    return {**run_spec, "resources": resources, "sbatch_extra": [f"--nodelist={node}"]}


def test_a_handover_under_load_loses_no_request(user: User) -> None:
    """Short requests, and one that is always in flight; the old job ends well, the new one serves on."""
    old = user.submit(small("service", service=HANDS_OVER, engine_args={"step_ms": 20}))
    old.wait_ready()
    load = Load(old)
    wait_for("some load", lambda: requests_so_far(old) > 10)
    warn(old)
    new = successor_of(old)
    new.wait_ready()
    result = old.wait_ended()
    time.sleep(2)
    told = load.end()
    assert told["lost"] == []
    assert told["jobs"] == [old.job_id, new.job_id]
    assert told["long"] > 2
    assert (result["state"], result["cause"], old.slurm_state()) == (
        "COMPLETED",
        f"handed over to job {new.job_id}",
        "COMPLETED",
    )
    status = status_of(old)
    assert (status["state"], status["job_id"], status["notes"]) == ("READY", new.job_id, [])
    user.cli("cancel", str(old.path))
    assert new.wait_ended()["state"] == "COMPLETED"


def test_a_successor_that_cannot_start_leaves_requests_in_flight_their_time(user: User) -> None:
    """The old job serves until its end is near, says who is to follow, and lets its last request finish."""
    node = user.cluster.nodes[2]
    spec = {**small("late"), "resources": {"nodes": 1, "time": "00:03:00"}, "engine_args": {"step_ms": 50}}
    old = user.submit(alone({**spec, "service": {**HANDS_OVER, "handover_s": 20, "drain_s": 15}}, node))
    url = old.url()
    user.cluster.slurm("scontrol", "update", f"JobId={old.job_id}", "TimeLimit=1")
    new = successor_of(old)
    shown = user.cli("status", str(old.path)).stdout
    assert "READY" in shown
    assert f"job {new.job_id}, which is to take over, is PENDING" in " ".join(shown.split())
    answers: list[int] = []
    while not (draining := "DRAINING" in old.output()) or not answers:
        answers.append(len(ask(url, "still?", sampling_param_max_tokens=60)["text_output"]))
    assert draining
    assert set(answers) == {60}
    result = old.wait_ended(60)
    assert (result["state"], result["cause"], result["exit_code"]) == (
        "TIMED_OUT",
        f"the time limit was near; job {new.job_id} is to take over",
        0,
    )
    new.wait_ready()
    assert status_of(old)["job_id"] == new.job_id


def test_cancel_ends_old_and_new_alike(user: User) -> None:
    """Whoever cancels a run does not want its successor either."""
    old = user.submit(alone(small("both", service=HANDS_OVER), user.cluster.nodes[3]))
    old.wait_ready()
    warn(old)
    new = successor_of(old)
    user.cli("cancel", str(old.path))
    old.wait_gone(20)
    new.wait_gone(20)
    assert (old.slurm_state(), new.slurm_state()) == ("COMPLETED", "CANCELLED")
    assert len(list(old.path.glob("job-*"))) == 2


def test_a_refused_successor_is_told(user: User) -> None:
    """sbatch's own words, in the job's output and in status; the old job goes on to serve."""
    old = user.submit(small("refused", service=HANDS_OVER))
    old.wait_ready()
    script = old.path / "job.sub"
    script.rename(old.path / "gone.sub")
    warn(old)
    wait_for("the refusal", lambda: "no successor: sbatch: " in old.output(), 20)
    status = status_of(old)
    assert status["state"] == "READY"
    assert any("Unable to open file" in note for note in status["notes"])


def test_no_more_successors_than_asked_for(user: User) -> None:
    """The last job of a chain ends at its limit like any other."""
    old = user.submit(small("last", service=HANDS_OVER))
    old.wait_ready()
    warn(old)
    new = successor_of(old)
    new.wait_ready()
    old.wait_ended()
    warn(new)
    wait_for("the end of the chain", lambda: "service.successors is 1" in new.output(), 20)
    assert len(list(old.path.glob("job-*"))) == 2


def test_an_idle_server_ends_by_itself(user: User) -> None:
    """Requests put it off, our own generations do not; Slurm and status call it a success."""
    spec = small("idle", service={"idle_stop_s": 10}, timeouts={"probe_s": 2})
    run = user.submit(spec)
    url = run.url()
    for _ in range(7):
        assert ask(url, "busy")["text_output"]
        time.sleep(2)
    assert run.slurm_state() == "RUNNING"
    result = run.wait_ended(40)
    assert (result["state"], result["cause"], run.slurm_state()) == ("COMPLETED", "idle for 10 s", "COMPLETED")


def test_requests_in_flight_outlive_the_warning_of_any_job(user: User) -> None:
    """Without a service too: Triton answers what it has taken before it ends."""
    run = user.submit(small("plain", engine_args={"step_ms": 50}))
    url = run.url()
    answers: list[str] = []
    before = requests_so_far(run)
    thread = threading.Thread(
        target=lambda: answers.append(ask(url, "long", sampling_param_max_tokens=50)["text_output"])
    )
    thread.start()
    wait_for("the request in flight", lambda: requests_so_far(run) > before, 5)
    warn(run)
    thread.join(30)
    assert [len(text) for text in answers] == [50]
    assert run.wait_ended()["state"] == "TIMED_OUT"
