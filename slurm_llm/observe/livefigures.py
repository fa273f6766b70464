"""What an instance does now: rates, queue, cache and times, from two looks at its metrics page. Pure.

A figure that the page does not have is None: nothing is estimated from other figures. What the families mean is in
`metricsknown`; vLLM's gauges are those of its own metrics page (docs.vllm.ai, "Production metrics").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_llm.observe.metrics import quantile
from slurm_llm.observe.metricstext import Family, Sample

ANSWERED, FAILED, PENDING = (
    f"nv_inference_{name}" for name in ("request_success", "request_failure", "pending_request_count")
)
DURATION, SUMMARY = "nv_inference_request_duration_us", "nv_inference_request_summary_us"
FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
ENGINE_REQUESTS, CACHE_BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
OUTPUT_LENGTH = "nv_llm_output_token_len"
VLLM_WHOLE, VLLM_FIRST, VLLM_TOKENS = (
    f"vllm:{name}" for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "generation_tokens_total")
)
VLLM_CACHE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
VLLM_ENDED = "vllm:request_success_total"
VLLM_WAITING, VLLM_RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
DIGITS = 9
HANDS_OVER = frozenset({"vllm", "llmapi", "rehearsal"})
"""Engines whose model hands a request over and returns: Triton's time of it is that moment (measured: 1 ms of 24 s)."""

PROBE_TOOK, PROBE_AT, PROBE_GOOD = (
    f"slurm_llm_probe_{name}" for name in ("duration_seconds", "timestamp_seconds", "success")
)
"""Families of the page of the run's head, with a label `instance`; see `agent.runfamilies`."""

Families = Mapping[str, Family]


@dataclass(frozen=True)
class Spread:
    """How long requests took, in seconds; `beyond` where the quantile lies above the last bucket's bound."""

    mean_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    beyond: bool = False


@dataclass(frozen=True)
class Figures:
    """What one instance, or all of them, did in the `seconds` between two looks; None where its page does not say.

    `answered` and `failed` are since the server's start. `waiting` are requests in Triton's queue and the engine's, in
    `running` those that the engine works on. `kv_cache` is the share in use, 0 to 1.
    """

    seconds: float = 0.0
    answered: float | None = None
    failed: float | None = None
    requests_per_s: float | None = None
    failures_per_s: float | None = None
    waiting: float | None = None
    running: float | None = None
    kv_cache: float | None = None
    tokens_per_s: float | None = None
    latency: Spread = Spread()
    first_token: Spread = Spread()
    restarted: bool = False
    """The server was started again between the two looks: its counters began anew."""


@dataclass(frozen=True)
class Probe:
    """The short generation that the run's head has asked an instance for last: how long it took, when it ended."""

    took_s: float
    at: float
    good: bool


def build_probes(page: Sequence[Family]) -> dict[int, Probe]:
    """Return instance → its last probe, from the page of the run's head."""
    told: dict[int, dict[str, float]] = {}
    for family in page:
        for one in family.samples if family.name in (PROBE_TOOK, PROBE_AT, PROBE_GOOD) else ():
            instance = dict(one.labels).get("instance", "")
            if instance.isascii() and instance.isdecimal() and len(instance) < DIGITS and math.isfinite(one.value):
                told.setdefault(int(instance), {})[family.name] = one.value
    return {
        instance: Probe(own[PROBE_TOOK], own[PROBE_AT], own[PROBE_GOOD] > 0)
        for instance, own in told.items()
        if len(own) == len((PROBE_TOOK, PROBE_AT, PROBE_GOOD))
    }


def build_figures(
    model: str, engine: str, page: Sequence[Family], before: Sequence[Family] = (), seconds: float = 0.0
) -> Figures:
    """Return the figures of one page, and with an earlier one, `seconds` ago, the rates between them.

    `model` is the served model, whose requests count; where Triton counts none for it (TensorRT-LLM's backend before
    release 23.12), those of the model that has most.
    """
    now, then = _by_name(page), _by_name(before)
    own = _counted(now, model)
    looks = _Looks(now, then, seconds if before else 0.0)
    again = looks.restarted(own)
    if again:
        looks = replace(looks, seconds=0.0)
    return Figures(
        seconds=looks.seconds,
        answered=_first(_total(now, ANSWERED, model=own), _total(now, VLLM_ENDED)),
        failed=_total(now, FAILED, model=own),
        requests_per_s=_first(looks.rate(ANSWERED, model=own), looks.rate(VLLM_ENDED)),
        failures_per_s=looks.rate(FAILED, model=own),
        waiting=_plus(
            _total(now, PENDING, model=own),
            _total(now, ENGINE_REQUESTS, request_type="waiting"),
            _total(now, VLLM_WAITING),
        ),
        running=_plus(_total(now, ENGINE_REQUESTS, request_type="active"), _total(now, VLLM_RUNNING)),
        kv_cache=_cache(now),
        tokens_per_s=_plus(looks.rate(VLLM_TOKENS), looks.rate(OUTPUT_LENGTH, f"{OUTPUT_LENGTH}_sum")),
        latency=_latency(looks, engine, own),
        first_token=looks.spread(VLLM_FIRST, 1.0) or looks.spread(FIRST_RESPONSE, 1e-3, model=own) or Spread(),
        restarted=again,
    )


