"""Records of runs and of their Slurm jobs, and the user's list of run directories; plain JSON, no schema library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_llm.agent import safely
from slurm_llm.ownfiles import replacing
from slurm_llm.rundir import JobPaths, RunPaths, is_run_name


@dataclass(frozen=True)
class RunRecord:
    """What was rendered; `created` is seconds since the epoch."""

    run_id: str
    name: str
    engine: str
    model: str | None
    site: str
    created: float
    user: str
    host: str
    version: str
    ranks: int
    nodes: int
    world_size: int
    rehearsal_of: str | None = None


GUEST = "allocation"
"""Says who has submitted a run that is a guest in somebody's allocation."""


@dataclass(frozen=True)
class Submission:
    """One sbatch of a run's script; `by` is `submit`, `sbatch` when the job wrote it itself, or `handover`.

    `after` is the id of the job that a successor takes over from. With `allocation` the script runs in a job that was
    there already, started by the process `pid` on `host`.
    """

    job_id: str
    cluster: str
    time: float
    by: str
    after: str = ""
    host: str = ""
    pid: int = 0

    @property
    def is_guest(self) -> bool:
        """Whether the job is more than this run, and goes on without it."""
        return self.by == GUEST


def record_to_json(record: RunRecord | Submission) -> str:
    """Return a record as JSON text."""
    return json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n"


def load_record(paths: RunPaths) -> RunRecord | None:
    """Return the run's record, or None when there is no readable one."""
    value = _load(paths.record)
    try:
        return None if value is None else RunRecord(**value)
    except TypeError:
        return None


def load_submission(paths: JobPaths) -> Submission | None:
    """Return who submitted the job, or None when there is no readable record."""
    value = _load(paths.submission)
    try:
        return None if value is None else Submission(**value)
    except TypeError:
        return None


def _load(path: Path) -> dict[str, Any] | None:
    try:
        value = safely.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def list_path(environ: Mapping[str, str]) -> Path:
    """Return the file that lists the user's run directories, one a line."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/")) / ".local" / "state")
    return Path(state) / "slurm_llm" / "runs"


def remember_run(run_dir: Path, environ: Mapping[str, str]) -> None:
    """Add a run directory to the user's list, so that it is found from any directory later."""
    path = list_path(environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f"{run_dir}\n")


def forget_runs(environ: Mapping[str, str], is_gone: Callable[[Path], bool]) -> int:
    """Take the run directories that are gone out of the user's list, and each other's repetitions; return how many.

    A run that is added meanwhile is not lost: what has been appended to the old file is carried over.
    """
    path = list_path(environ)
    try:
        stream = path.open(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return 0
    with stream:
        lines = stream.read().splitlines()
        kept = [line for line in dict.fromkeys(lines) if line and not is_gone(Path(line))]
        if len(kept) == len(lines):
            return 0
        with replacing(path) as draft:
            draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8", errors="surrogateescape")
        late = stream.read()
    if late:
        with path.open("a", encoding="utf-8", errors="surrogateescape") as again:
            again.write(late)
    return len(lines) - len(kept)


def known_runs(environ: Mapping[str, str], log_roots: Iterable[Path]) -> list[RunPaths]:
    """Return every run of the user's list and of `log_roots` that still exists, oldest first."""
    try:
        lines = list_path(environ).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    found = {Path(line) for line in lines if line}
    found.update(path for root in log_roots for path in _entries(root) if is_run_name(path.name))
    runs = [RunPaths(path) for path in found if _has_plan(path)]
    return sorted(runs, key=lambda run: run.run_id)


def _has_plan(folder: Path) -> bool:
    try:
        return (folder / "plan.json").is_file()
    except OSError:
        # One folder that may not be looked into, such as of another project, hides no other run.
        return False


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
