"""The timeline as drawings: a lane for each attempt of a run, and a row for each rank of one attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_llm.agent.blind import spans as folded
from slurm_llm.observe.reportdraw import (
    WIDTH,
    Drawing,
    Path,
    Rect,
    Text,
    TimeScale,
    clock,
    elapsed,
    number,
    span,
    time_scale,
    time_ticks,
)
from slurm_llm.observe.reporttimes import PHASES, STATES, AttemptLine, RankLine, Span

EACH_RANK = 64
"""Up to so many ranks have a row each; of more, those that stand out have one, and all are in the heat map."""
OUTSTANDING = 12
MOST_NODE = 32
"""Characters of a node's name in a label: its end tells nodes apart."""
ROW, BAR = 16.0, 12.0
TOP, BOTTOM = 24.0, 26.0
LABEL_WIDTH = 6.6
"""Units that a character of a label takes at most."""
LETTER = 15.0
"""A bar of this width has room for its phase's letter."""
CLEAR = 75.0
"""Units on each side of a break that are kept for the words that say how long it is."""
LONG = 2.5
"""Time is left out of a scale when the rest would be shrunk by more than this."""


def draw_attempts(lines: Sequence[AttemptLine]) -> Drawing:
    """Return a lane for each attempt, on one scale from the first submission to the last moment."""
    begin = min(min([one.begin for one in line.spans] + [line.until]) for line in lines)
    end = max(line.until for line in lines)
    labels = [_name(line) for line in lines]
    left = _room(labels)
    scale = time_scale([(begin, max(end, begin + 1.0))], left, WIDTH - 12)
    drawing = Drawing(
        "attempts", "Jobs and attempts of the run", _attempt_words(lines), TOP + ROW * len(lines) + BOTTOM
    )
    drawing.note = f"since {clock(begin)}"
    _axis(drawing, scale, begin)
    for place, (line, label) in enumerate(zip(lines, labels, strict=True)):
        y = TOP + place * ROW
        drawing.texts.append(Text(left - 8, y + 11, label, "label", "end"))
        _bars(drawing, line.spans, scale, y, begin)
        _attempt_end(drawing, line, scale, y)
        _handover(drawing, lines, place, scale)
    return drawing


def _attempt_words(lines: Sequence[AttemptLine]) -> str:
    return "; ".join(f"{_name(line)}: {line.state}" for line in lines)


def _name(line: AttemptLine) -> str:
    return f"job {line.job_id}" + ("" if line.attempt is None else f" · attempt {line.attempt}")


def _attempt_end(drawing: Drawing, line: AttemptLine, scale: TimeScale, y: float) -> None:
    if line.live:
        _arrow(drawing, scale.at(line.until), y, f"{line.state}, at the time of this report")
    elif line.state in ("COMPLETED", "CANCELLED") or (line.state == "TIMED_OUT" and line.ready is not None):
        # One that served until its time was up has not failed.
        _stroke(drawing, scale.at(line.until), y, "end", f"{line.state} {clock(line.until)}")
    else:
        _cross(drawing, scale.at(line.until), y, "bad", f"{line.state} {clock(line.until)}: {line.cause}")


def _handover(drawing: Drawing, lines: Sequence[AttemptLine], place: int, scale: TimeScale) -> None:
    """Draw a line from the readiness of a job to the one that it takes over from."""
    line = lines[place]
    above = next((at for at, other in enumerate(lines) if other.job_id == line.after), None)
    if above is None or line.ready is None:
        return
    x, low, high = scale.at(line.ready), TOP + place * ROW + ROW / 2, TOP + above * ROW + ROW / 2
    title = f"job {line.job_id} takes over from job {line.after}: {clock(line.ready)}"
    drawing.paths.append(Path(f"M{number(x)} {number(low)}V{number(high)}", "handover", title))


