"""Reading logs: any size, any junk, within a budget; known errors are counted, noise and old attempts are no news."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_llm.agent import known, reading
from slurm_llm.knownerrors import load_known_errors

CATALOGUE = known.entries(load_known_errors())
MIB = 1 << 20


def read(path: Path, budget: int = 8 * MIB, where: str = "rank") -> reading.Log:
    """Read a log that is there."""
    log = reading.read_log(reading.Source(str(path), path.name, where, 0), CATALOGUE, budget)
    assert log is not None
    return log


def write(folder: Path, data: str | bytes, name: str = "rank-0.log") -> Path:
    """Write a log."""
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def ids(log: reading.Log) -> dict[str, int]:
    """Return how often each known error stands in a log."""
    return {match.id: match.times for match in log.matches}


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB."


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(f"start\n{OOM}\nend\n", id="plain"),
        pytest.param(f"start\n{OOM}", id="without a last line end"),
        pytest.param(f"50%\r100%\r{OOM}\r\nend", id="carriage returns"),
        pytest.param(b"\xff\xfe\x00\x1b[31m\n" + OOM.encode() + b"\xff\n\x00\x00", id="binary junk"),
        pytest.param("x" * (3 * MIB) + f"\n{OOM}\n", id="behind a line of megabytes"),
        pytest.param(f"(EngineCore_DP0 pid=6) ERROR 05-08 14:46:12 [core.py:435] {OOM}\n", id="behind a prefix"),
    ],
)
def test_an_error_is_found(tmp_path: Path, data: str | bytes) -> None:
    """However the log is written."""
    assert ids(read(write(tmp_path, data))) == {"cuda-oom": 1}


def test_a_log_of_ten_gigabytes(tmp_path: Path) -> None:
    """Its beginning and its end are read, no more than the budget, in little time; what lies between is not."""
    path = write(tmp_path, f"{OOM}\n")
    with path.open("r+b") as stream:
        stream.seek(5 << 30)
        stream.write(b"\nIllegal instruction\n")
        stream.seek((10 << 30) - 200)
        stream.write(b"\nRuntimeError: CUDA error: device-side assert triggered\n" + b"last words\n")
        size = stream.tell()
    begun = time.process_time()
    log = read(path, 4 * MIB)
    assert time.process_time() - begun < 5
    assert (log.size, log.read) == (size, 4 * MIB)
    assert set(ids(log)) == {"cuda-oom", "cuda-illegal-access"}
    near = {match.id: match.before_end for match in log.matches}
    assert near["cuda-illegal-access"] < 100
    assert near["cuda-oom"] > 9 << 30
    assert log.last[-1] == "last words"


@pytest.mark.parametrize("size", [0, 1, reading.BLOCK_BYTES - 1, reading.BLOCK_BYTES, reading.BLOCK_BYTES + 30])
def test_lines_across_blocks(tmp_path: Path, size: int) -> None:
    """A line that lies on the edge of two reads is one line."""
    assert ids(read(write(tmp_path, "y" * size + f"\n{OOM}\nz\n"))) == {"cuda-oom": 1}


def test_a_budget_smaller_than_a_line(tmp_path: Path) -> None:
    """Nothing but the end of one line is read: no error, no more bytes."""
    log = read(write(tmp_path, "w" * MIB), 1000)
    assert (log.read, log.matches) == (1000, [])


def test_many_of_one_kind_are_counted_to_a_limit(tmp_path: Path) -> None:
    """A log full of one error says it once, with a number."""
    log = read(write(tmp_path, f"{OOM}\n" * 5000))
    assert ids(log) == {"cuda-oom": reading.MANY}
    assert log.telling == []


def test_noise_is_no_news(tmp_path: Path) -> None:
    """Harmless lines are hidden from the telling and from the last ones; Triton's tables too."""
    harmless = [line for item in load_known_errors() if item["kind"] == "noise" for line in item["lines"]]  # type: ignore[union-attr]
    table = "| model_control_mode | MODE_NONE failed |\n+-----+-----+\n"
    log = read(write(tmp_path, "\n".join([*harmless, table])))
    assert log.telling == []
    assert log.last == []


TRACEBACK = """Traceback (most recent call last):
  File "/opt/engine.py", line 7, in load
    raise RuntimeError("bad weights")
RuntimeError: bad weights in layer 3
"""


