"""Real vLLM under real Triton under real Slurm: what slurm_llm renders is served, asked, watched, cancelled, killed."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import Run, wait_for
from tests.vllm.conftest import READY_S, Stage, ask, metrics, post, vllm_processes
from tests.vllm.grpc_client import Told, ask_grpc
from tests.vllm.tiny_model import CONTEXT

pytestmark = pytest.mark.vllm

PROMPT = "The future of AI is"
MOST = CONTEXT - 64
"""More tokens than anybody waits for."""
CANCELLED = "the request was cancelled"


@pytest.fixture(scope="module")
def text(everything: Run) -> str:
    """What the model says to the prompt: the same whoever asks, however it is served."""
    return ask(everything.url(), PROMPT)


def test_the_curl_line_of_the_backends_page_works(everything: Run) -> None:
    """The page's own body; the answer begins with the prompt, as it says."""
    url = everything.url()
    body = '{"text_input": "What is Triton Inference Server?", "parameters": {"stream": false, "temperature": 0}}'
    line = ["curl", "-s", "--noproxy", "*", "-X", "POST", f"{url}/v2/models/vllm_model/generate", "-d", body]
    answer = json.loads(subprocess.run(line, capture_output=True, check=True, timeout=60).stdout)
    assert (answer["model_name"], answer["model_version"]) == ("vllm_model", "1")
    assert answer["text_output"].startswith("What is Triton Inference Server?")
    assert len(answer["text_output"]) == len("What is Triton Inference Server?") + 16


def test_generate_speaks_vllms_words(everything: Run, text: str) -> None:
    """Whole and as a stream, with sampling parameters and outputs beside the text; the status names a curl line."""
    words = ("--max-tokens", "8", "--param", "temperature=0")
    assert everything.cli("generate", PROMPT, *words).stdout == text + "\n"
    assert everything.cli("generate", PROMPT, *words, "--stream").stdout == text + "\n"
    asked = ("--stream", "--json", "--output", "finish_reason", "--output", "num_output_tokens")
    rows = [json.loads(row) for row in everything.cli("generate", PROMPT, *words, *asked).stdout.splitlines()]
    assert "".join(row["text_output"] for row in rows) == text
    # A slow reader gets several tokens at once.
    assert [row["finish_reason"] for row in rows] == ["None"] * (len(rows) - 1) + ["length"]
    assert sum(row["num_output_tokens"] for row in rows) == 8 and len(rows) > 1
    whole = json.loads(everything.cli("generate", PROMPT, *words, *asked[1:]).stdout)
    assert (whole["text_output"], whole["finish_reason"], whole["num_output_tokens"]) == (text, "length", 8)
    assert '"parameters": {"stream": false' in everything.cli("status").stdout
    refused = everything.cli("generate", PROMPT, "--param", "temperture=0", check=False)
    assert refused.returncode == 10 and "temperture" in refused.stderr


def test_every_additional_output_is_there(everything: Run, text: str) -> None:
    """The five of docs/additional_outputs.md, each only when asked for."""
    wanted = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    body = {"text_input": PROMPT, "parameters": {"temperature": 0, "max_tokens": 8, "logprobs": 1}}
    _, answer = post(everything.url(), {**body, **{f"return_{name}": True for name in wanted}})
    assert set(answer) == {"model_name", "model_version", "text_output", *wanted}
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == (len(PROMPT), 8)
    assert len(json.loads(answer["logprobs"])) == 8 and answer["cumulative_logprob"] < 0
    assert set(post(everything.url(), body)[1]) == {"model_name", "model_version", "text_output"}


def test_grpc_answers_and_cancels(everything: Run, text: str) -> None:
    """NVIDIA's own client: numbers of parameters as texts, pieces, and a stream that is given up."""
    address = everything.wait_ready()["instances"][0]["grpc"]
    parameters = {"temperature": "0", "max_tokens": "8"}
    assert ask_grpc(address, PROMPT, parameters) == Told((text,), None)
    streamed = ask_grpc(address, PROMPT, parameters, streaming=True)
    assert "".join(streamed.pieces) == text and len(streamed.pieces) > 1
    cancelled = ask_grpc(address, PROMPT, {"temperature": "0", "max_tokens": str(MOST)}, cancelling=True)
    assert cancelled.error is not None and "CANCELLED" in cancelled.error.upper()
    assert len(cancelled.pieces) < MOST


def generated(run: Run) -> float:
    """Return how many tokens vLLM has generated."""
    return metrics(run.wait_ready()["instances"][0])["vllm:generation_tokens_total"]


