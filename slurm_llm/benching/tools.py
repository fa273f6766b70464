"""What every load generator has in common here: what it is told, and what it says afterwards. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from slurm_llm.errors import Problem, RunFailed
from slurm_llm.observe import benchresults as kept
from slurm_llm.observe.benchresults import Fault, Figure, Load

GENERATE, GENERATE_STREAM = "generate", "generate_stream"
CHAT, COMPLETIONS = "chat", "completions"
GRPC, GRPC_IDS = "grpc", "grpc_ids"
HTTP = frozenset({GENERATE, GENERATE_STREAM, CHAT, COMPLETIONS})

ARTIFACTS = "artifacts"
"""Folder of a bench in which the tool itself writes."""
DATASET = "dataset.jsonl"
TOKENIZER = "tokenizer"
HUB, HUB_NAME = "hub", "slurm_llm/tokenizer"
"""A cache of the hub with nothing but the tokenizer: aiperf takes no folder where the hub is off limits."""
_QUANTILES = ("p50", "p90", "p95", "p99")
KEY_VARIABLE = "SLURM_LLM_BENCH_KEY"
DEFAULT_ENTRIES, MOST_ENTRIES = 1000, 5000
"""Different prompts that are made: as many as requests, as far as that goes."""


@dataclass(frozen=True)
class Target:
    """What is measured: addresses as `Endpoint` has them, the model, its engine; `header` names the key's, if any."""

    url: str
    grpc: str
    openai: str
    model: str
    engine: str
    header: str = ""


@dataclass(frozen=True)
class Entry:
    """One request of a dataset: a text, or token ids in its place, and how long its answer may become."""

    text: str = ""
    ids: tuple[int, ...] = ()
    most: int | None = None


@dataclass(frozen=True)
class Wanted:
    """One measurement as a tool is told it.

    `entries` are those of a dataset; `place` is the bench's folder as the node sees it.
    """

    load: Load
    target: Target
    place: Path
    entries: tuple[Entry, ...] = ()

    @property
    def prompts(self) -> int:
        """How many different prompts are to be made."""
        asked = self.load.requests
        return DEFAULT_ENTRIES if asked is None else max(1, min(MOST_ENTRIES, asked + self.load.warmup))


@dataclass(frozen=True)
class Outcome:
    """What a tool says of a measurement; `unfinished` is why it did not do all, in its words."""

    figures: dict[str, Figure]
    answered: int
    failed: int
    errors: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    unfinished: str = ""


class Tool(Protocol):
    """A load generator."""

    name: str

    def problems(self, wanted: Wanted) -> list[Problem]:
        """Return what it cannot do."""

    def files(self, wanted: Wanted) -> dict[str, str]:
        """Return name → text of the files that it reads, in the bench's folder."""

    def argv(self, program: str, wanted: Wanted) -> tuple[str, ...]:
        """Return its command line, run in the bench's folder."""

    def outcome(self, folder: Path, wanted: Wanted) -> Outcome:
        """Return what it wrote below `folder`.

        Raises:
            RunFailed: it left nothing that can be read.
        """


@dataclass(frozen=True)
class Names:
    """Where a tool's summary has our figures, and the parts of a distribution."""

    figures: Mapping[str, str]
    parts: Mapping[str, str] = field(
        default_factory=lambda: {"avg": "mean", **{name: name for name in ("min", "max", "std", *_QUANTILES)}}
    )


SUMMARY_NAMES = Names(
    {
        kept.REQUESTS: "request_throughput",
        kept.TOKENS: "output_token_throughput",
        kept.LATENCY: "request_latency",
        kept.FIRST: "time_to_first_token",
        kept.BETWEEN: "inter_token_latency",
        kept.INPUT: "input_sequence_length",
        kept.OUTPUT: "output_sequence_length",
    }
)
"""Those of genai-perf and of aiperf, which follows it."""


def figures_of(value: Mapping[str, Any], names: Names, units: Mapping[str, str]) -> dict[str, Figure]:
    """Return our figures out of a summary of `{name: {unit, avg, p50, …}}`; one without a number is left out."""
    made = {}
    for name, own in names.figures.items():
        found = value.get(own)
        if not isinstance(found, Mapping) or not isinstance(found.get("avg"), int | float):
            continue
        parts = {
            ours: float(found[its]) for its, ours in names.parts.items() if isinstance(found.get(its), int | float)
        }
        made[name] = Figure(unit=units[name], **parts)
    return made


def spread(values: Sequence[float], unit: str) -> Figure | None:
    """Return the distribution of what was measured, by the nearest rank; None of nothing."""
    if not values:
        return None
    rows = sorted(values)
    mean = sum(rows) / len(rows)
    std = (sum((one - mean) ** 2 for one in rows) / len(rows)) ** 0.5
    ranks = {name: rows[max(0, -(-len(rows) * int(name[1:]) // 100) - 1)] for name in _QUANTILES}
    return Figure(unit=unit, mean=mean, min=rows[0], max=rows[-1], std=std, **ranks)


def unreadable(tool: str, folder: Path, why: str) -> RunFailed:
    """Return the error for a tool whose result cannot be read."""
    return RunFailed(Problem(str(folder), f"{tool} left no result: {why}", todo="its output is in load.log there"))
