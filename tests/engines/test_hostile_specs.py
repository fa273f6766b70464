"""Specs that nobody means well with: one clear line a problem, never a crash, and no text that breaks a file's format.

The rows are what mutating all example specs at every key found, and the rules that it was to prove.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_llm.agent.repository import build
from slurm_llm.cli import cli
from slurm_llm.engines import find_engine
from slurm_llm.engines.llmapi_arguments import ARGUMENTS as LLM_ARGUMENTS
from slurm_llm.engines.tensorrtllm_parameters import PARAMETERS
from slurm_llm.engines.types import Gpu
from slurm_llm.engines.vllm_arguments import ARGUMENTS as VLLM_ARGUMENTS
from slurm_llm.errors import PlanError, SlurmLlmError, SpecError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.plan.layout import MAX_RANKS, build_sizes
from slurm_llm.rehearsal.faults import parse_faults, read_fault
from slurm_llm.render import Target, render
from slurm_llm.rundir import REPOSITORY, REPOSITORY_RECIPE
from slurm_llm.spec import EngineName, JobSpec, spec_from_mapping
from slurm_llm.yamlio import Tree, dump, parse_document
from tests.engines.engine_specs import FIXTURES, PATHS
from tests.engines.files import Files
from tests.engines.pbtxt_reader import read_pbtxt
from tests.plan.sites_for_plans import make_site

SITE = make_site({"gpus_per_node": 8, "cpus": {"per_node": 64}})
LEAST: dict[EngineName, dict[str, Tree]] = {
    "llmapi": {"model": "org/model"},
    "vllm": {"model": "org/model"},
    "tensorrtllm": {"engine_args": {**PATHS, "tensorrt_llm_version": "1.1.0"}},
    "rehearsal": {},
}
DIGITS = "9" * 5000
"""More than Python itself reads as a number."""

TEXTS = [
    '"',
    "\\",
    '\\"',
    "a\nb",
    "é 模",
    "#",
    "}",
    "${engine_dir}",
    "{{ 1 }}",
    "$(touch pwned)",
    "null",
    "- a: b",
    "\x85",
]
NUMBERS: list[Tree] = [True, -1, 0, 1, 10**9, 2**63, 10**399, -0.5, 1e308]
WORDS: list[Tree] = ["", "²", "٣", DIGITS, f"{DIGITS},1", "0;²", "$(touch pwned)", '"']
NESTED: list[Tree] = [[], [[]], [DIGITS], [[DIGITS]], [[2**31 - 1]], [None], {}, {"a": {"b": [1]}}]
VALUES = NUMBERS + WORDS + NESTED


def make(engine: EngineName, arguments: dict[str, Tree] | None = None, **values: Tree) -> JobSpec:
    """Return the least spec of an engine with `arguments` and `values` laid over it."""
    least = dict(LEAST[engine])
    own = least.pop("engine_args", {})
    assert isinstance(own, dict)
    merged: dict[str, Tree] = {**least, "engine_args": {**own, **(arguments or {})}, **values}
    return spec_from_mapping({"name": "demo", "engine": engine, **merged})


def files_of(plan: Plan) -> dict[str, str]:
    """Return path → text of the run directory."""
    return render(plan, Target(Path("/runs/demo"), "/usr/bin/python3"))


def test_the_reader_reads_what_the_format_allows() -> None:
    """The tests below stand on it: names, braces with and without colon, lists, escapes, comments."""
    text = 'name: "a\\"b\\\\"  # c\nlist [ { x: 1, y: KIND }, "z" ]\np { key: "k" value: { string_value: "v" } }\n'
    assert read_pbtxt(text) == [
        ("name", 'a"b\\'),
        ("list", [[("x", "1"), ("y", "KIND")], "z"]),
        ("p", [("key", "k"), ("value", [("string_value", "v")])]),
    ]
    with pytest.raises(AssertionError):
        read_pbtxt('name: "a"b"')


# --- texts reach the files as they are


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_out_of_model_yaml_as_they_went_in(text: str) -> None:
    """Keys, values, lists and mappings of LLM()'s arguments, whatever YAML could make of them."""
    own: dict[str, Tree] = {"tokenizer": text, "model_kwargs": {text: [text]}, "logits_post_processors": {text: text}}
    files = files_of(build_plan(make("llmapi", own), SITE))
    made = parse_document(files[f"{REPOSITORY}/tensorrt_llm/1/model.yaml"], "model.yaml").value
    assert {name: made[name] for name in own} == own
    assert ("name", "tensorrt_llm") in read_pbtxt(files[f"{REPOSITORY}/tensorrt_llm/config.pbtxt"])


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_out_of_model_json_as_they_went_in(text: str) -> None:
    """Arguments of vLLM and names and paths of adapters."""
    own: dict[str, Tree] = {"tokenizer": text, "hf_overrides": {text: [text]}, "lora": {text: f"/{text}"}}
    files = files_of(build_plan(make("vllm", own), SITE))
    made = json.loads(files[f"{REPOSITORY}/vllm_model/1/model.json"])
    assert (made["tokenizer"], made["hf_overrides"]) == (own["tokenizer"], own["hf_overrides"])
    assert json.loads(files[f"{REPOSITORY}/vllm_model/1/multi_lora.json"]) == own["lora"]
    assert ("backend", "vllm") in read_pbtxt(files[f"{REPOSITORY}/vllm_model/config.pbtxt"])


