"""Journals that grow: each look knows what a full reading knows, and reads nothing twice."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_llm.agent import fold, journal
from slurm_llm.observe.facts import load_evidence
from slurm_llm.observe.livejournal import GrowingJournal, LiveReading
from tests.observe.run_dirs import T0, RunDir


def line(when: float, kind: str, **fields: object) -> bytes:
    """Return a record as a writer appends it."""
    return journal.line({"t": when, "kind": kind, **fields})


def grow(path: Path, data: bytes) -> None:
    """Append to a file."""
    with path.open("ab") as stream:
        stream.write(data)


RECORDS = [line(number, "warning", text=f"warning {number} é") for number in range(6)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(b"".join(RECORDS))), max_size=6))
def test_it_grows_in_any_pieces(cuts: list[int]) -> None:
    """However a file's growth falls between looks, in the middle of a record or of a character, each is seen once."""
    data, start = b"".join(RECORDS), 0
    with tempfile.TemporaryDirectory() as folder:
        path, growing = Path(folder) / "head.jsonl", GrowingJournal(Path(folder))
        for cut in [*sorted(cuts), len(data)]:
            grow(path, data[start:cut])
            start = cut
            growing.look()
        assert growing.look() == journal.parse(data)


def test_a_record_that_was_torn_costs_only_itself(tmp_path: Path) -> None:
    """A writer that was killed in the middle of one, and another one that goes on."""
    path, growing = tmp_path / "head.jsonl", GrowingJournal(tmp_path)
    grow(path, RECORDS[0] + RECORDS[1][:9])
    assert [item["t"] for item in growing.look()] == [0]
    grow(path, RECORDS[2])
    assert [item["t"] for item in growing.look()] == [0, 2]


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    """A file that has been changed in place, at the same length, still says what it said first."""
    path, growing = tmp_path / "head.jsonl", GrowingJournal(tmp_path)
    grow(path, RECORDS[0])
    before = growing.look()
    path.write_bytes(RECORDS[0].replace(b"warning 0", b"warning 9"))
    assert growing.look() == before
    grow(path, RECORDS[1])
    assert [item["text"] for item in growing.look()] == ["warning 0 é", "warning 1 é"]


def test_a_file_that_begins_anew(tmp_path: Path) -> None:
    """One that somebody has emptied is read from its start."""
    path, growing = tmp_path / "head.jsonl", GrowingJournal(tmp_path)
    grow(path, RECORDS[0] + RECORDS[1])
    growing.look()
    path.write_bytes(RECORDS[2])
    assert [item["t"] for item in growing.look()] == [0, 1, 2]


def test_of_samples_the_newest_one(tmp_path: Path) -> None:
    """Days of samples are not read: only the end of their file, and of that the last record of the node."""
    path, growing = tmp_path / "node1.samples.jsonl", GrowingJournal(tmp_path)
    grow(path, b"".join(line(number, "sample", node="node1", ranks={}) for number in range(2000)))
    assert [item["t"] for item in growing.look()] == [1999]
    version = growing.version
    grow(path, line(2001, "sample", node="node1", ranks={"0": {"rss_mib": 5}}))
    assert growing.look()[-1]["t"] == 2001
    assert (growing.samples["node1"]["ranks"], growing.version) == ({"0": {"rss_mib": 5}}, version)


def test_journals_of_ranks_that_their_node_tells_of_are_left_alone(tmp_path: Path) -> None:
    """Thousands of files are not opened while all is well; once something has ended they are."""
    growing = GrowingJournal(tmp_path)
    grow(tmp_path / "node1.jsonl", line(2, "found", rank=0, node="node1", main=True, pid=1, started=1.5))
    grow(tmp_path / "rank-0.jsonl", line(1.5, "start", rank=0, node="node1"))
    grow(tmp_path / "rank-1.jsonl", line(1.6, "start", rank=1, node="node1"))
    assert [(item["kind"], item["rank"]) for item in growing.look()] == [("start", 1), ("found", 0)]
    grow(tmp_path / "rank-0.jsonl", line(9, "exit", rank=0, code=1))
    grow(tmp_path / "node1.jsonl", line(8, "ended", rank=1, node="node1", main=True, how="exit 1", asked=False))
    assert ("exit", 0) in [(item["kind"], item.get("rank")) for item in growing.look()]


def test_the_evidence_is_that_of_a_full_reading(tmp_path: Path) -> None:
    """Ranks' states, the first end and the state agree with `status` at each moment of a run that fails."""
    run, reading = RunDir(tmp_path / "run").loading(), LiveReading()
    steps: tuple[Callable[[], object], ...] = (
        lambda: run,
        lambda: run.serving(),
        lambda: run.note("node1.samples", 7, "sample", node="node1", ranks={"0": {"rss_mib": 12.5, "cpu_s": 1.0}}),
        lambda: run.killed(5),
        lambda: run.state(10, "FAILED", "rank 5 went"),
    )
    for step in steps:
        step()
        reading.begin()
        live = load_evidence(run.paths, run.job_paths, reading=reading)
        full = load_evidence(run.paths, run.job_paths)
        assert live.facts is not None and full.facts is not None
        assert (live.facts.state, live.facts.first_end) == (full.facts.state, full.facts.first_end)
        assert live.facts.began == full.facts.began
        states = [[one.state for one in facts.ranks.values()] for facts in (live.facts, full.facts)]
        assert states[0] == states[1]
        assert (live.last_record, live.failed_at) == (full.last_record, full.failed_at)
    assert live.facts is not None
    assert live.facts.first_end == fold.FirstEnd(5, "node3", "triton_python_b", "signal SIGKILL", "serving", T0 + 9)
    assert json.loads(run.paths.plan.read_text())["name"] == "demo"
