"""Lint rules about the shell lines that a profile adds to jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_llm.sites.lintrules import Hit, Queue, queue_rules

_START = r"(?:^|[;&|({]|\b(?:then|do|else)\b)\s*"
_ENDS = re.compile(_START + r"(exit\b|exec\b(?!\s*[<>\d{]))")
_STRICT = re.compile(_START + r"set\s+(?:-[a-z]*e[a-z]*\b|-o\s+errexit\b)")
_STARTS_STEP = re.compile(_START + r"(srun|sbatch|salloc|mpirun|mpiexec)\b")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_TEXTS = ("prologue", "step_prologue", "epilogue")


def script_ends_the_job(queue: Queue) -> Iterator[Hit]:
    """The lines are part of the job's own script: `exit` and `exec` end it, `set -e` ends it at the next failure."""
    for key, line in _lines(queue):
        match = _ENDS.search(line) or _STRICT.search(line)
        if match:
            word = match[1] if match.re is _ENDS else "set -e"
            what = f"{key}: `{word}` would end or take over the job's own script"
            yield Hit(queue.at(key), what, "use `return`-free lines, in ( … ) where they must stop early")


def script_starts_steps(queue: Queue) -> Iterator[Hit]:
    """A step in these lines takes CPUs and GPUs that the ranks' steps wait for, and inside a step none can start."""
    for key, line in _lines(queue):
        match = _STARTS_STEP.search(line)
        if match:
            what = f"{key}: `{match[1]}` starts a job or step of its own"
            yield Hit(queue.at(key), what, "run the command itself, or remove the line")


def _lines(queue: Queue) -> Iterator[tuple[str, str]]:
    for key in _TEXTS:
        for line in (getattr(queue.site, key) or "").splitlines():
            yield key, _COMMENT.sub("", line)


RULES = queue_rules("warning", script_ends_the_job, script_starts_steps)
