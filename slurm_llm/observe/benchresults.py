"""Kept results of benches: what was measured on a run, how, and by which tool; their JSON. It measures nothing.

`<run>/bench/<N>/result.json`, written once a bench is over; a folder without one belongs to a bench that still runs, or
was killed. Times are seconds since the epoch, lengths are in tokens, latencies in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_llm.rundir import BENCH_RESULT, RunPaths

SCHEMA = 1

REQUESTS, TOKENS = "request_throughput", "output_token_throughput"
LATENCY, FIRST, BETWEEN = "request_latency", "time_to_first_token", "inter_token_latency"
INPUT, OUTPUT = "input_tokens", "output_tokens"
UNITS = {
    REQUESTS: "requests/s",
    TOKENS: "tokens/s",
    LATENCY: "ms",
    FIRST: "ms",
    BETWEEN: "ms",
    INPUT: "tokens",
    OUTPUT: "tokens",
}
"""The figures that there are, and the unit of each; one that the tool did not tell is left out."""

Spread = tuple[float, float]
"""Mean and standard deviation of a number of tokens."""


@dataclass(frozen=True)
class Load:
    """What was asked of the tool; None is what was left to it, or does not apply.

    With `request_rate` (requests a second, arriving as `arrival` says) `concurrency` only bounds what is in flight.
    `lengths` are pairs of input and output tokens with their share, in place of the two single lengths.
    """

    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    request_rate: float | None = None
    arrival: str | None = None
    input_tokens: Spread | None = None
    output_tokens: Spread | None = None
    dataset: str = ""
    dataset_sha256: str = ""
    streaming: bool = True
    warmup: int = 0
    seed: int = 0
    instance: int | None = None
    protocol: str = ""
    tokenizer: str = ""
    lengths: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True)
class ToolRun:
    """The load generator, its command without any key, where it ran (`step`, `job` or `here`) and how it ended."""

    name: str
    version: str
    command: tuple[str, ...]
    place: str
    node: str
    exit_code: int


@dataclass(frozen=True)
class Series:
    """What a bench belongs to: the number of the first one of its command, its sweep's concurrencies, repetitions."""

    first: int
    sweep: tuple[int, ...] = ()
    repeat: int = 1
    repeats: int = 1


@dataclass(frozen=True)
class Figure:
    """A figure's mean (a rate has nothing else) and, over requests, its distribution; None is what was not told."""

    unit: str
    mean: float
    min: float | None = None
    max: float | None = None
    std: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Answers:
    """Requests that were answered and that failed, warm-up aside."""

    answered: int
    failed: int


@dataclass(frozen=True)
class Fault:
    """An error that requests met, and how often."""

    what: str
    count: int


@dataclass(frozen=True)
class Served:
    """What was measured: the run, the job's attempt, and what else makes two measurements comparable or not."""

    run_id: str
    job_id: int
    attempt: int
    name: str
    engine: str
    model: str
    site: str
    image: str
    nodes: int
    world_size: int
    instances: int
    spec_sha256: str
    sizes: dict[str, int]
    triton: str
    slurm_llm: str
    url: str


@dataclass(frozen=True)
class Counted:
    """Triton's own count of answered requests before and after, over all instances that were measured."""

    before: int
    after: int


@dataclass(frozen=True)
class BenchResult:
    """One measurement; `reasons` say why one that is not `valid` must not be used."""

    number: int
    valid: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    began: float
    ended: float
    tool: ToolRun
    load: Load
    series: Series
    figures: dict[str, Figure]
    requests: Answers
    errors: tuple[Fault, ...]
    served: Served
    counted: Counted | None = None
    schema: int = SCHEMA

    def repeats(self, other: BenchResult) -> bool:
        """Return whether this is one of the repeats of the same point as `other`."""
        return self.series.first == other.series.first and self.load.concurrency == other.load.concurrency

    @property
    def server_gone(self) -> bool:
        """Whether nothing was answered: then there is no point in going on."""
        return not self.requests.answered


def result_to_json(result: BenchResult) -> str:
    """Return a result as JSON text; parts of figures that were not told are left out."""
    value = asdict(result)
    value["figures"] = {
        name: {part: number for part, number in figure.items() if number is not None}
        for name, figure in value["figures"].items()
    }
    return json.dumps({"schema": value.pop("schema"), **value}, indent=1, ensure_ascii=False) + "\n"


def load_results(paths: RunPaths) -> list[BenchResult]:
    """Return the kept results of a run, oldest first; files of another schema, or cut off, are left out."""
    found = (load_result(folder) for folder in paths.benches())
    return [one for one in found if one is not None]


def load_result(folder: Path) -> BenchResult | None:
    """Return the result in a bench's folder, or None where there is none that can be read."""
    try:
        value = json.loads((folder / BENCH_RESULT).read_text(encoding="utf-8", errors="replace"))
        return _result(value) if value["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _result(value: Mapping[str, Any]) -> BenchResult:
    tool, load, series = value["tool"], value["load"], value["series"]
    own_load = {
        **{name: None if load[name] is None else tuple(load[name]) for name in ("input_tokens", "output_tokens")},
        "lengths": tuple((put, most, share) for put, most, share in load["lengths"]),
    }
    own = {
        **value,
        "reasons": tuple(value["reasons"]),
        "notes": tuple(value["notes"]),
        "tool": ToolRun(**{**tool, "command": tuple(tool["command"])}),
        "load": Load(**{**load, **own_load}),
        "series": Series(**{**series, "sweep": tuple(series["sweep"])}),
        "figures": {name: Figure(**one) for name, one in value["figures"].items()},
        "requests": Answers(**value["requests"]),
        "errors": tuple(Fault(**one) for one in value["errors"]),
        "served": Served(**value["served"]),
        "counted": None if value["counted"] is None else Counted(**value["counted"]),
    }
    return BenchResult(**own)
