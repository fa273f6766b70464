"""The live view's picture: a function from a snapshot and the terminal's size to lines. Pure; it asks nobody.

The header stays; what is wrong, the start's phases, ranks, instances and events share the other lines.
"""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from slurm_llm.agent import phases as phasing
from slurm_llm.cli.topcells import BAD, FAINT, GOOD, HEADING, WARNING, Style, age, run_colour, span
from slurm_llm.cli.topranks import Order, rank_lines, wanted_lines
from slurm_llm.cli.topserving import instance_lines
from slurm_llm.observe import liveevents
from slurm_llm.observe.live import Snapshot
from slurm_llm.slurm.formats import format_time
from slurm_llm.slurm.states import RunState

LABEL = 8
BAR = 30
_BAD = frozenset({RunState.FAILED, RunState.LOST, RunState.TIMED_OUT, RunState.PREEMPTED})
_COLOURS = {liveevents.GOOD: GOOD, liveevents.WARNING: WARNING, liveevents.BAD: BAD}


@dataclass(frozen=True)
class View:
    """How a snapshot is shown at the moment `now`, seconds since the epoch.

    `keys` where somebody can press any, `every_s` how often it is made anew (0: once).
    """

    now: float
    style: Style = field(default_factory=Style)
    order: Order = field(default_factory=Order)
    keys: bool = False
    every_s: float = 0.0


@dataclass(frozen=True)
class _Section:
    """A part of the picture: it needs `least` lines, would fill `most`, and draws itself into what it gets."""

    least: int
    most: int
    draw: Callable[[int], list[Text]]


