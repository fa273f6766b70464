"""What it means that a model that is called ready answers, or does not, when it is asked right now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_llm.agent.diagnose import Diagnosis
from slurm_llm.observe.status import RunStatus

NO_ANSWER = "no-answer"
"""The kind of a diagnosis: the head has found nothing wrong, and the model does not answer a request now."""


@dataclass(frozen=True)
class Reply:
    """What came of one request to one instance: seconds until its answer, or None and what was wrong.

    `reached` is False where no connection could be made from here, which says nothing of the model.
    """

    instance: int
    took_s: float | None
    problem: str = ""
    reached: bool = True


def judged(found: Diagnosis, status: RunStatus, replies: Sequence[Reply], probe_s: float) -> Diagnosis:
    """Return the diagnosis of a run with which its head is content, by what its model says now.

    `probe_s` is how often the head asks it; without replies nobody has asked from here.
    """
    silent = [one for one in replies if one.took_s is None and one.reached]
    if silent:
        return _unanswered(found, status, silent, len(replies), probe_s)
    serve = f"{status.ranks_ready} of {status.ranks_total} ranks serve"
    if replies and all(one.took_s is not None for one in replies):
        slowest = max(one.took_s or 0.0 for one in replies)
        return found._replace(cause=f"nothing is wrong: {serve}, and the model answers (just now, in {slowest:.1f} s)")
    cause = f"the head has found nothing wrong so far: {serve}; {_asks(probe_s)}"
    far = next((one.problem for one in replies), "")
    return found._replace(cause=cause + (f"; it could not be asked from here: {far}" if far else ""))


def _asks(probe_s: float) -> str:
    return f"it asks the model for an answer every {probe_s:g} s"


def _unanswered(found: Diagnosis, status: RunStatus, silent: Sequence[Reply], asked: int, probe_s: float) -> Diagnosis:
    first = silent[0]
    which = f"instance {first.instance} of {asked}" if asked > 1 else "the model"
    more = f" (nor do {len(silent) - 1} more)" if len(silent) > 1 else ""
    return found._replace(
        state=status.state.value,
        kind=NO_ANSWER,
        cause=f"{which} does not answer right now{more}: {first.problem}",
        means=(
            f"The head has found nothing wrong so far: {_asks(probe_s)}. A rank may hang, or requests in flight keep"
            " the model busy; one request does not tell which."
        ),
        remedies=(
            "Ask once more. Look at the ranks (`slurm-llm health RUN`) and at what is in flight"
            " (`slurm-llm metrics RUN`). Where it hangs, the head ends the attempt once `timeouts.answer_s` is over,"
            " and names the rank.",
        ),
    )