@pytest.mark.parametrize("text", TEXTS)
def test_paths_come_out_of_filled_templates_as_they_went_in(text: str, tmp_path: Path) -> None:
    """NVIDIA's templates quote nothing, so what would end a string is refused; all else arrives, `${…}` too."""
    path = f"/models/{text}"
    spec = make("tensorrtllm", {"engine_dir": path, "tokenizer_dir": path, "templates": str(FIXTURES / "1.1")})
    if re.search(r'["\\\x00-\x1f]', text):
        with pytest.raises(PlanError, match=r"engine_args\.engine_dir: found .*: an absolute path"):
            build_plan(spec, SITE)
        return
    files = files_of(build_plan(spec, SITE))
    (tmp_path / "own").mkdir()
    recipe = {**json.loads(files[REPOSITORY_RECIPE]), "own": str(tmp_path / "own")}
    build(recipe, str(tmp_path / "made"))
    parameters = read_pbtxt((tmp_path / "made" / "preprocessing" / "config.pbtxt").read_text(encoding="utf-8"))
    values = {
        dict(value)["key"]: dict(dict(value)["value"])["string_value"]
        for name, value in parameters
        if name == "parameters"
    }
    assert values["tokenizer_dir"] == path


@pytest.mark.parametrize("engine", LEAST)
def test_a_plan_with_such_texts_is_read_back_equal(engine: EngineName) -> None:
    """What runs in the job reads plan.json: a value that it cannot hold would be lost there, or end it."""
    plan = build_plan(make(engine, env={"A": "\\\"'é模$(x)", "B": 1e308}, name='"\\é模 $(x)'), SITE)
    assert plan_from_json(plan_to_json(plan)) == plan


# --- values that no file or program can hold


