"""When a run went through its phases, and how long each was. Pure."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from slurm_llm.agent import phases
from slurm_llm.observe.facts import Evidence, Result

_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\Z")


@dataclass(frozen=True)
class Phases:
    """When each phase began, seconds since the epoch; None where it did not or nobody knows.

    `served_until` is when it failed, else when it ended. `took` is how long each part of the
    newest attempt's start was.
    """

    submitted: float | None = None
    began: float | None = None
    ready: float | None = None
    ended: float | None = None
    served_until: float | None = None
    took: phases.Phases = field(default_factory=phases.Phases)


def build_phases(evidence: Evidence, result: Result | None, submitted: float | None, over: bool = False) -> Phases:
    """Return what the job's own result says, else its journals; an attempt that is `over` serves no more."""
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
        served_until=_served_until(evidence, over),
        took=took,
    )


def _served_until(evidence: Evidence, over: bool) -> float | None:
    """Return when the head saw the attempt fail, else when it ended; of one without a result, its last word."""
    ended = evidence.result.ended if evidence.result is not None else None
    return evidence.failed_at or ended or (evidence.last_record if over else None)


def epoch(text: str | None) -> float | None:
    """Return the time that Slurm writes as local ISO 8601, seconds since the epoch; None for anything else."""
    # Not strptime: its import costs a fifth of what `status` takes.
    match = _MOMENT.match(text or "")
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
