"""`diagnose` and `bundle`: for a person at night at 80 columns, for scripts as JSON, and one file for a ticket."""

from __future__ import annotations

import json
import socket
import tarfile
from pathlib import Path

import pytest

from slurm_llm.agent import conclude
from slurm_llm.rundir import RunPaths
from tests.cli.test_cli import Desk
from tests.http_server import serve
from tests.observe import captured
from tests.observe.run_dirs import RunDir, squeue_row

NAME = "logs/demo-20261130-104000-abcd"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    return Desk(tmp_path, monkeypatch)


def real(desk: Desk, name: str) -> RunDir:
    """Lay out what a real job has left."""
    return captured.lay_out(RunDir(desk.folder / NAME), name)


def served_at(desk: Desk, url: str) -> None:
    """Lay out a run that serves at `url`."""
    path = desk.serving().job_paths.endpoint(0)
    value = json.loads(path.read_text())
    value["instances"][0]["url"] = url
    path.write_text(json.dumps(value))


def test_a_killed_rank(desk: Desk) -> None:
    """Cause, time, meaning, what to do with this run's name, evidence with file names, victims folded, what to run."""
    real(desk, "killed-stub").result("FAILED", "x")
    done = desk.run("diagnose")
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    for part in (
        "FAILED demo 20261130-104000-abcd job 7",
        "cause rank 5 on node n3 went first: triton_python_backend_stub ended: signal SIGKILL, while serving",
        "when 2026-11-30",
        "why Somebody or something sent SIGKILL",
        "`slurm-llm health 20261130-104000-abcd`",
        "evidence journal/n3.jsonl | triton_python_backend_stub of rank 5 ended: signal SIGKILL rank-5.log |",
        "6 others were ended by the node agents within 0.52 s (signal SIGTERM): ranks 1-4,6-7",
        "next slurm-llm logs 20261130-104000-abcd --rank 5 slurm-llm bundle 20261130-104000-abcd",
    ):
        assert part in text, (part, text)


@pytest.mark.parametrize("name", captured.NAMES)
def test_it_fits_into_80_columns(desk: Desk, name: str) -> None:
    """A terminal at night is narrow; nothing of a log steers it."""
    real(desk, name).result("FAILED", "x")
    done = desk.run("diagnose")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert all(line.isprintable() for line in done.stdout.splitlines())


def test_a_command_stays_on_one_line(desk: Desk) -> None:
    """It is copied by hand: no line break inside."""
    real(desk, "segv-loading").result("FAILED", "x")
    assert "`slurm-llm logs 20261130-104000-abcd --rank 7`" in desk.run("diagnose").stdout


def test_a_healthy_run(desk: Desk) -> None:
    """It is said to be well once its model has answered a request, and nothing is to be done."""
    with serve(lambda _path, _body: (200, iter([b'{"text_output": "x"}']))) as server:
        served_at(desk, server.url)
        text = desk.run("diagnose").stdout
        asked = [path for path, _body in server.asked]
    assert text.startswith("READY  demo")
    assert "verdict   nothing is wrong: 8 of 8 ranks serve, and the model answers (just" in text
    assert "next" not in text
    assert asked == ["/v2/models/tensorrt_llm/generate"]


def test_a_model_that_does_not_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may hang before the head has noticed: nobody is told that all is well; scripts see it by its kind."""
    monkeypatch.setattr("slurm_llm.cli.diagnose.ASK_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        served_at(desk, f"http://127.0.0.1:{silent.getsockname()[1]}")
        text = " ".join(desk.run("diagnose").stdout.split())
        value = json.loads(desk.run("diagnose", "--json").stdout)
    assert "cause the model does not answer right now: a request got no answer within 0.3 s" in text
    assert "nothing is wrong" not in text
    assert "`slurm-llm health 20261130-104000-abcd`" in text
    assert (value["kind"], value["state"], value["asked"][0]["took_s"]) == ("no-answer", "READY", None)


def test_a_model_that_answers_with_an_error(desk: Desk) -> None:
    """The error is shown."""
    with serve(lambda _path, _body: (500, iter([b"no such thing"]))) as server:
        served_at(desk, server.url)
        value = json.loads(desk.run("diagnose", "--json").stdout)
    assert value["kind"] == "no-answer"
    assert "answered with status 500 no such thing" in value["cause"]


def test_a_model_that_cannot_be_reached_from_here(desk: Desk) -> None:
    """It is no fault of the model, and no praise of it either."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    served_at(desk, f"http://127.0.0.1:{port}")
    value = json.loads(desk.run("diagnose", "--json").stdout)
    assert value["kind"] == "none"
    assert value["cause"].startswith("the head has found nothing wrong so far")
    assert "it could not be asked from here" in value["cause"]


def again(desk: Desk) -> RunDir:
    """Lay out a run whose first start has failed, and whose second one serves."""
    run = real(desk, "port-taken").result("FAILED", "x")
    value = conclude.result(str(run.job_paths.attempt(0).root), 8, [1], 0)
    known = {"id": "port-triton", "means": "m", "remedy": "r", "source": "s", "where": "rank-0.log", "times": 1}
    value["diagnosis"].update(known=[known], cause="as the job saw it")
    run.job_paths.result(0).write_text(json.dumps(value))
    second = Later(run.root, attempt=1)
    second.serving()
    desk.says("squeue", squeue_row(7, "RUNNING"))
    return run


class Later(RunDir):
    """A later attempt in a run directory that is there."""

    def __post_init__(self) -> None:
        self.paths = RunPaths(self.root)


