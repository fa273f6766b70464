"""A run directory whose every text would steer a terminal, and whose logs hold secrets, read by every command."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from slurm_llm.observe.text import clean
from tests.cli.test_cli import Desk
from tests.observe.run_dirs import T0, RunDir, squeue_row

RUN_ID = "20261130-104000-abcd"
STEERING = {
    "colour": "\x1b[31m",
    "title": "\x1b]0;title\x07",
    "link": "\x1b]8;;http://x\x1b\\",
    "device string": "\x1bP+q\x1b\\",
    "bell": "\x07",
    "backspace": "\x08\x08\x08",
    "return": "\r",
    "C1 introducer": "\x9b31m",
    "right to left": "\u202eevil\u202c",
    "isolate": "\u2066a\u2069",
    "mark": "\u200f",
    "zero width": "\u200b",
    "line": "\u2028",
    "tag": "\U000e0041",
}
HOSTILE = "begin" + "".join(STEERING.values()) + "end"
FORBIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
KEY = "0123456789abcdef" * 3
TOKEN = "hf_" + "a1B2c3D4" * 3
READING = [
    *(["status"], ["status", "--json"], ["health"], ["health", "--json"], ["list"], ["list", "--json"]),
    *(["logs"], ["logs", "--rank", "0"], ["diagnose"], ["diagnose", "--json"], ["top", "--once"]),
    *(["endpoint"], ["endpoint", "--env"], ["endpoint", "--json"], ["metrics"], ["generate", "hello"], ["clean"]),
]


def hostile(desk: Desk) -> RunDir:
    """Write a run that served, with hostile text wherever a file of it holds text."""
    desk.says("squeue", squeue_row(7, "RUNNING", left="1:00:00", reason=clean(HOSTILE)))
    run = RunDir(desk.folder / "logs" / f"demo-{RUN_ID}").serving()
    plan = json.loads(run.paths.plan.read_text())
    plan.update(name=HOSTILE, site=HOSTILE, model=HOSTILE)
    plan["server"]["model_name"] = HOSTILE
    run.paths.plan.write_text(json.dumps(plan))
    record = json.loads(run.paths.record.read_text())
    run.paths.record.write_text(json.dumps({**record, "name": HOSTILE, "user": HOSTILE, "host": HOSTILE}))
    log = f"2026-11-30 10:40:03 {HOSTILE} token {TOKEN}\nE1130 10:40:04.1 1 x.cc:1] error: {HOSTILE}\n"
    for name in ("rank-0.log", "rank-1.log", "step-0.log", "agents.log", "preflight.log"):
        run.log(name, log.encode())
    run.note("node9", 4, "warning", node=HOSTILE, text=HOSTILE)
    run.note("node9", 4, "found", rank=0, node=HOSTILE, pid=1, main=True, name=HOSTILE)
    run.state(6, "DEGRADED", HOSTILE)
    run.paths.output(7).write_text(log)
    endpoint = run.job_paths.endpoint(0)
    value = json.loads(endpoint.read_text())
    for one in value["instances"]:
        one.update(url="http://127.0.0.1:9", metrics="http://127.0.0.1:9/metrics", key_file=str(run.job_paths.key(0)))
    endpoint.write_text(json.dumps({**value, "model": HOSTILE}))
    run.job_paths.key(0).write_text(f"slurm-llm-key: {KEY}\n")
    return run


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    return Desk(tmp_path, monkeypatch)


def shown(desk: Desk, words: list[str]) -> str:
    """Return all that a command prints."""
    done = desk.run(*words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout + done.stderr


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_no_command_lets_a_text_steer_the_terminal(desk: Desk, words: list[str]) -> None:
    """Names, nodes, reasons, log lines: none reaches it with what it could do there; nor does a key."""
    hostile(desk)
    text = shown(desk, words)
    found = FORBIDDEN.search(text)
    assert found is None, (words, text[max(0, found.start() - 60) : found.end() + 60])
    assert KEY not in text


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_run_that_failed_is_told_as_safely(desk: Desk, words: list[str]) -> None:
    """Causes and remedies quote logs."""
    run = hostile(desk)
    desk.says("squeue", "", "slurm_load_jobs error: Invalid job id specified", 1)
    first = {"rank": 0, "node": HOSTILE, "name": HOSTILE, "how": HOSTILE, "phase": HOSTILE, "at": T0 + 9}
    run.state(9, "FAILED", HOSTILE).result("FAILED", HOSTILE, first, [HOSTILE])
    text = shown(desk, words)
    found = FORBIDDEN.search(text)
    assert found is None, (words, text[max(0, found.start() - 60) : found.end() + 60])
    assert KEY not in text


@pytest.mark.parametrize("kind", STEERING)
def test_each_kind_is_taken_out(kind: str) -> None:
    """What stays is the text around it."""
    left = clean(f"begin{STEERING[kind]}end")
    assert left.startswith("begin") and left.endswith("end")
    assert FORBIDDEN.search(left) is None


def test_what_leaves_the_machine_holds_no_secret(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archive and page: neither the key, nor a token, nor the value of a variable that is named like one."""
    run = hostile(desk)
    monkeypatch.setenv("DB_PASSWORD", "correct-horse")
    run.log("rank-2.log", f"got correct-horse and {KEY}, {TOKEN}\n")
    assert desk.run("bundle", "--output", "case.tar.gz").exit_code == 0
    assert desk.run("report", "--output", "page.html").exit_code == 0
    with tarfile.open(desk.folder / "case.tar.gz") as archive:
        packed = b"".join(file.read() for member in archive if (file := archive.extractfile(member)))
    page = (desk.folder / "page.html").read_bytes()
    for secret in (KEY, TOKEN, "correct-horse"):
        assert secret.encode() not in packed
        assert secret.encode() not in page
    modes = {name: (desk.folder / name).stat().st_mode & 0o077 for name in ("case.tar.gz", "page.html")}
    assert modes == dict.fromkeys(modes, 0)