@pytest.mark.parametrize("mode", ["--stream", "--json"], ids=["stream", "whole"])
def test_an_interrupt_stops_the_generation(everything: Run, mode: str) -> None:
    """vLLM has no stop request: the end of the connection ends the work, and the engine is free again."""
    user, account = everything.user, pwd.getpwnam(everything.user.cluster.user)
    # What an earlier test has cut off is still being counted for a moment.
    ((before, _),) = wait_for("a quiet engine", lambda: quiet(everything))
    cancelled = log(everything).count(CANCELLED)
    words = [*user.program, "generate", str(everything.job), PROMPT, mode, "--max-tokens", str(MOST)]
    env = {**os.environ, "SLURM_CONF": str(user.cluster.slurm_conf), "HOME": account.pw_dir}
    client = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd="/", user=account.pw_uid
    )
    wait_for("tokens", lambda: generated(everything) >= before + 20)
    client.send_signal(signal.SIGINT)
    assert client.wait(30) != 0
    wait_for("cancelled", lambda: log(everything).count(CANCELLED) > cancelled)
    assert ask(everything.url(), PROMPT, 1)
    assert generated(everything) - before < MOST


def quiet(run: Run) -> list[tuple[float, float]]:
    """Return the count of tokens twice, half a second apart, when it has not changed; else nothing."""
    first = generated(run)
    time.sleep(0.5)
    return [(first, first)] if generated(run) == first else []


def log(run: Run) -> str:
    """Return the leader's log."""
    return (run.attempt / "rank-0.log").read_text(errors="replace")


def test_vllms_figures_are_on_the_metrics_page(everything: Run) -> None:
    """Every family of the backend's list, under its name; counters grow by what was asked, if not more."""
    endpoint = everything.wait_ready()["instances"][0]
    before = metrics(endpoint)
    ask(everything.url(), PROMPT, 50)
    grown = wait_for("figures", lambda: more if tokens(more := metrics(endpoint)) - tokens(before) >= 50 else None)
    assert grown["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] >= len(PROMPT)
    counters = ("prompt_tokens_total", "generation_tokens_total")
    histograms = (
        *("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"),
        *("request_prompt_tokens", "request_generation_tokens", "request_params_n"),
    )
    names = {f"vllm:{name}" for name in counters} | {
        f"vllm:{name}_{one}" for name in histograms for one in ("sum", "count")
    }
    assert set(grown) == names


def tokens(figures: dict[str, float]) -> float:
    """Return the generated tokens of a metrics page."""
    return figures["vllm:generation_tokens_total"]


def test_adapters_change_the_text(everything: Run, text: str) -> None:
    """Each by its name, the model itself without one, and a name that is not there is refused with those that are."""
    url = everything.url()
    texts = {name: ask(url, PROMPT, lora_name=name) for name in ("ada", "bob")}
    assert len({text, *texts.values()}) == 3
    assert ask(url, PROMPT) == text
    status, answer = post(url, {"text_input": PROMPT, "parameters": {"lora_name": "eve"}})
    assert status == 400 and "'ada', 'bob'" in answer["error"]


def test_two_servers_share_a_node(everything: Run, stage: Stage, text: str) -> None:
    """Two GPUs in the second, tensor parallel; own ports and prefixes, the same text; one goes, the other stays."""
    user = everything.user
    node = user.cluster.nodes[0]
    second = user.submit(stage.spec("second", tensor_parallel_size=2, sbatch_extra=[f"--nodelist={node}"]))
    assert second.url(READY_S) != everything.url()
    assert ask(second.url(), PROMPT) == text
    prefixes = {
        re.findall(r"shm-region-prefix-name=(\w+)", Path(f"/proc/{one.pid(0, main=True)}/cmdline").read_text())[0]
        for one in (everything, second)
    }
    assert len(prefixes) == 2
    second.cli("cancel")
    assert second.wait_ended()["state"] == "COMPLETED"
    assert ask(everything.url(), PROMPT) == text


def test_a_model_that_vllm_refuses_fails_the_job_with_its_words(everything: Run, stage: Stage) -> None:
    """What no table knows: vLLM's own check, while it loads. The job fails and tells it."""
    run = everything.user.submit(stage.spec("refused", engine_args={"max_num_seqs": 64, "max_num_batched_tokens": 8}))
    result = run.wait_ended(READY_S)
    assert (result["state"], run.slurm_state()) == ("FAILED", "FAILED")
    assert "max_num_batched_tokens" in json.dumps(result["log"]) + log(run)
    assert "rank 0" in result["cause"]


def test_a_dead_engine_is_found_and_named(everything: Run) -> None:
    """Triton calls itself ready when vLLM's engine is killed; the job does not, and ends what is left. Runs last."""
    (engine,) = [pid for pid, name in vllm_processes(everything.user.cluster).items() if "EngineCore" in name]
    os.kill(engine, signal.SIGKILL)
    result = everything.wait_ended(60)
    assert result["state"] == "FAILED"
    # Its parent may have taken its status before anybody else could see it.
    assert "rank 0" in result["cause"] and "EngineCor" in result["cause"]
    wait_for("no process of vLLM", lambda: not vllm_processes(everything.user.cluster))
