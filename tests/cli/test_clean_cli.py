"""`clean`: what goes and what stays, shown first; links, foreign folders, living jobs, products, and an interrupt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.record import list_path, remember_run
from slurm_llm.stagerecord import StageRef, refs_to_json
from slurm_llm.stages.recipe import FOLDER, Product, Recipe, recipe_to_json
from tests.cli.test_cli import Desk
from tests.observe.run_dirs import RunDir

Change = Callable[[RunDir, Desk], None]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a user's directory, with no job in the queue."""
    made = Desk(tmp_path, monkeypatch)
    made.says("squeue", "")
    return made


def ended(desk: Desk, number: int = 1, state: str = "FAILED", root: str = "logs") -> RunDir:
    """Write a run that has ended, as job 7 and so on."""
    run_id = f"202611{number:02}-104000-abcd"
    run = RunDir(desk.folder / root / f"demo-{run_id}", run_id=run_id, job_id=6 + number)
    return run.serving().result(state)


def clean(desk: Desk, *words: str) -> dict[str, Any]:
    """Return what `clean` says as JSON."""
    done = desk.run("clean", "--older", "0", "--json", *words)
    assert done.exit_code == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def gone(value: dict[str, Any]) -> list[str]:
    """Return the run ids that would go, or have gone."""
    return [row["run_id"] for row in value["runs"]]


def test_it_is_shown_before_it_goes(desk: Desk) -> None:
    """A dry run by default, at 80 columns; --yes removes the same, and takes it out of the list of runs."""
    run = ended(desk)
    remember_run(run.root, {"HOME": str(desk.folder)})
    remember_run(desk.folder / "logs" / "long gone", {"HOME": str(desk.folder)})
    remember_run(Path("/not mounted here/run"), {"HOME": str(desk.folder)})
    done = desk.run("clean", "--older", "0")
    assert "would remove 1 run, " in done.stdout and "say --yes" in done.stdout
    assert run.root.is_dir() and max(map(len, done.stdout.splitlines())) <= 80
    done = desk.run("clean", "--older", "0", "--yes")
    assert "removed 1 run, " in done.stdout and not run.root.exists()
    assert list_path({"HOME": str(desk.folder)}).read_text() == "/not mounted here/run\n"
    assert list((desk.folder / "logs").iterdir()) == []


def _queue(desk: Desk, *rows: str) -> None:
    desk.says("squeue", "\n".join(rows))


def _lives(run: RunDir, desk: Desk) -> None:
    _queue(desk, "7\x1f/other/script")


def _by_hand(run: RunDir, desk: Desk) -> None:
    _queue(desk, f"99\x1f{run.paths.script} argument")


def _bench_lives(run: RunDir, desk: Desk) -> None:
    (run.root / "bench.json").write_text(refs_to_json([StageRef("bench", "55", "/x")]))
    _queue(desk, "55\x1f/other/script")


def _no_record(run: RunDir, desk: Desk) -> None:
    run.paths.record.unlink()


def _foreign(run: RunDir, desk: Desk) -> None:
    os.chown(run.root, 12345, 12345)


def _own_name(run: RunDir, desk: Desk) -> None:
    named = run.root.with_name("my project")
    run.root.rename(named)
    run.root = named
    remember_run(named, {"HOME": str(desk.folder)})


def _no_result(run: RunDir, desk: Desk) -> None:
    run.job_paths.result(0).unlink()


def _never_submitted(run: RunDir, desk: Desk) -> None:
    run.job_paths.root.rename(run.root / "other")


def _accounting_fails(run: RunDir, desk: Desk) -> None:
    _no_result(run, desk)
    desk.says("squeue", "")
    desk.says("sacct", "", "sacct: error: slurmdbd: no connection", 1)


def _another_cluster(run: RunDir, desk: Desk) -> None:
    run.submitted()
    path = run.job_paths.submission
    path.write_text(json.dumps({**json.loads(path.read_text()), "cluster": "far"}))
    script = desk.folder / "bin" / "squeue"
    script.write_text('#!/bin/sh\ncase "$*" in *far*) echo "cannot reach far" >&2; exit 1;; esac\n')


def _product(run: RunDir, desk: Desk) -> None:
    folder = run.root.with_name(run.root.name + ".stages") / "weights"
    folder.mkdir(parents=True)
    product = Product(FOLDER, str(folder / "model"), str(folder / "part"), str(folder / "made.json"))
    recipe = Recipe("weights", "a model", "", (), product, "f")
    (folder / "stage.json").write_text(recipe_to_json(recipe))


