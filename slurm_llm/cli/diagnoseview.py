"""A diagnosis as plain text for people; a value in, text out."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from slurm_llm.agent.blind import spans
from slurm_llm.agent.causes import filled
from slurm_llm.cli.text import TIE, state_text, tied
from slurm_llm.observe.text import clean
from slurm_llm.slurm.states import RunState

if TYPE_CHECKING:
    from slurm_llm.agent.diagnose import Diagnosis, Known, Victims
    from slurm_llm.observe.diagnose import RunDiagnosis
    from slurm_llm.observe.status import RunStatus

LABEL = 10
MOST_LINES = 3
"""Rows that one line of evidence may take."""


def diagnosis_text(own: RunDiagnosis, columns: int) -> str:
    """Return what `diagnose` prints: the cause, where and when, why, what to do, what proves it, who only suffered."""
    status, found = own.status, own.found
    title = f"{state_text(_state(found.state))}  {clean(status.name)}  {status.run_id}"
    title += f"  job {status.job_id}" if status.job_id is not None else ""
    title += f"  attempt {status.attempt}" if status.attempt and found.kind != "none" else ""
    lines = [title, *_labelled(cause_rows(own), columns), *_evidence(found, columns)]
    lines += _labelled(further_rows(own), columns)
    return "\n".join(lines)


def _state(name: str) -> RunState:
    try:
        return RunState(name)
    except ValueError:
        return RunState.UNKNOWN


def cause_rows(own: RunDiagnosis) -> Iterator[tuple[str, str]]:
    """Yield label and text of the cause: when, why, what to do. The texts are not cleaned."""
    found = own.found
    yield "verdict" if found.kind in ("none", "stop") else "cause", found.cause
    if own.goes_on:
        yield "now", f"{own.status.state.value}: {own.goes_on}"
    if own.status.earlier:
        yield "before", tied(_before(own.status))
    if found.at is not None:
        yield "when", _when(own)
    if found.means:
        yield "why", found.means
    for remedy in found.remedies:
        yield "do", _filled(remedy, own)


def _before(status: RunStatus) -> str:
    last = status.earlier[-1]
    count = len(status.earlier)
    text = f"attempt {last.attempt}: {last.state}" if count == 1 else f"{count} attempts, the last {last.state}"
    return f"{text}; `slurm-llm diagnose {_called(status)} --attempt {last.attempt}`"


def _called(status: RunStatus) -> str:
    return shlex.quote(status.called or status.run_id)


def _when(own: RunDiagnosis) -> str:
    at, phases = own.found.at or 0.0, own.status.phases
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    if phases.ready is not None and at >= phases.ready:
        return f"{text}, after it had served for {_span(at - phases.ready)}"
    if phases.began is not None and at >= phases.began:
        return f"{text}, {_span(at - phases.began)} after its start"
    return text


def _span(seconds: float) -> str:
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.{int(seconds / size < 10)}f} {unit}"
    return f"{seconds / 86400:.0f} days"


def _filled(remedy: str, own: RunDiagnosis) -> str:
    """Return a remedy with this run's names in the commands that it shows, each of them kept on one line."""
    return tied(filled(remedy, _called(own.status), own.found.rank, own.status.site))


def _evidence(found: Diagnosis, columns: int) -> Iterator[str]:
    before = ""
    for own in found.evidence:
        if own.where != before:
            yield f"  {'evidence' if not before else '':<{LABEL}}{own.where}"
        before = own.where
        room = max(20, columns - LABEL - 6)
        rows = textwrap.wrap(clean(own.line), room, break_on_hyphens=False) or [""]
        for row in rows[: MOST_LINES - 1]:
            yield f"  {'':<{LABEL}}  | {row}"
        if len(rows) >= MOST_LINES:
            rest = " ".join(rows[MOST_LINES - 1 :])
            yield f"  {'':<{LABEL}}  | " + (rest if len(rest) <= room else rest[: room - 1] + "…")


def further_rows(own: RunDiagnosis) -> Iterator[tuple[str, str]]:
    """Yield label and text of what stands below the evidence: who suffered, warnings, what is missing, what is next."""
    found = own.found
    for victims in found.victims:
        yield "victims", _victims(victims)
    for one in found.known:
        yield "known as", f"{one.id} ({one.source})"
    for one in found.warnings:
        yield "warning", _warning(one)
    for text in (*found.missing, *own.view.problems):
        yield "missing", text
    if found.kind not in ("none", "stop"):
        run = _called(own.status)
        whose = "" if found.rank is None else f" --rank {found.rank}"
        yield "next", f"slurm-llm logs {run}{whose}"
        yield "next", f"slurm-llm bundle {run}"


def _victims(own: Victims) -> str:
    ranks, within = _ranks(own.ranks), f"within {own.within_s:g} s"
    one = len(own.ranks) == 1
    others = "1 other" if one else f"{len(own.ranks)} others"
    if not own.by:
        return f"nobody saw the end of {ranks}"
    if own.by == "unseen":
        return f"{others} ended {within}, nobody saw how: {ranks}"
    if own.by == "itself":
        return f"{others} gave up by {'itself' if one else 'themselves'} {within} ({own.how}): {ranks}"
    return f"{others} {'was' if one else 'were'} ended by {own.by} {within} ({own.how}): {ranks}"


def _ranks(ranks: Sequence[int]) -> str:
    """Return `ranks 0-4,6`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {spans(ranks)}"


def _warning(own: Known) -> str:
    often = f" ({own.times} times)" if own.times > 1 else ""
    return f"{own.where}{often}: {own.means}"


def _labelled(rows: Iterable[tuple[str, str]], columns: int) -> Iterator[str]:
    """Yield texts behind their labels, wrapped; a label that comes again is left out."""
    before = ""
    for label, text in rows:
        shown = "" if label == before else label
        before = label
        lines = textwrap.wrap(clean(text), max(20, columns - LABEL - 2), break_on_hyphens=False, break_long_words=False)
        for index, line in enumerate(lines or [""]):
            yield f"  {'' if index else shown:<{LABEL}}{line}".replace(TIE, " ").rstrip()
