"""The engine path's repository: what fills the image's templates, and what comes out of them.

The templates are stand-ins of our own that hold the placeholders of the real ones; `docs/examples/tensorrtllm-*.yaml`
are the specs. `pytest tests/engines --update-golden` writes the golden files anew.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_llm.agent.repository import Unusable, build
from slurm_llm.engines.releases import release_of, version_numbers
from slurm_llm.engines.tensorrtllm_parameters import MULTIMODAL, PARAMETERS, TENSORRT_LLM
from slurm_llm.engines.types import ImageFile
from slurm_llm.plan import Plan, build_plan
from slurm_llm.render import Target, render
from slurm_llm.rundir import REPOSITORY, REPOSITORY_RECIPE
from slurm_llm.sites.load import load_site
from slurm_llm.spec import load_spec
from slurm_llm.yamlio import Tree
from tests.engines.engine_specs import FIXTURES, engine_plan

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "docs" / "examples").glob("tensorrtllm-*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
SITE = load_site("aws-hyperpod", {}).profile
WHOLE = ("tensorrtllm-llama-7b", "tensorrtllm-orchestrator", "tensorrtllm-encoder-decoder", "tensorrtllm-multimodal")
"""Examples whose filled configurations are golden too."""

PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
NAMED = re.compile(r'^name: "(.*)"$', re.MULTILINE)
STEP = re.compile(r'model_name: "(.*?)"')


def example(path: Path, *settings: str) -> Plan:
    """Return the plan of an example on a site with pyxis and nodes of eight GPUs."""
    return build_plan(load_spec(path, settings), SITE)


def templates_of(path: Path) -> Path:
    """Return the stand-ins for the release of an example's image."""
    container = load_spec(path).container
    release = release_of(None if container is None else container.image)
    assert release is not None and release.trtllm is not None
    return FIXTURES / ".".join(map(str, version_numbers(release.trtllm)[:2]))


def build_repository(plan: Plan, into: Path) -> Path:
    """Put the repository together as the job does: from the rendered run directory, by the agent."""
    run = into / "run"
    files = render(plan, Target(run, "/usr/bin/python3", {"USER": "somebody"}))
    for name, text in files.items():
        if name.startswith(f"{REPOSITORY}/"):
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_text(text)
    build(json.loads(files[REPOSITORY_RECIPE]), str(into / "repository"))
    return into / "repository"


def described(plan: Plan) -> Iterator[str]:
    """Yield what a reader wants to see of a plan's server, a line each."""
    server = plan.server
    yield f"launch: {plan.launch}, {len(plan.ranks)} ranks on {plan.allocation.nodes} nodes"
    yield f"tritonserver: {' '.join(server.arguments)}"
    yield f"workers: {' '.join(server.worker_arguments)}"
    yield f"environment: {' '.join('='.join(pair) for pair in server.env)}"
    yield f"probe: {plan.probe.path} {plan.probe.body}"
    yield from (f"own file: {file.path}" for file in server.repository)
    for file in server.image_files:
        yield f"{file.path} <- {file.sources[0]}"
        yield from (f"  {name}: {value}" for name, value in file.fill)
        yield from (f"  {old} -> {new}" for old, new in file.replace)
        yield from (f"  + {line}" for line in file.append.splitlines())


def compare(golden: Path, text: str, request: pytest.FixtureRequest) -> None:
    """Compare with a golden file, or write it."""
    if request.config.getoption("--update-golden", default=False):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.is_file(), f"{golden} is missing: run pytest tests/engines --update-golden and review it"
    assert golden.read_text() == text, f"{golden} differs: if that is meant, --update-golden"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_is_filled_as_reviewed(path: Path, request: pytest.FixtureRequest) -> None:
    """Every substitution, flag and variable that a documented feature gives."""
    compare(GOLDEN / f"{path.stem}.txt", "\n".join(described(example(path))) + "\n", request)


