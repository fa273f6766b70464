"""Figures of an instance: rates and times between two looks at real pages, and nothing where a page says nothing."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.observe import livefigures
from slurm_llm.observe.livefigures import Figures, Probe, Spread, add_up, build_figures, build_probes
from slurm_llm.observe.metricstext import Family, Sample, parse_metrics
from tests.observe.test_metrics import ENGINE, PAGES

ENDS = ("bucket", "count", "sum")


def families(text: str) -> list[Family]:
    """Return a page's families."""
    return parse_metrics(text)


def text(name: str) -> str:
    """Return a recorded page."""
    return (PAGES / f"{name}.txt").read_text(encoding="utf-8")


def rounded(own: Spread) -> Spread:
    """Return times to the nanosecond."""
    mean, middle, high = (one and round(one, 9) for one in (own.mean_s, own.p50_s, own.p99_s))
    return Spread(mean, middle, high, own.beyond)


def changed(page: list[Family], name: str, change: float, **labels: str) -> list[Family]:
    """Return a page on which the samples of that name and those labels have grown."""
    wanted = set(labels.items())
    return [
        dataclasses.replace(
            family,
            samples=tuple(
                dataclasses.replace(one, value=one.value + change)
                if one.name == name and wanted <= set(one.labels)
                else one
                for one in family.samples
            ),
        )
        for family in page
    ]


def test_two_looks_at_a_real_triton() -> None:
    """One request more in two seconds, as `triton-1` and `triton-2` have it; the engine's queue is not on that page."""
    made = build_figures("tensorrt_llm", "tensorrtllm", families(text("triton-2")), families(text("triton-1")), 2.0)
    assert (made.answered, made.failed, made.waiting) == (23, 0, 0)
    assert (made.requests_per_s, made.failures_per_s) == (0.5, 0)
    assert rounded(made.latency) == Spread(0.000474)
    assert (made.kv_cache, made.running, made.tokens_per_s, made.first_token) == (None, None, None, Spread())


@pytest.mark.parametrize("engine", ["rehearsal", "llmapi", "vllm"])
def test_the_time_of_handing_a_request_over_is_not_shown_as_its_own(engine: str) -> None:
    """Python models return before they answer: Triton's microseconds would be a thousand times too small."""
    made = build_figures("tensorrt_llm", engine, families(text("triton-2")), families(text("triton-1")), 2.0)
    assert made.latency == Spread()
    assert made.requests_per_s == 0.5


def test_one_look_has_no_rates() -> None:
    """What has been counted since the start is no rate."""
    made = build_figures("tensorrt_llm", "rehearsal", families(text("triton-1")))
    assert (made.answered, made.requests_per_s, made.seconds) == (22, None, 0.0)


def test_a_real_vllm() -> None:
    """Times are those of the interval: ten requests more, of which eight took 1 to 10 ms and two up to 100 ms."""
    before = families(text("vllm"))
    name = "vllm:time_to_first_token_seconds"
    (histogram,) = (family for family in before if family.name == name)
    bounds = [bound for one in histogram.samples if (bound := dict(one.labels).get("le"))]
    after = changed(before, "vllm:generation_tokens_total", 100)
    for bound in bounds:
        after = changed(after, f"{name}_bucket", 0 if float(bound) < 0.01 else 8 if bound == "0.01" else 10, le=bound)
    after = changed(changed(after, f"{name}_count", 10), f"{name}_sum", 0.08)
    made = build_figures("vllm_model", "vllm", after, before, 4.0)
    assert made.tokens_per_s == 25
    assert made.first_token.mean_s == pytest.approx(0.008)
    assert made.first_token.p50_s == pytest.approx(0.001 + 0.009 * 5 / 8)
    assert made.first_token.p99_s == pytest.approx(0.01 + 0.09 * 1.9 / 2)
    assert made.latency == Spread()


def test_a_compiled_engine() -> None:
    """Its queue, its cache, and the ensemble's requests where Triton counts none for the engine's own model."""
    made = build_figures("tensorrt_llm", "tensorrtllm", families(ENGINE))
    assert (made.answered, made.waiting, made.kv_cache) == (7, 3, 0.25)
    after = changed(families(ENGINE), "nv_llm_output_token_len_sum", 200)
    assert build_figures("tensorrt_llm", "tensorrtllm", after, families(ENGINE), 2.0).tokens_per_s == 100


def test_the_cache_of_blocks() -> None:
    """A page that counts blocks without their share, and vLLM's own gauge."""
    name = "nv_trt_llm_kv_cache_block_metrics"
    blocks = f'# TYPE {name} gauge\n{name}{{kv_cache_block_type="used"}} 30\n{name}{{kv_cache_block_type="max"}} 120\n'
    assert build_figures("m", "tensorrtllm", families(blocks)).kv_cache == 0.25
    gauge = "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.5\n"
    assert build_figures("m", "vllm", families(gauge)).kv_cache == 0.5


def test_a_server_that_was_started_again() -> None:
    """Its counters begin anew: no negative rates, and it is told."""
    made = build_figures("tensorrt_llm", "rehearsal", families(text("triton-1")), families(text("triton-2")), 2.0)
    assert made.restarted
    assert (made.requests_per_s, made.failures_per_s, made.latency) == (None, None, Spread())
    assert made.answered == 22


