"""Metrics pages: read strictly, folded into rows with meaning, unit, rate and estimated quantiles, absences explained.

`metrics_pages/` holds pages of a real Triton 2.51: of a rehearsal (two looks at one server, and one with summaries),
and of a real vLLM under Triton's vLLM backend; `vllm-0.32-own` is what vLLM 0.32 itself shows before any request.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.errors import RequestFailed
from slurm_llm.observe.metrics import CREATED, ESTIMATED, Page, Row, build_metrics, quantile, restarted
from slurm_llm.observe.metricsfamily import Known
from slurm_llm.observe.metricsknown import KNOWN
from slurm_llm.observe.metricsnotes import build_notes
from slurm_llm.observe.metricstext import KINDS, Family, Sample, parse_metrics

PAGES = Path(__file__).parent / "metrics_pages"
ENGINE = """\
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="ensemble",version="1"} 7
nv_inference_request_success{model="tensorrt_llm",version="1"} 0
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
# TYPE nv_trt_llm_v1_metrics gauge
nv_trt_llm_v1_metrics{v1_specific_metric="empty_generation_slots",model="tensorrt_llm",version="1"} 4
# TYPE nv_trt_llm_inflight_batcher_metrics gauge
nv_trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric="paused_requests",model="tensorrt_llm"} 1
# TYPE nv_llm_output_token_len histogram
nv_llm_output_token_len_count{response_metric_type="total_output_tokens",model="tensorrt_llm",version="1"} 10
nv_llm_output_token_len_sum{response_metric_type="total_output_tokens",model="tensorrt_llm",version="1"} 700
nv_llm_output_token_len_bucket{response_metric_type="total_output_tokens",model="tensorrt_llm",version="1",le="10"} 0
nv_llm_output_token_len_bucket{response_metric_type="total_output_tokens",model="tensorrt_llm",version="1",le="50"} 0
"""
"""Beginning of a compiled engine's page, with the names and labels of custom_metrics_reporter.cc."""


def page(name: str, instance: int = 0) -> Page:
    """Return a recorded page."""
    return Page(instance, tuple(parse_metrics((PAGES / f"{name}.txt").read_text(encoding="utf-8"))))


def figures(rows: list[Row], instance: int = 0) -> dict[tuple[str, ...], float]:
    """Return (family, label values, stat) → value."""
    shown = {}
    for row in rows:
        words = (row.family, *(value for _, value in row.labels), *([row.stat] if row.stat else []))
        shown[words] = row.cells[instance].value
    return shown


def test_a_real_page() -> None:
    """Names, kinds, labels and values are the page's."""
    families = {family.name: family for family in page("triton-1").families}
    assert families["nv_inference_request_failure"].kind == "counter"
    assert families["nv_cpu_utilization"].help == "CPU utilization rate [0.0 - 1.0]"
    (sample,) = families["nv_inference_request_success"].samples
    assert (sample.labels, sample.value) == ((("model", "tensorrt_llm"), ("version", "1")), 22)
    assert set(families) <= set(KNOWN)


@pytest.mark.parametrize("name", sorted(path.stem for path in PAGES.glob("*.txt")))
def test_every_line_of_a_real_page_is_in_a_row(name: str) -> None:
    """As many samples are read as the page has; every family that a real server shows is known."""
    text = (PAGES / f"{name}.txt").read_text(encoding="utf-8")
    families = parse_metrics(text)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert sum(len(family.samples) for family in families) == len(lines)
    rows = build_metrics([Page(0, tuple(families))])
    assert {row.family for row in rows} == {one.name for one in families if not one.name.endswith(CREATED)}
    assert [row.family for row in rows if row.known is None] == []


names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.floats(allow_nan=False)
labels = st.dictionaries(label_names, texts, max_size=3).map(lambda found: tuple(sorted(found.items())))


def escaped(text: str, *, quotes: bool) -> str:
    """Return a text as the format has it in a label's value, or in a HELP line."""
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quotes else plain


