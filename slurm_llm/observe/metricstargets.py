"""Where the metrics pages of running jobs are, as Prometheus' file_sd takes it. Reads files of run directories.

Labels are named so that none meets one of a page: vLLM's families have an `engine`, Triton's a `model`, and `job` is
Prometheus' own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_llm.agent import journal
from slurm_llm.record import load_record
from slurm_llm.rundir import JobPaths, RunPaths


@dataclass(frozen=True)
class Target:
    """One page, `host:port`, and the labels that all of its samples get."""

    address: str
    labels: dict[str, str]


def load_target(paths: RunPaths, job: JobPaths) -> Target | None:
    """Return where the newest attempt of a job has its page; None where it has none, or none yet."""
    attempts = job.attempts()
    record = load_record(paths)
    if not attempts or record is None:
        return None
    told = [item for item in journal.read(str(attempts[-1].journal / "head.jsonl")) if item["kind"] == "exporter"]
    if not told:
        return None
    host = str(told[-1]["host"])
    labels = {
        "run": record.run_id,
        "slurm_job": str(job.job_id),
        "run_name": record.name,
        "run_engine": record.engine,
        "run_model": record.model or "",
        "site": record.site,
        "user": record.user,
    }
    return Target(f"[{host}]:{told[-1]['port']}" if ":" in host else f"{host}:{told[-1]['port']}", labels)


def targets_json(targets: Iterable[Target]) -> str:
    """Return a file_sd list, in an order that does not change by itself; `[]` without any."""
    ordered = sorted(targets, key=lambda one: (one.labels["run"], one.address))
    rows = [json.dumps({"targets": [one.address], "labels": one.labels}) for one in ordered]
    return "[\n " + ",\n ".join(rows) + "\n]\n" if rows else "[]\n"
