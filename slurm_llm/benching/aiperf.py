"""NVIDIA's aiperf: a configuration file in, a JSON summary out. Pure but for reading that.

aiperf has no endpoint for Triton: its `template` type makes a body in the engine's own words and takes the answer by a
path (JMESPath); a stream of Triton's is plain server-sent events to it. The key stands in neither file nor command: the
configuration takes it from the environment. (aiperf 0.13: config/loader/env_vars.py, endpoints/template_endpoint.py.)
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
    HTTP,
    HUB_NAME,
    KEY_VARIABLE,
    SUMMARY_NAMES,
    Outcome,
    Wanted,
    figures_of,
    unreadable,
)
from slurm_llm.dialects import DEFAULT_MAX_TOKENS, Wish, dialect_of
from slurm_llm.errors import Problem
from slurm_llm.observe import benchresults as kept
from slurm_llm.observe.benchresults import Fault, Load

CONFIG, SUMMARY = "aiperf.yaml", "profile_export_aiperf.json"
ANSWER_TIMEOUT_S, GRACE_S = 600.0, 60.0
"""Longest wait for one answer; for those that are under way when the time is over."""
MOST_WORDS = 200
_PROMPT, _MOST = "\0prompt\0", 987_654_321


class AiPerf:
    """aiperf 0.13 and those that read its configuration."""

    name = "aiperf"

    def problems(self, wanted: Wanted) -> list[Problem]:
        """Return what it cannot do: gRPC is out of its reach, and so is a front end that is not there."""
        if wanted.load.protocol in (CHAT, COMPLETIONS) and not wanted.target.openai:
            what = f"the run has no OpenAI front end for {wanted.load.protocol}"
            return [Problem("--endpoint", what, "frontend: openai in the spec", "leave it out")]
        if any(one.ids for one in wanted.entries):
            return [Problem("--dataset", "aiperf sends texts, no token ids", "rows with `text`", "or --token-ids")]
        if wanted.load.protocol in HTTP:
            return []
        what = "aiperf does not speak gRPC"
        return [Problem("--tool aiperf", what, "perf_analyzer", "or leave --token-ids out")]

    def files(self, wanted: Wanted) -> dict[str, str]:
        """Return its configuration, and the dataset where there is one."""
        files = {CONFIG: json.dumps(configuration(wanted), indent=1) + "\n"}
        if wanted.entries:
            rows = ({"text": one.text, **({"output_length": one.most} if one.most else {})} for one in wanted.entries)
            files[DATASET] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        return files

    def argv(self, program: str, wanted: Wanted) -> tuple[str, ...]:
        """Return its command line: everything is in the configuration."""
        return (program, "profile", "--config", CONFIG)

    def outcome(self, folder: Path, wanted: Wanted) -> Outcome:
        """Return what its summary says."""
        path = folder / ARTIFACTS / SUMMARY
        try:
            return read_summary(json.loads(path.read_text(encoding="utf-8", errors="replace")))
        except OSError as error:
            raise unreadable(self.name, folder, f"{path.name}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(self.name, folder, f"{path.name}: {error!r}") from None


def configuration(wanted: Wanted) -> dict[str, Any]:
    """Return aiperf's configuration (schema 2.0) for one measurement."""
    load = wanted.load
    phases = {"profiling": _phase(load)}
    if load.warmup:
        most = min(load.warmup, load.concurrency or load.warmup)
        phases["warmup"] = {"type": "concurrency", "requests": load.warmup, "concurrency": most}
    return {
        "schemaVersion": "2.0",
        "randomSeed": load.seed,
        "benchmark": {
            "model": wanted.target.model,
            "endpoint": _endpoint(wanted),
            "dataset": _dataset(wanted),
            **phases,
            "artifacts": {"dir": str(wanted.place / ARTIFACTS), "records": False},
            "tokenizer": {"name": HUB_NAME},
            "gpuTelemetry": {"enabled": False},
            "serverMetrics": {"enabled": False},
            "runtime": {"ui": "none"},
        },
    }


