from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import conclude, journal

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
    shown = conclude.tail(str(log))
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
    assert json.loads((tmp_path / "result.0.json").read_text())["cause"] == complaint
