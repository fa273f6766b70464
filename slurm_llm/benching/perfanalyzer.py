"""NVIDIA's perf_analyzer: prompts or token ids over gRPC; its export of every request is read, and summed up here.

perf_analyzer's own latency of a model that streams ends with the first answer (measured, 2.47), so figures come from
the times of each request in its export. Token ids to `tensorrt_llm` are what NVIDIA's benchmark of the core model sends
(tensorrtllm_backend, tools/inflight_batcher_llm/benchmark_core_model.py). The first requests are those to warm up: not
every release has an option for them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_llm.benching.tools import GRPC, GRPC_IDS, Entry, Outcome, Wanted, spread, unreadable
from slurm_llm.dialects import DEFAULT_MAX_TOKENS
from slurm_llm.errors import Problem
from slurm_llm.observe import benchresults as kept
from slurm_llm.observe.benchresults import Figure

INPUT_DATA, EXPORT = "requests.json", "perf_analyzer.json"
CORE_MODEL = "tensorrt_llm"
LOWEST_ID, HIGHEST_ID = 100, 10_000
"""Token ids that are drawn: every model's vocabulary has them, and special tokens lie mostly below."""
LETTERS = "abcdefghijklmnopqrstuvwxyz "
_NANO = 1e9
_MILLI = 1e6
PIECES = "each piece of a stream is counted as one token"


