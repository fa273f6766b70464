from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.agent import journal


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    """Records survive the way through a file, in order of time over several files."""
    for name, when in (("n1", 3.0), ("n2", 1.0), ("n1", 2.0)):
        assert journal.append(str(tmp_path / f"{name}.jsonl"), {"t": when, "kind": "found", "text": "ä\n\x00"})
    read = journal.read_folder(str(tmp_path))
    assert [item["t"] for item in read] == [1.0, 2.0, 3.0]
    assert read[0]["text"] == "ä\n\x00"


def test_of_frequent_records_the_last_ones_of_each_file_are_kept(tmp_path: Path) -> None:
    """A node writes tens of thousands of samples in some days; as records they would fill a reader's memory."""
    for name in ("n1", "n2"):
        rows: list[journal.Record] = [
            {"t": float(t), "kind": "sample", "ranks": {}, "node": name} for t in range(journal.KEPT + 50)
        ]
        rows.insert(3, {"t": 3.0, "kind": "found", "text": 'a log says "kind":"sample"', "node": name})
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(map(journal.line, rows)))
    read = journal.read_folder(str(tmp_path))
    samples = [item for item in read if item["kind"] == "sample"]
    assert len(samples) == 2 * journal.KEPT and min(item["t"] for item in samples) == 50.0
    assert len([item for item in read if item["kind"] == "found"]) == 2
    assert read == journal.in_order(read)


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        pytest.param(b'\n{"t":1,"kind":"a"}\n{"t":2,"ki', ["a"], id="torn last line"),
        pytest.param(b'\n{"t":1,"ki\n{"t":2,"kind":"b"}', ["b"], id="torn line costs only itself"),
        pytest.param(b"\n[1]\nnull\n{}\n\xff\xfe\n", [], id="not records"),
        pytest.param(b"", [], id="empty"),
    ],
)
def test_unfinished_and_foreign_lines_are_left_out(data: bytes, kinds: list[str]) -> None:
    """A reader takes whole records and nothing else."""
    assert [item["kind"] for item in journal.parse(data)] == kinds


def test_a_missing_journal_has_no_records(tmp_path: Path) -> None:
    """Neither a missing file nor a missing folder is an error."""
    assert journal.read(str(tmp_path / "no.jsonl")) == []
    assert journal.read_folder(str(tmp_path / "no")) == []


def test_appending_where_there_is_no_folder_says_so(tmp_path: Path) -> None:
    """A file system that refuses gives False, no exception: the agent must live on."""
    assert journal.append(str(tmp_path / "gone" / "n.jsonl"), journal.record("x")) is False


def test_write_once_never_overwrites(tmp_path: Path) -> None:
    """The first writer wins, the file is private, and no draft stays."""
    path = tmp_path / "result.0.json"
    assert journal.write_once(str(path), "first") is True
    assert journal.write_once(str(path), "second") is False
    assert path.read_text() == "first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["result.0.json"]