def test_recent_quantiles_of_triton() -> None:
    """Where its summaries are on they stand beside the mean."""
    page = families(text("triton-summaries"))
    after = changed(changed(page, "nv_inference_request_success", 2), "nv_inference_request_duration_us", 2000)
    made = build_figures("tensorrt_llm", "tensorrtllm", after, page, 1.0)
    assert rounded(made.latency) == Spread(0.001, 0.000474, 0.000542)


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_page_with_no_numbers(value: str) -> None:
    """What is no figure is none; nothing is divided by it."""
    page = re.sub(r"^([^#].*) \S+$", rf"\1 {value}", text("vllm"), flags=re.MULTILINE)
    made = build_figures("vllm_model", "vllm", families(page), families(text("vllm")), 2.0)
    empty = Figures(seconds=2.0)
    assert dataclasses.replace(made, restarted=False) == empty


NAMES = sorted(
    value for name, value in vars(livefigures).items() if name.isupper() and isinstance(value, str) and len(value) > 8
)
samples = st.builds(
    Sample,
    st.sampled_from(NAMES).flatmap(lambda name: st.sampled_from([name, *(f"{name}_{end}" for end in ENDS)])),
    st.dictionaries(
        st.sampled_from(["model", "le", "quantile", "instance", "request_type", "kv_cache_block_type"]),
        st.sampled_from(
            ["m", "0", "0.5", "1e400", "+Inf", "NaN", "fraction", "used", "max", "waiting", "9" * 5000, "²"]
        ),
        max_size=3,
    ).map(lambda found: tuple(sorted(found.items()))),
    st.floats(),
)
whole_pages = st.dictionaries(st.sampled_from(NAMES), st.lists(samples, max_size=6), max_size=5).map(
    lambda found: [Family(name, "untyped", "", tuple(own)) for name, own in found.items()]
)


@given(whole_pages, whole_pages, st.sampled_from([0.0, 1e-300, 2.0]), st.sampled_from(["vllm", "tensorrtllm"]))
def test_any_page_has_figures(now: list[Family], then: list[Family], seconds: float, engine: str) -> None:
    """A server that says nonsense brings no error, and no figure that JSON does not know."""
    made = build_figures("m", engine, now, then, seconds)
    json.dumps(dataclasses.asdict(made), allow_nan=False)
    json.dumps([dataclasses.asdict(one) for one in build_probes(now).values()], allow_nan=False)


def test_all_instances_together() -> None:
    """Sums of what adds up, the fullest cache, a mean by requests; quantiles of several do not add up."""
    one = Figures(2.0, 10, 1, 3.0, 0.5, 1, None, 0.2, 30.0, Spread(0.1, 0.1, 0.2), Spread(), False)
    two = Figures(2.0, 20, 0, 1.0, 0.0, 2, None, 0.9, None, Spread(0.5, 0.4, 0.9), Spread(), False)
    both = add_up([one, two])
    assert both is not None
    assert (both.answered, both.requests_per_s, both.waiting, both.kv_cache, both.tokens_per_s) == (30, 4, 3, 0.9, 30)
    assert rounded(both.latency) == Spread(0.2)
    assert both.running is None
    assert add_up([one]) == one
    assert add_up([]) is None


def test_what_the_head_has_asked() -> None:
    """Its last question to each instance; one of which it does not say everything is left out."""
    page = """\
# TYPE slurm_llm_probe_success gauge
slurm_llm_probe_success{rank="0",node="a",instance="0"} 1
slurm_llm_probe_success{rank="4",node="b",instance="1"} 0
slurm_llm_probe_success{rank="8",node="c",instance="2"} 1
# TYPE slurm_llm_probe_duration_seconds gauge
slurm_llm_probe_duration_seconds{rank="0",node="a",instance="0"} 0.135
slurm_llm_probe_duration_seconds{rank="4",node="b",instance="1"} 60.0
slurm_llm_probe_duration_seconds{rank="8",node="c",instance="2"} NaN
# TYPE slurm_llm_probe_timestamp_seconds gauge
slurm_llm_probe_timestamp_seconds{rank="0",node="a",instance="0"} 1796035260
slurm_llm_probe_timestamp_seconds{rank="4",node="b",instance="1"} 1796035250
slurm_llm_probe_timestamp_seconds{rank="8",node="c",instance="2"} 1796035250
"""
    assert build_probes(families(page)) == {0: Probe(0.135, 1796035260, True), 1: Probe(60.0, 1796035250, False)}
    assert build_probes(families(text("vllm"))) == {}


def test_a_page_of_vllm_alone() -> None:
    """Without Triton's families its own count of requests stands for them."""
    name = "vllm:request_success_total"
    page = f'# TYPE {name} counter\n{name}{{finished_reason="stop"}} 5\n{name}{{finished_reason="length"}} 3\n'
    made = build_figures("m", "vllm", changed(families(page), name, 1), families(page), 2.0)
    assert (made.answered, made.requests_per_s, made.failed) == (10, 1.0, None)
