"""Lines of logs as text for people, or as JSON lines; values in, text out. Colours for a terminal only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import click

from slurm_llm.observe.logs import NAMES, Folded, LogLine, rank_list

MOST_LABEL = 16
"""Columns of the ranks in front of a line; of more ranks than fit there, only the first ones and their number."""
LONGEST_RUN = 24
"""So often a blank, dash or the like is repeated on a terminal at most: tables and rulers would fill several rows."""
_RUN = re.compile(rf"([^\w\s]| )\1{{{LONGEST_RUN},}}")
BATCH = 200
"""Lines that are printed at a time, at most."""
PATIENCE_S = 0.1
"""How long a line waits for further ones that are printed with it."""
_COLOURS = {"error": "red", "warning": "yellow"}


class Printer:
    """Prints lines with their ranks in front, and says once when another attempt or job begins."""

    def __init__(
        self, as_json: bool, is_terminal: bool, environ: Mapping[str, str], monotonic: Callable[[], float]
    ) -> None:
        self._as_json, self._is_terminal = as_json, is_terminal
        # https://no-color.org: any text but an empty one.
        self._colour = is_terminal and not environ.get("NO_COLOR")
        self._newest: tuple[int, int] | None = None
        self._monotonic, self._flushed = monotonic, 0.0
        self.printed = False

    def show(self, found: Iterable[Folded]) -> None:
        """Print records, some lines at a time while they come quickly."""
        batch: list[str] = []
        for one in found:
            batch += self._json(one) if self._as_json else self._text(one)
            if len(batch) >= BATCH or self._monotonic() > self._flushed + PATIENCE_S:
                self._flush(batch)
        self._flush(batch)

    def _flush(self, batch: list[str]) -> None:
        if batch:
            click.echo("\n".join(batch), color=self._colour)
            self.printed = True
            self._flushed = self._monotonic()
            batch.clear()

    def _json(self, one: Folded) -> Iterator[str]:
        for line in one.lines:
            source = line.source
            value = {
                "at": line.at,
                "job": source.job_id,
                "attempt": source.attempt,
                "source": source.label,
                "rank": source.rank,
                "ranks": sorted(one.ranks),
                "level": NAMES[line.level],
                "text": line.text,
            }
            yield json.dumps(value, ensure_ascii=False)

    def _text(self, one: Folded) -> Iterator[str]:
        yield from self._change(one.lines[0])
        label = self._styled(self._label(one), "cyan")
        for line in one.lines:
            text = _RUN.sub(_shortened, line.text) if self._is_terminal else line.text
            yield f"{label} {self._styled(text, _COLOURS.get(NAMES[line.level]))}"

    def _change(self, line: LogLine) -> Iterator[str]:
        """Say when the first line of a further attempt, or of another job, comes."""
        now = (line.source.job_id, line.source.attempt)
        before, self._newest = self._newest, max(now, self._newest or now)
        if before is not None and now > before:
            text = f"--- job {now[0]}, which takes over ---" if now[0] != before[0] else f"--- attempt {now[1]} ---"
            yield self._styled(text, "cyan")

    def _label(self, one: Folded) -> str:
        source = one.lines[0].source
        late = (source.job_id, source.attempt) != self._newest
        where = f"@{source.job_id}.{source.attempt}" if late else ""
        return f"[{ranks_text(one.ranks) if one.ranks else source.label}{where}]"

    def _styled(self, text: str, colour: str | None) -> str:
        return click.style(text, fg=colour) if self._colour and colour else text


def _shortened(match: re.Match[str]) -> str:
    return match[1] * (LONGEST_RUN // 3)


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as `0-3,8`; of too many, the first ones and how many there are."""
    every = sorted(ranks)
    text = rank_list(every)
    if len(text) <= MOST_LABEL:
        return text
    count = f"… of {len(every)}"
    return text[: MOST_LABEL - len(count)].rpartition(",")[0] + count
