"""Whether a measurement may be used: what the tool says, how the server was meanwhile, what Triton counted. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_llm.benching.tools import Outcome
from slurm_llm.observe import benchresults as kept
from slurm_llm.observe.benchresults import Counted, Load
from slurm_llm.observe.metricstext import Family

SUCCESS = "nv_inference_request_success"
READY = "READY"
SLOW = 0.1
"""Requests that come slower than asked for by more than this share are told."""
TOGETHER = 0.98
"""From this share of a whole answer's time on its first token came with the rest: a proxy collects, or all is fast."""
SHORT = 0.05
"""Answers that are shorter than asked by more than this share are told."""


@dataclass(frozen=True)
class Sight:
    """How the run was at one moment: its state, the job that serves and its attempt."""

    state: str
    job_id: int | None
    attempt: int | None


@dataclass(frozen=True)
class Seen:
    """All that is known of one measurement; `outcome` None where the tool left nothing, `lost` says why.

    `states` are those that the job's head noted meanwhile. `others` is how many requests the job itself may have made:
    its head asks for a text now and then.
    """

    tool: str
    exit_code: int
    outcome: Outcome | None
    lost: str
    before: Sight
    after: Sight
    states: tuple[str, ...]
    counted: Counted | None
    others: int


def reasons(seen: Seen, load: Load) -> list[str]:
    """Return why the measurement must not be used; empty when it may be."""
    return [*_of_tool(seen, load), *_of_server(seen), *_of_counter(seen, load)]


def _of_tool(seen: Seen, load: Load) -> Iterator[str]:
    if seen.exit_code:
        yield f"{seen.tool} ended with exit status {seen.exit_code}"
    found = seen.outcome
    if found is None:
        yield seen.lost
        return
    if found.unfinished:
        yield f"{seen.tool} did not finish: {found.unfinished}"
    if found.failed:
        first = f": {found.errors[0].what}" if found.errors else ""
        yield f"{found.failed} of {found.answered + found.failed} requests failed{first}"
    if load.requests is not None and found.answered + found.failed < load.requests:
        yield f"{found.answered + found.failed} of {load.requests} requests were made"
    if not found.answered:
        yield "no request was answered"
    elif not _tokens(found):
        yield "the answers held no token"


def _tokens(found: Outcome) -> float:
    return max((found.figures[name].mean for name in (kept.OUTPUT, kept.TOKENS) if name in found.figures), default=0.0)


def _of_server(seen: Seen) -> Iterator[str]:
    before, after = seen.before, seen.after
    if before.job_id != after.job_id:
        yield f"job {after.job_id} has taken over from job {before.job_id} meanwhile"
    elif before.attempt != after.attempt:
        yield f"the server was started again meanwhile: attempt {before.attempt}, then {after.attempt}"
    bad = [state for state in seen.states if state != READY]
    if after.state != READY:
        bad.append(after.state)
    if bad:
        yield f"the run was not {READY} throughout: {', '.join(dict.fromkeys(bad))}"


def _of_counter(seen: Seen, load: Load) -> Iterator[str]:
    if seen.counted is None or seen.outcome is None:
        return
    made, told = seen.counted.after - seen.counted.before, seen.outcome.answered + load.warmup
    if made < 0:
        yield "Triton's count of requests went backwards: the server was started again"
    elif made < seen.outcome.answered:
        yield f"Triton counted {made} answered requests, {seen.tool} says {seen.outcome.answered}"
    elif made > told + seen.others:
        yield f"Triton counted {made} answered requests, {seen.tool} made {told}: somebody else used the server"


def notes(seen: Seen, load: Load) -> list[str]:
    """Return what to know of the figures."""
    found = seen.outcome
    if found is None:
        return []
    made = list(found.notes)
    figure, asked = found.figures.get(kept.OUTPUT), load.output_tokens
    if figure is not None and asked is not None and not load.dataset and abs(figure.mean - asked[0]) > SHORT * asked[0]:
        made.append(f"answers had {figure.mean:.0f} tokens on average, {asked[0]:.0f} were asked for")
    made += _of_rate(found, load)
    first, whole = found.figures.get(kept.FIRST), found.figures.get(kept.LATENCY)
    if first is not None and whole is not None and first.mean > TOGETHER * whole.mean:
        made.append("the pieces of answers came together: the first token's time is nearly that of the whole answer")
    if seen.counted is None:
        made.append("Triton's own count of requests could not be compared")
    return made


def _of_rate(found: Outcome, load: Load) -> Iterator[str]:
    """Yield that requests came slower than asked for, by more than such arrivals scatter (three deviations)."""
    rate, figure = load.request_rate, found.figures.get(kept.REQUESTS)
    if rate is None or figure is None or not found.answered:
        return
    if figure.mean < rate * (1 - max(SLOW, 3 / math.sqrt(found.answered))):
        yield f"{rate:g} requests/s were asked for, {figure.mean:.3g} came: tool or server did not keep up"


def success_count(families: Sequence[Family], model: str) -> int | None:
    """Return how many requests to `model` a metrics page counts as answered; None where it has no such figure."""
    rows = [
        sample.value
        for family in families
        if family.name == SUCCESS
        for sample in family.samples
        if dict(sample.labels).get("model") == model and math.isfinite(sample.value)
    ]
    return int(sum(rows)) if rows else None


def own_requests(seconds: float, every_s: float, instances: int) -> int:
    """Return how many requests the job's head may have made in `seconds`: one every `every_s`, and one about to end."""
    return instances * (2 + (int(seconds / every_s) if every_s > 0 else 0))
