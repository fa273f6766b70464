"""What each load generator is told, what it refuses, and what is read of the files that it really left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from slurm_llm.benching import aiperf, genaiperf, perfanalyzer
from slurm_llm.benching.scene import TOOLS
from slurm_llm.benching.tools import Entry, Target, Wanted, spread
from slurm_llm.dialects import Wish, dialect_of
from slurm_llm.errors import RunFailed
from tests.benching.cases import TARGET, capture, wanted

ENGINE = Target("http://n1:8000", "n1:8001", "", "ensemble", "tensorrtllm")
FRONT = Target("http://n1:8000", "n1:8001", "http://n1:8004/v1", "m", "vllm")
KEYED = Target("http://n1:8000", "n1:8001", "", "ensemble", "tensorrtllm", header="slurm-llm-key")
IDS = Entry(ids=(5, 6, 7), most=9)


@pytest.mark.parametrize("engine", ["llmapi", "rehearsal", "tensorrtllm", "vllm"])
@pytest.mark.parametrize("streaming", [True, False])
def test_aiperf_sends_what_the_engine_wants(engine: str, streaming: bool) -> None:
    """The body, filled as aiperf fills it, is the one that `generate` sends, for any text."""
    text = 'a "quoted" \\ <b>\n{{ 7 * 7 }} é'
    template = aiperf.body_template(wanted(Target("u", "g", "", "m", engine), streaming=streaming))
    filled = jinja2.Environment(autoescape=True).from_string(template)
    for most, told in ((5, 5), (None, 16)):
        made = json.loads(filled.render(text=text, max_tokens=most))
        own = dialect_of(engine).body(Wish(text, "", streaming, told))
        own.pop("id", None)
        assert made == own


def test_aiperf_is_told_everything_in_its_configuration() -> None:
    """Load, lengths, seed and place are there; the command line holds nothing that a sweep changes."""
    value = aiperf.configuration(wanted(seed=7))["benchmark"]
    assert value["profiling"] == {"type": "concurrency", "concurrency": 2, "requests": 10}
    assert value["warmup"] == {"type": "concurrency", "requests": 3, "concurrency": 2}
    assert (value["dataset"]["isl"]["mean"], value["dataset"]["osl"]["mean"], value["dataset"]["entries"]) == (
        32,
        16,
        13,
    )
    assert value["endpoint"]["path"] == "/v2/models/tensorrt_llm/generate_stream"
    assert "headers" not in value["endpoint"]
    assert TOOLS["aiperf"].argv("/bin/aiperf", wanted()) == ("/bin/aiperf", "profile", "--config", "aiperf.yaml")


def test_aiperf_takes_rates_times_datasets_and_lengths() -> None:
    """Arrivals and durations have aiperf's words; a dataset's rows keep their own lengths; shares add up to 100."""
    rate = wanted(warmup=0, concurrency=None, request_rate=2.5, arrival="poisson", requests=None, duration_s=9.0)
    value = aiperf.configuration(rate)["benchmark"]
    assert value["profiling"] == {"type": "poisson", "rate": 2.5, "duration": 9.0, "gracePeriod": aiperf.GRACE_S}
    assert "warmup" not in value
    files = TOOLS["aiperf"].files(wanted(entries=(Entry("hello", most=4), Entry("é"))))
    assert [json.loads(row) for row in files["dataset.jsonl"].splitlines()] == [
        {"text": "hello", "output_length": 4},
        {"text": "é"},
    ]
    rows = aiperf.configuration(wanted(lengths=((8, 4, 1.0), (16, 2, 3.0))))["benchmark"]["dataset"]["prompts"]
    assert [row["probability"] for row in rows["sequence_distribution"]] == [25.0, 75.0]
    assert rows["isl"]["mean"] == 14.0


def test_aiperf_reads_the_key_from_the_environment() -> None:
    """The header's name is in the configuration, and a variable in place of the value, in two parts: no number."""
    text = TOOLS["aiperf"].files(wanted(KEYED))["aiperf.yaml"]
    assert '"slurm-llm-key": "${SLURM_LLM_BENCH_KEY}${SLURM_LLM_BENCH_KEY_END:}"' in text


def test_aiperf_asks_an_openai_front_end() -> None:
    """Its address is without the /v1 that aiperf adds."""
    endpoint = aiperf.configuration(wanted(FRONT, protocol="chat"))["benchmark"]["endpoint"]
    assert (endpoint["type"], endpoint["url"]) == ("chat", "http://n1:8004")


def test_a_summary_of_aiperf() -> None:
    """Figures, counts and units of a real stream; a whole answer has no first token."""
    found = aiperf.read_summary(capture("aiperf-0.13.0-stream.json"))
    assert (found.answered, found.failed, found.errors, found.unfinished) == (20, 0, (), "")
    assert {name: one.unit for name, one in found.figures.items()} == {
        "request_throughput": "requests/s",
        "output_token_throughput": "tokens/s",
        "request_latency": "ms",
        "time_to_first_token": "ms",
        "inter_token_latency": "ms",
        "output_tokens": "tokens",
    }
    latency = found.figures["request_latency"]
    assert latency.p50 is not None and latency.p99 is not None and latency.max is not None
    assert 0 < latency.p50 < latency.p99 <= latency.max
    assert found.figures["output_tokens"].mean == 16
    whole = aiperf.read_summary(capture("aiperf-0.13.0-whole.json"))
    assert not {"time_to_first_token", "inter_token_latency"} & set(whole.figures)


