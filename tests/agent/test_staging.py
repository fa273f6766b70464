"""Copies of weights on a node: what is copied, when one is complete, who reads it, when it goes; the head's view."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.agent import copying, processes, staging
from slurm_llm.agent.stagewatch import StageWatch

FILES = {"config.json": b"{}", "a.safetensors": b"a" * 70_000, "deep/er/b.bin": b"b" * 5}


def model(folder: Path) -> Path:
    """Make a model's folder, a part of it behind links as the hub's cache has them."""
    source = folder / "snapshots" / "main"
    for name, data in FILES.items():
        blob = folder / "blobs" / name.replace("/", "-")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(blob)
    return source


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder; a link that is left would not be one of the copy's own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def stage(source: Path, to: Path, job: str = "7", **given: Any) -> list[dict[str, Any]]:
    """Stage one folder for a job, and return the records of the end."""
    said: list[dict[str, Any]] = []
    plan = plan_of(source, to, **given)
    own = staging.Stage(plan, job, lambda kind, **more: said.append({"kind": kind, **more}))
    try:
        own.run()
    finally:
        own.stop()
    return [item for item in said if item["kind"] != "copying"]


def plan_of(source: Path, to: Path, **given: Any) -> staging.Plan:
    """Return a plan with one folder, whose copy is `model`."""
    folders = [{"source": str(source), "target": str(to / "model")}]
    return staging.Plan(**{"to": str(to), "folders": folders, "exclude": [], "streams": 3, "keep": False, **given})


@pytest.fixture(autouse=True)
def live(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The jobs with a process on this node; this test's machine has none."""
    jobs: set[str] = set()
    monkeypatch.setattr(processes, "live_tags", lambda _pids: {f"{job}.0" for job in jobs})
    return jobs


def test_links_are_copied_as_what_they_mean(tmp_path: Path) -> None:
    """A snapshot of the hub's cache becomes a folder of files; each is there in its size."""
    to = tmp_path / "to"
    said = stage(model(tmp_path / "hub"), to)
    assert content(to / "model") == FILES
    assert [(item["kind"], item["bytes"], item["reused"]) for item in said] == [("copied", 70_007, 0)]
    assert sorted(path.name for path in to.iterdir()) == ["model", "model.json", "model.lock", "model.use-7"]


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (["*.bin"], ["a.safetensors", "config.json"]),
        (["deep/"], ["a.safetensors", "config.json"]),
        (["deep/er/*", "*.json"], ["a.safetensors"]),
        (["nothing"], sorted(FILES)),
    ],
    ids=str,
)
def test_patterns_leave_files_and_folders_out(tmp_path: Path, exclude: list[str], left: list[str]) -> None:
    """By name, by path, or by a folder above."""
    assert [one.path for one in copying.listing(str(model(tmp_path)), exclude)] == left


def test_a_link_in_a_circle_ends(tmp_path: Path) -> None:
    """A folder that holds a link to itself is listed once."""
    source = model(tmp_path)
    (source / "loop").symlink_to(source)
    assert [one.path for one in copying.listing(str(source), [])] == sorted(FILES)


@pytest.mark.parametrize("ways", ["all", "sendfile", "none"])
@pytest.mark.parametrize("piece", [1 << 30, 1000])
def test_every_way_to_copy_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: str, piece: int
) -> None:
    """Whatever kernel and Python can do, and however large files are cut for several streams."""
    known = copying._movers()
    monkeypatch.setattr(copying, "_WAYS", {"all": known, "sendfile": known[-1:], "none": []}[ways])
    monkeypatch.setattr(copying, "PIECE", piece)
    monkeypatch.setattr(copying, "BLOCK", 333)
    stage(model(tmp_path / "hub"), tmp_path / "to")
    assert content(tmp_path / "to" / "model") == FILES


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path) -> None:
    """The copy would be filled up with zeros otherwise."""
    source = model(tmp_path)
    files = copying.listing(str(source), [])
    (tmp_path / "blobs" / "a.safetensors").write_bytes(b"short")
    with pytest.raises(OSError, match="shorter"):
        copying.Copy(str(source), str(tmp_path / "to"), files).run(2)


