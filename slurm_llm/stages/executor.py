"""The only use of submitit: one function of ours becomes one Slurm job, with options in the site's own dialect.

submitit pickles the function by its name, so the Python on compute nodes must have this package and submitit. What is
said of submitit was measured with 1.5.4.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm.errors import Problem, SetupError, SubmitError
from slurm_llm.slurm.client import scrub_environment
from slurm_llm.slurm.formats import parse_time
from slurm_llm.slurm.options import option_name


@dataclass(frozen=True)
class Submission:
    """What is submitted: `function` of ours with the text `argument`, in a job with `options` of sbatch.

    `setup` are lines of shell before it, `folder` is submitit's own, `python` the interpreter on the compute node.
    """

    function: Callable[[str], str]
    argument: str
    folder: Path
    python: str
    options: tuple[str, ...]
    setup: tuple[str, ...]


def submit(work: Submission, environ: Mapping[str, str]) -> str:
    """Submit a function as a job and return the job's id.

    Raises:
        SetupError: submitit or Slurm is not here; SubmitError: sbatch refused the job.
    """
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError
    except ImportError:
        what, todo = "submitit, which submits stages, is not installed", "pip install 'slurm-llm[stages]'"
        raise SetupError(Problem("stages", what, todo=todo)) from None
    if shutil.which("srun", path=environ.get("PATH")) is None:
        todo = "run this on a login node, or load the module that brings Slurm"
        raise SetupError(Problem("Slurm's `srun` is not on PATH", todo))
    with _as_environment(scrub_environment(environ)):
        # `exec`: the job's own process is then Python, and what Slurm signals to the batch script reaches it.
        executor = SlurmExecutor(work.folder, max_num_timeout=0, python=f"exec {shlex.quote(work.python)}")
        executor.update_parameters(**_parameters(work.options, work.setup))
        try:
            job = executor.submit(work.function, work.argument)
        except (FailedSubmissionError, FailedJobError) as error:
            what, said = "sbatch refused the stage's job", str(error).strip()
            raise SubmitError(what, ("sbatch",), returncode=1, stdout="", stderr=said) from None
    return str(job.job_id)


@contextmanager
def _as_environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Let this process have an environment for a moment: submitit's sbatch takes it from there, and the job from that.

    SBATCH_PARTITION and the like would beat #SBATCH lines.
    """
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(environ)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _parameters(options: Sequence[str], setup: Sequence[str]) -> dict[str, Any]:
    """Return submitit's parameters for options of sbatch.

    By itself it always says --time in whole minutes, --job-name, --signal and a --wckey that no site has. What
    `additional_parameters` hold wins over these under the names that it has for them, with underscores.
    """
    given = dict(_pair(option) for option in options)
    seconds = parse_time(str(given["time"])) if "time" in given else None
    return {
        "time": max(1, -(-(seconds or 3600) // 60)),
        "wckey": None,
        "stderr_to_stdout": True,
        # Within a step of its own, a stage's steps would wait for what that step holds.
        "use_srun": False,
        "setup": list(setup),
        "additional_parameters": given,
    }


def _pair(option: str) -> tuple[str, str | bool]:
    """Return name and value of `--name=value`, `--name` or `-Xvalue`, the name as submitit writes it."""
    name = option_name(option).replace("-", "_")
    if option.startswith("--"):
        _, equals, value = option.partition("=")
        return name, value if equals else True
    return name, option[2:] or True
