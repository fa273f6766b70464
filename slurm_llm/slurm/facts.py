"""What one Slurm command said of one job, as a value; it judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_llm.slurm.formats import JobId, is_unlimited, parse_exit_code, parse_job_id, parse_reported_time
from slurm_llm.slurm.states import SlurmState, parse_state

_NOTHING = frozenset({"", "(null)", "n/a", "none", "unknown", "none assigned", "not_set"})


@dataclass(frozen=True)
class JobFacts:
    """A job as squeue, scontrol or sacct described it; None and empty texts are what the source did not say.

    Times are local ISO 8601 texts as Slurm prints them (`2026-11-30T10:00:00`), durations seconds.
    `time_limit_s` is None when `unlimited`, and when nothing was said. `node_list` is Slurm's folded form,
    for `expand_nodes`.
    """

    job_id: JobId
    state: SlurmState
    source: str
    reason: str = ""
    time_left_s: int | None = None
    time_limit_s: int | None = None
    unlimited: bool = False
    submit_time: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    node_count: int | None = None
    node_list: str = ""
    batch_host: str = ""
    partition: str = ""
    name: str = ""
    stdout: str = ""
    restarts: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    derived_signal: int | None = None


def build_facts(source: str, fields: Mapping[str, str], cluster: str | None = None) -> JobFacts:
    """Build facts from the texts of a command by field name; a text that cannot be read is left out.

    Only the id must be readable (else ValueError): one strange field of a site's Slurm must not hide a job's
    state.
    """
    job_id = parse_job_id(fields["job_id"])
    if cluster is not None:
        job_id = JobId(job_id.number, job_id.array_task, job_id.het_offset, job_id.step, cluster)
    limit = fields.get("time_limit", "")
    exit_code, signal = _exit_code(fields.get("exit_code", ""))
    derived_exit_code, derived_signal = _exit_code(fields.get("derived_exit_code", ""))
    return JobFacts(
        job_id=job_id,
        state=parse_state(fields.get("state", "")),
        source=source,
        reason=text_or_empty(fields.get("reason", "")),
        time_left_s=_seconds(fields.get("time_left", "")),
        time_limit_s=_seconds(limit),
        unlimited=is_unlimited(limit),
        submit_time=text_or_empty(fields.get("submit_time", "")) or None,
        start_time=text_or_empty(fields.get("start_time", "")) or None,
        end_time=text_or_empty(fields.get("end_time", "")) or None,
        node_count=_count(fields.get("node_count", "")),
        node_list=text_or_empty(fields.get("node_list", "")),
        batch_host=text_or_empty(fields.get("batch_host", "")),
        partition=text_or_empty(fields.get("partition", "")),
        name=fields.get("name", ""),
        stdout=text_or_empty(fields.get("stdout", "")),
        restarts=_count(fields.get("restarts", "")),
        exit_code=exit_code,
        signal=signal,
        derived_exit_code=derived_exit_code,
        derived_signal=derived_signal,
    )


def split_records(text: str, names: Sequence[str], separator: str) -> list[dict[str, str]]:
    """Split lines of separated fields; the last is free text and may hold separators and line ends."""
    records: list[dict[str, str]] = []
    for line in text.split("\n"):
        values = line.split(separator, len(names) - 1)
        if len(values) == len(names):
            records.append(dict(zip(names, values, strict=True)))
        elif records and line:
            records[-1][names[-1]] += "\n" + line
    return records


def text_or_empty(text: str) -> str:
    """Return a field without Slurm's ways to say nothing, `(null)`, `N/A`, `None assigned`."""
    bare = text.strip()
    return "" if bare.lower() in _NOTHING else bare


def _seconds(text: str) -> int | None:
    try:
        return parse_reported_time(text)
    except ValueError:
        return None


def _exit_code(text: str) -> tuple[int | None, int | None]:
    try:
        return parse_exit_code(text) or (None, None)
    except ValueError:
        return None, None


def _count(text: str) -> int | None:
    """Read `2`, and `2-2` as scontrol shows the nodes of a pending job."""
    first = text.strip().partition("-")[0]
    return int(first) if first.isdecimal() else None
