"""From options of `bench` to loads: what is left out is filled in, what contradicts is refused. Reads files only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.benching.tools import CHAT, COMPLETIONS, GENERATE, GENERATE_STREAM, GRPC, GRPC_IDS, Entry
from slurm_llm.benching.wishes import load_dataset, load_lengths, parse_spread, parse_sweep
from slurm_llm.errors import InputError, Problem
from slurm_llm.observe.benchresults import Load

POISSON, CONSTANT = "poisson", "constant"
LEAST_REQUESTS, REQUESTS_EACH, MOST_WARMUP = 20, 4, 10
INPUT_TOKENS, OUTPUT_TOKENS = (128.0, 0.0), (64.0, 0.0)
ENDPOINTS = (GENERATE, CHAT, COMPLETIONS)


@dataclass(frozen=True)
class Asked:
    """The options that say what load is wanted, as they were given; None and empty texts are left out."""

    concurrency: int | None = None
    requests: int | None = None
    duration: float | None = None
    request_rate: float | None = None
    arrival: str | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    dataset: str | None = None
    lengths: str | None = None
    streaming: bool = True
    warmup: int | None = None
    seed: int = 0
    instance: int | None = None
    endpoint: str | None = None
    token_ids: bool = False
    sweep: str | None = None
    repeat: int = 1


def loads_of(asked: Asked, cwd: Path) -> tuple[list[Load], tuple[Entry, ...]]:
    """Return a load for each point of the sweep (one without), and the dataset's entries.

    Raises:
        InputError: every fault of the options and of the files that they name.
    """
    problems = list(_contradictions(asked))
    if problems:
        raise InputError(problems)
    entries, digest = load_dataset(cwd / asked.dataset) if asked.dataset else ((), "")
    common = Load(
        requests=asked.requests,
        duration_s=asked.duration,
        request_rate=asked.request_rate,
        arrival=None if asked.request_rate is None else asked.arrival or POISSON,
        input_tokens=_spread("--input-tokens", asked.input_tokens),
        output_tokens=_spread("--output-tokens", asked.output_tokens),
        dataset=str(cwd / asked.dataset) if asked.dataset else "",
        dataset_sha256=digest,
        streaming=asked.streaming,
        seed=asked.seed,
        instance=asked.instance,
        lengths=load_lengths(cwd / asked.lengths) if asked.lengths else (),
    )
    return [_filled(common, one, asked) for one in _points(asked)], entries


def _points(asked: Asked) -> tuple[int | None, ...]:
    if asked.sweep is not None:
        return parse_sweep(asked.sweep)
    return (asked.concurrency if asked.concurrency or asked.request_rate is not None else 1,)


def _spread(option: str, text: str | None) -> tuple[float, float] | None:
    return None if text is None else parse_spread(option, text)


def _filled(common: Load, concurrency: int | None, asked: Asked) -> Load:
    """Return the load with a number of requests, a warm-up and lengths where none were asked for."""
    requests = common.requests
    if requests is None and common.duration_s is None:
        requests = max(LEAST_REQUESTS, REQUESTS_EACH * (concurrency or 1))
    drawn = not (common.dataset or common.lengths)
    put = common.input_tokens or (INPUT_TOKENS if drawn else None)
    most = common.output_tokens or (OUTPUT_TOKENS if drawn else None)
    warmup = min(MOST_WARMUP, concurrency or 1) if asked.warmup is None else asked.warmup
    values = {**vars(common), "concurrency": concurrency, "requests": requests, "warmup": warmup}
    return Load(**{**values, "input_tokens": put, "output_tokens": most})


def _contradictions(asked: Asked) -> Iterator[Problem]:
    for one, other, together in (
        ("--requests", "--duration", asked.requests and asked.duration),
        ("--sweep", "--concurrency", asked.sweep and asked.concurrency),
        ("--sweep", "--request-rate", asked.sweep and asked.request_rate),
        ("--dataset", "--lengths", asked.dataset and asked.lengths),
        ("--dataset", "--input-tokens", asked.dataset and asked.input_tokens),
        ("--lengths", "--input-tokens", asked.lengths and asked.input_tokens),
        ("--lengths", "--output-tokens", asked.lengths and asked.output_tokens),
        ("--token-ids", "--endpoint", asked.token_ids and asked.endpoint),
    ):
        if together:
            yield Problem(one, f"and {other} say the same twice", todo="leave one out")
    if asked.arrival and asked.request_rate is None:
        yield Problem("--arrival", "says how requests arrive at a rate", todo="add --request-rate R")


def protocol_of(tool: str, asked: Asked) -> str:
    """Return how `tool` is to speak to the server: aiperf by HTTP, the others by gRPC, unless it is said."""
    if asked.token_ids:
        return GRPC_IDS
    if asked.endpoint in (CHAT, COMPLETIONS):
        return asked.endpoint
    if asked.endpoint is None and tool != "aiperf":
        return GRPC
    return GENERATE_STREAM if asked.streaming else GENERATE