def test_a_summary_of_a_server_that_was_killed() -> None:
    """aiperf itself ends with 0 then: its counts and errors tell, the most frequent first."""
    found = aiperf.read_summary(capture("aiperf-0.13.0-server-killed.json"))
    assert (found.answered, found.failed) == (73, 1871)
    assert [one.count for one in found.errors] == [1870, 1]
    assert found.errors[0].what.startswith("ClientConnectorError(")


def test_an_export_of_perf_analyzer_is_summed_up() -> None:
    """The requests to warm up are left out; latency ends with the last answer, unlike perf_analyzer's own."""
    value = capture("perf_analyzer-2.47.0-stream.json")
    found = perfanalyzer.read_export(value, wanted(protocol="grpc"))
    assert (found.answered, found.failed) == (10, 0)
    rows = sorted(value["experiments"][0]["requests"], key=lambda one: one["timestamp"])[3:]
    latencies = [(row["response_timestamps"][-1] - row["timestamp"]) / 1e6 for row in rows]
    assert found.figures["request_latency"].mean == pytest.approx(sum(latencies) / 10)
    assert found.figures["output_tokens"].mean == 16
    between, first = found.figures["inter_token_latency"], found.figures["time_to_first_token"]
    assert first.mean + 15 * between.mean == pytest.approx(found.figures["request_latency"].mean)


def test_token_ids_of_an_export_are_counted() -> None:
    """The core model answers with ids, one or many at a time; a request without an answer has failed."""
    answers = [{"output_ids": 4}, {"output_ids": [5, 6]}]
    first = {"timestamp": 0, "response_timestamps": [1e6, 3e6], "response_outputs": answers}
    second = {"timestamp": 0, "response_timestamps": []}
    requests = [{**first, "request_inputs": {"input_lengths": 32}}, second]
    found = perfanalyzer.read_export({"experiments": [{"requests": requests}]}, wanted(protocol="grpc_ids", warmup=0))
    assert (found.answered, found.failed) == (1, 1)
    assert found.figures["output_tokens"].mean == 3
    assert found.figures["input_tokens"].mean == 32
    assert found.figures["inter_token_latency"].mean == 1.0


def test_perf_analyzer_gets_token_ids_as_nvidias_benchmark_sends_them() -> None:
    """As many as are drawn, with their length, the answer's, and no token that ends it early; the seed repeats them."""
    one = wanted(ENGINE, protocol="grpc_ids", input_tokens=(20.0, 4.0))
    rows = json.loads(TOOLS["perf_analyzer"].files(one)[perfanalyzer.INPUT_DATA])["data"]
    assert len(rows) == 13
    for row in rows:
        count = len(row["input_ids"]["content"])
        assert (row["input_ids"]["shape"], row["input_lengths"]) == ([count], [count])
        assert (row["request_output_len"], row["end_id"], row["streaming"]) == ([16], [-1], [True])
    assert len({row["input_lengths"][0] for row in rows}) > 3
    assert TOOLS["perf_analyzer"].files(one) == TOOLS["perf_analyzer"].files(one)
    words = TOOLS["perf_analyzer"].argv("pa", one)
    assert words[:5] == ("pa", "-m", "tensorrt_llm", "-i", "grpc")
    assert "--request-count=13" in words and "--concurrency-range=2" in words


def test_perf_analyzer_gets_a_dataset_and_a_rate() -> None:
    """A dataset's own ids and lengths are sent; requests arrive as was asked."""
    one = wanted(ENGINE, (IDS,), protocol="grpc_ids", concurrency=None, request_rate=4.0, arrival="constant")
    (row,) = json.loads(TOOLS["perf_analyzer"].files(one)[perfanalyzer.INPUT_DATA])["data"]
    assert (row["input_ids"]["content"], row["request_output_len"]) == ([5, 6, 7], [9])
    words = TOOLS["perf_analyzer"].argv("pa", one)
    assert "--request-rate-range=4" in words and "--request-distribution=constant" in words


def test_a_summary_of_genai_perf() -> None:
    """It calls the latency of a whole answer that of its first token, too: that is left out."""
    value = capture("genai-perf-0.0.16-generate.json")
    found = genaiperf.read_summary(value, streaming=False)
    assert (found.answered, found.failed) == (10, 0)
    assert found.figures["request_throughput"].mean == pytest.approx(11.33, abs=0.01)
    assert (found.figures["input_tokens"].mean, found.figures["output_tokens"].mean) == (32, 16)
    assert "time_to_first_token" not in found.figures
    assert "time_to_first_token" in genaiperf.read_summary(value, streaming=True).figures