def written(families: list[Family], space: str) -> str:
    """Return a page that says the same."""
    rows = []
    for family in families:
        rows += [
            f"# HELP {family.name} {escaped(family.help, quotes=False)}",
            f"# TYPE {family.name} {family.kind}",
            "",
        ]
        for one in family.samples:
            inside = f",{space}".join(f'{name}{space}="{escaped(text, quotes=True)}"' for name, text in one.labels)
            number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(one.value, repr(one.value))
            rows.append(f"{one.name}{space}{{{space}{inside}}} {number}")
    return "\n".join(rows)


@given(
    st.dictionaries(names, st.tuples(st.sampled_from(KINDS), st.dictionaries(labels, values, min_size=1)), max_size=4),
    texts,
    st.sampled_from(["", " ", "\t"]),
)
def test_reading_is_the_inverse_of_writing(
    pages: dict[str, tuple[str, dict[tuple[tuple[str, str], ...], float]]], about: str, space: str
) -> None:
    """Whatever a label's value holds: quotes, backslashes, braces, line ends of other alphabets."""
    about = about.strip(" \t\r")
    families = [
        Family(name, kind, about, tuple(Sample(name, own, value) for own, value in samples.items()))
        for name, (kind, samples) in pages.items()
    ]
    assert parse_metrics(written(families, space)) == families