@pytest.mark.parametrize(
    ("engine", "values", "message"),
    [
        (
            "vllm",
            {"engine_args": {"cpu_offload_gb": float("inf")}},
            "engine_args.cpu_offload_gb: must be a finite number",
        ),
        ("llmapi", {"engine_args": {"a": [{"b": float("nan")}]}}, "engine_args.a: must be a finite number"),
        ("vllm", {"engine_args": {"a\nb": 1}}, "must hold no line break or control character"),
        ("vllm", {"model": "a" * 256}, "model: must be an id or a path, whose parts have at most 255 bytes"),
        ("vllm", {"model": "/models/" + "é" * 128}, "whose parts have at most 255 bytes"),
        ("rehearsal", {"timeouts": {"ready_s": 10**399}}, "timeouts.ready_s: must be at most 2147483647"),
        ("rehearsal", {"resources": {"nodes": 2**31}}, "resources.nodes: must be at most 2147483647"),
        ("rehearsal", {"resources": {"time": DIGITS}}, "resources.time: must have at most 40 characters"),
        ("rehearsal", {"resources": {"mem_per_node": f"{DIGITS}G"}}, "mem_per_node: must have at most 40 characters"),
        ("rehearsal", {"service": {"drain_s": 10**30}}, "service.drain_s: must be at most 2147483647"),
        ("rehearsal", {"prepare": {"build": {"args": {"a": float("nan")}}}}, "build.args.a: must be a finite number"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_nothing_can_hold_is_refused_when_it_is_read(
    engine: EngineName, values: dict[str, Tree], message: str
) -> None:
    """JSON has no infinity, Linux no longer file name, bash no larger number."""
    with pytest.raises(SpecError) as caught:
        spec_from_mapping({"name": "demo", "engine": engine, **values})
    assert len(caught.value.problems) == 1 and message in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "arguments", "message"),
    [
        ("vllm", {"triton_config": {"GPU_DEVICE_IDS": "0,²"}}, "GPU_DEVICE_IDS: found '0,²'"),
        ("vllm", {"triton_config": {"GPU_DEVICE_IDS": DIGITS}}, "GPU_DEVICE_IDS: found"),
        ("llmapi", {"gpu_device_ids": "٣"}, "gpu_device_ids: found '٣'"),
        ("llmapi", {"gpu_device_ids": [[DIGITS]]}, "gpu_device_ids: found"),
        ("tensorrtllm", {"gpu_device_ids": DIGITS}, "gpu_device_ids: found"),
        ("tensorrtllm", {"participant_ids": f"0,{DIGITS}"}, "participant_ids: found"),
        ("tensorrtllm", {"gpu_device_ids": "0,0"}, "gpu_device_ids: found '0,0'"),
        ("tensorrtllm", {"max_attention_window_size": DIGITS}, "max_attention_window_size: found"),
        ("tensorrtllm", {"tensorrt_llm_version": DIGITS}, "tensorrt_llm_version: found"),
        ("tensorrtllm", {"medusa_choices": "{" + DIGITS + "}", "decoding_mode": "medusa"}, "medusa_choices: found"),
        ("rehearsal", {"fault": f"rank={DIGITS},at=load,kind=raise"}, "rank is '999"),
        ("rehearsal", {"fault": f"rank=0,at=load,kind=exit:{DIGITS}"}, "exit:N with N from 0 to 255"),
    ],
)
def test_numbers_that_only_look_like_some_are_refused(
    engine: EngineName, arguments: dict[str, Tree], message: str
) -> None:
    """Digits of other scripts, superscripts, and more digits than Python reads."""
    with pytest.raises(PlanError) as caught:
        build_plan(make(engine, arguments), SITE)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["1234567", "0.000001", "999999999.999999", "60"])
def test_seconds_of_a_fault_are_read_back_in_the_job(text: str) -> None:
    """The fault goes to the ranks as text: a rounded or an exponent form would be refused there."""
    fault, complaints = read_fault(f"rank=0,at=serve,kind=raise,after={text}")
    assert fault is not None and complaints == []
    assert parse_faults(str(fault)) == (fault,)


@pytest.mark.parametrize("engine", LEAST)
@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 100_000, "pipeline_parallel_size": 100_000, "context_parallel_size": 100_000},
        {"tensor_parallel_size": 99_991, "replicas": 100_000},
        {"replicas": MAX_RANKS + 1},
    ],
    ids=["10^15 ranks", "a prime of them", "one replica too many"],
)
def test_absurd_sizes_are_refused_at_once(engine: EngineName, sizes: dict[str, Tree]) -> None:
    """Nothing counts to a number that somebody has mistyped."""
    arguments: dict[str, Tree] = {"participant_ids": [0, 1]} if engine == "tensorrtllm" else {}
    with pytest.raises(PlanError, match=rf"at most {MAX_RANKS} in a job"):
        build_plan(make(engine, arguments, **sizes), SITE)


