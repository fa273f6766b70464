"""The package's exceptions: one tree, each class with its exit code; nothing here prints or exits.

    SlurmLlmError                 1   anything of ours that has no better class
    ├── InputError                3   the user's or the admin's files and flags are wrong
    │   ├── SpecError             3   a job spec
    │   └── SiteError             3   a site profile
    ├── PlanError                 4   each input is right alone, together they cannot be planned
    ├── SetupError                5   this machine lacks something (a program, a right, a package)
    ├── SlurmError                6   a Slurm command failed; argv, exit status and both streams are kept
    │   └── SubmitError           6   sbatch refused the job
    ├── RunNotFound               7   no run matches what was asked for
    ├── RunFailed                 8   the job ended badly, or before it was ready
    ├── NotReady                  9   a deadline passed
    ├── RequestFailed            10   the server answered a request with an error
    │   └── NotReached           10   no connection to the server could be made
    └── BenchInvalid             11   a measurement must not be used, or two cannot be compared

Exit code 2 stays click's usage error, 130 an interrupt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in four parts; `str()` joins those that are present."""

    where: str
    what: str
    allowed: str = ""
    todo: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.what, self.allowed, self.todo) if part)


class SlurmLlmError(Exception):
    """Base of all; `problems` holds every fault that was found, never only the first."""

    exit_code = 1

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = (Problem("", problems),)
        elif isinstance(problems, Problem):
            problems = (problems,)
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(SlurmLlmError):
    """The user's or the admin's files or flags are wrong."""

    exit_code = 3


class SpecError(InputError):
    """A job spec is wrong."""


class SiteError(InputError):
    """A site profile is wrong or unknown."""


class PlanError(SlurmLlmError):
    """Spec and site are each well formed but contradict each other or themselves."""

    exit_code = 4


class SetupError(SlurmLlmError):
    """This machine lacks a program, a package or a right."""

    exit_code = 5


class SlurmError(SlurmLlmError):
    """A Slurm command failed; `argv`, `returncode`, `stdout` and `stderr` are what was run and seen."""

    exit_code = 6

    def __init__(self, message: str, argv: Sequence[str], *, returncode: int, stdout: str, stderr: str) -> None:
        self.argv = tuple(argv)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        said = stderr.strip() or stdout.strip()
        super().__init__(f"{message} (exit status {returncode})" + (f": {said}" if said else ""))


class SubmitError(SlurmError):
    """sbatch refused the job."""


class RunNotFound(SlurmLlmError):
    """No run matches what was asked for."""

    exit_code = 7


class RunFailed(SlurmLlmError):
    """The job ended badly, or before it was ready."""

    exit_code = 8


class NotReady(SlurmLlmError):
    """A deadline passed before the server was ready."""

    exit_code = 9


class RequestFailed(SlurmLlmError):
    """The server answered a request with an error, or not at all."""

    exit_code = 10


class NotReached(RequestFailed):
    """No connection to the server could be made from here, which says nothing of how it is."""


class BenchInvalid(SlurmLlmError):
    """A measurement must not be used, or two cannot be compared; each problem is one reason."""

    exit_code = 11


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the closest known word, or an empty text."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""
