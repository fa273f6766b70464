"""What Slurm knows of one job beyond its state: steps, derived exit status, its nodes. Asked through a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_llm.errors import SetupError, SlurmError
from slurm_llm.slurm.client import SlurmClient
from slurm_llm.slurm.facts import JobFacts
from slurm_llm.slurm.formats import JobId
from slurm_llm.slurm.survey import parse_record

GOOD_NODE = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "DYNAMIC_NORM", "CLOUD", "PLANNED", "RESERVED"})


@dataclass(frozen=True)
class NodeWords:
    """A node that is not well: Slurm's state of it (`DOWN+NOT_RESPONDING`) and the reason that Slurm gives."""

    state: str
    reason: str = ""


@dataclass(frozen=True)
class StepWords:
    """One step: `batch`, `extern` or a number; its state and how it ended."""

    name: str
    state: str
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True)
class SlurmView:
    """Everything that Slurm says; `problems` are the commands that did not answer."""

    facts: JobFacts | None = None
    derived_exit_code: int | None = None
    steps: tuple[StepWords, ...] = ()
    bad_nodes: Mapping[str, NodeWords] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def ask_about(client: SlurmClient, job_id: JobId, facts: JobFacts | None) -> SlurmView:
    """Ask for the steps and nodes of a job; `facts` are what the controller or the accounting said of it already.

    Without accounting there are no steps, which is no problem; a command that fails is told in `problems`.
    """
    problems: list[str] = []
    jobs: Mapping[JobId, JobFacts] = {}
    try:
        jobs = client.accounting([job_id], steps=True).jobs
    except (SlurmError, SetupError) as error:
        problems.append(" ".join(str(error).split()))
    own = next((item for item in jobs.values() if item.job_id.step is None), None)
    nodes = (facts.node_list if facts else "") or (own.node_list if own else "")
    return SlurmView(
        facts=facts or own,
        derived_exit_code=own.derived_exit_code if own else None,
        steps=tuple(_step(item) for item in jobs.values() if item.job_id.step is not None),
        bad_nodes=_bad_nodes(client, nodes, problems),
        problems=tuple(problems),
    )


def _step(facts: JobFacts) -> StepWords:
    return StepWords(str(facts.job_id.step), facts.state.value, facts.exit_code, facts.signal)


def _bad_nodes(client: SlurmClient, nodes: str, problems: list[str]) -> dict[str, NodeWords]:
    if not nodes:
        return {}
    try:
        completed = client.output(("scontrol", "--oneliner", "show", "node", nodes))
    except SetupError as error:
        problems.append(" ".join(str(error).split()))
        return {}
    found = {}
    for line in completed.stdout.splitlines():
        keys = parse_record(line)
        state = keys.get("State", "")
        bare = {word.strip("*~#!%$@^-") for word in state.split("+")}
        if keys.get("NodeName") and ("*" in state or not bare <= GOOD_NODE):
            found[keys["NodeName"]] = NodeWords(state, keys.get("Reason", ""))
    return found


def has_failed(step: StepWords) -> bool:
    """Tell whether a step ended badly."""
    return bool(step.exit_code or step.signal) or step.state not in ("COMPLETED", "RUNNING", "PENDING")
