"""Diagnoses that a job has written down itself, one in the result file of each attempt that came to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_llm.agent import diagnose as core
from slurm_llm.agent.clues import Evidence as Line
from slurm_llm.observe.status import RunStatus
from slurm_llm.slurm.states import RunState


def recorded(result: Mapping[str, Any]) -> core.Diagnosis | None:
    """Return the diagnosis in the value of a result file, or None where there is none that is whole."""
    try:
        value = dict(result["diagnosis"])
        victims = [core.Victims(**{**one, "ranks": tuple(one["ranks"])}) for one in value.pop("victims")]
        return core.Diagnosis(
            evidence=tuple(Line(**one) for one in value.pop("evidence")),
            known=tuple(core.Known(**one) for one in value.pop("known")),
            warnings=tuple(core.Known(**one) for one in value.pop("warnings")),
            victims=tuple(victims),
            remedies=tuple(map(str, value.pop("remedies"))),
            missing=tuple(map(str, value.pop("missing"))),
            **value,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        # Another release's, or cut off.
        return None


def goes_on(status: RunStatus) -> str:
    """Return what the job is about after its newest attempt has failed; empty where that was the end."""
    if status.attempt is None or status.ended:
        return ""
    failed = f"attempt {status.attempt} has ended"
    if status.state is RunState.PENDING:
        return f"{failed} and the job waits in the queue to start once more"
    if status.state is RunState.STARTING:
        return f"{failed} and the server is started again"
    return f"{failed}; whether another one follows is seen soon" if status.state is RunState.DRAINING else ""
