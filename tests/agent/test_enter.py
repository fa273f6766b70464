"""A command in a rank's place: which variables it gets from a real process, and which it must not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import slurm_llm.agent

AGENT = Path(slurm_llm.agent.__file__).parent
TAG = "4711.0"
SHOW = "import os, json; print(json.dumps([dict(os.environ), os.getcwd()]))"
OWN = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "0", "SLURM_STEP_ID": "9", "SLURMD_NODENAME": "here", "TERM": "vt100"}


@contextmanager
def process(**variables: str) -> Iterator[int]:
    """Run something with these variables."""
    with subprocess.Popen(["/usr/bin/sleep", "60"], env=variables) as running:
        deadline = time.monotonic() + 10
        # Until it has become `sleep` its variables are this process's.
        while b"sleep" not in Path(f"/proc/{running.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield running.pid
        running.kill()


def engine(**more: str) -> dict[str, str]:
    """Return the variables of rank 3's server."""
    marks = {"LLMRUN_TAG": TAG, "LLMRUN_RANK": "3", "LLMRUN_ROLE": "worker", "LLMRUN_NODE": "here"}
    return {**marks, "PATH": "/usr/bin:/bin", **more}


def enter(run: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the verb as a step does."""
    argv = [sys.executable, "-I", str(AGENT), "enter", "--run", str(run), "--tag", TAG, *words]
    return subprocess.run(argv, env=OWN, capture_output=True, text=True, timeout=30, check=False)


def test_a_command_has_the_ranks_variables_but_no_mark(tmp_path: Path) -> None:
    """Values of the rank, the step's own numbers, no word by which agents or MPI take it for a rank."""
    mine = engine(HF_HOME="/x y", PMIX_RANK="3", OMPI_COMM_WORLD_RANK="3", SLURM_PROCID="3", CUDA_VISIBLE_DEVICES="1")
    with process(**mine):
        done = enter(tmp_path, "--rank", "3", "--", sys.executable, "-c", SHOW)
    found, folder = json.loads(done.stdout)
    assert done.stderr == ""
    assert folder == found["PWD"] == str(tmp_path)
    assert (found["HF_HOME"], found["CUDA_VISIBLE_DEVICES"]) == ("/x y", "1")
    assert (found["SLURM_PROCID"], found["SLURM_STEP_ID"], found["LLMRUN_RANK"], found["TERM"]) == (
        "0",
        "9",
        "3",
        "vt100",
    )
    assert not {"LLMRUN_TAG", "LLMRUN_NODE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"} & set(found)


def test_without_the_rank_the_plans_variables_hold(tmp_path: Path) -> None:
    """A rank that has ended, or is out of sight, is told of; what the plan sets is set."""
    own = {"unset": ["TERM"], "source": [], "set": [["A", "b c"]], "prepend": [["PATH", "/first"], ["NEW", "/x"]]}
    (tmp_path / "plan.json").write_text(json.dumps({"env": own}))
    with process(**engine(LLMRUN_RANK="4", A="another rank's")):
        done = enter(tmp_path, "--rank", "3", "--", sys.executable, "-c", SHOW)
    found, _ = json.loads(done.stdout)
    assert "rank 3 has no process here" in done.stderr
    assert (found["A"], found["PATH"], found["NEW"]) == ("b c", "/first:/usr/bin:/bin", "/x")


def test_a_runtimes_program_is_found_as_the_job_finds_it(tmp_path: Path) -> None:
    """Without a rank it is the job's environment, as this node's agent has it, not an engine's."""
    job = {"LLMRUN_TAG": TAG, "SLURMD_NODENAME": "here", "PATH": "/module/bin:/usr/bin:/bin"}
    with process(**engine(SLURMD_NODENAME="here", PATH="/image/bin")), process(**job):
        done = enter(tmp_path, "--", sys.executable, "-c", SHOW)
    assert json.loads(done.stdout)[0]["PATH"] == job["PATH"]


def test_the_status_is_the_commands(tmp_path: Path) -> None:
    """What ends with 7 is 7, what is not there is 127, a folder is 126, as in a shell."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"env": {"unset": [], "source": [], "set": [], "prepend": []}}))
    asked = (("sh", "-c", "exit 7"), ("no such thing",), (str(tmp_path),))
    assert [enter(tmp_path, "--rank", "0", "--", *words).returncode for words in asked] == [7, 127, 126]


def test_a_folder_of_path_that_is_closed_makes_no_command_a_forbidden_one(tmp_path: Path) -> None:
    """What is nowhere is not found (127), whatever a folder answers; what is there and no program is 126."""
    (tmp_path / "here" / "nowhere").mkdir(parents=True)
    (tmp_path / "here" / "text").write_text("no program")
    (tmp_path / "file").write_text("")
    with process(**engine(PATH=f"{tmp_path}/here:{tmp_path}/file")):
        missing, closed = (enter(tmp_path, "--rank", "3", "--", name) for name in ("nowhere", "text"))
    assert (missing.returncode, missing.stderr) == (127, "slurm_llm: nowhere: No such file or directory\n")
    assert (closed.returncode, closed.stderr) == (126, "slurm_llm: text: Permission denied\n")


def test_a_shell_without_a_terminal_reads_its_commands(tmp_path: Path) -> None:
    """No prompt and no complaint about a terminal; the last command's status is the shell's."""
    argv = [sys.executable, "-I", str(AGENT), "enter", "--run", str(tmp_path), "--tag", TAG, "--rank", "3"]
    with process(**engine()):
        done = subprocess.run(
            argv, env=OWN, input="echo at $PWD; exit 4\n", capture_output=True, text=True, timeout=30, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (4, f"at {tmp_path}\n", "")


def test_the_job_s_variables_are_its_agents(tmp_path: Path) -> None:
    """What a runtime leaves beside a container bears the same mark and little else; the agent has the job's all."""
    marks = {"LLMRUN_TAG": TAG, "SLURMD_NODENAME": "here", "PATH": "/usr/bin:/bin"}
    agent = ["bash", "-c", "sleep 60; :", "agent", "node", "--attempt", "x"]
    with process(**marks), subprocess.Popen(agent, env={**marks, "LOADED": "yes"}, start_new_session=True) as own:
        deadline = time.monotonic() + 10
        while b"--attempt" not in Path(f"/proc/{own.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        done = enter(tmp_path, "--", sys.executable, "-c", SHOW)
        os.killpg(own.pid, signal.SIGKILL)
    assert json.loads(done.stdout)[0]["LOADED"] == "yes"
