"""Loads, targets and results for the tests of benches; captures are of the tools named, on a devcluster's rehearsal.

`aiperf-0.13.0-*` and `perf_analyzer-2.47.0-stream` were left by measurements of this package,
`genai-perf-0.0.16-generate` by `genai-perf profile --endpoint-type generate` with that perf_analyzer below it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_llm.benching.tools import Entry, Target, Wanted
from slurm_llm.observe.benchresults import Answers, BenchResult, Figure, Load, Series, Served, ToolRun

CAPTURES = Path(__file__).parent / "captures"
PLACE = Path("/runs/demo-1/bench/3")
LOAD = Load(
    concurrency=2,
    requests=10,
    input_tokens=(32.0, 0.0),
    output_tokens=(16.0, 0.0),
    warmup=3,
    protocol="generate_stream",
)
TARGET = Target("http://n1:8000", "n1:8001", "", "tensorrt_llm", "rehearsal")


def capture(name: str) -> dict[str, Any]:
    """Return a tool's own file."""
    value: dict[str, Any] = json.loads((CAPTURES / name).read_text(encoding="utf-8"))
    return value


def wanted(target: Target = TARGET, entries: tuple[Entry, ...] = (), **changes: Any) -> Wanted:
    """Return one measurement as a tool is told it."""
    return Wanted(replace(LOAD, **changes), target, PLACE, entries)


def result(number: int = 1, *, rate: float = 10.0, load: Load = LOAD, **changes: Any) -> BenchResult:
    """Return a kept result."""
    made = BenchResult(
        number=number,
        valid=True,
        reasons=(),
        notes=("a note",),
        began=1796068466.125,
        ended=1796068470.0,
        tool=ToolRun("aiperf", "0.13.0", ("aiperf", "profile"), "step", "n1", 0),
        load=load,
        series=Series(number),
        figures={
            "request_throughput": Figure("requests/s", rate),
            "request_latency": Figure("ms", 50.0, p50=49.0, p99=80.0, max=81.0),
        },
        requests=Answers(10, 0),
        errors=(),
        served=Served(
            run_id="20261130-200658-7ed4",
            job_id=7,
            attempt=0,
            name="demo",
            engine="rehearsal",
            model="m",
            site="devcluster",
            image="",
            nodes=1,
            world_size=2,
            instances=1,
            spec_sha256="ab" * 32,
            sizes={"tensor_parallel_size": 2, "pipeline_parallel_size": 1},
            triton="2.51.0",
            slurm_llm="1",
            url="http://n1:8000",
        ),
    )
    return replace(made, **changes)