def draw_ranks(line: AttemptLine, ranks: Sequence[RankLine], name: str) -> Drawing | None:
    """Return a row for each of `ranks`; None where nothing of them was seen."""
    shown = [rank for rank in ranks if rank.spans]
    if not shown:
        return None
    zero = line.began if line.began is not None else min(rank.spans[0].begin for rank in shown)
    labels = [_label(rank) for rank in ranks]
    left = _room(labels)
    scale = time_scale(_windows(line, shown, zero), left, WIDTH - 12)
    drawing = Drawing(name, f"Ranks of job {line.job_id}, attempt {line.attempt}", _rank_words(line, ranks), 0.0)
    drawing.height = TOP + ROW * len(ranks) + BOTTOM
    for place, (rank, label) in enumerate(zip(ranks, labels, strict=True)):
        y = TOP + place * ROW
        if rank.state == "first":
            drawing.rects.append(Rect(0, y - 1, WIDTH, ROW, "first-row"))
        drawing.texts.append(Text(left - 8, y + 11, label, "label first" if rank.state == "first" else "label", "end"))
        _bars(drawing, rank.spans, scale, y, zero, f"rank {rank.rank}, {rank.node}: ")
        _rank_end(drawing, rank, scale, y)
    drawing.note = f"since the job's script began, {clock(zero, tenths=True)}"
    _axis(drawing, scale, zero)
    if line.ready is not None:
        _moment(drawing, scale, line.ready, "ready", "good")
    if line.first_at is not None:
        _moment(drawing, scale, line.first_at, f"rank {line.first} first", "bad")
    return drawing


def outstanding(ranks: Sequence[RankLine]) -> list[RankLine]:
    """Return the ranks that are worth a row where there are too many for one each: led, blamed, late, early gone."""
    if len(ranks) <= EACH_RANK:
        return list(ranks)
    wanted: dict[int, RankLine] = {rank.rank: rank for rank in ranks if rank.state == "first"}
    wanted.update({rank.rank: rank for rank in [one for one in ranks if one.role == "leader"][:4]})
    bad = [rank for rank in ranks if rank.state in ("failed", "unseen")]
    for group in (_by_end(bad)[:4], _late(ranks)[:4], [one for one in ranks if one.state == "none"][:4], ranks[-1:]):
        wanted.update({rank.rank: rank for rank in group if len(wanted) < OUTSTANDING})
    return [wanted[number] for number in sorted(wanted)]


def _by_end(ranks: Iterable[RankLine]) -> list[RankLine]:
    return sorted((rank for rank in ranks if rank.ended is not None), key=lambda rank: rank.ended or 0.0)


def _late(ranks: Iterable[RankLine]) -> list[RankLine]:
    """Return the ranks by the time up to their engine's process, the latest first."""
    return sorted((rank for rank in ranks if rank.start_s is not None), key=lambda rank: -(rank.start_s or 0.0))


def _label(rank: RankLine) -> str:
    node = rank.node if len(rank.node) <= MOST_NODE else "…" + rank.node[1 - MOST_NODE :]
    return f"{node} · {'★' if rank.role == 'leader' else ''}{rank.rank}"


def _room(labels: Iterable[str]) -> float:
    return min(320.0, 18 + LABEL_WIDTH * max(map(len, labels)))


def _windows(line: AttemptLine, ranks: Sequence[RankLine], zero: float) -> list[tuple[float, float]]:
    """Return the times to show: all, or the start and the end where a long time lies between them."""
    end = max(rank.spans[-1].end for rank in ranks)
    if line.ready is None or line.ready <= zero:
        return [(zero, max(end, zero + 0.5))]
    start = (zero, line.ready + 0.08 * (line.ready - zero) + 0.2)
    ends = [one.begin for rank in ranks for one in rank.spans if one.phase == "ending"]
    ends += [rank.ended for rank in ranks if rank.ended is not None]
    since = min(ends, default=end)
    tail = max(end - since, 0.5)
    finish = (since - 0.25 * tail, end + 0.05 * tail)
    shown = start[1] - start[0] + finish[1] - finish[0]
    if finish[0] <= start[1] or end - zero < LONG * shown:
        return [(zero, end)]
    return [start, finish]


