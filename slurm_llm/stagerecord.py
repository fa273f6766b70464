"""Records of stages before and after serving: which ran, in which job and folder, and how each ended. Plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_llm.agent import safely
from slurm_llm.rundir import STAGE_LOG, STAGE_RESULT, stage_output

DONE, SKIPPED, FAILED, CANCELLED = "DONE", "SKIPPED", "FAILED", "CANCELLED"
GOOD = frozenset({DONE, SKIPPED})


@dataclass(frozen=True)
class StageRef:
    """One submitted stage; `job_id` is Slurm's number, `folder` holds its files."""

    name: str
    job_id: str
    folder: str


@dataclass(frozen=True)
class StageResult:
    """How a stage ended; times are seconds since the epoch.

    `command` is the one that failed, `code` its exit status, `why` and `remedy` are the known error's, `log` the last
    lines of the stage's log.
    """

    stage: str
    state: str
    cause: str = ""
    command: str = ""
    code: int | None = None
    why: str = ""
    remedy: str = ""
    log: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None


def refs_to_json(refs: Sequence[StageRef]) -> str:
    """Return references as JSON text."""
    return json.dumps([asdict(ref) for ref in refs], indent=1, ensure_ascii=False) + "\n"


def load_refs(path: Path) -> tuple[StageRef, ...]:
    """Return the stages that the file at `path` lists, in order; none where nothing readable does."""
    try:
        value = safely.loads(path.read_text(encoding="utf-8", errors="replace"))
        return tuple(StageRef(**item) for item in value)
    except (OSError, ValueError, TypeError):
        return ()


def result_to_json(result: StageResult) -> str:
    """Return a result as JSON text."""
    return json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n"


def load_result(folder: Path) -> StageResult | None:
    """Return how the stage in `folder` ended, or None while nothing readable says so."""
    try:
        return _result(safely.loads((folder / STAGE_RESULT).read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def stage_log(ref: StageRef) -> Path:
    """Return the log with a stage's own words: its commands', or that of its job while no command has run."""
    log = Path(ref.folder) / STAGE_LOG
    return log if log.is_file() else stage_output(Path(ref.folder), ref.job_id)


def _result(value: Mapping[str, Any]) -> StageResult:
    return StageResult(**{**value, "log": tuple(str(line) for line in value["log"])})