def test_a_complete_copy_is_used_again_and_no_other(tmp_path: Path) -> None:
    """What was cut off, has lost a file, or is of a source that has changed since is made anew."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    stage(source, to)
    assert stage(source, to, "8")[0]["reused"] == 70_007
    (to / "model" / "a.safetensors").write_bytes(b"cut off")
    assert stage(source, to, "8")[0]["reused"] == 0
    (tmp_path / "hub" / "blobs" / "config.json").write_bytes(b"{ }")
    assert stage(source, to, "8")[0]["reused"] == 0
    assert content(to / "model")["config.json"] == b"{ }"
    (to / "model.json").unlink()
    assert stage(source, to, "8")[0]["reused"] == 0


def test_a_copy_goes_with_its_last_job(tmp_path: Path, live: set[str]) -> None:
    """While another job of the user reads it, it stays; a job that has died without a word counts no more."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    for job in ("7", "8", "9"):
        stage(source, to, job)
    live |= {"7", "8"}
    staging.unstage(plan_of(source, to), "7")
    assert content(to / "model") == FILES
    live.clear()
    (to / "of the user.txt").touch()
    staging.unstage(plan_of(source, to), "8")
    assert [path.name for path in to.iterdir()] == ["of the user.txt"]


def test_a_copy_that_is_kept_stays(tmp_path: Path) -> None:
    """Also one that was made by a job that did not mean to keep it."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    stage(source, to, "7")
    stage(source, to, "8", keep=True)
    for job in ("7", "8"):
        staging.unstage(plan_of(source, to), job)
    assert content(to / "model") == FILES
    assert sorted(path.name for path in to.iterdir()) == ["model", "model.json", "model.lock"]


def test_another_jobs_copy_is_not_replaced_below_its_feet(tmp_path: Path, live: set[str]) -> None:
    """The source has changed, and a job reads the old copy: the new one says so and does not start."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    stage(source, to, "7")
    live.add("7")
    (tmp_path / "hub" / "blobs" / "config.json").write_bytes(b"{ }")
    with pytest.raises(staging.Fault, match="is read by job 7"):
        stage(source, to, "8")
    assert content(to / "model") == FILES


def test_two_jobs_make_one_copy(tmp_path: Path) -> None:
    """The second waits for the first one's lock, and finds its copy."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    to.mkdir()
    handle = os.open(to / "model.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    found: list[dict[str, Any]] = []
    second = threading.Thread(target=lambda: found.extend(stage(source, to, "8")))
    second.start()
    time.sleep(0.3)
    assert found == []
    os.close(handle)
    second.join(20)
    assert found[0]["reused"] == 0
    assert content(to / "model") == FILES


def test_room_is_looked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is begun that cannot end; the figures are in the message."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    usage = type(shutil.disk_usage(tmp_path))(10_000_000, 0, 10_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(staging.Fault, match=r"has 10\.0 MB free, the copy of .*/main needs 0\.1 MB"):
        stage(source, to)
    assert not (to / "model.part").exists()


def test_one_that_is_told_to_end_leaves_nothing_half(tmp_path: Path) -> None:
    """Neither the part nor a mark that would call it complete."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    own = staging.Stage(plan_of(source, to), "7", lambda _kind, **_more: None)
    own.stop()
    with pytest.raises(copying.Stopped):
        own.run()
    assert sorted(path.name for path in to.iterdir()) == ["model.lock"]