class PerfAnalyzer:
    """perf_analyzer, from the release of Triton 24.06 on (`--request-count`)."""

    name = "perf_analyzer"

    def problems(self, wanted: Wanted) -> list[Problem]:
        """Return what it cannot do."""
        load, target, found = wanted.load, wanted.target, []
        if load.protocol not in (GRPC, GRPC_IDS):
            return [
                Problem(
                    "--tool perf_analyzer",
                    f"perf_analyzer is used over gRPC only, not for {load.protocol}",
                    todo="aiperf",
                )
            ]
        if target.header:
            what = "perf_analyzer takes the key on its command line only, where every user of the node can read it"
            found.append(Problem("--tool perf_analyzer", what, "aiperf"))
        if load.requests is None:
            what = "perf_analyzer measures requests, not a time"
            found.append(Problem("--duration", what, todo="give --requests N"))
        if load.protocol == GRPC_IDS and target.engine != "tensorrtllm":
            what = f"engine {target.engine} takes texts, no token ids"
            found.append(Problem("--token-ids", what, "engine tensorrtllm", "leave it out"))
        if load.protocol == GRPC_IDS and any(not one.ids for one in wanted.entries):
            what = "a dataset for --token-ids has `input_ids` in every line"
            found.append(Problem("--dataset", what, todo="leave --dataset out: ids are drawn"))
        if load.protocol == GRPC:
            found += self._text_problems(wanted)
        return found

    def _text_problems(self, wanted: Wanted) -> Iterator[Problem]:
        if not wanted.load.streaming:
            what = "perf_analyzer counts no tokens of a text that comes as a whole"
            yield Problem("--no-streaming", what, "--streaming", "or take aiperf")
        if wanted.target.engine != "rehearsal" and not wanted.entries:
            what = "perf_analyzer makes no texts of a number of tokens"
            yield Problem(
                "--tool perf_analyzer", what, "aiperf", "or give --dataset, or --token-ids for engine tensorrtllm"
            )

    def files(self, wanted: Wanted) -> dict[str, str]:
        """Return its input data."""
        ids = wanted.load.protocol == GRPC_IDS
        rows = [_ids_row(one, wanted) if ids else _text_row(one, wanted) for one in _entries(wanted)]
        return {INPUT_DATA: json.dumps({"data": rows}) + "\n"}

    def argv(self, program: str, wanted: Wanted) -> tuple[str, ...]:
        """Return its command line."""
        load, target = wanted.load, wanted.target
        ids = load.protocol == GRPC_IDS
        if load.request_rate is None:
            how = [f"--concurrency-range={load.concurrency or 1}"]
        else:
            how = [f"--request-rate-range={load.request_rate:g}", f"--request-distribution={load.arrival}"]
        return (
            *(program, "-m", CORE_MODEL if ids else target.model, "-i", "grpc", "-u", target.grpc, "--async"),
            *(("--streaming",) if load.streaming else ()),
            f"--input-data={INPUT_DATA}",
            *(() if ids else ("--shape=text_input:1",)),
            *how,
            f"--request-count={(load.requests or 1) + load.warmup}",
            # One window is the whole measurement: nothing is repeated until figures are stable.
            *("--measurement-mode=count_windows", "--stability-percentage=999"),
            f"--profile-export-file={EXPORT}",
        )

    def outcome(self, folder: Path, wanted: Wanted) -> Outcome:
        """Return the sum of its export."""
        path = folder / EXPORT
        try:
            return read_export(json.loads(path.read_text(encoding="utf-8", errors="replace")), wanted)
        except OSError as error:
            raise unreadable(self.name, folder, f"{path.name}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise unreadable(self.name, folder, f"{path.name}: {error!r}") from None


def _entries(wanted: Wanted) -> Sequence[Entry]:
    """Return the dataset, or entries with lengths that are drawn with the load's seed."""
    if wanted.entries:
        return wanted.entries
    draw, ids = random.Random(wanted.load.seed), wanted.load.protocol == GRPC_IDS
    made = []
    for _ in range(wanted.prompts):
        put, most = _lengths(wanted, draw)
        drawn = tuple(draw.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(put)) if ids else ()
        text = "" if ids else "".join(draw.choice(LETTERS) for _ in range(put))
        made.append(Entry(text, drawn, most))
    return made


def _lengths(wanted: Wanted, draw: random.Random) -> tuple[int, int]:
    if wanted.load.lengths:
        put, most, _ = draw.choices(wanted.load.lengths, [share for *_, share in wanted.load.lengths])[0]
        return put, most
    asked = (wanted.load.input_tokens or (128.0, 0.0), wanted.load.output_tokens or (DEFAULT_MAX_TOKENS, 0.0))
    put, most = (max(1, round(draw.gauss(*one))) for one in asked)
    return put, most


def _most(one: Entry, wanted: Wanted) -> int:
    usual = wanted.load.output_tokens
    return one.most or (int(usual[0]) if usual else DEFAULT_MAX_TOKENS)


def _ids_row(one: Entry, wanted: Wanted) -> dict[str, Any]:
    return {
        "input_ids": {"content": list(one.ids), "shape": [len(one.ids)]},
        "input_lengths": [len(one.ids)],
        "request_output_len": [_most(one, wanted)],
        # No token ends an answer before its length is reached, as in NVIDIA's benchmark.
        "end_id": [-1],
        **({"streaming": [True]} if wanted.load.streaming else {}),
    }


def _text_row(one: Entry, wanted: Wanted) -> dict[str, Any]:
    most, engine = _most(one, wanted), wanted.target.engine
    if engine == "vllm":
        own = json.dumps({"max_tokens": str(most)})
        return {"text_input": [one.text], "stream": [True], "sampling_parameters": [own]}
    if engine == "tensorrtllm":
        return {"text_input": [one.text], "max_tokens": [most], "stream": [True]}
    return {"text_input": [one.text], "sampling_param_max_tokens": [most], "streaming": [True]}


@dataclass(frozen=True)
class _Request:
    """One request of an export; times in nanoseconds, `times` those of answers that held something."""

    began: int
    ended: int
    times: tuple[int, ...]
    tokens: int
    put: int | None


def read_export(value: Mapping[str, Any], wanted: Wanted) -> Outcome:
    """Return what an export of perf_analyzer (`--profile-export-file`) says, without the requests to warm up.

    Raises:
        KeyError, TypeError, IndexError: it is none.
    """
    (experiment,) = value["experiments"]
    rows = sorted(experiment["requests"], key=lambda one: one["timestamp"])[wanted.load.warmup :]
    made = [_request(one) for one in rows if one["response_timestamps"]]
    failed = len(rows) - len(made)
    notes = (PIECES,) if wanted.load.protocol == GRPC else ()
    return Outcome(_figures(made, wanted.load.streaming), len(made), failed, notes=notes)


def _request(value: Mapping[str, Any]) -> _Request:
    outputs = value.get("response_outputs") or [{}] * len(value["response_timestamps"])
    counts = [_tokens(one) for one in outputs]
    times = tuple(at for at, count in zip(value["response_timestamps"], counts, strict=True) if count)
    put = (value.get("request_inputs") or {}).get("input_lengths")
    most = value["response_timestamps"][-1]
    return _Request(value["timestamp"], most, times, sum(counts), put if isinstance(put, int) else None)


def _tokens(outputs: Mapping[str, Any]) -> int:
    """Return how many tokens an answer holds: its ids, else one for a piece of text."""
    ids = outputs.get("output_ids")
    if ids is not None:
        return len(ids) if isinstance(ids, list) else 1
    return 1 if outputs.get("text_output") else 0


def _figures(rows: Sequence[_Request], streaming: bool) -> dict[str, Figure]:
    if not rows:
        return {}
    seconds = (max(one.ended for one in rows) - min(one.began for one in rows)) / _NANO
    tokens = sum(one.tokens for one in rows)
    told = {
        kept.LATENCY: [(one.ended - one.began) / _MILLI for one in rows],
        kept.OUTPUT: [float(one.tokens) for one in rows],
        kept.INPUT: [float(one.put) for one in rows if one.put is not None],
    }
    if streaming:
        told[kept.FIRST] = [(one.times[0] - one.began) / _MILLI for one in rows if one.times]
        many = [one for one in rows if one.tokens > 1 and one.times]
        told[kept.BETWEEN] = [(one.times[-1] - one.times[0]) / _MILLI / (one.tokens - 1) for one in many]
    rates = {kept.REQUESTS: len(rows) / seconds, kept.TOKENS: tokens / seconds} if seconds > 0 else {}
    figures = {name: Figure(kept.UNITS[name], rate) for name, rate in rates.items()}
    spreads = {name: spread(values, kept.UNITS[name]) for name, values in told.items()}
    return {**figures, **{name: one for name, one in spreads.items() if one is not None}}