STAYS: dict[str, tuple[Change, str]] = {
    "its job is in the queue": (_lives, "a job of it is in the queue or runs"),
    "its script was submitted by hand": (_by_hand, "a job of it is in the queue or runs"),
    "a job beside it runs": (_bench_lives, "a job of it is in the queue or runs"),
    "no record": (_no_record, "no run of yours"),
    "another user's": (_foreign, "no run of yours"),
    "a name that the user chose": (_own_name, "a folder with a name of your own"),
    "nobody knows how it ended": (_no_result, "state LOST"),
    "never submitted": (_never_submitted, "state PLANNED"),
    "the accounting does not answer": (_accounting_fails, "Slurm does not answer for it"),
    "the other cluster does not answer": (_another_cluster, "Slurm does not answer for it"),
    "weights in its own folder": (_product, "a stage made its product in it"),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_stays(desk: Desk, case: str) -> None:
    """Whatever may still be alive, is not a run of this user's, or is worth more than logs; and why is said."""
    change, why = STAYS[case]
    run = ended(desk)
    change(run, desk)
    value = clean(desk, "--yes")
    assert (gone(value), value["stay"]) == ([], {why: 1})
    assert run.root.is_dir()


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ((), []),
        (("--keep", "1"), ["03"]),
        (("--keep", "5"), ["01", "02", "03"]),
        (("--state", "failed"), ["02", "03"]),
        (("--state", "completed,timed-out"), ["01"]),
        (("--older", "1d"), ["01", "02", "03"]),
    ],
)
def test_which_ones_are_meant(desk: Desk, words: tuple[str, ...], left: list[str]) -> None:
    """By number, state and age."""
    for number, state in ((1, "FAILED"), (2, "COMPLETED"), (3, "TIMED_OUT")):
        ended(desk, number, state)
    clean(desk, *words, "--yes")
    assert sorted(path.name[11:13] for path in (desk.folder / "logs").iterdir()) == left


def test_states_that_must_be_named(desk: Desk) -> None:
    """What has no known end goes where it is asked for; Slurm is asked twice in all, for any number of runs."""
    for number in (1, 2, 3):
        _no_result(ended(desk, number), desk)
    value = clean(desk, "--state", "lost")
    assert len(gone(value)) == 3
    assert [call.split()[0] for call in desk.calls()].count("squeue") == 2


def test_a_silent_slurm_keeps_everything(desk: Desk) -> None:
    """Without an answer nothing goes, and that is an error."""
    run = ended(desk)
    desk.says("squeue", "", "slurm_load_jobs error: Unable to contact slurm controller", 1)
    done = desk.run("clean", "--older", "0", "--yes")
    assert (done.exit_code, run.root.is_dir()) == (6, True)


def test_links_are_not_followed(desk: Desk) -> None:
    """Neither a run that is a link, nor a link in a run, leads the removal elsewhere."""
    precious = desk.folder / "precious"
    precious.mkdir()
    (precious / "weights").write_text("x")
    elsewhere = ended(desk, 1, root="elsewhere")
    run = ended(desk, 2)
    (run.root / "link").symlink_to(precious)
    run.root.with_name(run.root.name + ".stages").symlink_to(precious)
    (desk.folder / "logs" / elsewhere.root.name).symlink_to(elsewhere.root)
    value = clean(desk, "--yes")
    assert (gone(value), value["stay"]) == ([run.run_id], {"no run of yours": 1})
    assert (precious / "weights").is_file() and elsewhere.root.is_dir()


def test_a_stages_folder_goes_with_its_run_and_drafts_when_old(desk: Desk) -> None:
    """Logs of stages; half-written directories a day old, or left by a removal that was interrupted."""
    run = ended(desk)
    stages = run.root.with_name(run.root.name + ".stages")
    (stages / "weights").mkdir(parents=True)
    logs = desk.folder / "logs"
    for name, age in (("old", 100_000), ("new", 0), ("half.clearing", 0)):
        draft = logs / f".{name}.tmp"
        draft.mkdir()
        if age:
            os.utime(draft, (draft.stat().st_mtime - age,) * 2)
    value = clean(desk, "--yes")
    assert [Path(name).name for name in value["drafts"]] == [".half.clearing.tmp", ".old.tmp"]
    assert sorted(path.name for path in logs.iterdir()) == [".new.tmp"]


def test_roots_are_looked_through(desk: Desk) -> None:
    """Runs of another folder, where it is named."""
    ended(desk, 1, root="scratch/runs")
    assert gone(clean(desk)) == []
    assert len(gone(clean(desk, "--root", "scratch/runs"))) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--older", "soon"), "--older: 'soon' is no age"),
        (("--state", "failure"), "did you mean 'failed'?"),
        (("--state", "running"), "--state: 'running'"),
        (("--root", "nowhere"), "--root: nowhere is no folder"),
    ],
)
def test_words_that_mean_nothing(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """One line, and nothing goes."""
    run = ended(desk)
    done = desk.run("clean", "--yes", *words)
    assert (done.exit_code, len(done.stderr.splitlines()), run.root.is_dir()) == (3, 1, True)
    assert said in done.stderr


def test_what_cannot_be_removed_is_an_error(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that does not go is named, the others go all the same."""
    run, other = ended(desk, 1), ended(desk, 2)
    real = Path.rename

    def refused(self: Path, target: Path) -> Path:
        if self == run.root:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    done = desk.run("clean", "--older", "0", "--yes")
    assert done.exit_code == 1
    assert "stays: Permission denied" in done.stderr
    assert (run.root.is_dir(), other.root.exists()) == (True, False)