def test_a_copy_of_before_a_reboot_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk had not written then is lost, and the sizes do not tell."""
    source, to = model(tmp_path / "hub"), tmp_path / "to"
    stage(source, to, keep=True)
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(staging, "BOOT", str(boot))
    assert stage(source, to, "8")[0]["reused"] == 0


def test_a_folder_that_is_no_ones_of_this_user_is_refused(tmp_path: Path) -> None:
    """A link that somebody else has put there would lead anywhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(staging.Fault, match="somebody else's"):
        stage(model(tmp_path / "hub"), tmp_path / "to")


def watch(said: list[str]) -> StageWatch:
    """Return the head's view of two nodes, whose copies may stand still for 30 s."""
    plan = {"allocation": {"nodes": 2}, "limits": {"stall_s": 30}}
    return StageWatch(plan, lambda _kind, **_more: None, said.append)


def copying_record(node: str, done: int) -> dict[str, Any]:
    """Return what a node says while it copies 10 GB."""
    return {"t": 0.0, "kind": "copying", "node": node, "done": done, "total": 10_000_000_000}


def test_the_head_tells_how_far_it_is_and_who_is_behind() -> None:
    """Every ten seconds a line; at the end what was copied, and by which node last."""
    said: list[str] = []
    own = watch(said)
    own.look({"t": 0.0, "kind": "staging"}, 100.0)
    for node, done in (("n1", 9_000_000_000), ("n2", 3_000_000_000)):
        assert own.look(copying_record(node, done), 104.0) == ""
    own.look(None, 112.0)
    assert said[0].endswith("staging: 12.0 GB of 20.0 GB, 1.0 GB/s; n2 has 30 %, n1 has 90 %")
    for node, took in (("n1", 12.0), ("n2", 40.0)):
        end = {"t": 0.0, "kind": "copied", "node": node, "bytes": 10_000_000_000, "reused": 0, "seconds": took}
        own.look(end, 140.0)
    own.look({"t": 0.0, "kind": "staged", "code": 0}, 141.0)
    assert said[-1].endswith("staging: 10.0 GB on each of 2 nodes in 40.0 s (n2)")


def test_time_of_copies_is_none_of_the_servers() -> None:
    """A start may take as long as copies do; the limits of the server's start count without it."""
    own = watch([])
    assert own.gone_s(90.0) == 0.0
    own.look({"t": 0.0, "kind": "staging"}, 100.0)
    assert own.gone_s(130.0) == 30.0
    assert own.gone_s(131.0) == 1.0
    own.look({"t": 0.0, "kind": "staged", "code": 0}, 140.0)
    assert own.gone_s(150.0) == 0.0


def test_a_node_that_copies_no_more_is_named() -> None:
    """A file system that hangs is no progress; a node that is done need not move."""
    own = watch([])
    own.look({"t": 0.0, "kind": "staging"}, 100.0)
    own.look(copying_record("n1", 5_000_000_000), 101.0)
    own.look(copying_record("n2", 5_000_000_000), 101.0)
    own.look({"t": 0.0, "kind": "copied", "node": "n1", "bytes": 1, "reused": 0, "seconds": 1.0}, 102.0)
    assert own.look(copying_record("n2", 5_000_000_000), 131.0) == ""
    assert own.look(None, 132.0) == "node n2 has copied nothing for 31 s; 5.0 GB of 10.0 GB are there"
    assert own.node == "n2"


def test_a_node_that_waits_for_another_jobs_copy_does_not_stand_still() -> None:
    """That one may take long, and is watched by its own head."""
    own = watch([])
    own.look({"t": 0.0, "kind": "staging"}, 100.0)
    for now in (101.0, 125.0, 150.0):
        assert own.look({**copying_record("n1", 0), "waits": True}, now) == ""


def test_a_step_that_ends_without_a_word_is_a_failure() -> None:
    """srun could not start it, or it was killed."""
    own = watch([])
    own.look({"t": 0.0, "kind": "staging"}, 100.0)
    assert "exit status 9: see staging.log" in own.look({"t": 0.0, "kind": "staged", "code": 9}, 101.0)