def _endpoint(wanted: Wanted) -> dict[str, Any]:
    load, target = wanted.load, wanted.target
    common: dict[str, Any] = {"streaming": load.streaming, "timeout": ANSWER_TIMEOUT_S}
    if target.header:
        # Two parts: aiperf makes a number of a value that is one variable and looks like one.
        common["headers"] = {target.header: f"${{{KEY_VARIABLE}}}${{{KEY_VARIABLE}_END:}}"}
    if load.protocol in (CHAT, COMPLETIONS):
        return {"type": load.protocol, "url": target.openai.removesuffix("/v1"), **common}
    path = f"/v2/models/{target.model}/{load.protocol}"
    template = {"body": body_template(wanted), "response_field": "text_output"}
    return {"type": "template", "url": target.url, "path": path, "template": template, **common}


def body_template(wanted: Wanted) -> str:
    """Return the body of a request as a Jinja template of aiperf's: its variables are `text` and `max_tokens`."""
    body = dialect_of(wanted.target.engine).body(Wish(_PROMPT, "", wanted.load.streaming, _MOST))
    # Cancelling is not measured, and one id for all would be none.
    text = json.dumps({name: value for name, value in body.items() if name != "id"})
    usual = wanted.load.output_tokens
    most = int(usual[0]) if usual else DEFAULT_MAX_TOKENS
    return text.replace(json.dumps(_PROMPT), "{{ text|tojson }}").replace(str(_MOST), f"{{{{ max_tokens or {most} }}}}")


def _dataset(wanted: Wanted) -> dict[str, Any]:
    load = wanted.load
    if wanted.entries:
        return {"type": "file", "format": "single_turn", "path": str(wanted.place / DATASET)}
    made: dict[str, Any] = {"type": "synthetic", "entries": wanted.prompts}
    if load.lengths:
        total = sum(share for *_, share in load.lengths)
        rows = [{"isl": put, "osl": out, "probability": 100 * share / total} for put, out, share in load.lengths]
        # aiperf takes no lengths from here then, and refuses to make prompts without one.
        mean = sum(put * share for put, _, share in load.lengths) / total
        return {**made, "prompts": {"isl": {"mean": mean, "stddev": 0}, "sequence_distribution": rows}}
    for name, asked in (("isl", load.input_tokens), ("osl", load.output_tokens)):
        if asked is not None:
            made[name] = {"mean": asked[0], "stddev": asked[1]}
    return made


def _phase(load: Load) -> dict[str, Any]:
    own: dict[str, Any] = {"type": "concurrency"}
    if load.request_rate is not None:
        own = {"type": load.arrival, "rate": load.request_rate}
    if load.concurrency is not None:
        own["concurrency"] = load.concurrency
    if load.requests is not None:
        own["requests"] = load.requests
    if load.duration_s is not None:
        own.update(duration=load.duration_s, gracePeriod=GRACE_S)
    return own


def read_summary(value: dict[str, Any]) -> Outcome:
    """Return what a summary of aiperf says (schema 1.4 of its export, aiperf 0.13).

    Raises:
        KeyError, TypeError, AttributeError: it is none.
    """
    faults = [
        Fault(_error(one.get("error_details") or {}), int(one["count"])) for one in value.get("error_summary", ())
    ]
    unfinished = ""
    if value.get("was_cancelled") or value.get("is_complete") is False:
        unfinished = str(value.get("incomplete_reason") or "it was cancelled")
    return Outcome(
        figures=figures_of(value, SUMMARY_NAMES, kept.UNITS),
        answered=_count(value, "request_count"),
        failed=_count(value, "error_request_count"),
        errors=tuple(sorted(faults, key=lambda one: -one.count)),
        unfinished=unfinished,
    )


def _count(value: dict[str, Any], name: str) -> int:
    found = value.get(name)
    return 0 if found is None else round(found["avg"])


def _error(details: dict[str, Any]) -> str:
    kind, message = str(details.get("type") or ""), str(details.get("message") or "")
    parts = (details.get("code"), "" if message.startswith(kind) else kind, message)
    return " ".join(str(part) for part in parts if part)[:MOST_WORDS]
