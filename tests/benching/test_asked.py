"""From options to loads: what is filled in, and what is refused with one clear message each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.benching.asked import Asked, loads_of, protocol_of
from slurm_llm.benching.tools import Entry
from slurm_llm.benching.wishes import load_dataset, load_lengths
from slurm_llm.errors import InputError

NVIDIA = [{"input": "a text", "instruction": "sum it up", "output": "one two three"}]
FILLED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"concurrency": 1, "requests": 20, "warmup": 1, "input_tokens": (128.0, 0.0), "output_tokens": (64.0, 0.0)}),
    ({"concurrency": 16}, {"requests": 64, "warmup": 10}),
    ({"duration": 5.0, "warmup": 0}, {"requests": None, "duration_s": 5.0, "warmup": 0}),
    ({"request_rate": 2.0}, {"concurrency": None, "arrival": "poisson", "requests": 20}),
    ({"request_rate": 2.0, "arrival": "constant", "concurrency": 8}, {"concurrency": 8, "arrival": "constant"}),
    ({"input_tokens": "512,64", "output_tokens": "7"}, {"input_tokens": (512.0, 64.0), "output_tokens": (7.0, 0.0)}),
]


@pytest.mark.parametrize(("given", "made"), FILLED)
def test_what_is_left_out_is_filled_in(given: dict[str, Any], made: dict[str, Any], tmp_path: Path) -> None:
    """One load without a sweep, with a number of requests and a warm-up that fit its concurrency."""
    (load,), _ = loads_of(Asked(**given), tmp_path)
    assert {name: getattr(load, name) for name in made} == made


def test_a_sweep_is_a_load_a_level(tmp_path: Path) -> None:
    """In the order given, each once, with requests for its own level."""
    loads, _ = loads_of(Asked(sweep="8, 1,8,2"), tmp_path)
    assert [(one.concurrency, one.requests) for one in loads] == [(8, 32), (1, 20), (2, 20)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"requests": 3, "duration": 2.0}, "--requests: and --duration say the same twice"),
    ({"sweep": "1", "concurrency": 2}, "--sweep: and --concurrency"),
    ({"sweep": "1", "request_rate": 2.0}, "--sweep: and --request-rate"),
    ({"sweep": "1,0"}, "'1,0' is no list of concurrencies"),
    ({"sweep": "1,²"}, "is no list of concurrencies"),
    ({"input_tokens": "many"}, "--input-tokens: 'many' is no number of tokens"),
    ({"output_tokens": "0"}, "--output-tokens: '0'"),
    ({"output_tokens": "5,-1"}, "--output-tokens: '5,-1'"),
    ({"input_tokens": "1,2,3"}, "--input-tokens"),
    ({"input_tokens": "nan"}, "--input-tokens"),
    ({"arrival": "poisson"}, "add --request-rate R"),
    ({"token_ids": True, "endpoint": "chat"}, "--token-ids: and --endpoint"),
    ({"dataset": "nowhere.jsonl"}, "cannot be read: No such file"),
    ({"lengths": "nowhere.json"}, "cannot be read: No such file"),
]


@pytest.mark.parametrize(("given", "what"), REFUSED)
def test_what_contradicts_is_refused(given: dict[str, Any], what: str, tmp_path: Path) -> None:
    """Before anything is asked of Slurm."""
    with pytest.raises(InputError) as caught:
        loads_of(Asked(**given), tmp_path)
    assert what in str(caught.value)


def test_a_dataset_in_both_forms(tmp_path: Path) -> None:
    """aiperf's lines, token ids, and the list of NVIDIA's benchmark: 1.3 tokens for each word of its answer."""
    lines = tmp_path / "lines.jsonl"
    rows = [{"text": "hé", "output_length": 4}, {"text": "x", "output_length": "7"}, {"input_ids": [1, 2]}]
    lines.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    entries, digest = load_dataset(lines)
    assert entries == (Entry("hé", most=4), Entry("x"), Entry(ids=(1, 2)))
    assert len(digest) == 64
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(NVIDIA))
    assert load_dataset(whole)[0] == (Entry("a text sum it up", most=3),)


@pytest.mark.parametrize("text", ["", "[]", "{", "[1]", '{"prompt": "x"}', '{"text": ""}', '{"input_ids": []}'])
def test_a_dataset_that_is_none(text: str, tmp_path: Path) -> None:
    """The message names the option and the file."""
    path = tmp_path / "data"
    path.write_text(text)
    with pytest.raises(InputError, match=r"--dataset .*data"):
        load_dataset(path)


def test_lengths_in_both_forms(tmp_path: Path) -> None:
    """Pairs as they are; histograms at the middle of their buckets, each input with each output."""
    path = tmp_path / "lengths.json"
    path.write_text("[[128, 64, 3], [512.4, 8, 1]]")
    assert load_lengths(path) == ((128, 64, 3.0), (512, 8, 1.0))
    path.write_text(json.dumps({"input": [[151, 175, 220], [176, 200, 80]], "output": [[6, 10, 2]]}))
    assert load_lengths(path) == ((163, 8, 440.0), (188, 8, 160.0))


@pytest.mark.parametrize(
    "text", ["", "3", "[]", "[[1, 2]]", "[[0, 2, 1]]", "[[1, 2, 0]]", '{"input": []}', '[["a", 1, 1]]']
)
def test_lengths_that_are_none(text: str, tmp_path: Path) -> None:
    """The message names the option and the file."""
    path = tmp_path / "lengths"
    path.write_text(text)
    with pytest.raises(InputError, match=r"--lengths .*lengths"):
        load_lengths(path)


SPOKEN = [
    ("aiperf", {}, "generate_stream"),
    ("aiperf", {"streaming": False}, "generate"),
    ("aiperf", {"endpoint": "chat"}, "chat"),
    ("genai-perf", {}, "grpc"),
    ("genai-perf", {"endpoint": "completions"}, "completions"),
    ("perf_analyzer", {}, "grpc"),
    ("perf_analyzer", {"endpoint": "generate"}, "generate_stream"),
    ("perf_analyzer", {"token_ids": True}, "grpc_ids"),
]


@pytest.mark.parametrize(("tool", "given", "protocol"), SPOKEN)
def test_how_a_tool_speaks(tool: str, given: dict[str, Any], protocol: str) -> None:
    """HTTP for aiperf, gRPC for the others, unless an endpoint is said."""
    assert protocol_of(tool, Asked(**given)) == protocol