def test_an_earlier_attempt(desk: Desk) -> None:
    """A run that serves again says how to see why it did not; the job's own words count, not what came after."""
    run = again(desk)
    run.paths.output(7).write_text("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***\n")
    text = " ".join(desk.run("diagnose").stdout.split())
    assert "before attempt 0: FAILED; `slurm-llm diagnose 20261130-104000-abcd --attempt 0`" in text
    value = json.loads(desk.run("diagnose", "--attempt", "0", "--json").stdout)
    assert (value["state"], value["attempt"], value["known"][0]["id"]) == ("FAILED", 0, "port-triton")
    assert value["cause"] == "as the job saw it"
    assert value["victims"][0]["ranks"] == [1, 2, 3, 4, 5, 6, 7]
    assert desk.run("diagnose", "--attempt", "0").stdout.startswith("FAILED  demo")


def test_an_earlier_attempt_without_a_result(desk: Desk) -> None:
    """What was not written down is found from what is left."""
    run = again(desk)
    run.job_paths.result(0).unlink()
    value = json.loads(desk.run("diagnose", "--attempt", "0", "--json").stdout)
    assert (value["state"], value["known"][0]["id"]) == ("FAILED", "port-triton")


def test_an_attempt_that_was_not(desk: Desk) -> None:
    """The ones that there are, are named; the newest is that of `diagnose` alone."""
    again(desk)
    done = desk.run("diagnose", "--attempt", "2")
    assert done.exit_code == 3
    assert "--attempt: the job has no attempt 2: it has: 0, 1" in done.stderr
    assert desk.run("diagnose", "--attempt", "1").stdout.startswith("READY")


@pytest.mark.parametrize(
    ("note", "slurm", "now"),
    [
        ("requeue", "PENDING", "now PENDING: attempt 0 has ended and the job waits in the queue to start once more"),
        ("restart", "RUNNING", "now STARTING: attempt 0 has ended and the server is started again"),
        ("no-restart", "FAILED", "now FAILED: the server is not started again: no restart is left"),
    ],
)
def test_what_follows_a_failure(desk: Desk, note: str, slurm: str, now: str) -> None:
    """FAILED alone would have somebody submit it anew."""
    run = real(desk, "port-taken").result("FAILED", "x")
    run.note("job", 3e9, note, in_s=5, why="no restart is left")
    desk.says("squeue", squeue_row(7, slurm))
    text = " ".join(desk.run("diagnose").stdout.split())
    assert text.startswith("FAILED demo")
    assert now in text


def test_a_run_that_nobody_knows_of(desk: Desk) -> None:
    """As with every other command."""
    assert desk.run("diagnose", "nosuch").exit_code == 7


def test_a_slurm_that_is_silent(desk: Desk) -> None:
    """The run directory speaks for itself; that Slurm did not is told."""
    real(desk, "memory-limit").result("FAILED", "x")
    desk.says("squeue", "", "slurm_load_jobs error: Unable to contact slurm controller", 1)
    text = " ".join(desk.run("diagnose").stdout.split())
    assert "used 1979 MiB, more than the 600 MiB" in text
    assert "Unable to contact slurm controller" in text


def test_slurms_accounting(desk: Desk) -> None:
    """Steps that ended badly, with their signals, where the run directory cannot tell more."""
    real(desk, "memory-limit").result("FAILED", "x")
    rows = (
        "7|FAILED|1:0|0:9|None|x|x|x|00:10:00|4|n[1-4]|batch|demo",
        "7.2|CANCELLED by 0|0:9|||x|x|x||4|n[1-4]||bash",
    )
    desk.says("sacct", "\n".join(rows).replace("|", "\x1f"))
    value = json.loads(desk.run("diagnose", "--json").stdout)
    assert value["slurm"]["derived_exit_code"] == 0
    assert {"where": "sacct", "line": "step 2: CANCELLED, signal 9"} in value["evidence"]


def test_json(desk: Desk) -> None:
    """For scripts: kind, rank, node, the known error's id, and the victims."""
    real(desk, "port-taken").result("FAILED", "x")
    value = json.loads(desk.run("diagnose", "--json").stdout)
    assert (value["kind"], value["rank"], value["node"]) == ("exit", 0, "n1")
    assert value["known"][0]["id"] == "port-triton"
    assert value["victims"][0]["ranks"] == [1, 2, 3, 4, 5, 6, 7]


def test_warnings_and_what_is_missing(desk: Desk) -> None:
    """Both are told below the cause."""
    run = real(desk, "memory-limit")
    (run.job_paths.attempt(0).root / "rank-3.log").unlink()
    text = " ".join(desk.run("diagnose").stdout.split())
    assert "warning slurm-7.out (3 times): The job used more memory than it had asked for" in text
    assert "missing logs of ranks that ran: rank-0.log" in text
    assert "the result file: the job's script did not come to its end" in text


def test_a_bundle(desk: Desk) -> None:
    """One private file in the current folder, named after run and job, with diagnosis and status in it."""
    real(desk, "import-error").result("FAILED", "x")
    done = desk.run("bundle", "7")
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.strip())
    assert path == desk.folder / "demo-20261130-104000-abcd-job7.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        text = archive.extractfile("demo-20261130-104000-abcd-job7/diagnosis.txt")
        assert text is not None
        assert "no such weights" in text.read().decode()
    assert {"diagnosis.json", "status.txt", "status.json", "plan.json", "job-7/attempt-0/rank-4.log"} <= names
    assert "look at it before you send it" in done.stderr


def test_a_bundle_writes_over_nothing(desk: Desk) -> None:
    """An archive that is there stays; another name can be given."""
    desk.serving()
    desk.says("squeue", squeue_row(7, "RUNNING"))
    assert desk.run("bundle", "-o", "case.tar.gz").exit_code == 0
    again = desk.run("bundle", "-o", "case.tar.gz")
    assert again.exit_code == 1
    assert "case.tar.gz: File exists" in again.stderr