def _rank_words(line: AttemptLine, ranks: Sequence[RankLine]) -> str:
    """Return in words how the ranks ended up, those that are alike together."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(STATES[rank.state][1] + (f" ({rank.how})" if rank.how else ""), []).append(rank.rank)
    words = "; ".join(f"ranks {folded(numbers)}: {text}" for text, numbers in groups.items())
    return f"attempt {line.attempt} is {line.state}. {words}"


def _bars(drawing: Drawing, spans: Sequence[Span], scale: TimeScale, y: float, zero: float, whose: str = "") -> None:
    for one in spans:
        x1, x2 = scale.at(one.begin), scale.at(one.end)
        letter, meaning = PHASES[one.phase]
        width = max(x2 - x1, 1.2)
        title = f"{whose}{meaning}: {span(one.end - one.begin)}, from {elapsed(one.begin - zero, 0.1)}"
        label = letter if width >= LETTER else ""
        drawing.rects.append(Rect(x1, y, width, BAR, f"bar p-{one.phase}", title, label))


def _rank_end(drawing: Drawing, rank: RankLine, scale: TimeScale, y: float) -> None:
    x = scale.at(rank.spans[-1].end) if rank.spans else scale.pieces[0].left
    title = f"rank {rank.rank}: {STATES[rank.state][1]}" + (f": {rank.how}" if rank.how else "")
    if rank.state in ("first", "failed"):
        _cross(drawing, x, y, "first" if rank.state == "first" else "bad", title)
    elif rank.state in ("ended", "unseen", "none"):
        if rank.state != "ended":
            drawing.texts.append(Text(x + 4, y + 11, STATES[rank.state][0], "unseen"))
        _stroke(drawing, x, y, "end", title)
    else:
        _arrow(drawing, x, y, title)


def _cross(drawing: Drawing, x: float, y: float, kind: str, title: str) -> None:
    x, y = min(x, WIDTH - 7), y + BAR / 2
    arms = f"M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8"
    if kind == "first":
        drawing.paths.append(Path(f"M{number(x - 8)} {number(y)}a8 8 0 1 0 16 0a8 8 0 1 0 -16 0z", "first-disc", title))
    drawing.paths.append(Path(arms, f"cross {kind}", title))


def _stroke(drawing: Drawing, x: float, y: float, kind: str, title: str) -> None:
    drawing.paths.append(Path(f"M{number(x)} {number(y - 1)}v{number(BAR + 2)}", f"stroke {kind}", title))


def _arrow(drawing: Drawing, x: float, y: float, title: str) -> None:
    drawing.paths.append(Path(f"M{number(x)} {number(y)}l6 {number(BAR / 2)}l-6 {number(BAR / 2)}z", "going-on", title))


def _moment(drawing: Drawing, scale: TimeScale, moment: float, text: str, tone: str) -> None:
    x = scale.at(moment)
    drawing.paths.append(
        Path(f"M{number(x)} {number(TOP - 6)}V{number(drawing.height - BOTTOM)}", f"moment {tone}", text)
    )
    # Readiness stands before its line and a failure behind, so that neither covers the other.
    anchor = "end" if tone == "good" or x + LABEL_WIDTH * len(text) > WIDTH else "start"
    drawing.texts.append(Text(x, TOP - 9, text, f"moment {tone}", anchor))


def _axis(drawing: Drawing, scale: TimeScale, zero: float) -> None:
    low = drawing.height - BOTTOM + 2
    for piece in scale.pieces:
        drawing.line((piece.left, low, piece.right, low), "axis")
    breaks = [(before.right + after.left) / 2 for before, after in scale.gaps]
    for x, text in time_ticks(scale, zero):
        drawing.line((x, TOP - 4, x, low + 4), "grid")
        if all(abs(x - one) > CLEAR for one in breaks):
            anchor = "end" if x > WIDTH - CLEAR / 3 else "middle"
            drawing.texts.append(Text(x if anchor == "middle" else WIDTH, low + 15, text, "tick", anchor))
    for (before, after), x in zip(scale.gaps, breaks, strict=True):
        drawing.texts.append(Text(x, low + 15, f"⋯ {span(after.begin - before.end)} ⋯", "tick", "middle"))
        for at in (before.right + 6, after.left - 6):
            drawing.paths.append(Path(f"M{number(at - 3)} {number(low + 5)}l6 -10", "axis"))
