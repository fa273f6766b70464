"""`metrics --sd`: which jobs Prometheus is told of, what they are called, and how the file is kept true."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slurm_llm.cli.metricstargets import show_targets
from slurm_llm.record import load_record, record_to_json
from tests.cli.test_cli import Desk
from tests.observe.run_dirs import FakeAround, FakeSlurm, RunDir, around, squeue_row

RUN_IDS = ("20261130-104000-abcd", "20261130-104100-abcd", "20261130-104200-abcd")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory."""
    return Desk(tmp_path, monkeypatch)


def loading(folder: Path, index: int = 0, host: str = "node1") -> RunDir:
    """Write a run that loads, with the page that its head has told of."""
    run_id = RUN_IDS[index]
    run = RunDir(folder / "logs" / f"demo-{run_id}", job_id=7 + index, run_id=run_id).loading()
    return run.note("head", 1.2, "exporter", host=host, port=21000 + index)


def targets(text: str) -> dict[str, dict[str, str]]:
    """Return labels by address."""
    return {address: entry["labels"] for entry in json.loads(text) for address in entry["targets"]}


def test_running_jobs_are_listed_while_they_load(desk: Desk) -> None:
    """Whoever watches a start wants its metrics; labels say whose they are, and meet none of a page."""
    run = loading(desk.folder)
    record = load_record(run.paths)
    assert record is not None
    run.paths.record.write_text(record_to_json(replace(record, model="org/model-7b")))
    desk.says("squeue", squeue_row(7, "RUNNING"))
    done = desk.run("metrics", "--sd")
    assert (done.exit_code, done.stderr) == (0, "")
    labels = targets(done.stdout)["node1:21000"]
    assert labels == {
        "run": RUN_IDS[0],
        "slurm_job": "7",
        "run_name": "demo",
        "run_engine": "rehearsal",
        "run_model": "org/model-7b",
        "site": "devcluster",
        "user": "me",
    }
    assert not set(labels) & {"job", "instance", "rank", "node", "model", "engine"}


def test_jobs_that_do_not_run_are_left_out(desk: Desk) -> None:
    """One that has told its end, and one that Slurm no longer has; Slurm is asked once, of those that may run."""
    _, ended, _ = (loading(desk.folder, index) for index in range(3))
    ended.result("COMPLETED")
    desk.says("squeue", squeue_row(9, "RUNNING"))
    assert list(targets(desk.run("metrics", "--sd").stdout)) == ["node1:21002"]
    asked = [call for call in desk.calls() if call.startswith("squeue")]
    assert len(asked) == 1 and "7" in asked[0] and "8" not in asked[0].split("=")[-1]


def test_without_a_job_there_is_an_empty_list_and_no_question(desk: Desk) -> None:
    """Prometheus reads `[]` as nothing to scrape, and no file as an error."""
    assert desk.run("metrics", "--sd").stdout == "[]\n"
    assert desk.calls() == []


def test_a_slurm_that_does_not_answer_takes_nothing_off_the_list(desk: Desk) -> None:
    """An hour without its controller must not be an hour without metrics."""
    loading(desk.folder)
    desk.says("squeue", "", "slurm_load_jobs error: Unable to contact slurm controller", 1)
    done = desk.run("metrics", "--sd")
    assert list(targets(done.stdout)) == ["node1:21000"]
    assert "Unable to contact slurm controller" in done.stderr


def test_the_newest_attempt_counts(desk: Desk) -> None:
    """After a restart the page has moved."""
    run = loading(desk.folder)
    run.attempt = 1
    run.note("head", 9, "exporter", host="fe80::1", port=21009)
    desk.says("squeue", squeue_row(7, "RUNNING"))
    assert list(targets(desk.run("metrics", "--sd").stdout)) == ["[fe80::1]:21009"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sd", "demo"), "takes -o and --watch alone"),
        (("--sd", "--json"), "takes -o and --watch alone"),
        (("--sd", "--instance", "0"), "takes -o and --watch alone"),
        (("-o", "x"), "takes -o and --watch alone"),
        (("--sd", "--watch", "5"), "name it with -o"),
    ],
)
def test_what_goes_together(desk: Desk, words: tuple[str, ...], says: str) -> None:
    """A run's name or another form would be left out without a word."""
    done = desk.run("metrics", *words)
    assert done.exit_code == 2 and says in done.stderr


@dataclass(frozen=True)
class Watching(FakeAround):
    """Surroundings in which each pause ends with something done, and the last one with Ctrl-C."""

    doings: tuple[object, ...] = ()

    def pause(self, seconds: float) -> None:
        """Do the next thing."""
        self.ticks.append(seconds)
        if len(self.ticks) > len(self.doings):
            raise KeyboardInterrupt
        doing = self.doings[len(self.ticks) - 1]
        if callable(doing):
            doing()


def test_a_watched_file_is_replaced_when_something_changes(tmp_path: Path) -> None:
    """As a whole, by one that others may read; untouched while nothing changes, since Prometheus reads it each time."""
    slurm = FakeSlurm([squeue_row(7, "RUNNING")])
    run = loading(tmp_path)
    path, seen = tmp_path / "sd.json", []

    def look() -> None:
        seen.append((path.stat().st_ino, list(targets(path.read_text()))))

    def end() -> None:
        look()
        run.result("COMPLETED")

    base = around(tmp_path, slurm)
    watching = Watching(base.environ, base.cwd, base.runner, doings=(look, end, look))
    before = os.umask(0o022)
    try:
        with pytest.raises(KeyboardInterrupt):
            show_targets(str(path), 30.0, watching)
    finally:
        os.umask(before)
    (first, one), (second, two), (third, none) = seen
    assert (one, two, none) == (["node1:21000"], ["node1:21000"], [])
    assert first == second != third
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["logs", "sd.json"]


def test_a_file_that_cannot_be_written_is_one_line(desk: Desk) -> None:
    """The folder may be another's."""
    done = desk.run("metrics", "--sd", "-o", str(desk.folder / "none" / "sd.json"))
    assert done.exit_code == 5 and done.stderr.count("\n") == 1 and "none/sd.json: cannot be written" in done.stderr
