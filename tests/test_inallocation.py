"""A run in an allocation: finding it, being alone in it, and its script in the foreground, which is a real one."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from slurm_llm import inallocation
from slurm_llm.errors import SetupError
from slurm_llm.inallocation import Held, Script, alone, find_held
from slurm_llm.process import Completed, start_logged
from slurm_llm.rundir import RunPaths
from slurm_llm.runs import FoundRun
from slurm_llm.slurm.facts import build_facts
from slurm_llm.surroundings import Surroundings

JOB = (
    "JobId=7 JobName=interactive UserId=me(1) GroupId=me(1) JobState={state} EndTime=2030-01-01T00:00:00"
    " Partition=batch NodeList=n1 Nodes=n1 CPU_IDs=0-1 Mem=100 GRES=gpu:1(IDX:0)"
)


def around(tmp_path: Path, said: str = "", **environ: str) -> Surroundings:
    """Return surroundings in which scontrol says one thing."""
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    return Surroundings({**home, **environ}, tmp_path, lambda argv, **_more: Completed(tuple(argv), 0, said, ""))


def held() -> Held:
    """Return an allocation."""
    return Held(build_facts("scontrol", {"job_id": "7", "state": "RUNNING"}, None), (), None)


def test_the_allocation_is_that_of_the_shell(tmp_path: Path) -> None:
    """Its partition, its end, and what its nodes give."""
    found = find_held(around(tmp_path, JOB.format(state="RUNNING") + "\n", SLURM_JOB_ID="7"))
    assert (found.job_id.number, found.facts.partition, found.shares[0].cpus) == (7, "batch", 2)
    assert found.ends == time.mktime((2030, 1, 1, 0, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("environ", "said", "words"),
    [
        ({}, "", "in no allocation"),
        ({"SLURM_JOB_ID": "7"}, JOB.format(state="COMPLETED") + "\n", "job 7 is COMPLETED"),
        ({"SLURM_JOB_ID": "7"}, "slurm_load_jobs error: Invalid job id specified", "job 7 is gone"),
        ({"SLURM_JOB_ID": "7"}, "JobId=7 JobName=x UserId=me(1) GroupId=me(1) JobState=RUNNING\n", "does not say"),
    ],
    ids=["none", "ended", "gone", "no details"],
)
def test_a_shell_without_one_is_told(tmp_path: Path, environ: dict[str, str], said: str, words: str) -> None:
    """In one line each."""
    with pytest.raises(SetupError, match=words):
        find_held(around(tmp_path, said, **environ))


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """Two would have the same marks, ports and GPUs; after the first one's end the next may come."""
    own, where = held(), around(tmp_path)
    refused = pytest.raises(SetupError, match="another run of yours is in job 7")
    with alone(own, where), refused, alone(own, where):
        pass
    with alone(own, where):
        pass


def started(tmp_path: Path, text: str, warn_at: float | None = None) -> tuple[Script, list[str]]:
    """Start a script, and return what it says."""
    paths = RunPaths(tmp_path)
    paths.job(7).root.mkdir()
    paths.script.write_text(text)
    said: list[str] = []
    environ = {"PATH": os.environ["PATH"]}
    process = start_logged(("bash", str(paths.script)), paths.output(7), env=environ)
    found = FoundRun(paths, paths.job(7), pinned=True)
    return Script(found, process, said.append, said.append, around(tmp_path), warn_at), said


def test_its_words_and_its_status_are_shown(tmp_path: Path) -> None:
    """As they come, the last ones too, with or without a line end."""
    script, said = started(tmp_path, "echo one; sleep 0.5; printf 'two\\nthree'; exit 4")
    assert script.follow() == 4
    assert said == ["one", "two", "three"]


TRAPS = """\
trap 'echo term; exit 0' TERM
trap 'echo warned' USR1
echo up
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize("how", ["signal", "file"])
def test_it_is_told_to_stop_once(tmp_path: Path, how: str) -> None:
    """By Ctrl-C here, or by a file of `cancel` on another machine; the script alone gets the signal."""
    script, said = started(tmp_path, TRAPS)

    def ask() -> None:
        while "up" not in said:
            time.sleep(0.01)
        if how == "file":
            RunPaths(tmp_path).job(7).stop.touch()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    assert script.follow() == 0
    asking.join()
    assert said == ["up", "the server stops in order; the allocation stays", "term"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_warned_of_the_time_limit(tmp_path: Path) -> None:
    """As sbatch's --signal would; nothing else tells a script in somebody's allocation."""
    script, said = started(tmp_path, TRAPS.replace("echo warned", "echo warned; exit 2"), warn_at=time.time() + 0.5)
    assert script.follow() == 2
    assert said == ["up", "warned"]


def test_what_a_script_has_left_ends_with_it(tmp_path: Path) -> None:
    """In a job Slurm would see to that; here the allocation goes on."""
    script, _ = started(tmp_path, "sleep 300 & kill -KILL $$")
    assert script.follow() == 137
    with pytest.raises(ProcessLookupError):
        os.killpg(script.process.pid, 0)


def test_variables_of_a_step_are_none_of_the_jobs() -> None:
    """The user's shell may itself be a step; its rank and its peers must not reach the servers' steps."""
    assert "SLURM_PROCID" in inallocation.ALONE
    assert "SLURM_STEP_ID".startswith(inallocation.OF_A_STEP)
    assert not "SLURM_JOB_ID".startswith(inallocation.OF_A_STEP)