def test_the_most_telling_lines_come_first(tmp_path: Path) -> None:
    """The end of a traceback, a crash, an error of a level, and what only sounds like one, in this order; each once."""
    text = (
        "could not find cache, failed over\n"
        "[TensorRT-LLM][ERROR] something is odd\n"
        "[TensorRT-LLM][ERROR] something is odd\n"
        "NCCL WARN never seen before\n"
        'I1130 14:27:06.961434 1 server.cc:1] "no error here"\n'
        f"{TRACEBACK}"
        "all is lost\n"
    )
    log = read(write(tmp_path, text))
    assert log.exception == "RuntimeError: bad weights in layer 3"
    assert log.telling == [
        "RuntimeError: bad weights in layer 3",
        "NCCL WARN never seen before",
        "[TensorRT-LLM][ERROR] something is odd",
        "could not find cache, failed over",
    ]


def test_the_first_errors_and_the_newest_are_kept(tmp_path: Path) -> None:
    """A log can begin with errors that mattered to nobody, and can end in a storm of them."""
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    log = read(write(tmp_path, "".join(f"[ERROR] {word} went wrong\n" for word in words)))
    assert log.telling[:2] == ["[ERROR] one went wrong", "[ERROR] two went wrong"]
    assert log.telling[-1] == "[ERROR] twelve went wrong"
    assert len(log.telling) == reading.LAST_LINES


def test_control_characters_do_not_reach_a_terminal(tmp_path: Path) -> None:
    """Lines are shown to people at night, and pasted into tickets."""
    log = read(write(tmp_path, f"\x1b[2J\x1b]0;title\x07{OOM}\nlast\x1b[31m\n"))
    assert all("\x1b" not in line and "\x07" not in line for line in [log.matches[0].line, *log.last])


def test_the_jobs_output_begins_anew_with_each_attempt(tmp_path: Path) -> None:
    """Slurm's words on an earlier attempt are past, and our own lines repeat what logs say."""
    path = write(
        tmp_path,
        "slurm_llm: job 7 attempt 0 on n[1-4], logs in /x\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.1. Some of the step tasks have been OOM Killed.\n"
        "slurm_llm:   | rank-0.log: RuntimeError: CUDA error: out of memory\n"
        "slurm_llm: job 7 attempt 1 on n[1-4], logs in /x\n"
        "slurmstepd-n1: error: Exceeded job memory limit\n"
        "slurm_llm: no Python at /x/python on node n1: set `python` in the site profile\n",
        "slurm-7.out",
    )
    assert set(ids(read(path, where="slurm"))) == {"slurm-job-memory", "no-python"}


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    """Missing, or a folder: none, and no error."""
    for path in (tmp_path / "rank-9.log", tmp_path):
        assert reading.read_log(reading.Source(str(path), "x", "rank"), CATALOGUE, MIB) is None


def test_which_logs_there_are(tmp_path: Path) -> None:
    """Everything that an attempt left, the ranks in order of their numbers, what is no log aside."""
    attempt = tmp_path / "job-7" / "attempt-0"
    attempt.mkdir(parents=True)
    for name in ("rank-10.log", "rank-2.log", "step-0.log", "agents.log", "preflight.log", "notes.txt"):
        (attempt / name).touch()
    found = [(one.name, one.where, one.rank) for one in reading.sources(str(attempt))]
    assert found == [
        ("agents.log", "agent", None),
        ("preflight.log", "preflight", None),
        ("slurm-7.out", "slurm", None),
        ("step-0.log", "step", None),
        ("rank-2.log", "rank", 2),
        ("rank-10.log", "rank", 10),
    ]


def test_the_rank_that_matters_is_read_first_and_most(tmp_path: Path) -> None:
    """When the time is up the others are left, and it is said which."""
    attempt = tmp_path / "job-7" / "attempt-0"
    attempt.mkdir(parents=True)
    for rank in range(4):
        (attempt / f"rank-{rank}.log").write_bytes(b"x\n" * MIB)
    wanted = reading.sources(str(attempt))
    logs, late = reading.read_logs(wanted, CATALOGUE, 3, budget=reading.Budget(own=MIB, others=4 << 17))
    assert [(log.source.rank, log.read) for log in logs] == [(3, MIB), (0, 104857), (1, 104857), (2, 104857)]
    assert late == []
    logs, late = reading.read_logs(wanted, CATALOGUE, 3, budget=reading.Budget(MIB, MIB), deadline=time.monotonic() - 1)
    assert logs == []
    assert late[0].startswith("not read for want of time: slurm-7.out, rank-3.log, rank-0.log")


def test_times_of_lines_are_asked_for_when_somebody_can_tell(tmp_path: Path) -> None:
    """The first line of each known error bears its time."""
    path = write(tmp_path, f"12 {OOM}\n15 {OOM}\n")
    os.utime(path, (99, 99))
    source = reading.Source(str(path), path.name, "rank", 0)
    log = reading.read_log(source, CATALOGUE, MIB, lambda line, near: near + float(line.split()[0]))
    assert log is not None
    assert [match.at for match in log.matches] == [111.0]
