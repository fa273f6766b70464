"""Triton's own words of a model that failed are heard once, whoever wrote what around them."""

from __future__ import annotations

from pathlib import Path

from slurm_llm.agent.complaints import Complaint, Listener

STUB = 'I1130 1 pb_stub.cc:366] "Failed to initialize Python stub: TritonModelException: boom\\n\\nAt:\\n  /x.py(1)"\n'
CORE = "E1130 1 model_lifecycle.cc:642] failed to load 'tensorrt_llm' version 1: Internal: boom\n"


def test_a_failed_model_is_heard_once(tmp_path: Path) -> None:
    """In a log that grows, also when the words come in two pieces."""
    log, listener = tmp_path / "rank-5.log", Listener()
    assert listener.listen(5, str(log)) is None
    log.write_text("loading\n" + STUB[:40])
    assert listener.listen(5, str(log)) is None
    with log.open("a") as stream:
        stream.write(STUB[40:])
    said = "Failed to initialize Python stub: TritonModelException: boom"
    assert listener.listen(5, str(log)) == Complaint(5, said)
    with log.open("a") as stream:
        stream.write(CORE)
    assert listener.listen(5, str(log)) is None


def test_the_words_of_the_core_are_known(tmp_path: Path) -> None:
    """They are the same for every engine; junk around them does no harm."""
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"\xff\x00" * 1000 + CORE.encode() + b"\r" * 100)
    assert Listener().listen(0, str(log)) == Complaint(0, "failed to load 'tensorrt_llm' version 1: Internal: boom")
    log.write_text("I1130 loading weights, 3 of 12 failed to load from cache\n")
    assert Listener().listen(0, str(log)) is None


def test_the_logs_of_all_ranks_are_looked_at_now_and_then(tmp_path: Path) -> None:
    """A second look within the same second asks no file system."""
    listener = Listener()
    (tmp_path / "rank-1.log").write_text(CORE)
    (tmp_path / "rank-2.log").write_text("loading\n")
    assert [one.rank for one in listener.news(str(tmp_path), [1, 2, 3])] == [1]
    (tmp_path / "rank-2.log").write_text(STUB)
    assert listener.news(str(tmp_path), [1, 2, 3]) == []
    listener.next_at = 0.0
    assert [one.rank for one in listener.news(str(tmp_path), [1, 2, 3])] == [2]