# --- every argument of every engine


def arguments_of(engine: EngineName) -> tuple[tuple[str, ...], ...]:
    """Return the path of every argument below `engine_args`."""
    if engine == "vllm":
        own = ("GPU_DEVICE_IDS", "REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK")
        return (*((name,) for name in VLLM_ARGUMENTS), *(("triton_config", name) for name in own), ("lora",))
    if engine == "llmapi":
        more = ("triton_config", "all_models", "gpu_device_ids", "logits_post_processors")
        return tuple((name,) for name in (*LLM_ARGUMENTS, *more))
    if engine == "rehearsal":
        return tuple((name,) for name in ("seed", "step_ms", "join_timeout_s", "fault"))
    flat = PARAMETERS["tensorrt_llm"]
    below = [(model, name) for model in PARAMETERS if model != "tensorrt_llm" for name in PARAMETERS[model]]
    others = [("draft_model", *(name,)) for name in flat] + [("models", "second", name) for name in flat]
    own_keys = ("templates", "instance_count", "orchestrator_spawn_processes", "tensorrt_llm_version", "models")
    return (*((name,) for name in (*flat, *own_keys)), *below, *others)


@pytest.mark.parametrize("engine", LEAST)
@pytest.mark.parametrize("launch", [None, "orchestrator"])
def test_no_value_of_any_argument_ends_in_an_exception(engine: EngineName, launch: str | None) -> None:
    """Checks, launch and inspection take whatever YAML can say; each problem names its key and is one line."""
    own = find_engine(engine)
    for path in arguments_of(engine):
        for value in VALUES:
            nested: Tree = value
            for name in reversed(path[1:]):
                nested = {name: nested}
            spec = make(engine, {path[0]: nested}, launch=launch)
            sizes = build_sizes(spec, [])
            own.launch(spec, sizes)
            found = own.inspect(spec, sizes, Files({}), Gpu(80)).problems
            for problem in (*own.check(spec, sizes, None), *found):
                assert problem.where and problem.what and "\n" not in str(problem), (path, value)


# --- files of models that lie


@pytest.mark.parametrize(
    "config",
    [
        '{"num_hidden_layers": Infinity, "hidden_size": Infinity, "vocab_size": NaN}',
        '{"num_hidden_layers": 1' + "0" * 400 + ', "hidden_size": 1' + "0" * 400 + "}",
        '{"num_hidden_layers": ' + DIGITS + "}",
        "[" * 100_000,
        '{"text_config": [], "num_attention_heads": true, "quantization_config": "x"}',
        "\x00",
    ],
    ids=["infinite", "beyond a float", "beyond Python", "nested without end", "wrong types", "no text"],
)
@pytest.mark.parametrize("engine", ["llmapi", "vllm", "tensorrtllm"])
def test_a_config_that_lies_is_survived(engine: EngineName, config: str) -> None:
    """A broken or malicious config.json is no reason to end with a traceback; it is judged as far as it is sane."""
    spec = make(engine, {"engine_dir": "/m", "tokenizer_dir": "/m"} if engine == "tensorrtllm" else {})
    spec = spec.model_copy(update={"model": "/m"})
    files = Files({"/m/config.json": config, "/m/tokenizer.json": "{}"}, {"/m/model.safetensors": 10**12})
    found = find_engine(engine).inspect(spec, build_sizes(spec, []), files, Gpu(80))
    assert all("\n" not in str(problem) for problem in found.problems)


