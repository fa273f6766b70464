from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.agent import fold, journal


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    """Records survive the way through a file, in order of time over several files; what steers a terminal does not."""
    for name, when in (("n1", 3.0), ("n2", 1.0), ("n1", 2.0)):
        assert journal.append(str(tmp_path / f"{name}.jsonl"), {"t": when, "kind": "found", "text": "ä\n\x00"})
    read = journal.read_folder(str(tmp_path))
    assert [item["t"] for item in read] == [1.0, 2.0, 3.0]
    assert read[0]["text"] == "ä\n"


def _written(folder: Path, name: str, *items: journal.Record) -> None:
    for item in items:
        assert journal.append(str(folder / f"{name}.jsonl"), item)


def _sample(node: str, at: float, rank: int) -> journal.Record:
    return {"t": at, "kind": "sample", "node": node, "ranks": {str(rank): {"rss_mib": at}}}


def test_of_samples_the_last_ones_of_each_node_are_kept(tmp_path: Path) -> None:
    """A node writes tens of thousands of samples in some days; as records they would fill a reader's memory."""
    for name in ("n1", "n2"):
        rows = [_sample(name, float(at), 0) for at in range(journal.KEPT + 50)]
        (tmp_path / f"{name}.samples.jsonl").write_bytes(b"".join(map(journal.line, rows)))
        _written(tmp_path, name, {"t": 3.0, "kind": "found", "text": 'a log says "kind":"sample"', "node": name})
    read = journal.read_folder(str(tmp_path))
    samples = [item for item in read if item["kind"] == "sample"]
    assert len(samples) == 2 * journal.KEPT and min(item["t"] for item in samples) == 50.0
    assert len([item for item in read if item["kind"] == "found"]) == 2
    assert read == journal.in_order(read)


def test_of_a_long_file_of_samples_only_the_end_is_read(tmp_path: Path) -> None:
    """It grows for days: a reader that wants one sample takes its last part, and no half record."""
    path = tmp_path / "n1.samples.jsonl"
    path.write_bytes(b"".join(journal.line(_sample("n1", float(at), 0)) for at in range(5000)))
    with path.open("rb+") as stream:
        stream.write(b"\nno record at all" * 100)
    assert [item["t"] for item in journal.read_folder(str(tmp_path), 1)] == [4999.0]
    assert journal.read_folder(str(tmp_path), 0) == []


def _start(rank: int) -> journal.Record:
    return {"t": 1.0 + rank / 10, "kind": "start", "rank": rank, "node": f"n{rank // 2}", "gpus": str(rank)}


def _found(rank: int) -> journal.Record:
    told = {"started": 1.0 + rank / 10, "gpus": str(rank)}
    return {"t": 2.0, "kind": "found", "rank": rank, "node": f"n{rank // 2}", "main": True, "pid": 100 + rank, **told}


def _ended(rank: int) -> journal.Record:
    return {"t": 9.0, "kind": "ended", "rank": rank, "node": f"n{rank // 2}", "main": True, "how": "exit 3", "at": 8.9}


def _exit(rank: int) -> journal.Record:
    return {"t": 9.0, "kind": "exit", "rank": rank, "node": f"n{rank // 2}", "code": 3}


READY: journal.Record = {"t": 5.0, "kind": "state", "state": "READY"}
LOST: journal.Record = {"t": 8.0, "kind": "unwatched", "node": "n1", "since": 7.0, "text": "its agent has gone"}


@pytest.mark.parametrize(
    ("of_agents", "of_ranks", "opened"),
    [
        pytest.param([*map(_found, range(4)), READY], [*map(_start, range(4))], set(), id="all serve"),
        pytest.param([*map(_found, range(3))], [*map(_start, range(4))], {3}, id="one has no engine yet"),
        pytest.param(
            [*map(_found, range(4)), READY, _ended(2)],
            [*map(_start, range(4)), _exit(2)],
            {0, 1, 3},
            id="one has ended",
        ),
        pytest.param(
            [*map(_found, range(4)), READY, LOST],
            [*map(_start, range(4)), _exit(3)],
            {0, 1, 2, 3},
            id="one ended that no agent watched",
        ),
        pytest.param(
            [{**_found(rank), "started": None} for rank in range(4)],
            [*map(_start, range(4))],
            {0, 1, 2, 3},
            id="agents that could not read the ranks' journals",
        ),
    ],
)
def test_what_is_read_in_brief_tells_the_same_of_every_rank(
    tmp_path: Path, of_agents: list[journal.Record], of_ranks: list[journal.Record], opened: set[int]
) -> None:
    """Journals of single ranks are opened only where they add something, and the facts are those of all of them."""
    for item in ({"t": 0.5, "kind": "begin"}, *of_agents):
        _written(tmp_path, str(item.get("node", "head")), item)
    for item in of_ranks:
        _written(tmp_path, f"rank-{item['rank']}", item)
    _written(tmp_path, "n0.samples", *(_sample("n0", float(at), 0) for at in range(3, 9)))
    brief, whole = journal.read_briefly(str(tmp_path)), journal.read_folder(str(tmp_path))
    assert {item["rank"] for item in brief if item["kind"] == "start"} == opened
    assert fold.fold(brief, 4) == fold.fold(whole, 4)


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
