"""The bodies that each engine's model gets, and how a request is stopped."""

from __future__ import annotations

import pytest

from slurm_llm.dialects import Body, Wish, dialect_of, example

WISH = Wish("hello", "me", True, 5, {"temperature": 0, "stop": ["."], "lora_name": "a"}, ("finish_reason",))


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        (
            "llmapi",
            {
                "id": "me",
                "text_input": "hello",
                "streaming": True,
                "sampling_param_max_tokens": 5,
                "sampling_param_temperature": 0,
                "sampling_param_stop": ["."],
                "lora_name": "a",
                "return_finish_reason": True,
            },
        ),
        (
            "tensorrtllm",
            {
                "id": "me",
                "text_input": "hello",
                "stream": True,
                "max_tokens": 5,
                "temperature": 0,
                "stop_words": ["."],
                "lora_name": "a",
                "return_finish_reason": True,
            },
        ),
        (
            "vllm",
            {
                "text_input": "hello",
                "exclude_input_in_output": True,
                "parameters": {"stream": True, "max_tokens": 5, "temperature": 0, "stop": ["."], "lora_name": "a"},
                "return_finish_reason": True,
            },
        ),
    ],
)
def test_each_engine_gets_its_own_words(engine: str, body: Body) -> None:
    """Sampling parameters are called the same here, and as its page says there."""
    assert dialect_of(engine).body(WISH) == body


def test_the_rehearsal_and_a_lost_record_speak_like_the_llm_api() -> None:
    """The rehearsal stands in for it."""
    for engine in ("rehearsal", "?"):
        assert dialect_of(engine).body(WISH) == dialect_of("llmapi").body(WISH)


def test_the_compiled_engine_always_gets_a_number_of_tokens() -> None:
    """Its ensemble refuses a request without `max_tokens`."""
    assert dialect_of("tensorrtllm").body(Wish("x", "me"))["max_tokens"] == 16


def test_stops_carry_the_id_where_there_is_such_a_request() -> None:
    """vLLM's backend has none: the connection's end is the stop."""
    stops = {engine: dialect_of(engine).stop for engine in ("llmapi", "tensorrtllm", "vllm")}
    assert stops["vllm"] is None
    for engine in ("llmapi", "tensorrtllm"):
        stop = stops[engine]
        assert stop is not None
        assert {"id": "me", "text_input": "", "stop": True}.items() <= stop("me").items()


def test_pieces_become_one_answer() -> None:
    """Tokens are counted up and their log probabilities put together; everything else is as the last piece has it."""
    join = dialect_of("vllm").join
    assert join is not None
    first = {"num_output_tokens": 1, "logprobs": '[{"1": 0}]', "finish_reason": "None"}
    second = {"num_output_tokens": 2, "logprobs": '[{"2": 0}, {"3": 0}]', "finish_reason": "length"}
    assert join([first, second]) == {
        "num_output_tokens": 3,
        "logprobs": '[{"1": 0}, {"2": 0}, {"3": 0}]',
        "finish_reason": "length",
    }
    assert join([{"logprobs": "null"}]) == {"logprobs": "[]"}
    assert join([]) == {}


def test_curl_lines_are_the_pages_own() -> None:
    """What `status` shows to try."""
    assert example("llmapi") == {"text_input": "Hello", "sampling_param_max_tokens": 16}
    assert example("tensorrtllm")["bad_words"] == ""
    assert example("vllm")["parameters"] == {"stream": False, "temperature": 0}