@pytest.mark.parametrize("name", WHOLE)
def test_the_filled_configurations_are_as_reviewed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """All of config.pbtxt, of every model."""
    path = next(path for path in EXAMPLES if path.stem == name)
    made = build_repository(example(path, f"engine_args.templates={templates_of(path)}"), tmp_path)
    configs = sorted(made.rglob("config.pbtxt"))
    text = "".join(f"=== {config.relative_to(made)}\n{config.read_text()}" for config in configs)
    compare(GOLDEN / f"{name}.repository.txt", text, request)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_makes_a_repository_that_triton_can_read(path: Path, tmp_path: Path) -> None:
    """Folders bear their models' names, ensembles call models that are there, nothing outside a text is unfilled."""
    made = build_repository(example(path, f"engine_args.templates={templates_of(path)}"), tmp_path)
    models = {folder.name for folder in made.iterdir()}
    for model in models:
        config = (made / model / "config.pbtxt").read_text()
        assert NAMED.findall(config) == [model]
        assert set(STEP.findall(config)) <= models
        bare = re.sub(r'"[^"\n]*"', '""', config)
        assert not PLACEHOLDER.findall(bare), f"{model}: Triton cannot parse what is left"
        assert any((made / model / "1").iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_filling_is_what_nvidias_script_makes(path: Path, tmp_path: Path) -> None:
    """string.Template.safe_substitute with the script's own defaults, on what is left after the replacements."""
    plan = example(path, f"engine_args.templates={templates_of(path)}")
    made = build_repository(plan, tmp_path)
    for file in plan.server.image_files:
        if file.path.endswith("config.pbtxt"):
            assert (made / file.path).read_text() == by_the_script(file)


def by_the_script(file: ImageFile) -> str:
    """Return what fill_template.py makes of the first source that exists; the rest is what docs do by hand."""
    text = next(source.read_text() for source in map(Path, file.sources) if source.is_file())
    for old, new in file.replace:
        text = text.replace(old, new)
    values = {"max_queue_size": "0", "max_queue_delay_microseconds": "0", **dict(file.fill)}
    return string.Template(text).safe_substitute(values) + file.append


def test_values_with_the_scripts_own_characters_arrive_whole(tmp_path: Path) -> None:
    """The script wants commas and colons escaped; here nothing is split, and a dollar in a value is not read again."""
    arguments: dict[str, Tree] = {
        "templates": str(FIXTURES / "1.1"),
        "engine_dir": "/models/a:b,c/${engine_dir}/$x",
        "gpu_device_ids": "0,1",
        "medusa_choices": "{0, 0, 0}, {0, 1}",
    }
    made = build_repository(engine_plan(arguments, tensor_parallel_size=2), tmp_path)
    config = (made / "tensorrt_llm" / "config.pbtxt").read_text()
    assert 'string_value: "/models/a:b,c/${engine_dir}/$x"' in config
    assert 'string_value: "0,1"' in config
    assert 'string_value: "{0, 0, 0}, {0, 1}"' in config
    assert "A price of $1 stays" in config and "${an unfinished" in config
    assert 'string_value: "${participant_ids}"' in config, "what is not named stays"


@pytest.mark.parametrize("version", ["0.17", "0.19", "1.1"])
def test_the_tables_are_the_templates_placeholders(version: str) -> None:
    """Every placeholder of a release is in the table for that release, and nothing else."""
    release = version_numbers(version)
    for model, parameters in PARAMETERS.items():
        kind = "multimodal" if model == MULTIMODAL else "inflight_batcher_llm"
        text = (FIXTURES / version / "all_models" / kind / model / "config.pbtxt").read_text()
        expected = set(PLACEHOLDER.findall(text))
        known = {
            parameter.old if parameter.old is not None and release < parameter.renamed else name
            for name, parameter in parameters.items()
            if parameter.since <= release and not parameter.appended
        }
        assert known == expected, model


def test_a_template_of_another_release_is_told_in_the_job(tmp_path: Path) -> None:
    """A placeholder that the image's template lacks stops the start, with its name."""
    plan = engine_plan({"templates": str(FIXTURES / "0.17")}, "1.1.0")
    with pytest.raises(Unusable, match=r"has no \$\{max_queue_delay_microseconds\}, \$\{max_queue_size\}"):
        build_repository(plan, tmp_path)


def test_an_image_without_templates_is_told_in_the_job(tmp_path: Path) -> None:
    """With every place that was looked at."""
    with pytest.raises(Unusable, match=r"there is no /app/all_models/inflight_batcher_llm/preprocessing/config\.pbtxt"):
        build_repository(engine_plan(), tmp_path)


def test_all_instances_are_of_one_model(tmp_path: Path) -> None:
    """instance_group counts them, as the page does by hand."""
    made = build_repository(engine_plan({"templates": str(FIXTURES / "1.1"), "instance_count": 3}), tmp_path)
    assert "count: 3 kind: KIND_CPU" in (made / TENSORRT_LLM / "config.pbtxt").read_text()


def test_left_out_models_are_not_there(tmp_path: Path) -> None:
    """`false` takes a model out of the repository, with its version folder."""
    arguments: dict[str, Tree] = {"templates": str(FIXTURES / "1.1"), "ensemble": False}
    made = build_repository(engine_plan(arguments), tmp_path)
    assert sorted(folder.name for folder in made.iterdir()) == [
        *("postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls")
    ]


def test_what_is_given_once_goes_to_every_model() -> None:
    """Batch size, decoupled mode, tokenizer and types; a section's own value is stronger."""
    arguments: dict[str, Tree] = {
        "triton_max_batch_size": 16,
        "decoupled_mode": True,
        "logits_datatype": "TYPE_FP16",
        "postprocessing": {"triton_max_batch_size": 8},
    }
    files = {file.path.partition("/")[0]: dict(file.fill) for file in engine_plan(arguments).server.image_files[::2]}
    sizes = {model: values["triton_max_batch_size"] for model, values in files.items()}
    assert sizes == dict.fromkeys(files, "16") | {"postprocessing": "8"}
    assert {files[model]["decoupled_mode"] for model in ("tensorrt_llm", "tensorrt_llm_bls")} == {"true"}
    assert {files[model]["logits_datatype"] for model in ("tensorrt_llm", "tensorrt_llm_bls", "ensemble")} == {
        "TYPE_FP16"
    }
    assert {files[model]["tokenizer_dir"] for model in ("preprocessing", "postprocessing")} == {"/models/hf"}
    assert "tokenizer_dir" not in files["tensorrt_llm"]


def test_the_model_may_be_the_tokenizer() -> None:
    """A path as `model` is the folder with the tokenizer."""
    plan = engine_plan({"tokenizer_dir": None}, model="/models/llama")
    files = {file.path: dict(file.fill) for file in plan.server.image_files}
    assert files["preprocessing/config.pbtxt"]["tokenizer_dir"] == "/models/llama"


def test_the_python_runtime_reads_the_tokenizer_for_guided_decoding() -> None:
    """The C++ backend has a file of its own and ignores it."""
    arguments: dict[str, Tree] = {"triton_backend": "python", "guided_decoding_backend": "xgrammar"}
    files = {file.path: dict(file.fill) for file in engine_plan(arguments).server.image_files}
    assert files["tensorrt_llm/config.pbtxt"]["tokenizer_dir"] == "/models/hf"


def test_no_golden_file_is_left_over() -> None:
    """An example that goes takes its golden files with it."""
    expected = {f"{path.stem}.txt" for path in EXAMPLES} | {f"{name}.repository.txt" for name in WHOLE}
    assert {path.name for path in GOLDEN.glob("tensorrtllm-*")} == expected
