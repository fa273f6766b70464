"""The end of an attempt: the result file, the exit status that agrees with it, and what the job's output says last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import conclude, journal, known, reading
from slurm_llm.assets import agent_files
from slurm_llm.knownerrors import load_known_errors

READY = {"t": 2.0, "kind": "state", "state": "READY"}
DEATH = {
    "t": 5.0,
    "kind": "ended",
    "rank": 1,
    "node": "n1",
    "name": "tritonserver",
    "main": True,
    "how": "signal SIGKILL",
    "lived_s": 4,
}


def make(tmp_path: Path, records: list[dict[str, Any]]) -> Path:
    """Write an attempt with these records."""
    attempt = tmp_path / "attempt-0"
    (attempt / "journal").mkdir(parents=True)
    for item in [{"t": 0.0, "kind": "hello", "node": "n1"}, *records]:
        journal.append(str(attempt / "journal" / "n1.jsonl"), item)
    return attempt


@pytest.mark.parametrize(
    ("records", "state", "code"),
    [
        pytest.param([READY, {"t": 5.0, "kind": "stop", "why": "stop"}], "COMPLETED", 0, id="stopped while serving"),
        pytest.param([{"t": 1.0, "kind": "stop", "why": "stop"}], "CANCELLED", 0, id="stopped before it served"),
        pytest.param([READY, {"t": 5.0, "kind": "stop", "why": "time limit"}], "TIMED_OUT", 0, id="served its time"),
        pytest.param([{"t": 5.0, "kind": "stop", "why": "time limit"}], "TIMED_OUT", 1, id="never served"),
        pytest.param([READY, DEATH], "FAILED", 1, id="a rank died"),
        pytest.param([READY], "FAILED", 1, id="the server left by itself, exit 0 or not"),
    ],
)
def test_state_and_exit_status_agree(tmp_path: Path, records: list[dict[str, Any]], state: str, code: int) -> None:
    """The job's exit status tells the truth, also when srun says 0."""
    attempt = make(tmp_path, records)
    assert conclude.main(str(attempt), 2, [0], 0) == code
    result = json.loads((tmp_path / "result.0.json").read_text())
    assert (result["state"], result["exit_code"]) == (state, code)


