"""Removing old run directories, whole or not at all, and taking them out of the user's list of runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from slurm_llm.cleaning import CLEARING, Old
from slurm_llm.errors import Problem
from slurm_llm.record import forget_runs
from slurm_llm.surroundings import Surroundings


def remove_run(old: Old) -> list[Problem]:
    """Remove a run's folders; return what did not go, and why.

    Each is first renamed, so that half of it is never taken for a run. Links are removed, never followed.
    """
    if tuple(job.job_id for job in old.paths.jobs()) != old.jobs:
        return [Problem(str(old.paths.root), "stays: a job of it has begun meanwhile")]
    problems: list[Problem] = []
    for folder in old.folders:
        hidden = folder.with_name(f".{folder.name}{CLEARING}")
        try:
            folder.rename(hidden)
        except OSError as error:
            problems.append(Problem(str(folder), f"stays: {error.strerror}"))
            continue
        problems += remove_folder(hidden)
    return problems


def remove_folder(folder: Path) -> list[Problem]:
    """Remove a folder with all that is in it; return what could not be removed."""
    problems: list[Problem] = []

    def failed(_function: Callable[..., object], path: str, error: BaseException) -> None:
        problems.append(Problem(path, f"cannot be removed: {getattr(error, 'strerror', None) or error}"))

    # `onerror` until the oldest Python here has `onexc` (3.12).
    shutil.rmtree(folder, onerror=lambda function, path, info: failed(function, path, info[1]))
    return problems


def forget_gone(around: Surroundings) -> int:
    """Take runs that are gone out of the user's list; return how many.

    One whose parent folder is not there either may be on a file system that is not mounted here, and stays.
    """
    return forget_runs(around.environ, _is_gone)


def _is_gone(path: Path) -> bool:
    try:
        return path.parent.is_dir() and not path.is_dir()
    except OSError:
        # It is in a folder that may not be looked into.
        return False
