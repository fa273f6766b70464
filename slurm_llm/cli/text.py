"""Statuses, health rows and lists of runs as plain text for people; values in, text out."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from slurm_llm.agent import fold, phases
from slurm_llm.observe.endpoint import curl_of
from slurm_llm.observe.text import clean
from slurm_llm.slurm.formats import format_time
from slurm_llm.slurm.reasons import Clears
from slurm_llm.slurm.states import RunState, SlurmState

if TYPE_CHECKING:
    from slurm_llm.observe.facts import Endpoint
    from slurm_llm.observe.health import RankHealth
    from slurm_llm.observe.status import RunStatus

NARROW = 80
TIE = "\u00a0"
"""Keeps a number and its unit, or a command, on one line until that is printed."""
GPU_WIDTH = 12
LABEL = 11
EARLIER = 3
"""So many attempts before the newest one are told."""
_GOOD = frozenset({RunState.READY, RunState.COMPLETED})
_BAD = frozenset({RunState.FAILED, RunState.LOST, RunState.TIMED_OUT, RunState.PREEMPTED})
_CLEARS = {
    Clears.ITSELF: "It starts by itself.",
    Clears.OTHERS: "Others must act first.",
    Clears.USER: "You must act.",
    Clears.NEVER: "It never starts as it is: cancel it.",
}


def width(is_terminal: bool) -> int:
    """Return the columns to fill; a pipe counts as 80 and gets no line cut."""
    try:
        return max(40, os.get_terminal_size().columns) if is_terminal else NARROW
    except OSError:
        return NARROW


def state_text(state: RunState) -> str:
    """Return a state in its colour; click drops colours where no terminal reads."""
    colour = "green" if state in _GOOD else "red" if state in _BAD else "yellow"
    return click.style(state.value, fg=colour, bold=True)


def tied(text: str) -> str:
    """Return a text whose commands stay on one line each: they are copied by hand."""
    return re.sub(r"`slurm-llm [^`]*`", lambda match: match[0].replace(" ", TIE), text)


def status_text(status: RunStatus, now: float, columns: int, cut: bool) -> str:
    """Return the block that `status` prints; `cut` shortens log lines to `columns`."""
    title = f"{state_text(status.state)}  {clean(status.name)}  {status.run_id}"
    lines = [title + (f"  job {status.job_id}" if status.job_id is not None else "")]
    for label, text in _rows(status, now):
        lines += _labelled(label, text, columns)
    lines += _curl(status)
    if status.log_tail:
        whose = f"rank {status.first.rank}" if status.first else "the server's step"
        whose = status.log_of or (whose if status.has_result else "the job's own output")
        lines.append(f"  {'log':<{LABEL}}the last lines of {whose}:")
        rows = [f"    | {clean(row).rstrip()}" for row in status.log_tail]
        lines += [row if not cut or len(row) <= columns else row[: columns - 1] + "…" for row in rows]
    lines += [f"  {'next' if not index else '':<{LABEL}}{text}" for index, text in enumerate(_next(status))]
    return "\n".join(lines)


def _rows(status: RunStatus, now: float) -> Iterable[tuple[str, str]]:
    if status.rehearsal_of:
        yield "rehearsal", f"of engine {status.rehearsal_of}"
    nodes = f"{status.nodes}" + (f": {status.node_list}" if status.node_list else "")
    yield "nodes", nodes
    yield "ranks", _ranks(status)
    if status.attempt:
        yield "attempt", str(status.attempt)
    for before in status.earlier[-EARLIER:]:
        yield "before", f"attempt {before.attempt}: {before.state}, {clean(before.cause)}"
    if _slurm_adds(status) and status.slurm_state is not None:
        yield "slurm", status.slurm_state.value + (": the allocation goes on" if status.guest else "")
    for one in status.endpoints:
        yield "endpoint", f"{one.url}  model {status.model}{_which(one, len(status.endpoints))}"
        if one.openai:
            yield "openai", one.openai
    if status.endpoints and status.endpoints[0].key_file:
        yield "key", f"{status.endpoints[0].key_file} (on the leader's node Triton's command line has it too)"
    if status.client is not None:
        yield "client", _client(status.client, now, status.ended)
    if status.time_left_s is not None:
        yield "time left", format_time(status.time_left_s)
    if status.pending is not None:
        detail = f" ({status.pending.detail})" if status.pending.detail else ""
        yield "waits", f"{status.pending.text}{detail} {_CLEARS[status.pending.clears]} [{status.pending.code}]"
        if status.start_time:
            yield "starts", f"about {status.start_time.replace('T', ' ')}, says Slurm"
    yield from _reasons(status)
    times = _phases(status, now)
    if times:
        yield "times", times
    took = phases.parts(status.phases.took)
    if took:
        yield "phases", " · ".join(part.replace(" ", TIE) for part in took)


def _client(own: fold.ClientState, now: float, over: bool) -> str:
    if own.code is None or own.ended is None:
        return "its end was not seen" if over else f"runs for {_ago(now - own.started)}"
    told = ", told to end" if own.told else ""
    return f"ended with exit status {own.code} after {_ago(own.ended - own.started)}{told}"


def _slurm_adds(status: RunStatus) -> bool:
    """Whether Slurm's own word says more than ours: RUNNING is what every live run is."""
    if status.slurm_state in (None, SlurmState.RUNNING, SlurmState.PENDING):
        return status.ended
    return status.slurm_state is not None and str(status.slurm_state.value) != str(status.state.value)


