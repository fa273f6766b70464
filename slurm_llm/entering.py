"""Getting beside the ranks of a run: the srun words of a command in a rank's place, or of a helper on its node.

It starts nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_llm.containers import wrap
from slurm_llm.errors import NotReady, Problem, SetupError
from slurm_llm.observe.endpoint import no_such
from slurm_llm.observe.facts import Evidence
from slurm_llm.observe.status import RunStatus
from slurm_llm.observe.text import clean
from slurm_llm.plan.asjson import plan_from_json
from slurm_llm.plan.steps import side_step
from slurm_llm.plan.types import Plan
from slurm_llm.rundir import AGENT, RunPaths
from slurm_llm.runs import FoundRun, current, evidence_of
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.states import RunState

LIVE = (RunState.STARTING, RunState.LOADING, RunState.READY, RunState.DEGRADED, RunState.DRAINING)
PYTHON = "python="
"""How the job's script begins the line that names its Python."""


@dataclass(frozen=True)
class Side:
    """A place beside a job's ranks: the job, the node, the mark of the attempt, and what the job was made of."""

    plan: Plan
    paths: RunPaths
    job: JobId
    node: str
    tag: str
    python: str

    @property
    def agent(self) -> tuple[str, ...]:
        """The words that start a verb of the run's own agent."""
        return (self.python, "-I", f"{self.paths.root}/{AGENT}")

    def step(self, words: Sequence[str], *, inside: bool = False, pty: bool = False) -> tuple[str, ...]:
        """Return the words of a step on the node; `inside` the container only where srun itself enters it."""
        run_dir = str(self.paths.root) if inside else ""
        step = side_step(self.plan, str(self.job.number), self.node, inside=run_dir, pty=pty)
        cluster = () if self.job.cluster is None else (f"--clusters={self.job.cluster}",)
        return (*step, *cluster, *words)


def find_side(found: FoundRun, status: RunStatus, rank: int) -> Side:
    """Return the place beside `rank` of a run that lives.

    Raises:
        NotReady: nothing of it runs, or the rank is not on a node yet; InputError: it has no such rank; SetupError: the
            run was made by another release.
    """
    found = current(found)
    evidence, who = evidence_of(found), f"run {status.run_id}"
    if status.state not in LIVE or found.job_id is None or evidence.attempt is None:
        why = status.pending.text if status.pending else status.cause
        raise NotReady(Problem(who, f"nothing of it runs: it is {status.state.value}", clean(why).rstrip(".")))
    ranks = len(evidence.layout.ranks)
    if not 0 <= rank < ranks:
        raise no_such(status.run_id, "rank", rank, ranks)
    node = _node_of(evidence, rank)
    if not node:
        raise NotReady(Problem(who, f"rank {rank} is on no node yet: it is {status.state.value}", todo="wait a moment"))
    tag = f"{found.job_id.number}.{evidence.attempt.number}"
    return Side(_plan(found.paths), found.paths, found.job_id, node, tag, _python(found.paths))


def shell_words(side: Side, rank: int, words: Sequence[str], *, pty: bool) -> tuple[str, ...]:
    """Return the whole srun line of a command, or of a shell, where and as `rank` runs."""
    common = ("enter", "--run", str(side.paths.root), "--tag", side.tag)
    container = side.plan.container
    enter = (*common, "--rank", str(rank), "--", *words)
    if container is None:
        return side.step((*side.agent, *enter), pty=pty)
    inner = (container.python, *side.agent[1:], *enter)
    outer = wrap(container, str(side.paths.root))
    if not outer:
        return side.step(inner, inside=True, pty=pty)
    # The runtime's program may come from a module that the job has loaded.
    return side.step((*side.agent, *common, "--", *outer, *inner), pty=pty)


def _node_of(evidence: Evidence, rank: int) -> str:
    own = evidence.facts.ranks.get(rank) if evidence.facts else None
    return own.node or "" if own else ""


def _plan(paths: RunPaths) -> Plan:
    try:
        return plan_from_json(paths.plan.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, KeyError, TypeError):
        raise SetupError(Problem(str(paths.plan), "is of another release of slurm_llm, or was cut off")) from None


def _python(paths: RunPaths) -> str:
    """Return the Python of the job's own script.

    Raises:
        SetupError: the script is not there, or names none.
    """
    try:
        lines = paths.script.read_text(encoding="utf-8", errors="replace").splitlines()
        words = next(shlex.split(line.removeprefix(PYTHON)) for line in lines if line.startswith(PYTHON))
        return words[0]
    except (OSError, StopIteration, ValueError, IndexError):
        raise SetupError(Problem(str(paths.script), "does not say which Python the job has")) from None
