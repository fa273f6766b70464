"""What a stage's job runs: its commands in order, under the product's lock, and how that ended as one small file.

`run_stage` is called by submitit on a compute node, or by `prepare` itself on a login node.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from slurm_llm.agent import known
from slurm_llm.errors import Problem, RunFailed
from slurm_llm.knownerrors import load_known_errors
from slurm_llm.observe.text import last_lines
from slurm_llm.process import run, run_logged
from slurm_llm.rundir import STAGE_LOG, STAGE_RESULT
from slurm_llm.sites.secrets import redacted
from slurm_llm.stagerecord import CANCELLED, DONE, FAILED, SKIPPED, StageResult, result_to_json
from slurm_llm.stages import lock, products
from slurm_llm.stages.products import There
from slurm_llm.stages.recipe import STORE, Command, Product, Recipe, load_recipe

TOLD_LINES = 8
SEARCHED_LINES = 300
KINDS_OF_LOG = ("rank", "step", "slurm")


class StageStopped(Exception):
    """The stage is told to end."""


def run_stage(folder: str) -> str:
    """Run the stage in `folder`, write its result there and return its state.

    Raises:
        RunFailed: it did not make its product; the result file says why.
    """
    place = Path(folder)
    recipe = load_recipe(place)
    began = time.time()
    with told_to_end():
        result = _run(recipe, place, began)
    write_result(place, result)
    if result.state not in (DONE, SKIPPED):
        raise RunFailed(Problem(f"stage {recipe.name}", result.state, result.cause))
    return result.state


@contextmanager
def told_to_end() -> Iterator[None]:
    """Let TERM (scancel, the time limit) and USR1 (ahead of the limit) raise StageStopped in here."""

    def stop(number: int, _frame: FrameType | None) -> None:
        why = (
            "its time limit is near" if number == signal.SIGUSR1 else "it was told to end (scancel, or the time limit)"
        )
        raise StageStopped(why)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_result(folder: Path, result: StageResult) -> None:
    """Write how a stage ended, whole or not at all."""
    draft = folder / f".{STAGE_RESULT}"
    draft.write_text(result_to_json(result), encoding="utf-8")
    draft.rename(folder / STAGE_RESULT)


def _run(recipe: Recipe, folder: Path, began: float) -> StageResult:
    log, product = folder / STAGE_LOG, recipe.product

    def told(text: str) -> None:
        note(log, text)

    try:
        if product is None or product.kind == STORE:
            return _make(recipe, product, log, began)
        # What is there already needs no lock, and so no right to write.
        if (skipped := _skip(recipe, began)) is not None:
            return skipped
        lock_file = Path(product.path).parent / f".{Path(product.path).name}.lock"
        with lock.held(lock_file, told, time.sleep):
            return _skip(recipe, began) or _make(recipe, product, log, began)
    except StageStopped as stopped:
        # Its end is asked for: what the log's last lines say is not why.
        return ended(recipe.name, CANCELLED, began, cause=str(stopped))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return ended(recipe.name, FAILED, began, cause=f"{where}{error.strerror or error}")


def _skip(recipe: Recipe, began: float) -> StageResult | None:
    found = products.look(recipe, lambda argv: bool(run(argv).stdout.strip()))
    if found.there is There.WHOLE:
        return ended(recipe.name, SKIPPED, began, cause="it is there already")
    if found.there is There.OTHER and recipe.product is not None:
        return ended(recipe.name, FAILED, began, cause=f"{recipe.product.path}: {found.why}")
    return None


def _make(recipe: Recipe, product: Product | None, log: Path, began: float) -> StageResult:
    if product is not None and product.kind != STORE:
        products.clear(product)
    try:
        for command in recipe.commands:
            failed = run_command(recipe.name, command, log, began, None)
            if failed is not None:
                return failed
        if product is not None:
            if fault := products.fault_of(product):
                return ended(recipe.name, FAILED, began, cause=fault, log=_tail(log))
            if product.kind != STORE:
                products.finish(recipe, product)
    finally:
        if product is not None and product.kind != STORE:
            products.give_up(product)
    return ended(recipe.name, DONE, began)


def run_command(
    stage: str, command: Command, log: Path, began: float, env: Mapping[str, str] | None
) -> StageResult | None:
    """Run one command with its output in `log`; return the stage's result when it failed."""
    note(log, f"$ {command.text}")
    code = run_logged(command.argv, log, env=env)
    if code == 0:
        return None
    why, remedy = explain(log)
    cause = f"`{_short(command.text)}` ended with exit status {code}"
    result = ended(stage, FAILED, began, cause=cause, log=_tail(log))
    return StageResult(
        **{**vars(result), "command": redacted(command.text), "code": code, "why": why, "remedy": remedy}
    )


def _short(text: str) -> str:
    return redacted(text if len(text) <= 100 else text[:99] + "…")


def note(log: Path, text: str) -> None:
    """Add a line of ours to a stage's log."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"{moment} slurm_llm: {redacted(text)}\n")


def _tail(log: Path) -> tuple[str, ...]:
    return tuple(redacted(line) for line in last_lines(log, TOLD_LINES)[0])


def explain(log: Path) -> tuple[str, str]:
    """Return what the last known error in a log means and what to do; empty texts where none is known."""
    catalogue = known.entries(load_known_errors())
    for line in reversed(last_lines(log, SEARCHED_LINES)[0]):
        for where in KINDS_OF_LOG:
            for entry in known.find(catalogue, where, line):
                if entry.kind == known.FATAL:
                    return entry.means, entry.remedy
    return "", ""


def ended(stage: str, state: str, began: float, *, cause: str = "", log: tuple[str, ...] = ()) -> StageResult:
    """Return a stage's result as of now."""
    return StageResult(stage, state, cause, log=log, began=round(began, 3), ended=round(time.time(), 3))