def _ranks(status: RunStatus) -> str:
    others = {name: count for name, count in status.rank_states.items() if name != fold.READY}
    text = f"{status.ranks_ready} of {status.ranks_total} ready"
    return text + (": " + ", ".join(f"{count} {name}" for name, count in others.items()) if others else "")


def _reasons(status: RunStatus) -> Iterable[tuple[str, str]]:
    if status.cause:
        yield "cause", clean(status.cause)
    if status.first is not None and not status.cause.startswith(f"rank {status.first.rank} "):
        first = status.first
        how = first.how or "nobody saw how"
        yield "first", f"rank {first.rank} on {first.node}: {first.name}, {how}, while {first.phase}"
    if status.why:
        yield "why", clean(status.why)
    for remedy in status.remedies:
        yield "do", tied(clean(remedy))
    for note in status.notes:
        yield "note", clean(note)


def _phases(status: RunStatus, now: float) -> str:
    at = status.phases
    parts = []
    if at.submitted is not None:
        parts.append(f"submitted {_ago(now - at.submitted)} ago")
    if at.submitted is not None and at.began is not None:
        parts.append(f"began after {_ago(at.began - at.submitted)}")
    if at.began is not None and at.ready is not None:
        parts.append(f"ready in {_ago(at.ready - at.began)}")
    if at.ready is not None:
        until = next((one for one in (at.served_until, at.ended) if one is not None), now)
        parts.append(f"served {_ago(until - at.ready)}")
    if at.ended is not None:
        parts.append(f"ended {_ago(now - at.ended)} ago")
    return ", ".join(parts)


