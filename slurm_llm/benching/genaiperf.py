"""NVIDIA's genai-perf, which aiperf follows: for images that have it. Its summary is read; perf_analyzer works below.

Options are those of 0.0.16, the last one. It knows TensorRT-LLM's and vLLM's models over gRPC, and an OpenAI front end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurm_llm.benching.tools import (
    ARTIFACTS,
    CHAT,
    COMPLETIONS,
    DATASET,
    GRPC,
    SUMMARY_NAMES,
    TOKENIZER,
    Outcome,
    Wanted,
    figures_of,
    unreadable,
)
from slurm_llm.errors import Problem
from slurm_llm.observe import benchresults as kept

SUMMARY = "profile_export_genai_perf.json"
BACKENDS = {"tensorrtllm": "tensorrtllm", "vllm": "vllm"}


class GenAiPerf:
    """genai-perf 0.0.16 and those that take its options."""

    name = "genai-perf"

    def problems(self, wanted: Wanted) -> list[Problem]:
        """Return what it cannot do."""
        load, target, found = wanted.load, wanted.target, []
        if load.protocol not in (GRPC, CHAT, COMPLETIONS):
            what = "genai-perf sends texts, by gRPC or to an OpenAI front end"
            found.append(Problem("--tool genai-perf", what, "aiperf"))
        elif load.protocol != GRPC and not target.openai:
            what = f"the run has no OpenAI front end for {load.protocol}"
            found.append(Problem("--endpoint", what, "frontend: openai in the spec", "leave it out"))
        elif load.protocol == GRPC and target.engine not in BACKENDS:
            what = f"genai-perf does not know the models of engine {target.engine}"
            found.append(Problem("--tool genai-perf", what, "aiperf"))
        if target.header:
            what = "genai-perf takes the key on its command line only, where every user of the node can read it"
            found.append(Problem("--tool genai-perf", what, "aiperf"))
        if any(one.most for one in wanted.entries) or any(one.ids for one in wanted.entries):
            what = "genai-perf takes texts alone, and one length for all answers"
            found.append(Problem("--dataset", what, "rows with `text`, and --output-tokens", "or take aiperf"))
        if wanted.load.lengths:
            found.append(
                Problem("--lengths", "genai-perf draws lengths from a mean and a deviation only", todo="aiperf")
            )
        return found

    def files(self, wanted: Wanted) -> dict[str, str]:
        """Return the dataset, where there is one."""
        text = "".join(json.dumps({"text": one.text}, ensure_ascii=False) + "\n" for one in wanted.entries)
        return {DATASET: text} if wanted.entries else {}

    def argv(self, program: str, wanted: Wanted) -> tuple[str, ...]:
        """Return its command line."""
        load, target = wanted.load, wanted.target
        openai = load.protocol != GRPC
        url = target.openai.removesuffix("/v1") if openai else target.grpc
        where = (load.protocol,) if openai else ("kserve", "--backend", BACKENDS[target.engine])
        return (
            *(program, "profile", "--model", target.model, "--url", url, "--endpoint-type", *where),
            *(("--streaming",) if load.streaming else ()),
            *("--tokenizer", str(wanted.place / TOKENIZER), "--random-seed", str(load.seed)),
            *_amount(wanted),
            *_prompts(wanted),
            *("--artifact-dir", str(wanted.place / ARTIFACTS)),
            *(() if load.arrival is None else ("--", f"--request-distribution={load.arrival}")),
        )

    def outcome(self, folder: Path, wanted: Wanted) -> Outcome:
        """Return what its summary says; its folder is named after the load."""
        found = sorted((folder / ARTIFACTS).rglob(f"*{SUMMARY.removeprefix('profile_export')}"))
        if not found:
            raise unreadable(self.name, folder, f"there is no {SUMMARY}")
        try:
            value = json.loads(found[-1].read_text(encoding="utf-8", errors="replace"))
            return read_summary(value, wanted.load.streaming)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(self.name, folder, f"{found[-1].name}: {error!r}") from None


def _amount(wanted: Wanted) -> tuple[str, ...]:
    load = wanted.load
    rate = load.request_rate
    how = ("--concurrency", str(load.concurrency or 1)) if rate is None else ("--request-rate", f"{rate:g}")
    until = () if load.requests is None else ("--request-count", str(load.requests))
    if load.duration_s is not None:
        until = ("--measurement-interval", str(round(1000 * load.duration_s)))
    return (*how, *until, "--warmup-request-count", str(load.warmup))


def _prompts(wanted: Wanted) -> tuple[str, ...]:
    load = wanted.load
    words = ["--num-dataset-entries", str(wanted.prompts)]
    if wanted.entries:
        words = ["--input-file", str(wanted.place / DATASET)]
    for option, asked in (("synthetic-input-tokens", load.input_tokens), ("output-tokens", load.output_tokens)):
        if asked is not None:
            words += [f"--{option}-mean", f"{asked[0]:g}", f"--{option}-stddev", f"{asked[1]:g}"]
    return tuple(words)


def read_summary(value: dict[str, Any], streaming: bool) -> Outcome:
    """Return what a summary of genai-perf says; of a whole answer it calls the latency its first token's too.

    Raises:
        KeyError, TypeError, AttributeError: it is none.
    """
    figures = figures_of(value, SUMMARY_NAMES, kept.UNITS)
    if not streaming:
        figures = {name: one for name, one in figures.items() if name not in (kept.FIRST, kept.BETWEEN)}
    count = value.get("request_count")
    if count is None and kept.LATENCY not in figures:
        raise KeyError("request_count")
    return Outcome(figures, 0 if count is None else round(count["avg"]), 0)