def test_the_first_ranks_log_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job's output ends with the cause and the last lines of that rank's log, tables and control codes aside."""
    attempt = make(tmp_path, [READY, DEATH])
    (attempt / "rank-1.log").write_bytes(
        b"old\n" * 20000 + b"| a | table |\n50%\r100%\n\x1b[31mCUDA out of memory\xff\n"
    )
    conclude.main(str(attempt), 2, [137], 0)
    said = capsys.readouterr().out
    assert "FAILED: rank 1 on node n1 went first: tritonserver ended: signal SIGKILL, while serving" in said
    assert "CUDA out of memory" in said
    assert "table" not in said
    assert "\x1b" not in said


def test_the_line_that_names_the_error_is_among_those_shown(tmp_path: Path) -> None:
    """Triton says what failed and then goes on about where: the sentence must not be cut off."""
    log = tmp_path / "rank-0.log"
    stack = "".join(f"  /model/{n}.py({n}): <module>\n  <frozen importlib._bootstrap>(241): call\n" for n in range(20))
    log.write_text(f"loading\nerror: creating server: RuntimeError: no such weights\nAt:\n{stack};\n")
    shown = conclude.tail(reading.read_log(reading.Source(str(log), log.name, "rank", 0), [], 1 << 20))
    assert shown[0] == "error: creating server: RuntimeError: no such weights"
    assert shown[-1] == "  /model/19.py(19): <module>"
    assert len(shown) == conclude.TAIL_LINES


def test_a_lost_node_is_no_stop_on_request(tmp_path: Path) -> None:
    """Slurm ends a job that lost a node with the same signals as a cancelled one; only srun says why."""
    attempt = make(tmp_path, [READY, {"t": 5.0, "kind": "stop", "why": "asked"}])
    (attempt / "step-0.log").write_text("srun: error: Node failure on n4\nsrun: got SIGCONT\n")
    assert conclude.main(str(attempt), 2, [143], 0) == 1
    result = json.loads((tmp_path / "result.0.json").read_text())
    assert (result["state"], result["lost_node"]) == ("FAILED", "n4")
    assert "n4" in result["cause"]


def test_a_failed_preflight_is_the_cause(tmp_path: Path) -> None:
    """Nothing was started, and the file says which rank complained of what."""
    attempt = make(tmp_path, [])
    complaint = "3: preflight: rank 3 on node n2: the MPI world has 1 ranks, the plan has 8"
    (attempt / "preflight.log").write_text(f"noise\n{complaint}\n")
    assert conclude.main(str(attempt), 8, [], 1) == 1
    result = json.loads((tmp_path / "result.0.json").read_text())
    assert (result["cause"], result["preflight"], result["first"]) == (complaint, [complaint], None)


KEYS = {
    *("state", "cause", "exit_code", "lost_node", "first", "log", "preflight", "srun", "began", "ready", "ended"),
    *("ranks_ended", "phases", "diagnosis"),
}


def test_the_result_file_holds_the_diagnosis(tmp_path: Path) -> None:
    """Beside the keys that it always had: `status` and scripts read those."""
    attempt = make(tmp_path, [READY, DEATH])
    (attempt / "rank-1.log").write_text("all is well\n")
    conclude.main(str(attempt), 2, [137], 0)
    result = json.loads((tmp_path / "result.0.json").read_text())
    assert set(result) == KEYS
    found = result["diagnosis"]
    assert (found["kind"], found["rank"], found["node"], found["cause"]) == ("signal", 1, "n1", result["cause"])
    assert result["first"]["rank"] == 1


def test_the_first_one_is_who_held_the_memory(tmp_path: Path) -> None:
    """Where Slurm kills a step for its memory all die at once: `first` agrees with the diagnosis."""
    found = [{"t": 1.0, "kind": "found", "rank": rank, "node": "n1", "pid": rank, "main": True} for rank in range(2)]
    sizes = {"t": 4.0, "kind": "sample", "ranks": {"0": {"rss_mib": 900.0}, "1": {"rss_mib": 80.0}}}
    attempt = make(tmp_path, [*found, READY, sizes, DEATH, {**DEATH, "t": 5.1, "rank": 0}])
    limit = "slurmstepd-n1: error: StepId=7.2 exceeded memory limit (1101496320 > 419430400), being killed\n"
    (attempt / "step-0.log").write_text("0: " + limit)
    conclude.main(str(attempt), 2, [137], 0)
    result = json.loads((tmp_path / "result.0.json").read_text())
    assert (result["diagnosis"]["kind"], result["diagnosis"]["rank"], result["first"]["rank"]) == ("memory", 0, 0)


def test_without_a_catalogue_slurms_decisive_words_still_count(tmp_path: Path) -> None:
    """A run directory of an older release, or one that was changed by hand."""
    attempt = make(tmp_path, [READY, DEATH])
    (attempt / "step-0.log").write_text(
        "0: slurmstepd-n1: error: StepId=7.2 exceeded memory limit (2048 > 1024), being killed\n"
    )
    value = conclude.result(str(attempt), 2, [137], 0)
    assert value["diagnosis"]["kind"] == "memory"
    assert "n1" in value["cause"]


def in_a_job(folder: Path, attempt: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Conclude as the job's script does: the agent's folder in a run directory, Python alone, from anywhere."""
    agent = folder / "agent"
    agent.mkdir()
    for name, text in agent_files().items():
        (agent / name).write_text(text)
    (agent / known.FILE).write_text(json.dumps(load_known_errors()))
    argv = [sys.executable, "-I", str(agent), "conclude", "--attempt", str(attempt), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_jobs_output_ends_with_why_and_what_to_do(tmp_path: Path) -> None:
    """As a job does it: the catalogue beside the agent, the job's id and the rank in the commands to run next."""
    attempt = make(tmp_path / "job-41", [READY, DEATH])
    (attempt / "rank-1.log").write_text("loading\nNVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n")
    done = in_a_job(tmp_path, attempt, "--ranks", "2", "137")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("slurm_llm: FAILED: rank 1 on node n1 went first")
    assert any(line.startswith("slurm_llm:   why  The driver reports a fault of the GPU") for line in lines)
    assert any("exclude_nodes" in line for line in lines if line.startswith("slurm_llm:   "))
    assert any(line.startswith("slurm_llm:   | rank-1.log: NVRM: Xid") for line in lines)
    assert (tmp_path / "job-41" / "result.0.json").is_file()


def test_a_remedys_commands_name_the_job(tmp_path: Path) -> None:
    """What is shown can be typed: a job's id names its run."""
    attempt = make(tmp_path / "job-41", [READY, {**DEATH, "how": "exit 3"}])
    assert "`slurm-llm logs 41 --rank 1`" in " ".join(in_a_job(tmp_path, attempt, "--ranks", "2", "3").stdout.split())


def test_a_full_disk_does_not_hide_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result file cannot be written: the job's output still says what happened, and the status is the true one."""
    attempt = make(tmp_path, [READY, DEATH])
    (tmp_path / f"result.0.json.{os.getpid()}.tmp").mkdir()
    assert conclude.main(str(attempt), 2, [137], 0) == 1
    said = capsys.readouterr().out
    assert "cannot write" in said
    assert "rank 1 on node n1 went first" in said