def add_up(each: Iterable[Figures]) -> Figures | None:
    """Return the figures of all instances together; None of none.

    The cache's is that of the fullest; a mean weighs instances by their requests. Quantiles do not add up.
    """
    found = list(each)
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    return Figures(
        seconds=max(one.seconds for one in found),
        answered=_plus(*(one.answered for one in found)),
        failed=_plus(*(one.failed for one in found)),
        requests_per_s=_plus(*(one.requests_per_s for one in found)),
        failures_per_s=_plus(*(one.failures_per_s for one in found)),
        waiting=_plus(*(one.waiting for one in found)),
        running=_plus(*(one.running for one in found)),
        kv_cache=max((one.kv_cache for one in found if one.kv_cache is not None), default=None),
        tokens_per_s=_plus(*(one.tokens_per_s for one in found)),
        latency=Spread(_weighed([(one.latency.mean_s, one.requests_per_s) for one in found])),
        first_token=Spread(_weighed([(one.first_token.mean_s, one.requests_per_s) for one in found])),
        restarted=any(one.restarted for one in found),
    )


@dataclass(frozen=True)
class _Looks:
    """Two looks at a page; `seconds` is 0 where there is no earlier one to compare with."""

    now: Families
    then: Families
    seconds: float

    def restarted(self, model: str) -> bool:
        """Tell whether a counter went backwards."""
        both = (
            (_total(self.now, name, model=model), _total(self.then, name, model=model)) for name in (ANSWERED, DURATION)
        )
        return self.seconds > 0 and any(now is not None and then is not None and now < then for now, then in both)

    def grown(self, family: str, name: str = "", **labels: str) -> float | None:
        """Return by how much a counter has grown; it may have appeared meanwhile, from 0."""
        value = _total(self.now, family, name, **labels)
        if value is None or self.seconds <= 0:
            return None
        return max(0.0, value - (_total(self.then, family, name, **labels) or 0.0))

    def rate(self, family: str, name: str = "", **labels: str) -> float | None:
        """Return a counter's growth per second."""
        grown = self.grown(family, name, **labels)
        return None if grown is None else _finite(grown / self.seconds)

    def spread(self, family: str, unit_s: float, **labels: str) -> Spread | None:
        """Return what a histogram has observed between the looks; None without any observation."""
        count, total = (self.grown(family, f"{family}_{part}", **labels) for part in ("count", "sum"))
        if not count or total is None:
            return None
        was = _buckets(self.then, family, labels)
        buckets = [
            (bound, number - was.get(bound, 0.0))
            for bound, number in sorted(_buckets(self.now, family, labels).items())
        ]
        middle, high = quantile(0.5, buckets), quantile(0.99, buckets)
        return Spread(
            mean_s=_finite(total / count * unit_s),
            p50_s=None if middle is None else _finite(middle[0] * unit_s),
            p99_s=None if high is None else _finite(high[0] * unit_s),
            beyond=high is not None and high[1],
        )


def _latency(looks: _Looks, engine: str, model: str) -> Spread:
    """Return the time of a whole request: the engine's own histogram, else Triton's mean with its recent quantiles."""
    own = looks.spread(VLLM_WHOLE, 1.0)
    if own is not None or engine in HANDS_OVER:
        return own or Spread()
    count, total = looks.grown(ANSWERED, model=model), looks.grown(DURATION, model=model)
    if not count or total is None:
        return Spread()
    shares = {
        text: sample.value
        for sample in _samples(looks.now, SUMMARY, {"model": model})
        if (text := dict(sample.labels).get("quantile"))
    }
    return Spread(_micro(total / count), _micro(shares.get("0.5")), _micro(shares.get("0.99")))


def _micro(value: float | None) -> float | None:
    return None if value is None else _finite(value * 1e-6)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _by_name(page: Sequence[Family]) -> Families:
    return {family.name: family for family in page}


def _counted(now: Families, model: str) -> str:
    """Return the model whose requests count."""
    counts = {dict(one.labels).get("model", ""): one.value for one in _samples(now, ANSWERED, {})}
    if counts.get(model) or not any(counts.values()):
        return model
    return max(counts, key=lambda name: counts[name])


def _samples(page: Families, family: str, labels: Mapping[str, str]) -> Iterable[Sample]:
    found = page.get(family)
    for sample in found.samples if found else ():
        own = dict(sample.labels)
        if all(own.get(name) == value for name, value in labels.items()):
            yield sample


def _total(page: Families, family: str, name: str = "", **labels: str) -> float | None:
    """Return the sum over a family's samples of that name and those labels; None where there is none."""
    values = [one.value for one in _samples(page, family, labels) if one.name == (name or family)]
    total = sum(values)
    return total if values and math.isfinite(total) else None


def _buckets(page: Families, family: str, labels: Mapping[str, str]) -> dict[float, float]:
    """Return upper bound → observations up to it; a bound that is no number is left out."""
    found: dict[float, float] = {}
    for one in _samples(page, family, labels):
        bound = _bound(dict(one.labels).get("le", ""))
        if bound is not None:
            found[bound] = found.get(bound, 0.0) + one.value
    return found


def _bound(text: str) -> float | None:
    """Return the bound of a bucket, which may be infinite; None for what is none."""
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _cache(now: Families) -> float | None:
    """Return the share of the KV cache that is in use."""
    told = [one.value for name in VLLM_CACHE for one in _samples(now, name, {})]
    told += [one.value for one in _samples(now, CACHE_BLOCKS, {"kv_cache_block_type": "fraction"})]
    if not told:
        used, most = (_total(now, CACHE_BLOCKS, kv_cache_block_type=name) for name in ("used", "max"))
        told = [used / most] if used is not None and most else []
    return max((one for one in told if math.isfinite(one)), default=None)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _plus(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return _finite(sum(known)) if known else None


def _weighed(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None and weight]
    total = sum(weight for _, weight in known)
    return _finite(sum(value * weight for value, weight in known) / total) if total else None