@pytest.mark.parametrize("huge", [10**400, 2**62, -1, True, "1"])
def test_an_engine_whose_numbers_lie_is_survived(huge: object) -> None:
    """config.json of a built engine, with any number in it."""
    names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
    limits = dict.fromkeys(("max_batch_size", "max_beam_width", "max_seq_len", "max_draft_len"), huge)
    mapping = dict.fromkeys(("world_size", "tp_size", "pp_size", "cp_size", "gpus_per_node"), huge)
    model = {**dict.fromkeys(names, huge), "mapping": mapping}
    config = json.dumps({"version": "9" * 5000, "pretrained_config": model, "build_config": limits})
    spec = make("tensorrtllm", {"engine_dir": "/m"})
    files = Files({"/m/config.json": config, "/m/rank0.engine": "x"})
    found = find_engine("tensorrtllm").inspect(spec, build_sizes(spec, []), files, Gpu(80))
    assert all("\n" not in str(problem) for problem in found.problems)


# --- as a user meets it


def told(tmp_path: Path, command: str, spec: dict[str, Tree]) -> tuple[int, list[str]]:
    """Return the exit status and the lines on stderr of one command."""
    (tmp_path / "job.yaml").write_text(dump(spec), encoding="utf-8")
    options = [] if command in ("validate", "plan") else ["--dry-run"]
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SCRATCH": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    result = CliRunner().invoke(
        cli, [command, str(tmp_path / "job.yaml"), "--site", "devcluster", *options], env=environ
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr.splitlines()


@pytest.mark.parametrize("command", ["validate", "plan", "submit", "rehearse"])
@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"\x1b]0;title\x07": 1}, 3),
        ({"engine_args": {"\u202eabc": "\x1b[31m"}}, 4),
        ({"resources": {"a" * 5000: 1}}, 3),
        ({"engine_args": {"seed": "9" * 5000}}, 4),
    ],
    ids=["escape in a key", "text that runs backwards", "a long key", "a long value"],
)
def test_a_message_steers_no_terminal_and_has_an_end(
    command: str, values: dict[str, Tree], code: int, tmp_path: Path
) -> None:
    """A message quotes the file; what it quotes is printable, and short enough to see the message's own end."""
    found, lines = told(tmp_path, command, {"name": "demo", "engine": "rehearsal", **values})
    if command == "rehearse" or found:
        assert found == code
    assert lines and all(line.isprintable() and len(line) < 1100 for line in lines)


def test_every_problem_of_a_spec_is_told_at_once(tmp_path: Path) -> None:
    """One line for each, in whatever section it is."""
    wrong: dict[str, Tree] = {
        "resources": {"nodes": 0, "time": "soon"},
        "triton": {"http_port": 70_000, "extra_args": ["--http-port=1"]},
        "balancer": "apache",
        "recovery": {"restarts": -1},
        "env": {"a b": "x"},
        "prepare": {"vllm": {}},
        "nome": 1,
    }
    code, lines = told(tmp_path, "validate", {"name": "demo", "engine": "rehearsal", **wrong})
    names = ("nodes", "time", "http_port", "extra_args", "balancer", "restarts", "a b", "prepare.vllm.to", "nome")
    assert code == 3 and len(lines) == len(names)
    assert [name for name in names if not any(name in line for line in lines)] == []


def test_every_contradiction_is_told_at_once() -> None:
    """Those of the engine, of the site and of the layout, in one go."""
    spec = make(
        "vllm",
        {"max_model_len": 0, "gpu_memory_utilisation": 0.5},
        context_parallel_size=2,
        launch="leader",
        partition="gpu",
        triton={"http_port": 8000, "grpc_port": 8000},
        gpu_clocks="1980",
        resources={"gpus_per_node": 9},
    )
    with pytest.raises(SlurmLlmError) as caught:
        build_plan(spec, SITE)
    found = {problem.where for problem in caught.value.problems}
    assert found >= {
        *("context_parallel_size", "launch", "triton", "gpu_clocks", "resources.gpus_per_node"),
        *("engine_args.max_model_len", "engine_args.gpu_memory_utilisation"),
    }
