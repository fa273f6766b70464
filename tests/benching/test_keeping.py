"""What is kept and read again, the tokenizer of bytes, where a tool is put, and the script that runs it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_llm.api import build_plan, load_site, load_spec
from slurm_llm.benching.measuring import last_words, new_number
from slurm_llm.benching.placing import FIND, Where, check_place, found_tool, place_words
from slurm_llm.benching.scene import inside
from slurm_llm.benching.tokenizers import END, byte_tokenizer, tokenizer_folder
from slurm_llm.errors import InputError
from slurm_llm.observe.benchresults import Counted, Fault, load_results, result_to_json
from slurm_llm.observe.facts import Endpoint
from slurm_llm.plan import Plan
from slurm_llm.render import render_load
from slurm_llm.rundir import RunPaths
from tests.benching.cases import LOAD, result


def plan(site: str = "devcluster", **resources: object) -> Plan:
    """Return the plan of a rehearsal."""
    folder = Path(__file__).parent.parent.parent / "docs" / "examples"
    settings = [f"resources.{name}={value}" for name, value in resources.items()]
    return build_plan(load_spec(folder / "demo.yaml", settings), load_site(site))


def test_a_result_is_read_as_it_was_kept(tmp_path: Path) -> None:
    """By number, not by name; what is of another schema, half or missing is left out."""
    paths, kept = RunPaths(tmp_path), [result(2), result(10, valid=False, reasons=("so",), counted=Counted(1, 2))]
    kept[1] = replace(
        kept[1], errors=(Fault("boom", 3),), load=replace(LOAD, lengths=((1, 2, 0.5),), input_tokens=None)
    )
    for one in kept:
        folder = tmp_path / "bench" / str(one.number)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(result_to_json(one))
    for name, text in (("1", "{"), ("3", '{"schema": 2}'), ("4", "[]"), ("5", ""), ("notes", "{}")):
        (tmp_path / "bench" / name).mkdir()
        (tmp_path / "bench" / name / "result.json").write_text(text)
    (tmp_path / "bench" / "11").mkdir()
    assert load_results(paths) == kept
    assert json.loads(result_to_json(kept[0]))["figures"]["request_throughput"] == {"unit": "requests/s", "mean": 10.0}
    assert new_number(paths) == 12
    assert (tmp_path / "bench" / "12").stat().st_mode & 0o777 == 0o700


def test_each_byte_is_a_token() -> None:
    """The table of GPT-2's byte-level tokenizer: 256 characters, each once, printable, ASCII as itself."""
    files = byte_tokenizer()
    vocabulary = json.loads(files["tokenizer.json"])["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(257))
    assert (vocabulary["A"], vocabulary["Ġ"], vocabulary["Ċ"], vocabulary[END]) == (65, 32, 10, 256)
    assert all(character.isprintable() for character in vocabulary)


def test_which_tokenizer_counts(tmp_path: Path) -> None:
    """What is given, else what the spec names, else the model's own folder; an id of the hub is none."""
    for name in ("given", "named", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("{}")
    given, named, model = (str(tmp_path / name) for name in ("given", "named", "model"))
    assert tokenizer_folder("given", model, named, tmp_path) == Path(given)
    assert tokenizer_folder("", model, named, tmp_path) == Path(named)
    assert tokenizer_folder("", model, "org/tokenizer", tmp_path) == Path(model)
    for choice in ("", str(tmp_path)):
        with pytest.raises(InputError, match="--tokenizer"):
            tokenizer_folder(choice, "org/model", "", tmp_path)


def test_a_step_shares_the_jobs_nodes() -> None:
    """On the leader's node, without GPUs, with the job's CPUs there; before 22.05 it must ask for no memory too."""
    where, own = Where("step", 7, "n1"), plan()
    words = place_words(where, own, "/run")
    assert words[:4] == ("srun", "--jobid=7", "--overlap", "--nodelist=n1")
    assert {"--gres=none", "--nodes=1", "--ntasks=1", "--mpi=none"} <= set(words)
    assert "--mem=0" in place_words(where, replace(own, slurm="21.08.8"), "/run")
    assert not any(word.startswith("--nodelist") for word in place_words(Where("step", 7), own, "/run"))


def test_a_job_of_its_own_is_the_users() -> None:
    """Account and partition are those of the run; another partition leaves what belongs to the first."""
    own = plan()
    own = replace(own, allocation=replace(own.allocation, account="a", partition="gpu", qos="long"))
    words = place_words(Where("job", 7, time="00:05:00"), own, "/run")
    assert {"--account=a", "--partition=gpu", "--qos=long", "--time=00:05:00"} <= set(words)
    assert not any(word.startswith(("--jobid", "--overlap")) for word in words)
    moved = place_words(Where("job", 7, partition="cpu"), own, "/run")
    assert "--partition=cpu" in moved and "--qos=long" not in moved
    assert place_words(Where("here", 7), own, "/run") == ()


IN_IMAGE = [
    ("aws-hyperpod", "nvcr.io#nvidia/tritonserver:25.12-trtllm-python-py3", "--container-image="),
    ("isambard-ai", "/images/tritonserver_25.12-trtllm-python-py3.sif", "bash /run/enter.sh"),
]


@pytest.mark.parametrize(("site", "image", "how"), IN_IMAGE)
def test_a_tool_of_the_image_runs_in_it(site: str, image: str, how: str) -> None:
    """By srun's options, or by the script that a rank's command has before it."""
    example = Path(__file__).parent.parent.parent / "docs" / "examples" / "tensorrtllm-benchmark.yaml"
    settings = [f"container.image={image}", "engine_args.tensorrt_llm_version='1.0.0'"]
    own = inside(
        build_plan(load_spec(example, settings), load_site(site)),
        {"USER": "me", "HOME": "/home/me", "SCRATCHDIR": "/scratch/me"},
    )
    assert how in " ".join(place_words(Where("step", 7, in_image=True), own, "/run"))
    assert how not in " ".join(place_words(Where("step", 7), own, "/run"))


def test_a_server_on_loopback_is_measured_from_its_job() -> None:
    """From elsewhere nobody reaches it; an image that is not there cannot be entered."""
    inner, outer = (Endpoint(0, url, "", "") for url in ("http://127.0.0.1:8000", "http://n1:8000"))
    assert check_place(Where("job"), plan(), outer) == []
    assert "loopback" in str(check_place(Where("here"), plan(), inner)[0])
    assert check_place(Where("step"), plan(), inner) == []
    assert "no image" in str(check_place(Where("step", in_image=True), plan(), outer)[0])
    assert "on its nodes" in str(check_place(Where("here", in_image=True), plan(), outer)[-1])


def test_the_first_tool_that_is_there_is_found(tmp_path: Path) -> None:
    """With its version; one that does not tell it is taken all the same."""
    for name, text in (("second", "echo Second Version 2.47.0"), ("broken", "echo 9.9.9; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def find(*names: str) -> tuple[str, str, str] | None:
        done = subprocess.run(["bash", "-c", FIND, "find", *names], capture_output=True, text=True, check=True)
        return found_tool("a module's greeting\n" + done.stdout)

    second = str(tmp_path / "second")
    assert find(str(tmp_path / "first"), second) == ("second", second, "2.47.0")
    assert find(str(tmp_path / "broken")) == ("broken", str(tmp_path / "broken"), "")
    assert find(str(tmp_path / "first")) is None


@pytest.mark.parametrize("key_file", ["", "/a folder/key.0"])
def test_the_script_is_sound(key_file: str, tmp_path: Path) -> None:
    """bash and shellcheck have no remark; every value is one quoted word."""
    command = ("/bin/aiperf", "it's", "two words")
    values = {"number": 3, "folder": str(tmp_path / "a b"), "hub": "/a b/hub", "key_variable": "KEY"}
    script = tmp_path / "load.sh"
    script.write_text(render_load(plan(), **values, key_file=key_file, command=command))
    for words in (["bash", "-n"], ["shellcheck", "--shell=bash"]):
        done = subprocess.run([*words, str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert """\n/bin/aiperf 'it'"'"'s' 'two words'""" in script.read_text()
    assert ("read -r _ value" in script.read_text()) == bool(key_file)


def test_the_key_reaches_the_tool_by_its_environment(tmp_path: Path) -> None:
    """The header's value as it stands in the file, whatever is in it."""
    (tmp_path / "key").write_text("slurm-llm-key: a:b c\n")
    values = {"number": 3, "folder": str(tmp_path), "hub": "/hub", "key_variable": "KEY"}
    command = ("bash", "-c", 'printf "%s|%s" "$KEY" "$HF_HUB_OFFLINE"')
    text = render_load(plan(), **values, key_file=str(tmp_path / "key"), command=command)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "a:b c|1"


def test_the_last_words_of_a_tool(tmp_path: Path) -> None:
    """What it says of an error, out of its frame; what srun adds says nothing new."""
    log = tmp_path / "load.log"
    log.write_text("ready\n│   All 5 requests failed   │\n╰────╯\n\x1b[2mLog File: x\nsrun: error: n1: task 0\n")
    assert last_words(log) == "All 5 requests failed"
    assert last_words(tmp_path / "none") == ""
    log.write_text("ERROR one\n│  Reason: All is disabled.  │\n│   Enable it   │\n│ Reason: HookError( │\nError two\n")
    assert last_words(log) == "Reason: All is disabled. Enable it"
    log.write_text("ready\nan error: one\nError two\nthe end\n")
    assert last_words(log) == "Error two"
