"""`client` on a real Slurm: the job serves, runs the client, stops in order, and ends with the client's status."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Run, Spec, User, wait_for

pytestmark = pytest.mark.cluster

ASK = """\
import json, os, urllib.request
url = os.environ["SLURM_LLM_URL"] + "/v2/models/" + os.environ["SLURM_LLM_MODEL"] + "/generate"
body = json.dumps({"text_input": "Hello", "sampling_param_max_tokens": 4}).encode()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print("answer", json.load(opener.open(urllib.request.Request(url, body)))["text_output"])
"""


def small(name: str, command: str, **more: Any) -> Spec:
    """One node with one rank, and a shell line as its client."""
    own = more.pop("client", {})
    client = {"command": ["bash", "-c", command], **own}
    return {"name": name, "engine": "rehearsal", "resources": {"time": "00:05:00"}, "client": client, **more}


def text_of(run: Run, attempt: int = 0) -> str:
    """Return what the client has printed so far."""
    path = run.job / f"client.{attempt}.log"
    return path.read_text() if path.exists() else ""


def exit_code(run: Run) -> str:
    """Return Slurm's exit status of the job, `status:signal`."""
    return (
        run.user.cluster.slurm("scontrol", "show", "job", str(run.job_id)).stdout.partition("ExitCode=")[2].split()[0]
    )


def test_a_script_waits_for_its_client(user: User) -> None:
    """`submit --then --wait`: the client asks the model; its output alone is on stdout, its status is the command's."""
    (user.folder / "ask.py").write_text(ASK)
    (user.folder / "ask.py").chmod(0o644)
    spec: Spec = {"name": "then", "engine": "rehearsal", "tensor_parallel_size": 2, "resources": {"nodes": 2}}
    path = user.write_spec({**spec, "client": {"command": ["true"], "env": {"MARK": "its own"}}})
    line = 'python3 ask.py && echo "$MARK in $PWD" && exit 7'
    done = user.cli("submit", str(path), "--site", "devcluster", "--then", line, "--wait", check=False)
    rows = done.stdout.splitlines()
    assert (done.returncode, len(rows)) == (7, 2), done
    assert rows[0].startswith("answer ")
    assert rows[1] == f"its own in {user.folder}"
    assert "client     ended with exit status 7" in done.stderr
    job = done.stderr.partition("submitted job ")[2].partition(",")[0]
    folder = Path(done.stderr.partition(", in ")[2].splitlines()[0])
    run = Run(user, folder, int(job))
    result = run.wait_ended()
    assert (result["state"], result["cause"], exit_code(run)) == ("FAILED", "the client ended: exit 7", "7:0")
    assert result["log"][-1] == rows[1]
    assert f"client: {rows[0]}\n" in run.output()
    assert run.cli("logs", "--source", "client").stdout.splitlines() == [f"[client] {row}" for row in rows]
    assert json.loads(run.cli("diagnose", "--json", check=False).stdout)["kind"] == "client"


def test_a_client_is_a_step_with_cpus_of_its_own(user: User) -> None:
    """With `cpus` srun starts it beside the server's step; the job's status tells the signal that killed it."""
    line = 'echo "cpus $SLURM_CPUS_PER_TASK step $SLURM_STEP_ID"; kill -KILL $$'
    run = user.submit(small("step", line, client={"cpus": 1}))
    result = run.wait_ended()
    assert (result["state"], exit_code(run)) == ("FAILED", "137:0")
    assert text_of(run).startswith("cpus 1 step ")
    assert result["ranks_ended"] == {"0": "exit 0"}


def test_cancel_tells_the_client_first(user: User) -> None:
    """It still has a server to say good-bye to; the run is cancelled, and its status is the client's."""
    leave = 'curl -so /dev/null --noproxy "*" -w "bye %{http_code}\\n" "$SLURM_LLM_URL/v2/health/ready"; exit 9'
    run = user.submit(small("told", f"trap '{leave}' TERM; echo begun; while :; do sleep 0.1; done"))
    wait_for("the client", lambda: "begun" in text_of(run), 30)
    run.cli("cancel")
    result = run.wait_ended()
    assert (result["state"], exit_code(run)) == ("CANCELLED", "9:0")
    assert text_of(run).endswith("bye 200\n")


def test_a_server_that_fails_ends_its_client(user: User) -> None:
    """The server's fault is the cause; no restart gives a client that has begun to another server unasked."""
    recovery = {"restarts": 2, "backoff_s": 0}
    run = user.submit(small("fails", "echo begun; while :; do sleep 0.1; done", recovery=recovery))
    wait_for("the client", lambda: "begun" in text_of(run), 30)
    os.kill(run.pid(0, main=True), signal.SIGKILL)
    result = run.wait_ended()
    assert result["state"] == "FAILED"
    assert "SIGKILL" in result["cause"]
    assert "client.restart is not set" in run.output()
    assert not (run.job / "attempt-1").exists()


def test_a_client_begins_again_where_it_may(user: User) -> None:
    """`restart: true`: the second server has a client of its own, whose end is the job's."""
    command = "sleep 300 & echo begun; [[ -e second ]] && exit 0; touch second; while :; do sleep 0.1; done"
    spec = small("again", command, recovery={"restarts": 1, "backoff_s": 0}, client={"restart": True})
    run = user.submit(spec)
    wait_for("the client", lambda: (user.folder / "second").exists(), 30)
    os.kill(run.pid(0, main=True), signal.SIGKILL)
    run.wait_gone()
    assert (text_of(run, 1), exit_code(run)) == ("begun\n", "0:0")
