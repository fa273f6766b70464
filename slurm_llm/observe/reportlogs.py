"""Ends of the logs that matter for how a run ended: of the rank that went first, others, srun and the job itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.observe.facts import Evidence
from slurm_llm.observe.reporttimes import AttemptLine
from slurm_llm.observe.text import clean, last_lines

LINES, OF_OTHERS = 40, 15
OTHERS = 3
"""Other ranks whose last lines are shown: those that ended badly next."""
MOST_LINE = 1000
BEGINNING = 1 << 18


@dataclass(frozen=True)
class Tail:
    """The last lines of one log; `of` says whose it is."""

    of: str
    name: str
    lines: tuple[str, ...]


def load_tails(evidence: Evidence, line: AttemptLine | None, hide: Callable[[str], str]) -> list[Tail]:
    """Return the ends of logs that tell how the attempt `line` ended; none of one that is well."""
    return [
        Tail(of, path.name, tuple(_line(row) for row in hide("\n".join(rows)).split("\n")))
        for of, path, count in _wanted(evidence, line)
        if (rows := last_lines(path, count)[0])
    ]


def _line(row: str) -> str:
    text = clean(row).rstrip()
    return text if len(text) <= MOST_LINE else text[:MOST_LINE] + "…"


def _wanted(evidence: Evidence, line: AttemptLine | None) -> Iterator[tuple[str, Path, int]]:
    job, attempt = evidence.job, evidence.attempt
    if job is None or (line is not None and line.first is None and line.state in ("COMPLETED", "CANCELLED", "READY")):
        return
    if attempt is not None and line is not None:
        if line.first is not None:
            yield f"rank {line.first}", attempt.rank_log(line.first), LINES
        bad = [rank for rank in line.ranks if rank.state == "failed"]
        for rank in sorted(bad, key=lambda rank: rank.ended or line.until)[:OTHERS]:
            yield f"rank {rank.rank}: {rank.how}", attempt.rank_log(rank.rank), OF_OTHERS
        if not line.live or line.first is not None:
            yield "preflight", attempt.root / "preflight.log", OF_OTHERS
            for instance in range(min(OTHERS, evidence.layout.instances)):
                yield f"srun, instance {instance}", attempt.step_log(instance), OF_OTHERS
    if attempt is None or (line is not None and not line.live):
        yield "the job's own output", evidence.paths.output(job.job_id), OF_OTHERS


def beginning_of(path: Path) -> str:
    """Return the first 256 KiB of a log; empty when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(BEGINNING).decode("utf-8", "replace")
    except OSError:
        return ""
