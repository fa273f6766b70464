"""A journal on a disk that is full, or in a folder that somebody removes, is complete again as soon as it can be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import journal, writer
from slurm_llm.agent.writer import Writer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every call."""
    monkeypatch.setattr(writer, "RETRY_S", 0.0)


def item(number: int) -> dict[str, Any]:
    return {"t": float(number), "kind": "note", "number": number}


def numbers(path: Path) -> list[int]:
    return [one["number"] for one in journal.read(str(path)) if one["kind"] == "note"]


def test_what_a_full_disk_refuses_is_written_later(tmp_path: Path) -> None:
    """/dev/full refuses as a full disk does; the trouble is told once, and its end."""
    path = tmp_path / "journal" / "head.jsonl"
    own = Writer(str(path))
    assert own.write(item(1))
    kept = path.rename(path.with_suffix(".kept"))
    path.symlink_to("/dev/full")
    assert not own.write(item(2))
    assert not own.write(item(3))
    assert "No space left on device; kept in memory" in own.mend([])
    assert own.mend([]) == ""
    path.unlink()
    kept.rename(path)
    assert "it is complete again" in own.mend([])
    assert (numbers(path), own.mend([])) == ([1, 2, 3], "")
    assert own.write(item(4))
    assert numbers(path) == [1, 2, 3, 4]


def test_a_folder_that_is_removed_is_made_anew_with_everything(tmp_path: Path) -> None:
    """The head knows what all agents have said: it writes that again."""
    path = tmp_path / "attempt-0" / "journal" / "head.jsonl"
    own = Writer(str(path))
    own.write(item(1))
    shutil.rmtree(tmp_path / "attempt-0")
    assert "it was removed" in own.mend([item(0), item(1), item(2)])
    assert numbers(path) == [0, 1, 2]


def test_a_journal_that_was_never_there_is_no_trouble(tmp_path: Path) -> None:
    """Before the first record nothing is missed."""
    own = Writer(str(tmp_path / "journal" / "n.jsonl"))
    assert own.mend([item(1)]) == ""
    assert own.write(item(2))
    assert numbers(tmp_path / "journal" / "n.jsonl") == [2]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first records say most."""
    monkeypatch.setattr(writer, "MOST_KEPT", 2)
    (tmp_path / "n.jsonl").symlink_to("/dev/full")
    own = Writer(str(tmp_path / "n.jsonl"))
    for number in range(5):
        assert not own.write(item(number))
    (tmp_path / "n.jsonl").unlink()
    own.mend([])
    assert numbers(tmp_path / "n.jsonl") == [0, 1]