def _ago(seconds: float) -> str:
    """Return a length of time in the unit that says enough: 2.1 s, 95 s, 12 min, 3.5 h, 2 days."""
    seconds = max(0.0, seconds)
    for limit, size, unit in ((10, 1, "s"), (120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.{int(seconds / size < 10)}f}{TIE}{unit}"
    return f"{seconds / 86400:.0f}{TIE}days"


def _labelled(label: str, text: str, columns: int) -> list[str]:
    indent = " " * (LABEL + 2)
    rows = textwrap.wrap(text, max(20, columns - len(indent)), break_long_words=False, break_on_hyphens=False)
    rows = [row.replace(TIE, " ") for row in rows or [""]]
    return [(f"  {label:<{LABEL}}" if not index else indent) + row for index, row in enumerate(rows)]


def _which(one: Endpoint, count: int) -> str:
    if one.balancer:
        return f" ({one.balancer} before {count - 1} instances)"
    return f" (instance {one.instance})" if count > 1 else ""


def _curl(status: RunStatus) -> list[str]:
    if not status.endpoints:
        return []
    first, *more = curl_of(status)
    return [f"  {'try':<{LABEL}}{first}", *(f"  {line}" for line in more)]


def _next(status: RunStatus) -> list[str]:
    run = shlex.quote(status.called or status.run_id)
    if status.state is RunState.PLANNED:
        return [f"sbatch {shlex.quote(status.directory + '/job.sub')}"]
    if status.ready:
        return []
    if status.pending is not None and status.pending.clears in (Clears.NEVER, Clears.USER):
        return [f"slurm-llm cancel {run}"]
    explained = [f"slurm-llm diagnose {run}"] if status.state in _BAD else []
    if status.attempt is None:
        output = f"{status.directory}/slurm-{status.job_id}.out"
        return [*explained, f"less {shlex.quote(output)}"] if explained and not status.log_of else []
    whose = f" --rank {status.first.rank}" if status.first else ""
    return [*explained, f"slurm-llm logs {run}{whose}", f"slurm-llm health {run}"]


def health_text(rows: Sequence[RankHealth], columns: int, cut: bool) -> str:
    """Return the table that `health` prints; what a log said last stands below its rank."""
    names = _coordinates(rows)
    on_gpus = any(row.gpu_mib is not None for row in rows)
    head = ["rank", "node", "gpu", "role", "at", "state", "MiB", *(["GPU MiB", "GPU %"] if on_gpus else [])]
    head += ["log age", "ended by"]
    body = [
        [
            str(row.rank),
            row.node or f"#{row.node_index}",
            _gpus(row),
            row.role,
            "/".join(str(getattr(row.at, attribute)) for attribute in names.values()) or "-",
            row.state,
            "-" if row.rss_mib is None else f"{row.rss_mib:.0f}",
            *(["-" if one is None else str(one) for one in (row.gpu_mib, row.gpu_util)] if on_gpus else []),
            "-" if row.log_age_s is None else _ago(row.log_age_s),
            clean(row.how or ""),
        ]
        for row in rows
    ]
    lines = table([head, *body])
    shown = [f"at: {'/'.join(names)}"] if names else []
    shown.append(lines[0])
    for row, line in zip(rows, lines[1:], strict=True):
        shown.append(line)
        if row.last_error:
            error = "     ! " + row.last_error
            shown.append(error if not cut or len(error) <= columns else error[: columns - 1] + "…")
    return "\n".join(shown)


def _coordinates(rows: Sequence[RankHealth]) -> dict[str, str]:
    """Return name → attribute of the dimensions in which ranks differ; moe_tp only where experts are spread too."""
    known = {"tp": "tensor", "cp": "context", "pp": "pipeline", "moe_tp": "moe_tensor", "moe_ep": "moe_expert"}
    found = {name: own for name, own in known.items() if any(getattr(row.at, own) for row in rows)}
    if "moe_ep" not in found:
        found.pop("moe_tp", None)
    return found


def _gpus(row: RankHealth) -> str:
    """Return the devices behind the plan's slots, as Slurm named them to the rank; the slots until it has."""
    shown = [name for name in (row.visible_gpus or "").split(",") if name]
    names = [shown[slot] if slot < len(shown) else f"slot {slot}" for slot in row.gpus]
    return ",".join(name if len(name) <= GPU_WIDTH else f"{name[: GPU_WIDTH - 1]}…" for name in names) or "-"


def list_text(rows: Sequence[RunStatus], now: float) -> str:
    """Return the table that `list` prints."""
    head = ["run", "job", "state", "ranks", "site", "age", "name"]
    body = [
        [
            row.run_id,
            "-" if row.job_id is None else str(row.job_id),
            row.state.value,
            f"{row.ranks_ready}/{row.ranks_total}",
            row.site,
            "-" if row.phases.submitted is None else _ago(now - row.phases.submitted),
            clean(row.name),
        ]
        for row in rows
    ]
    return "\n".join(table([head, *body]))


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of aligned columns; columns of numbers are aligned to the right."""
    columns = list(zip(*rows, strict=True))
    right = [all(cell == "-" or cell.isdecimal() for cell in column[1:]) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in rows:
        shapes = zip(row, widths, right, strict=True)
        cells = (cell.rjust(size) if flush else cell.ljust(size) for cell, size, flush in shapes)
        lines.append("  ".join(cells).replace(TIE, " ").rstrip())
    return lines