def test_genai_perf_is_told_by_options() -> None:
    """Its backend is the engine; how requests arrive goes through to perf_analyzer."""
    words = TOOLS["genai-perf"].argv(
        "gp", wanted(ENGINE, protocol="grpc", concurrency=None, request_rate=3.0, arrival="poisson")
    )
    text = " ".join(words)
    assert "--model ensemble --url n1:8001 --endpoint-type kserve --backend tensorrtllm --streaming" in text
    assert "--request-rate 3 --request-count 10 --warmup-request-count 3" in text
    assert "--synthetic-input-tokens-mean 32 --synthetic-input-tokens-stddev 0" in text
    assert text.endswith("-- --request-distribution=poisson")


REFUSED: dict[tuple[str, str], tuple[Target, dict[str, Any], tuple[Entry, ...], str]] = {
    ("aiperf", "grpc_ids"): (ENGINE, {}, (), "does not speak gRPC"),
    ("aiperf", "chat"): (TARGET, {}, (), "no OpenAI front end"),
    ("aiperf", "generate"): (ENGINE, {}, (IDS,), "no token ids"),
    ("genai-perf", "generate"): (ENGINE, {}, (), "sends texts, by gRPC or to an OpenAI front end"),
    ("genai-perf", "grpc"): (TARGET, {}, (), "does not know the models of engine rehearsal"),
    ("genai-perf", "grpc "): (KEYED, {}, (), "the key on its command line only"),
    ("genai-perf", "grpc   "): (ENGINE, {}, (Entry("text", most=3),), "one length for all answers"),
    ("genai-perf", "grpc  "): (ENGINE, {"lengths": ((1, 1, 1.0),)}, (), "a mean and a deviation only"),
    ("perf_analyzer", "generate"): (ENGINE, {}, (), "over gRPC only"),
    ("perf_analyzer", "grpc"): (ENGINE, {}, (), "makes no texts"),
    ("perf_analyzer", "grpc "): (TARGET, {"streaming": False}, (), "comes as a whole"),
    ("perf_analyzer", "grpc_ids"): (TARGET, {}, (), "takes texts, no token ids"),
    ("perf_analyzer", "grpc_ids "): (ENGINE, {"requests": None, "duration_s": 5.0}, (), "not a time"),
    ("perf_analyzer", "grpc_ids  "): (KEYED, {}, (), "the key on its command line only"),
    ("perf_analyzer", "grpc_ids   "): (ENGINE, {}, (Entry("text"),), "`input_ids` in every line"),
}


@pytest.mark.parametrize(("name", "protocol"), REFUSED)
def test_what_a_tool_cannot_do_is_refused(name: str, protocol: str) -> None:
    """Each with one message; the same tool takes what has nothing of that kind."""
    target, changes, entries, what = REFUSED[name, protocol]
    problems = TOOLS[name].problems(wanted(target, entries, protocol=protocol.strip(), **changes))
    assert len(problems) == 1 and what in str(problems[0])


ABLE = [
    ("aiperf", wanted(KEYED)),
    ("aiperf", wanted(FRONT, protocol="completions")),
    ("genai-perf", wanted(ENGINE, protocol="grpc")),
    ("genai-perf", wanted(FRONT, protocol="chat")),
    ("perf_analyzer", wanted(ENGINE, protocol="grpc_ids")),
    ("perf_analyzer", wanted(ENGINE, (Entry("text"),), protocol="grpc")),
    ("perf_analyzer", wanted(TARGET, protocol="grpc")),
]


@pytest.mark.parametrize(("name", "one"), ABLE)
def test_what_a_tool_can_do_is_not_refused(name: str, one: Wanted) -> None:
    """The counterpart of the refusals."""
    assert TOOLS[name].problems(one) == []


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("text", [None, "{", "[]", '{"experiments": 3}'])
def test_a_tool_that_left_nothing_is_told(name: str, text: str | None, tmp_path: Path) -> None:
    """No file, a half one and somebody else's JSON are one clear error, never a traceback."""
    (tmp_path / "artifacts").mkdir()
    if text is not None:
        for path in ("artifacts/profile_export_aiperf.json", "artifacts/profile_export_genai_perf.json"):
            (tmp_path / path).write_text(text)
        (tmp_path / perfanalyzer.EXPORT).write_text(text)
    if (name, text) == ("aiperf", '{"experiments": 3}'):
        assert TOOLS[name].outcome(tmp_path, wanted()).answered == 0
        return
    with pytest.raises(RunFailed, match=f"{name} left no result"):
        TOOLS[name].outcome(tmp_path, wanted())


def test_a_spread_by_the_nearest_rank() -> None:
    """P99 of few is the largest, P50 of an even number the lower middle; of nothing there is none."""
    made = spread([float(one) for one in range(1, 101)], "ms")
    assert made is not None
    assert (made.p50, made.p90, made.p99, made.max, made.mean) == (50, 90, 99, 100, 50.5)
    few = spread([3.0, 1.0], "ms")
    assert few is not None and (few.p50, few.p99) == (1.0, 3.0)
    assert spread([], "ms") is None


def test_prompts_are_as_many_as_requests() -> None:
    """With those to warm up; a time has no number of requests."""
    assert wanted().prompts == 10 + 3
    assert wanted(requests=None, duration_s=5.0).prompts == 1000
