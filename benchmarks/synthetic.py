"""A run directory such as a job of any size leaves while it serves: plan, journals and logs, for benchmarks.

The records have the form and the order of those that a real rehearsal of eight ranks wrote.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm.plan import Plan, build_plan
from slurm_llm.record import RunRecord, Submission, record_to_json
from slurm_llm.render import Target, render
from slurm_llm.rundir import RECORD, RunPaths, run_name
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec, spec_from_mapping

RANKS_PER_NODE = 8
SAMPLE_S = 10
JOB_ID = 4711


@dataclass(frozen=True)
class Shape:
    """How large the run is: ranks, how many samples each node has written, bytes of each rank's log."""

    ranks: int
    samples: int = 60
    log_bytes: int = 20_000


def site() -> SiteProfile:
    """Return a site with nodes of eight GPUs."""
    return SiteProfile.model_validate(
        {
            "schema_version": 1,
            "name": "scale",
            "partitions": {"all": {"gpus_per_node": RANKS_PER_NODE, "cpus": {"per_node": RANKS_PER_NODE}}},
            "launcher": {"mpi": "pmix"},
        }
    )


def spec(ranks: int, tensor: int) -> JobSpec:
    """Return a spec of one instance with so many ranks."""
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": ranks // tensor}
    return spec_from_mapping({"name": "scale", "engine": "rehearsal", **sizes})


def make_run(root: Path, shape: Shape) -> RunPaths:
    """Write a run directory of a job that serves below `root` and return its paths."""
    plan = build_plan(spec(shape.ranks, min(RANKS_PER_NODE, shape.ranks)), site())
    paths = RunPaths(root / run_name(plan.slug, "20260101-000000-abcd"))
    now = time.time()
    began = now - shape.samples * SAMPLE_S - 60
    texts = render(plan, Target(paths.root, "/usr/bin/python3"))
    texts[RECORD] = record_to_json(_record(plan, paths, began))
    for name, text in texts.items():
        _put(paths.root / name, text)
    job = paths.job(JOB_ID)
    attempt = job.attempt(0)
    _put(job.submission, record_to_json(Submission(str(JOB_ID), "", began - 5, "submit")))
    _put(job.endpoint(0), json.dumps({"instances": [_endpoint()]}))
    for name, records in _journals(plan, shape, began):
        _put(attempt.journal / f"{name}.jsonl", "".join(map(_line, records)))
    for own in plan.ranks:
        _put(attempt.rank_log(own.rank), "".join(_log_lines(own.rank, began, shape.log_bytes)))
    _put(attempt.step_log(0), "")
    _put(paths.output(JOB_ID), f"slurm_llm: job {JOB_ID} attempt 0\n")
    return paths


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _line(record: dict[str, Any]) -> str:
    return "\n" + json.dumps(record, separators=(",", ":"), sort_keys=True)


def _record(plan: Plan, paths: RunPaths, created: float) -> RunRecord:
    return RunRecord(
        run_id=paths.run_id,
        name=plan.name,
        engine=plan.engine,
        model=None,
        site=plan.site,
        created=created,
        user="someone",
        host="login1",
        version="0",
        ranks=len(plan.ranks),
        nodes=plan.allocation.nodes,
        world_size=plan.world_size,
    )


def _endpoint() -> dict[str, Any]:
    return {"instance": 0, "url": "http://node1:8000", "grpc": "node1:8001", "metrics": "http://node1:8002/metrics"}


def node_name(index: int) -> str:
    """Return the name of a node, counted from 0."""
    return f"node{index + 1:04d}"


def _journals(plan: Plan, shape: Shape, began: float) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "job", [{"t": began, "kind": "begin"}, {"t": began + 8, "kind": "preflight", "code": 0}]
    states = (("STARTING", 0.2), ("LOADING", 12.0), ("READY", 50.0))
    yield "head", [{"kind": "state", "state": state, "reason": "", "t": began + after} for state, after in states]
    by_node: dict[int, list[int]] = {}
    for own in plan.ranks:
        by_node.setdefault(own.node, []).append(own.rank)
        start = {"kind": "start", "rank": own.rank, "node": node_name(own.node), "gpus": "0,1,2,3,4,5,6,7"}
        yield f"rank-{own.rank}", [{**start, "t": began + 10}]
    for index, ranks in by_node.items():
        name = node_name(index)
        yield name, list(_node(name, ranks, began))
        yield f"{name}.samples", list(_samples(name, ranks, shape, began))


def _node(name: str, ranks: list[int], began: float) -> Iterator[dict[str, Any]]:
    yield {"kind": "hello", "node": name, "pid": 100, "shm_free_mib": 4096, "step": "0", "swept": 0, "t": began + 2}
    for rank in ranks:
        own = {"kind": "found", "node": name, "rank": rank, "t": began + 11}
        start = {"started": began + 10, "gpus": "0,1,2,3,4,5,6,7"}
        yield {**own, **start, "main": True, "name": "tritonserver", "pid": 1000 + rank}
        yield {**own, "main": False, "name": "triton_python_b", "pid": 9000 + rank}
        if rank == 0:
            yield {**own, "kind": "loaded", "pid": 1000, "t": began + 49}


def _samples(name: str, ranks: list[int], shape: Shape, began: float) -> Iterator[dict[str, Any]]:
    for number in range(shape.samples):
        held = {str(rank): {"cpu_s": number * 0.1, "rss_mib": 800.0 + number, "gpu_mib": 70000} for rank in ranks}
        yield {"kind": "sample", "node": name, "ranks": held, "shm_free_mib": 4093, "t": began + 15 + number * SAMPLE_S}


def _log_lines(rank: int, began: float, most: int) -> Iterator[str]:
    written = number = 0
    while written < most:
        clock = time.strftime("%m%d %H:%M:%S", time.localtime(began + number // 10))
        line = (
            f"I{clock}.{number % 10}00000 {1000 + rank} model_lifecycle.cc:849] part {number} of the model is there\n"
        )
        written += len(line)
        number += 1
        yield line
