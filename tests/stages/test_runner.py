"""What a stage's job does, run here: commands in order, the result file, reasons of failures, being told to end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from slurm_llm.errors import RunFailed, SetupError
from slurm_llm.process import run
from slurm_llm.rundir import STAGE_LOG, STAGE_RECIPE
from slurm_llm.stagerecord import CANCELLED, DONE, FAILED, SKIPPED, StageResult, load_result
from slurm_llm.stages.recipe import FOLDER, Recipe, recipe_to_json
from slurm_llm.stages.runner import run_stage
from tests.stages.making import recipe_of

TOKEN = "hf_" + "x1" * 10


def _run(folder: Path, recipe: Recipe) -> StageResult:
    folder.mkdir(exist_ok=True)
    (folder / STAGE_RECIPE).write_text(recipe_to_json(recipe))
    try:
        run_stage(str(folder))
    except RunFailed as failure:
        assert recipe.name in str(failure)
    result = load_result(folder)
    assert result is not None
    return result


def test_commands_run_in_order_and_the_product_takes_its_place(tmp_path: Path) -> None:
    """Then the same stage finds it there and runs nothing."""
    recipe = recipe_of(tmp_path / "out" / "x", 'echo one >"$1"', 'echo two >>"$1"')
    assert _run(tmp_path / "stage", recipe).state == DONE
    assert (tmp_path / "out" / "x").read_text() == "one\ntwo\n"
    log = (tmp_path / "stage" / STAGE_LOG).read_text()
    assert log.count(" slurm_llm: $ bash -c ") == 2
    assert _run(tmp_path / "again", recipe).state == SKIPPED
    assert not (tmp_path / "again" / STAGE_LOG).exists()


def test_a_failure_names_the_command_and_what_is_known_of_it(tmp_path: Path) -> None:
    """The second command is not run, nothing half made stays, and a known error explains itself."""
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    bad = f'echo {TOKEN}; echo x >"$1"; echo "{said}"; exit 3'
    result = _run(tmp_path / "stage", recipe_of(tmp_path / "x", bad, 'touch "$1".never'))
    assert (result.state, result.code) == (FAILED, 3)
    assert "ended with exit status 3" in result.cause and result.command.startswith("bash -c")
    assert result.why and result.remedy
    assert result.log[-1].startswith("torch.OutOfMemoryError")
    assert TOKEN not in json.dumps(vars(result))
    assert {place.name for place in tmp_path.iterdir()} == {"stage", ".x.lock"}


@pytest.mark.parametrize(
    ("script", "said"),
    [("true", "the commands ended well, and there is no "), ('mkdir "$1"', "it is no file")],
)
def test_a_command_that_makes_nothing_has_failed(tmp_path: Path, script: str, said: str) -> None:
    """Exit status 0 alone is no product."""
    result = _run(tmp_path / "stage", recipe_of(tmp_path / "x", script))
    assert result.state == FAILED and said in result.cause
    assert not (tmp_path / "x").exists()


def test_a_missing_program_and_a_signal_are_failures_with_a_status(tmp_path: Path) -> None:
    """127 and 128 + signal, as shells have them."""
    recipe = recipe_of(tmp_path / "x", "kill -9 $$")
    assert _run(tmp_path / "a", recipe).code == 137
    nowhere = recipe_of(tmp_path / "y", "")
    command = nowhere.commands[0].__class__(("no-such-program-here",))
    missing = nowhere.__class__(**{**vars(nowhere), "commands": (command,)})
    result = _run(tmp_path / "b", missing)
    assert result.code == 127 and "no-such-program-here: No such file" in result.log[-1]


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "told to end"), (signal.SIGUSR1, "time limit is near")])
def test_a_stage_that_is_told_to_end_ends_its_command(tmp_path: Path, number: signal.Signals, said: str) -> None:
    """The command's children go too; the result says that it was asked for."""
    recipe = recipe_of(tmp_path / "x", f'echo x >"$1"; echo $$ >{tmp_path}/pid; sleep 300 & wait', kind=FOLDER)
    folder = tmp_path / "stage"

    def signal_soon() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=signal_soon)
    sender.start()
    before = signal.getsignal(number)
    result = _run(folder, recipe)
    sender.join()
    assert result.state == CANCELLED and said in result.cause
    left = run(("ps", "-o", "stat=,args=", "-s", (tmp_path / "pid").read_text().strip())).stdout.splitlines()
    assert not [row for row in left if not row.startswith("Z")]
    assert not list(tmp_path.glob("*.part")) and signal.getsignal(number) is before


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A file where the product's folder should be."""
    (tmp_path / "file").write_text("")
    result = _run(tmp_path / "stage", recipe_of(tmp_path / "file" / "x", "true"))
    assert (result.state == FAILED and "File exists" in result.cause) or "Not a directory" in result.cause


def test_a_folder_without_a_recipe_is_refused(tmp_path: Path) -> None:
    """As when somebody submits a stage's script by hand from elsewhere."""
    with pytest.raises(SetupError, match=r"stage\.json: cannot be read"):
        run_stage(str(tmp_path))
    (tmp_path / STAGE_RECIPE).write_text("{}")
    with pytest.raises(SetupError, match="is no stage of slurm_llm"):
        run_stage(str(tmp_path))
