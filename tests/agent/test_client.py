"""The agent's part for a client: its variables, its end, its output, and when it may begin once more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import client, fold, processes
from slurm_llm.observe.endpoint import variables
from slurm_llm.observe.facts import Endpoint
from slurm_llm.observe.status import RunStatus
from slurm_llm.slurm.states import RunState

ENDPOINT: dict[str, Any] = {
    "attempt": 0,
    "job_id": "12",
    "model": "llama",
    "exporter": "http://n0:5/metrics",
    "instances": [
        {
            "instance": 0,
            "url": "http://n1:1",
            "grpc": "n1:2",
            "metrics": "http://n1:3/metrics",
            "key_file": "/run/key.0",
        }
    ],
}
FRONT = {
    "key_file": "/run/key.0",
    "program": "haproxy",
    "url": "http://n0:9",
    "grpc": "n0:8",
    "openai": "http://n0:7/v1",
}


def made(folder: Path, line: str, **given: Any) -> tuple[client.Client, list[dict[str, Any]]]:
    """Return the client of attempt 0 of a job, and the records that it leaves."""
    attempt = folder / "job-12" / "attempt-0"
    attempt.mkdir(parents=True, exist_ok=True)
    (folder / "client.sh").write_text(line + "\n")
    notes: list[dict[str, Any]] = []
    plan = {"client": {"grace_s": 30, "restart": False, **given}}
    return client.Client(
        plan, str(folder), str(attempt), lambda kind, **more: notes.append({"kind": kind, **more})
    ), notes


def until_over(own: client.Client) -> client.End:
    """Look at a client as the head does until it has ended."""
    deadline = time.monotonic() + 20
    while own.end is None:
        assert time.monotonic() < deadline
        own.look(time.monotonic())
        time.sleep(0.01)
    return own.end


@pytest.mark.parametrize("front", [None, FRONT])
def test_its_variables_are_those_that_endpoint_prints(front: dict[str, str] | None) -> None:
    """A script finds the same in the job and beside it; the two are made from different things."""
    value = ENDPOINT if front is None else {**ENDPOINT, "balancer": front}
    first = value["instances"][0]
    own = Endpoint(
        0, first["url"], first["grpc"], first["metrics"], key_file=first["key_file"], exporter=value["exporter"]
    )
    places = (
        (own,)
        if front is None
        else (
            Endpoint(
                None, front["url"], front["grpc"], "", front["openai"], "haproxy", "/run/key.0", value["exporter"]
            ),
            own,
        )
    )
    status = RunStatus(
        run_id="x",
        name="x",
        engine="vllm",
        site="x",
        directory="/run",
        job_id=12,
        cluster="",
        state=RunState.READY,
        slurm_state=None,
        attempt=0,
        nodes=1,
        node_list="",
        ranks_ready=1,
        ranks_total=1,
        rank_states={},
        model="llama",
        endpoints=places,
    )
    assert client.variables(value, "/run") == variables(status)


@pytest.mark.parametrize(("line", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)])
def test_its_status_is_that_of_a_shell(tmp_path: Path, line: str, code: int) -> None:
    """Every end of the command becomes the exit status that a job can have."""
    own, notes = made(tmp_path, line)
    assert own.start(ENDPOINT) == ""
    assert until_over(own) == (code, False)
    assert notes[-1] == {"kind": "client-end", "code": code, "told": False}


def test_an_error_is_believed_after_a_moment(tmp_path: Path) -> None:
    """It may have failed because its server did, which is then seen a little later; success needs no proof."""
    failed, well = made(tmp_path / "a", "exit 1")[0], made(tmp_path / "b", "exit 0")[0]
    for own in (failed, well):
        own.start(ENDPOINT)
        until_over(own)
    assert failed.news(failed.ended_at) is None
    assert failed.news(failed.ended_at + client.SETTLE_S) == (1, False)
    assert well.news(well.ended_at) == (0, False)


def test_one_that_does_not_heed_is_killed(tmp_path: Path) -> None:
    """With all that it has started, after its grace."""
    own, notes = made(
        tmp_path, f"trap '' TERM; sleep 300 & echo $! >{tmp_path}/pid; touch {tmp_path}/up; wait; wait", grace_s=1
    )
    own.start(ENDPOINT)
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    own.close()
    assert own.end == (137, True)
    assert [note["kind"] for note in notes] == ["client-start", "client-told", "client-end"]
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while processes.alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_its_output_is_kept_as_it_is_and_marked_in_the_jobs(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The log has every byte; the job's output says of each line whose it is, also of one without an end."""
    own, _ = made(tmp_path, r"printf 'one\r\n\001two\nthree'")
    own.start(ENDPOINT)
    until_over(own)
    assert Path(own.log).read_bytes() == b"one\r\n\x01two\nthree"
    assert Path(own.log).stat().st_mode & 0o777 == 0o600
    assert capfdbinary.readouterr().out == b"client: one\r\nclient: \x01two\nclient: three\n"


def test_it_begins_once_in_a_job_unless_it_may_again(tmp_path: Path) -> None:
    """A requeued job or a restart must not run it twice unasked: it may have written half of its results."""
    own, _ = made(tmp_path, "true")
    assert own.lacks() == ""
    own.start(ENDPOINT)
    until_over(own)
    later = str(tmp_path / "job-12" / "attempt-1")
    plan: dict[str, Any] = {"client": {"grace_s": 1, "restart": False}}
    assert "has begun in attempt 0" in client.Client(plan, str(tmp_path), later, print).lacks()
    plan["client"]["restart"] = True
    assert client.Client(plan, str(tmp_path), later, print).lacks() == ""


def test_a_run_without_one_has_none(tmp_path: Path) -> None:
    """Nothing is started, awaited or said."""
    own = client.Client({}, str(tmp_path), str(tmp_path / "job-1" / "attempt-0"), print)
    assert own.lacks() == own.start(ENDPOINT) == ""
    own.close()
    assert own.news(0.0) is None
    assert list(tmp_path.iterdir()) == []


def test_the_fold_tells_how_it_is() -> None:
    """From its beginning to its end, in the words of status."""
    records: list[dict[str, Any]] = [{"t": 1.0, "kind": "begin"}, {"t": 5.0, "kind": "client-start", "pid": 1}]
    assert fold.fold(records, 0).client == (5.0, None, None, False)
    records.append({"t": 6.0, "kind": "client-told"})
    assert fold.fold(records, 0).client == (5.0, None, None, True)
    records.append({"t": 7.0, "kind": "client-end", "code": 143, "told": True})
    assert fold.fold(records, 0).client == (5.0, 7.0, 143, True)