@given(st.text(st.sampled_from('# TYPEHLa{}="\\,.1e+-NInf \t\n'), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a page or our own error comes of it."""
    try:
        families = parse_metrics(text)
    except RequestFailed as error:
        assert all(str(problem) for problem in error.problems)
    else:
        assert all(family.samples for family in families)


@pytest.mark.parametrize(
    "line",
    [
        "<html>",
        "a",
        "a1",
        'a{b="c" 1',
        'a{b="c"x="d"} 1',
        'a{b="\\x"} 1',
        'a{b="1",b="2"} 1',
        "a{b=1} 1",
        "a 1_0",
        "a 0x10",
        "a infinity",
        "a 1 now",
        "a 1\na 2",
        "# TYPE a number",
        "# HELP",
        "# TYPE a gauge\n# TYPE a counter",
    ],
)
def test_what_is_no_page_is_refused_with_its_line(line: str) -> None:
    """A login page in place of metrics, half a line, a sample that is said twice: never a table with holes."""
    with pytest.raises(RequestFailed) as caught:
        parse_metrics(f"b 1\n{line}\n")
    assert str(caught.value).startswith(f"line {3 if chr(10) in line else 2}: ")


def test_many_faults_are_told_in_a_few_lines() -> None:
    """A page of another kind has thousands of them."""
    with pytest.raises(RequestFailed) as caught:
        parse_metrics("<p>\n" * 1000)
    assert [str(one) for one in caught.value.problems][-1] == "and 995 more"


@pytest.mark.parametrize(
    ("share", "buckets", "found"),
    [
        (0.5, [(1, 10), (2, 20), (math.inf, 20)], (1.0, False)),
        (0.75, [(1, 10), (2, 20), (math.inf, 20)], (1.5, False)),
        (0.5, [(1, 0), (2, 0), (4, 8), (math.inf, 8)], (3.0, False)),
        (0.99, [(1, 1), (2, 1), (math.inf, 100)], (2, True)),
        (0.5, [(-2, 4), (math.inf, 4)], (-2, False)),
        (0.5, [(1, 0), (math.inf, 0)], None),
        (0.5, [(math.inf, 5)], None),
        (0.5, [], None),
    ],
)
def test_quantiles(share: float, buckets: list[tuple[float, float]], found: tuple[float, bool] | None) -> None:
    """As Prometheus' histogram_quantile: straight within a bucket, the last finite bound beyond it."""
    assert quantile(share, buckets) == (found if found is None else pytest.approx(found))


@given(st.lists(st.floats(0.001, 150), min_size=1, max_size=60), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_an_estimate_lies_in_the_bucket_of_the_true_quantile(observed: list[float], share: float) -> None:
    """So it is never off by more than that bucket is wide; beyond the last bound it says so."""
    bounds = [0.1, 1.0, 10.0, 50.0, 100.0]
    counts = [(bound, float(sum(value <= bound for value in observed))) for bound in (*bounds, math.inf)]
    true = sorted(observed)[max(0, math.ceil(share * len(observed)) - 1)]
    found = quantile(share, counts)
    assert found is not None
    if true > bounds[-1]:
        assert found == (bounds[-1], True)
    else:
        high = next(bound for bound in bounds if true <= bound)
        low = max([0.0, *(bound for bound in bounds if bound < high)])
        assert low <= found[0] <= high + 1e-9
        assert not found[1]


def test_rates_are_between_two_looks_at_one_server() -> None:
    """Counters have one, gauges have none; the values are those of the second look."""
    rows = build_metrics([page("triton-1")], [page("triton-2")], 0.5)
    cells = {row.family: row.cells[0] for row in rows if not row.labels}
    assert (cells["nv_inference_request_success"].value, cells["nv_inference_request_success"].rate) == (23, 2.0)
    assert cells["nv_cpu_memory_used_bytes"].rate is None
    assert restarted(rows) == []
    assert restarted(build_metrics([page("triton-2")], [page("triton-1")], 1.0)) == [0]


def test_without_a_second_look_there_is_no_rate() -> None:
    """One look has no time between."""
    assert {cell.rate for row in build_metrics([page("triton-1")]) for cell in row.cells.values()} == {None}


def test_each_instance_has_its_own_figures() -> None:
    """A figure that an instance lacks is left out of that one's column only."""
    rows = build_metrics([page("triton-1", 0), page("triton-summaries", 3)])
    by_name = {(row.family, row.stat): sorted(row.cells) for row in rows}
    assert by_name["nv_inference_request_success", ""] == [0, 3]
    assert by_name["nv_inference_request_summary_us", "mean"] == [3]


def test_a_summary_has_the_servers_own_quantiles() -> None:
    """Count, mean and what the page says, not an estimate."""
    rows = build_metrics([page("triton-summaries")])
    found = [row for row in rows if row.family == "nv_inference_request_summary_us"]
    assert [row.stat for row in found] == ["count", "mean", "p50", "p90", "p95", "p99", "p99.9"]
    assert ESTIMATED not in {row.meaning for row in found}


def test_a_compiled_engines_page() -> None:
    """In-flight and V1 families, two models, and a histogram whose every answer lies beyond its buckets."""
    labels = 'response_metric_type="total_output_tokens",model="tensorrt_llm",version="1",le="+Inf"'
    rows = build_metrics([Page(0, tuple(parse_metrics(f"{ENGINE}nv_llm_output_token_len_bucket{{{labels}}} 10\n")))])
    shown = figures(rows)
    assert shown["nv_trt_llm_request_metrics", "waiting"] == 3
    assert shown["nv_trt_llm_kv_cache_block_metrics", "fraction"] == 0.25
    meanings = {(row.family, dict(row.labels).get(row.known.category)): row.meaning for row in rows if row.known}
    assert meanings["nv_trt_llm_v1_metrics", "empty_generation_slots"] == "places left empty"
    assert meanings["nv_trt_llm_inflight_batcher_metrics", "paused_requests"] == "paused for want of room"
    assert {row.model for row in rows} == {"ensemble", "tensorrt_llm"}
    lengths = {row.stat: row.cells[0] for row in rows if row.family == "nv_llm_output_token_len"}
    assert (lengths["count"].value, lengths["mean"].value) == (10, 70)
    assert (lengths["p50"].value, lengths["p50"].beyond) == (50, True)


def test_rows_have_an_order_of_their_own() -> None:
    """A page has reasons, models and GPUs in any order, another one on each start; GPUs of two nodes share rows."""
    power = 'nv_gpu_power_usage{gpu_uuid="GPU-%s"} %d'
    pages = [
        Page(number, tuple(parse_metrics("\n".join(power % gpu for gpu in gpus))))
        for number, gpus in enumerate([[("b", 2), ("a", 1)], [("x", 3), ("y", 4)]])
    ]
    rows = build_metrics(pages)
    assert [(row.labels, {number: cell.value for number, cell in row.cells.items()}) for row in rows] == [
        ((("gpu", "0"),), {0: 1, 1: 3}),
        ((("gpu", "1"),), {0: 2, 1: 4}),
    ]
    shown = [dict(row.labels)["reason"] for row in build_metrics([page("triton-1")]) if row.labels]
    assert shown == ["REJECTED", "CANCELED", "BACKEND", "OTHER"]


def test_a_real_vllms_page() -> None:
    """Its tokens and times, each histogram with count, mean and estimates."""
    rows = build_metrics([page("vllm")])
    found = {(row.family, row.stat): row for row in rows}
    tokens = found["vllm:generation_tokens_total", ""]
    assert (tokens.kind, tokens.unit, tokens.meaning) == ("counter", "tokens", "tokens written")
    assert tokens.cells[0].value > 0
    first = [found["vllm:time_to_first_token_seconds", stat] for stat in ("count", "mean", "p50", "p99")]
    assert all(row.cells[0].value > 0 for row in first)
    assert [row.unit for row in first] == ["", "s", "s", "s"]
    assert first[2].meaning == ESTIMATED


@pytest.mark.parametrize("known", KNOWN.values(), ids=lambda known: known.family)
def test_what_is_said_of_a_family_fits_into_80_columns(known: Known) -> None:
    """Two columns of values stand beside it."""
    assert all(len(text) <= 24 for text in known.parts.values())
    assert len(known.short) <= 27
    assert len(known.meaning) <= 24 or not known.block
    assert len(f"{known.family}  {known.owner}: {known.meaning}") <= 80


@pytest.mark.parametrize(
    ("name", "engine", "release", "told"),
    [
        ("triton-1", "llmapi", (), ["the LLM API's model has no families", "no nv_gpu_*", "histogram_latencies=true"]),
        ("triton-1", "tensorrtllm", (), ["only the C++ backend", "no nv_gpu_*", "summary_latencies=true"]),
        ("triton-1", "vllm", (), ["REPORT_CUSTOM_METRICS", "no nv_gpu_*", "off unless"]),
        ("triton-summaries", "rehearsal", (), ["A rehearsal is the same", "no nv_gpu_*", "histogram_latencies=true"]),
        ("vllm", "vllm", (), ["no nv_gpu_*", "off unless", "estimated from buckets"]),
    ],
)
def test_what_is_not_there_is_explained(name: str, engine: str, release: tuple[int, ...], told: list[str]) -> None:
    """Each absence once, none of what is there."""
    notes = build_notes(build_metrics([page(name)]), engine, release)
    assert len(notes) == len(told)
    assert all(part in note for part, note in zip(told, notes, strict=True)), notes


@pytest.mark.parametrize(
    ("release", "count", "told"),
    [((23, 10), 0, True), ((23, 12), 0, False), ((), 0, False), ((23, 10), 5, False)],
)
def test_zeros_of_old_releases_are_explained(release: tuple[int, ...], count: int, told: bool) -> None:
    """Only where the image's release is known to have that fault, and the model counts nothing at all."""
    text = ENGINE.replace('"tensorrt_llm",version="1"} 0', f'"tensorrt_llm",version="1"}} {count}')
    notes = build_notes(build_metrics([Page(0, tuple(parse_metrics(text)))]), "tensorrtllm", release)
    assert any("counts nothing in release 23.10" in note for note in notes) is told


def test_a_family_nobody_knows_keeps_its_own_words() -> None:
    """A newer server's figures are shown last, with the page's help."""
    text = '# HELP new_thing How new it is\n# TYPE new_thing gauge\nnew_thing{gpu="x"} 1\nnv_cpu_utilization 0.5\n'
    rows = build_metrics([Page(0, tuple(parse_metrics(text)))])
    assert [(row.family, row.meaning) for row in rows][-1] == ("new_thing", "How new it is")
