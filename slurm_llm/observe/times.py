"""When a run went through its phases, and how long each was. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_llm.agent import phases
from slurm_llm.observe.facts import Evidence, Result


@dataclass(frozen=True)
class Phases:
    """When each phase began, seconds since the epoch; None where it did not or nobody knows.

    `took` is how long each part of the newest attempt's start was.
    """

    submitted: float | None = None
    began: float | None = None
    ready: float | None = None
    ended: float | None = None
    took: phases.Phases = field(default_factory=phases.Phases)


def build_phases(evidence: Evidence, result: Result | None, submitted: float | None) -> Phases:
    """Return what the job's own result says, else its journals."""
    facts = evidence.facts
    began = result.began if result else facts.began if facts else None
    took = (result.phases if result else None) or (facts.phases if facts else phases.Phases())
    if took.queue_s is None:
        took = phases.queued(took, submitted, began, evidence.attempt.number if evidence.attempt else 0)
    return Phases(
        submitted=submitted,
        began=began,
        ready=result.ready if result else facts.ready_at if facts else None,
        ended=result.ended if result else None,
        took=took,
    )
