"""`logs` as a person uses it: what is chosen, what is refused, attempts and jobs told apart, what a terminal gets."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_cli import ROOT, Desk
from tests.observe.run_dirs import T0, RunDir, make_plan

NAME = "logs/demo-20261130-104000-abcd"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    return Desk(tmp_path, monkeypatch)


def clock(second: float) -> str:
    """Return a glog time so long after the run's submission."""
    return time.strftime("%m%d %H:%M:%S.0", time.localtime(T0 + second))


def two_attempts(desk: Desk) -> RunDir:
    """Write a run whose server was started again, with an error of every rank in the first attempt."""
    run = RunDir(desk.folder / NAME)
    for attempt, start in enumerate((10, 100)):
        run.attempt = attempt
        run.note("job", start, "begin").loading()
        for rank in range(8):
            path = run.log(
                f"rank-{rank}.log", f"{'EI'[attempt]}{clock(start + 1)} 4{rank} a.cc:1] start of {attempt}\n"
            )
            os.utime(path, (T0 + start + 1,) * 2)
    run.result("COMPLETED")
    return run


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (
            ("--rank", "x", "--node", "n[", "--grep", "(", "--since", "soon", "-n", "some", "--attempt", "y"),
            [
                "--since: 'soon' is no time",
                "--grep: '('",
                "--rank: 'x'",
                "--node: unbalanced",
                "-n: 'some'",
                "--attempt",
            ],
        ),
        (("--since", "1m", "--until", "2m"), ["--since: '1m' is later than --until '2m'"]),
        (("-i",), ["-i: there is no --grep"]),
        (
            ("--rank", "7-9", "--node", "node9", "--instance", "1"),
            ["--instance: there is no instance 1: there is only 0", "no such rank: 8-9: there are 0 to 7", "node[1-4]"],
        ),
        (("--attempt", "5"), ["job 7 has no attempt 5: there are 0, 1"]),
    ],
)
def test_what_cannot_be_is_refused_all_at_once(desk: Desk, words: tuple[str, ...], problems: list[str]) -> None:
    """Each fault has a line that says what there is instead; nothing else is printed."""
    two_attempts(desk)
    done = desk.run("logs", *words)
    assert (done.exit_code, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == len(problems)
    for problem in problems:
        assert problem in done.stderr


def test_the_newest_attempt_or_another_or_all(desk: Desk) -> None:
    """The newest one unless told otherwise; in all of them a line says where the next one begins."""
    two_attempts(desk)
    words = ("logs", "--rank", "0", "--grep", "start")
    newest = [f"[0] I{clock(101)} 40 a.cc:1] start of 1"]
    first = [f"[0] E{clock(11)} 40 a.cc:1] start of 0"]
    assert desk.run(*words).stdout.splitlines() == newest
    assert desk.run(*words, "--attempt", "0").stdout.splitlines() == first
    assert desk.run(*words, "--attempt", "all").stdout.splitlines() == [*first, "--- attempt 1 ---", *newest]


def test_two_jobs_at_a_time_are_told_apart(desk: Desk) -> None:
    """While a job hands over to its successor, late lines of the older one bear its number."""
    run = RunDir(desk.folder / NAME).loading()
    texts = {7: (1, 20), 8: (10,)}
    for job_id, seconds in texts.items():
        run.job_id = job_id
        run.loading()
        run.log("rank-0.log", "".join(f"I{clock(second)} 1 a.cc:1] at {second}\n" for second in seconds))
    found = desk.run("logs", "--rank", "0", "--attempt", "all").stdout.splitlines()
    assert [re.sub("I.*a.cc:1. ", "", row) for row in found] == [
        "[0] at 1",
        "--- job 8, which takes over ---",
        "[0] at 10",
        "[0@7.0] at 20",
    ]


def test_lines_are_folded_when_asked(desk: Desk) -> None:
    """A pipe gets each rank's line, a person one for all; JSON names the ranks either way."""
    two_attempts(desk)
    assert len(desk.run("logs", "--grep", "start").stdout.splitlines()) == 8
    assert desk.run("logs", "--grep", "start", "--fold").stdout == f"[0-7] I{clock(101)} 40 a.cc:1] start of 1\n"
    rows = [
        json.loads(row) for row in desk.run("logs", "--attempt", "0", "--level", "error", "--json").stdout.splitlines()
    ]
    assert [row["ranks"] for row in rows] == [[rank] for rank in range(8)]
    (row,) = map(json.loads, desk.run("logs", "--grep", "start", "--fold", "--json").stdout.splitlines())
    assert (row["ranks"], row["rank"], row["level"], row["job"], row["attempt"]) == (list(range(8)), 0, "info", 7, 1)
    assert row["at"] == T0 + 101


def test_many_ranks_leave_room_for_the_line(desk: Desk) -> None:
    """Of ranks that are no range only the first ones are named, and how many there are."""
    plan = make_plan(tensor_parallel_size=8, pipeline_parallel_size=1, replicas=8, resources={"nodes": 16})
    run = RunDir(desk.folder / NAME, plan=plan).loading()
    for rank in range(0, 64, 2):
        run.log(f"rank-{rank}.log", f"I{clock(5)} 1 a.cc:1] even\n")
    (found,) = desk.run("logs", "--grep", "even", "--fold").stdout.splitlines()
    assert found == f"[0,2,4,6… of 32] I{clock(5)} 1 a.cc:1] even"


def test_nothing_to_show_is_said(desk: Desk) -> None:
    """A run that has not begun, and a filter that finds nothing, end well and quietly."""
    run = RunDir(desk.folder / NAME).submitted()
    for words, said in (((), "no such line\n"), (("--rank", "0"), "no log yet\n")):
        done = desk.run("logs", *words)
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", said)
    run.loading().log("rank-0.log", "words\n")
    assert desk.run("logs", "--grep", "other words").stderr == "no such line\n"
    assert desk.run("logs", "-n", "0").stderr == ""


def on_terminal(desk: Desk, *words: str, **environ: str) -> str:
    """Return what a terminal gets."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environ}
    argv = [sys.executable, "-m", "slurm_llm", *words]
    with subprocess.Popen(argv, stdout=theirs, cwd=desk.folder, env=env) as child:
        os.close(theirs)
        got = b""
        try:
            while data := os.read(ours, 4096):
                got += data
        except OSError:
            # Linux says so when the other end is closed.
            pass
        assert child.wait() == 0
    os.close(ours)
    return got.decode().replace("\r\n", "\n")


def test_what_a_terminal_gets(desk: Desk) -> None:
    """Folded, errors in red, nothing of the log's own colours and controls; no colour where NO_COLOR says so."""
    run = two_attempts(desk)
    run.attempt = 0
    run.log("step-0.log", "\x1b[2J\x1b]0;title\x07srun: error: \x1b[32mgreen\n")
    words = ("logs", "--attempt", "0", "--level", "error")
    shown = on_terminal(desk, *words)
    assert f"\x1b[36m[0-7]\x1b[0m \x1b[31mE{clock(11)} 40 a.cc:1] start of 0\x1b[0m\n" in shown
    assert "\x1b[31msrun: error: green\x1b[0m\n" in shown
    assert set(re.findall("\x1b[^m]*m", shown)) == {"\x1b[36m", "\x1b[31m", "\x1b[0m"}
    plain = on_terminal(desk, *words, NO_COLOR="1")
    assert "\x1b" not in plain
    assert f"[0-7] E{clock(11)} 40 a.cc:1] start of 0\n" in plain
