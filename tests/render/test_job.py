"""job.sub as it runs, with its own head and stand-ins for Slurm: what must end it, and what it must not do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.agent import journal
from slurm_llm.plan import build_plan
from slurm_llm.render import Target, render
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_site, make_spec

SRUN = """#!/bin/bash
# One node: its agent says hello and lives until it is told to leave; its server fails.
case "$*" in
*" node --attempt "*)
    trap 'exit 0' TERM
    journal=$LLMRUN_ATTEMPT/journal/job.jsonl
    [[ -z ${FULL-} ]] || until rm -f "$journal" && mkdir "$journal" 2>/dev/null; do :; done
    echo $$ >"$STAND/agents"
    printf '\\n{"t":%s,"kind":"hello","node":"n1","step":"0","shm_free_mib":99999}\\n' "$(date +%s)"
    while :; do printf '\\n{"t":1,"kind":"beat","node":"n1","ranks":{}}\\n'; sleep 0.3; done ;;
*" preflight "*)
    [[ -z ${STUCK-} ]] || exec sleep 600 ;;
*rank.sh*)
    while [[ ! -s $STAND/agents ]]; do sleep 0.1; done
    exit 3 ;;
esac
"""
SCANCEL = """#!/bin/bash
# What a shell starts in the background ignores INT.
[[ $1 != *=INT ]] || kill -TERM "$(cat "$STAND/agents")"
"""
SCONTROL = """#!/bin/bash
echo "$*" >>"$STAND/scontrol"
[[ $* != "show hostnames"* ]] || { echo n1; [[ -z ${ASK_MEANWHILE-} ]] || kill -TERM "$SCRIPT"; }
"""


class Job:
    """A job on one node; `start` begins its script."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.attempt = self.run_dir / "job-77" / "attempt-0"
        self.script: subprocess.Popen[str] | None = None
        (folder / "bin").mkdir()
        for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def start(self, env: dict[str, str] | None = None, **spec: Tree) -> subprocess.Popen[str]:
        """Render the job of a spec and begin its script, whose process id is $SCRIPT in all that it starts."""
        plan = replace(build_plan(make_spec(**spec), make_site()), local_dir=str(self.folder))
        for name, text in render(plan, Target(self.run_dir, sys.executable, {})).items():
            path = self.run_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        around = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "STAND": str(self.folder), "SLURM_JOB_ID": "77"}
        around |= {"SLURMD_NODENAME": "n1", "SLURM_JOB_NODELIST": "n1", **(env or {})}
        # Slurm starts it with no signal ignored, whatever these tests were started with.
        script = ["env", "--default-signal", "bash", "-c", 'SCRIPT=$$ exec bash "$0"', str(self.run_dir / "job.sub")]
        with (self.folder / "out").open("w") as out:
            self.script = subprocess.Popen(script, env=around, stdout=out, stderr=out, text=True)
        return self.script

    def kinds(self) -> list[str]:
        """Return the kinds of the notes in the script's own journal."""
        return [item["kind"] for item in journal.read(str(self.attempt / "journal" / "job.jsonl"))]

    def state(self) -> str:
        """Return the state in the attempt's result."""
        found: str = json.loads((self.attempt.parent / "result.0.json").read_text())["state"]
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    if made.script is not None and made.script.poll() is None:
        made.script.kill()
    if (tmp_path / "agents").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "agents").read_text()), signal.SIGKILL)


def await_true(condition: Callable[[], object]) -> None:
    """Return once `condition` holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_full_disk_does_not_keep_the_job_from_its_end(job: Job) -> None:
    """A folder in the journal's place refuses each note, that of the servers' end too; the head must know of it."""
    script = job.start({"FULL": "1"})
    assert script.wait(60) == 1
    head = [item["kind"] for item in journal.read(str(job.attempt / "journal" / "head.jsonl"))]
    assert "finish" in head and job.state() == "FAILED"


def test_the_preflight_ends_with_a_node_that_is_lost(job: Job) -> None:
    """HUP is the head's word for that: srun would wait for the node."""
    script, deadline = job.start({"STUCK": "1"}), time.monotonic() + 60
    await_true((job.folder / "agents").exists)
    await_true(lambda: (job.attempt / "preflight.log").exists())
    # The script may not have noted yet whom to end.
    while script.poll() is None and time.monotonic() < deadline:
        script.send_signal(signal.SIGHUP)
        time.sleep(0.2)
    assert script.wait(60) == 1
    assert "finish" in job.kinds()


@pytest.mark.parametrize(
    ("asked", "requeued", "note"),
    [("", True, "requeue"), ("1", False, "stop")],
    ids=["nobody asks", "asked meanwhile"],
)
def test_who_asks_for_the_end_gets_no_requeue(job: Job, asked: str, requeued: bool, note: str) -> None:
    """A job may wait for minutes until Slurm has given up a node, and be cancelled in that time."""
    script = job.start({"ASK_MEANWHILE": asked}, recovery={"requeue": 1})
    assert script.wait(60) == 1
    said = (job.folder / "scontrol").read_text().splitlines()
    assert ("requeue 77" in said) is requeued
    assert note in job.kinds()


def test_notes_are_json_in_any_language(job: Job) -> None:
    """bash 5 writes its clock with the decimal sign of the locale, a comma in half of Europe."""
    (job.folder / "clock").write_text("unset EPOCHREALTIME; EPOCHREALTIME=1700000000,25\n")
    script = job.start({"BASH_ENV": str(job.folder / "clock")})
    assert script.wait(60) == 1
    assert job.kinds()[:1] == ["begin"] and job.kinds()[-1:] == ["finish"]