def draw(snapshot: Snapshot, width: int, height: int, view: View) -> list[Text]:
    """Return at most `height` lines of at most `width` columns each."""
    top = _header(snapshot, width, view)
    top += _wrong(snapshot, width, max(2, height // 3), view)
    top += _start(snapshot, width, view)
    foot = [_footer(snapshot, width, view)] if height > len(top) else []
    room = height - len(top) - len(foot)
    body = _body(_sections(snapshot, width, room, view), room)
    # On a screen of its own the last line stays where it is.
    rest = [Text()] * (room - len(body)) if view.every_s else []
    return [view.style.cut(line, width) for line in [*top, *body, *rest, *foot][:height]]


def _body(sections: Sequence[_Section], room: int) -> list[Text]:
    """Return the sections' lines, apart from each other where there is room for that too."""
    apart = sum(one.most + 1 for one in sections) <= room
    lines: list[Text] = []
    for part, share in _shared(sections, room):
        lines += [Text()] if apart else []
        lines += part.draw(share)[:share]
    return lines


def _sections(snapshot: Snapshot, width: int, room: int, view: View) -> list[_Section]:
    """Return the parts below the header, the most important one first; ranks get half of the room if they fill it."""
    style, order = view.style, view.order
    wanted = wanted_lines(snapshot, width, style)
    found = [_Section(min(wanted, max(2, room // 2)), wanted, lambda n: rank_lines(snapshot, width, n, style, order))]
    if snapshot.status.endpoints or (len(snapshot.instances) > 1 and not snapshot.status.ended):
        rows = len(snapshot.instances) + (2 if len(snapshot.instances) > 1 else 1)
        found.append(_Section(min(4, rows), rows, lambda n: instance_lines(snapshot, width, n, style, order, view.now)))
    if snapshot.events:
        found.append(_Section(2, 1 + len(snapshot.events), lambda n: _events(snapshot, n, style)))
    return found


def _shared(sections: Sequence[_Section], room: int) -> list[tuple[_Section, int]]:
    """Return how many lines each section gets: the least first, then in turn until all have what they would fill."""
    shares = []
    for one in sections:
        least = min(one.least, room)
        shares.append(least if least > 1 else 0)
        room -= shares[-1]
    while room > 0:
        hungry = [at for at, one in enumerate(sections) if shares[at] < one.most]
        if not hungry:
            break
        for at in hungry[:room]:
            shares[at] += 1
            room -= 1
    return list(zip(sections, shares, strict=True))


def _header(snapshot: Snapshot, width: int, view: View) -> list[Text]:
    status, plain = snapshot.status, view.style.plain
    parts = [
        plain(status.name),
        f"job {status.job_id}" if status.job_id is not None else "no job",
        plain(status.run_id),
    ]
    if status.attempt:
        parts.insert(2, f"attempt {status.attempt}")
    right = _times(snapshot, view.now)
    while len(parts) > 2 and len(status.state.value) + 2 + len("  ".join(parts)) + 2 + len(right) > width:
        parts.pop()
    left = Text.assemble((status.state.value, run_colour(status.state)), "  ", "  ".join(parts))
    first = Text.assemble(left, " " * max(2, width - left.cell_len - len(right)), right)
    where = [plain(one.url) for one in status.endpoints[:1]] or [plain(status.node_list)]
    about = (*where, plain(status.model), plain(status.engine), plain(status.site))
    return [first, Text(view.style.dot.join(filter(None, about)), FAINT if not status.endpoints else "")]


def _times(snapshot: Snapshot, now: float) -> str:
    """Return the run's age in its state, and the time that is left."""
    status, at = snapshot.status, snapshot.status.phases
    words = []
    if status.ended:
        until = at.served_until if at.served_until is not None else at.ended
        if at.ready is not None and until is not None:
            words.append(f"served {span(until - at.ready)}")
        if at.ended is not None:
            words.append(f"ended {span(now - at.ended)} ago")
    elif at.ready is not None and not snapshot.starting:
        words.append(f"served {span(now - at.ready)}")
    elif status.state is not RunState.PENDING and at.began is not None:
        words.append(f"for {span(now - at.began)}")
    elif at.submitted is not None:
        words.append(f"for {span(now - at.submitted)}")
    if status.time_left_s is not None:
        since = now - snapshot.asked if snapshot.asked is not None else 0.0
        words.append(f"{format_time(max(0, int(status.time_left_s - since)))} left")
    return ", ".join(words)


def _wrong(snapshot: Snapshot, width: int, most: int, view: View) -> list[Text]:
    """Return why the run is not well, or waits, who failed first, and what to do; then what else to know."""
    status, lines = snapshot.status, []
    for label, text, colour in _troubles(snapshot):
        rows = textwrap.wrap(view.style.plain(text), max(10, width - LABEL), break_on_hyphens=False)[:3]
        for at, row in enumerate(rows):
            lines.append(Text.assemble((f"{label if not at else '':<{LABEL}}", FAINT), (row, colour)))
    hint = []
    if status.state in _BAD:
        run = shlex.quote(status.called or status.run_id)
        hint = [Text.assemble((f"{'next':<{LABEL}}", FAINT), f"slurm-llm diagnose {view.style.plain(run)}")]
    return [*lines[: most - len(hint)], *hint]


def _troubles(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    status = snapshot.status
    if status.pending is not None:
        detail = f" ({status.pending.detail})" if status.pending.detail else ""
        starts = f" Slurm says about {status.start_time.replace('T', ' ')}." if status.start_time else ""
        yield "waits", f"{status.pending.text}{detail}{starts} [{status.pending.code}]", ""
    if status.cause:
        yield "cause", status.cause, BAD if status.state in _BAD else WARNING
    if status.first is not None and not status.cause.startswith(f"rank {status.first.rank} "):
        first = status.first
        yield "first", f"rank {first.rank} on {first.node}: {first.name}, {first.how or 'nobody saw how'}", BAD
    if status.why:
        yield "why", status.why, ""
    for note in status.notes:
        yield "note", note, ""
    for before in status.earlier[-1:]:
        yield "before", f"attempt {before.attempt}: {before.state}, {before.cause}", ""


def _start(snapshot: Snapshot, width: int, view: View) -> list[Text]:
    """Return the phases of a start that goes on: what each took, and how far the present one is."""
    if not snapshot.starting:
        return []
    line = Text(f"{'start':<{LABEL}}", HEADING)
    for at, one in enumerate(snapshot.phases):
        line.append(view.style.arrow if at else "", FAINT)
        words = one.name if one.seconds is None else f"{one.name} {span(one.seconds)}"
        line.append(words, WARNING if one.going else FAINT if one.seconds is None else GOOD)
    lines = [line]
    total = len(snapshot.ranks)
    going = next((one for one in snapshot.phases if one.going and one.done is not None), None)
    if going is not None and going.done is not None and total:
        bar = view.style.bar(going.done / total, max(5, min(BAR, width - 40)))
        what = {"launch": "have begun", "load": "have loaded"}.get(going.name, "")
        lines.append(Text(f"{'':<{LABEL}}{bar} {going.done} of {total} ranks {what}"))
    slow = phasing.outstanding(snapshot.status.phases.took)
    if slow is not None:
        words = f"rank {slow.rank} on {slow.node} took {span(slow.seconds)} to {slow.phase}"
        lines.append(Text.assemble((f"{'slowest':<{LABEL}}", FAINT), view.style.plain(words)))
    return lines


def _events(snapshot: Snapshot, rows: int, style: Style) -> list[Text]:
    """Return the newest events, the newest one last."""
    lines = [Text("events", HEADING)]
    for one in snapshot.events[-(rows - 1) :] if rows > 1 else ():
        clock = time.strftime("%H:%M:%S", time.localtime(one.at))
        lines.append(Text.assemble((clock, FAINT), "  ", (style.plain(one.text), _COLOURS.get(one.level, ""))))
    return lines[:rows]


def _footer(snapshot: Snapshot, width: int, view: View) -> Text:
    left = f"q quit  s sort: {view.order.by}  n p page" if view.keys else ""
    if not view.every_s:
        right = f"at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(snapshot.at))}"
    else:
        right = f"read {age(view.now - snapshot.at)} ago"
        if not snapshot.status.slurm_answered:
            right += ", Slurm does not answer"
        elif snapshot.asked is not None:
            right += f", Slurm {age(view.now - snapshot.asked)}"
    room = width - len(left) - len(right)
    return Text(f"{left}{' ' * room}{right}" if room >= 2 or not left else left, FAINT)
