"""Looking into an image: what is read as files, how it is kept, and what checks make of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_llm import app
from slurm_llm.agent import image
from slurm_llm.assets import agent_files
from slurm_llm.containers import ContainerPlan
from slurm_llm.engines import find_engine
from slurm_llm.engines.types import Known
from slurm_llm.errors import PlanError
from slurm_llm.imagefacts import ImageFacts, Place, known_of, load, place_of, save
from slurm_llm.imageprobe import plan_probe
from slurm_llm.render import Target, render_image
from slurm_llm.sites.load import load_site
from slurm_llm.spec import spec_from_mapping
from slurm_llm.surroundings import Surroundings
from slurm_llm.topology import ParallelSizes
from slurm_llm.yamlio import Tree, dump
from tests.engines.engine_specs import PATHS
from tests.image_stand_in import (
    ARG_UTILS,
    NEW_LAUNCHER,
    OLD_LAUNCHER,
    TEMPLATE,
    write,
    write_engine,
    write_package,
)

IMAGE = "nvcr.io#nvidia/tritonserver:25.12-trtllm-python-py3"
KNOWN = Known(
    "image own.sqsh",
    present=True,
    version="1.2.9",
    names=frozenset({"model", "dtype", "kv_cache_config", "max_batch_size", "brand_new_argument"}),
    sections={"kv_cache_config": frozenset({"free_gpu_memory_fraction", "brand_new_key"})},
    templates={"tensorrt_llm": frozenset({"engine_dir", "triton_max_batch_size"})},
)
ABSENT = Known("image own.sqsh", present=False)


def look(packages: Path, path: str = "/usr/bin:/bin", homes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run the agent's verb in a fresh Python that has `packages`; it would end if it imported an engine."""
    here = packages.parent
    for name, text in agent_files().items():
        write(here / "agent" / name, text)
    own = f"import sys, runpy; sys.path.append({str(packages)!r}); sys.argv[1:] = sys.argv[1:]; "
    code = own + f"runpy.run_path({str(here / 'agent')!r}, run_name='__main__')"
    words = ["image", "--out", str(here / "found.json"), *(word for home in homes for word in ("--home", home))]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": path, "NVIDIA_TRITON_SERVER_VERSION": "25.12"},
    )
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads((here / "found.json").read_text())
    return value


def test_engines_are_read_and_never_imported(tmp_path: Path) -> None:
    """Names with those of the base class, keys of sections, versions by dist-info."""
    packages = tmp_path / "packages"
    write_engine(packages, tmp_path / "root")
    write_package(packages, "vllm", "0.27.1+cu130", "engine/arg_utils.py", ARG_UTILS)
    found = look(packages)
    trtllm = found["engines"]["tensorrt_llm"]
    assert trtllm["names"] == ["brand_new_argument", "dtype", "kv_cache_config", "max_batch_size", "model"]
    assert trtllm["sections"] == {"kv_cache_config": ["brand_new_key", "free_gpu_memory_fraction"]}
    assert found["engines"]["vllm"]["names"] == ["brand_new_argument", "enable_log_requests", "max_model_len", "model"]
    assert found["versions"] == {"tensorrt_llm": "1.2.9", "vllm": "0.27.1+cu130"}


@pytest.mark.parametrize(
    ("source", "told"),
    [("class Other: pass", "no class TorchLlmArgs"), ("def (", "not readable as Python"), (None, "No such file")],
)
def test_arguments_that_cannot_be_read_are_told(tmp_path: Path, source: str | None, told: str) -> None:
    """The engine is there all the same; the tables count for it."""
    write(tmp_path / "packages/tensorrt_llm/__init__.py", "")
    if source is not None:
        write(tmp_path / "packages/tensorrt_llm/llmapi/llm_args.py", source)
    found = look(tmp_path / "packages")
    assert told in found["engines"]["tensorrt_llm"]["error"]
    assert known_of(ImageFacts(Place("i", ""), 0, "job 1", found), "llmapi") is None


@pytest.mark.parametrize(("text", "newer"), [(NEW_LAUNCHER, True), (OLD_LAUNCHER, False)])
def test_the_launchers_form_is_told(tmp_path: Path, text: str, newer: bool) -> None:
    """Old ones neither end with their task nor pass its exit code on."""
    write(tmp_path / "bin/trtllm-llmapi-launch", text, program=True)
    found = look(tmp_path / "packages", f"{tmp_path}/bin:/usr/bin:/bin")
    assert found["launcher"] == {"path": f"{tmp_path}/bin/trtllm-llmapi-launch", "ends_with_task": newer}


def test_triton_and_templates_are_told(tmp_path: Path) -> None:
    """A home, its release and backends, the front end, and what each template asks for."""
    home = tmp_path / "triton"
    write(home / "bin/tritonserver", "", program=True)
    write(home / "backends/python/model.py", "")
    write(home / image.FRONT_END, "")
    write(tmp_path / "models/inflight_batcher_llm/tensorrt_llm/config.pbtxt", TEMPLATE)
    found = look(tmp_path / "packages", homes=(str(tmp_path / "none"), str(home)))["triton"]
    assert (found["home"], found["release"], found["backends"]) == (str(home), "25.12", ["python"])
    assert found["openai_frontend"] == str(home / image.FRONT_END)
    assert image.placeholders(str(tmp_path / "models")) == {"tensorrt_llm": ["brand_new_name", "engine_dir"]}


def test_nothing_is_told_of_an_empty_machine(tmp_path: Path) -> None:
    """Absent engines are known to be absent, and no template is asked for."""
    found = look(tmp_path / "packages")
    assert (found["engines"], found["versions"]) == ({"tensorrt_llm": None, "vllm": None}, {})
    assert (found["launcher"], found["triton"]) == (None, None)
    known = known_of(ImageFacts(Place("i", ""), 0, "job 1", found), "vllm")
    assert known is not None and not known.present


def container(image_name: str) -> ContainerPlan:
    """Return a container with that image."""
    return ContainerPlan("pyxis", "", image_name, (), None, (), "python3", ())


def test_a_file_that_changes_is_another_image(tmp_path: Path) -> None:
    """What was seen of it counts as long as its time and size stay, wherever a link to it lies."""
    site = load_site("devcluster", {}).profile
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "IMAGES": str(tmp_path)}
    own = tmp_path / "own.sqsh"
    own.write_text("one")
    place = place_of(container("$IMAGES/own.sqsh"), site, environ)
    facts = ImageFacts(place, 1.0, "this machine", {"schema": image.SCHEMA, "engines": {}})
    kept = save(facts, environ)
    assert load(place, environ) == facts
    own.write_text("another")
    assert load(place_of(container("$IMAGES/own.sqsh"), site, environ), environ) is None
    kept.write_text("{")
    assert load(place, environ) is None


def test_a_reference_is_known_by_its_text_and_nodes_by_their_profile(tmp_path: Path) -> None:
    """A digest or tag is the image; another Python or another module makes other nodes of a site."""
    site = load_site("devcluster", {}).profile
    assert place_of(container(IMAGE), site, {}) == Place(IMAGE, "")
    assert place_of(container(IMAGE), site, {}).words == f"image {IMAGE}"
    nodes = place_of(None, site, {})
    assert nodes.words == "a node of site devcluster"
    assert place_of(None, site.model_copy(update={"python": "/opt/python3"}), {}) != nodes
    assert load(nodes, {"HOME": str(tmp_path)}) is None


def complaints(engine: str, known: Known | None, image_name: str = "own.sqsh", **arguments: Tree) -> list[str]:
    """Return what the engine says of a spec with these arguments."""
    own = {**PATHS, "tensorrt_llm_version": "1.1.0", **arguments} if engine == "tensorrtllm" else arguments
    spec = spec_from_mapping({"name": "one", "engine": engine, "model": "org/model", "engine_args": own})
    check = find_engine(spec.engine).check
    return [str(problem) for problem in check(spec, ParallelSizes(), image_name, known)]


@pytest.mark.parametrize("engine", ["llmapi", "vllm"])
def test_the_images_own_arguments_count(engine: str) -> None:
    """One that no table knows is taken; one that only the tables know, or nobody, is refused with the nearest."""
    assert complaints(engine, KNOWN, brand_new_argument=True) == []
    (told,) = complaints(engine, KNOWN, brand_new_argumnet=True)
    assert told.startswith("engine_args.brand_new_argumnet: image own.sqsh (1.2.9) knows no such argument")
    assert told.endswith("did you mean 'brand_new_argument'?")
    (told,) = complaints(engine, KNOWN, tokenizer_mode="slow")
    assert told.startswith("engine_args.tokenizer_mode: image own.sqsh (1.2.9) knows no such argument")
    assert complaints(engine, None, tokenizer_mode="slow") == []


@pytest.mark.parametrize(
    ("launch", "tensor", "refused"),
    [("llmapi_launch", 2, True), (None, 2, True), ("leader", 2, False), (None, 1, False)],
)
def test_a_launcher_that_is_not_there_is_not_called(launch: str | None, tensor: int, refused: bool) -> None:
    """Nothing is said where nobody looked, or where the ranks start without it."""
    spec = spec_from_mapping(
        {"name": "one", "engine": "llmapi", "model": "org/model", "launch": launch, "tensor_parallel_size": tensor}
    )
    check = find_engine("llmapi").check
    sizes = ParallelSizes(tensor_parallel_size=tensor, moe_tensor_parallel_size=tensor)
    told = [str(problem) for problem in check(spec, sizes, None, replace(KNOWN, launcher=False))]
    assert told == (["launch: image own.sqsh has no trtllm-llmapi-launch: leader: set `launch: leader`"] * refused)
    assert check(spec, sizes, None, KNOWN) == check(spec, sizes, None, replace(KNOWN, launcher=True)) == []


def test_an_image_without_the_model_folder_is_refused() -> None:
    """Unless the spec names a checkout that has it."""
    bare = replace(KNOWN, models=frozenset({"inflight_batcher_llm"}))
    (told,) = complaints("llmapi", bare)
    assert told.startswith("container.image: image own.sqsh has no llmapi model folder")
    assert complaints("llmapi", bare, all_models="/checkout/all_models") == []


def test_keys_of_sections_are_those_of_the_image_and_of_the_tables() -> None:
    """A new key is taken, a near miss of it refused."""
    assert complaints("llmapi", KNOWN, kv_cache_config={"brand_new_key": 1, "enable_block_reuse": True}) == []
    (told,) = complaints("llmapi", KNOWN, kv_cache_config={"brand_new_kye": 1})
    assert told.endswith("did you mean 'brand_new_key'?")


def test_an_older_vllm_is_told_by_the_tables() -> None:
    """The releases that know the argument help to choose an image."""
    (told,) = complaints("vllm", KNOWN, max_model_len=100)
    assert "vLLM 0.5.5 to " in told


def test_types_are_still_checked() -> None:
    """Names are the image's; what kind of value each takes the tables say."""
    known = replace(KNOWN, names=KNOWN.names | {"max_model_len"})
    (told,) = complaints("vllm", known, max_model_len="long")
    assert "found 'long'" in told


def test_templates_of_the_image_count() -> None:
    """A value that the image's template does not ask for would be lost."""
    assert complaints("tensorrtllm", KNOWN, triton_max_batch_size=4, tokenizer_dir="/t") == []
    (told,) = complaints("tensorrtllm", KNOWN, max_beam_width=1)
    assert "the tensorrt_llm template of image own.sqsh does not ask for it" in told


@pytest.mark.parametrize(("engine", "what"), [("llmapi", "TensorRT-LLM"), ("vllm", "vLLM")])
def test_an_image_without_the_engine_is_refused(engine: str, what: str) -> None:
    """Once, also where the image's name says it."""
    (told,) = complaints(engine, ABSENT)
    assert told.startswith(f"container.image: image own.sqsh holds no {what}")
    other = "tritonserver:25.12-vllm-python-py3" if engine == "llmapi" else IMAGE
    assert len(complaints(engine, ABSENT, other)) == 1


@pytest.fixture
def seen(tmp_path: Path) -> Surroundings:
    """Surroundings in which the image of `spec_file` was looked into."""
    packages = tmp_path / "packages"
    write_engine(packages, tmp_path / "root")
    around = Surroundings({"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": "/", "USER": "somebody"}, tmp_path)
    found = {**look(packages), "models": {"/app/all_models": ["llmapi"]}}
    save(ImageFacts(Place(IMAGE, ""), 1.0, "job 1", found), around.environ)
    return around


def spec_file(folder: Path, **values: Tree) -> Path:
    """Write a spec with that image."""
    own: dict[str, Tree] = {"name": "one", "engine": "llmapi", "model": "org/model", "container": {"image": IMAGE}}
    path = folder / "spec.yaml"
    path.write_text(dump({**own, **values}))
    return path


def test_planning_takes_what_was_seen(seen: Surroundings, tmp_path: Path) -> None:
    """And the tables where nothing was, or where the spec brings a Triton of its own."""
    path = spec_file(tmp_path, engine_args={"brand_new_argument": True})
    assert app.plan_job(path, "aws-hyperpod", (), seen).plan.facts[-1] == ("arguments", f"as read in image {IMAGE}")
    for around, settings in (
        (Surroundings({**seen.environ, "XDG_CACHE_HOME": "/nowhere"}, tmp_path), ()),
        (seen, ("triton.server=/apps/triton",)),
    ):
        with pytest.raises(PlanError, match="no version of TensorRT-LLM that is known here"):
            app.plan_job(path, "aws-hyperpod", settings, around)


@pytest.mark.parametrize("site", ["aws-hyperpod", "nsc-berzelius", "devcluster"])
def test_the_looks_scripts_are_sound(tmp_path: Path, site: str) -> None:
    """They pass shellcheck, and start the one task by the very line of a job's ranks."""
    around = Surroundings({"HOME": "/home/me", "USER": "me", "XDG_CACHE_HOME": str(tmp_path)}, tmp_path)
    own = {"aws-hyperpod": IMAGE, "nsc-berzelius": "/images/own.sif"}
    where: dict[str, Tree] = {"container": {"image": own[site]}} if site in own else {}
    path = tmp_path / "spec.yaml"
    path.write_text(
        dump({"name": "one", "engine": "vllm", "model": "org/model", "account": "Berzelius-2026-1", **where})
    )
    plan = plan_probe(path, site, (), around).job.plan
    texts = render_image(plan, Target(Path("/runs/a b"), "/usr/bin/python3", around.environ))
    scripts = [name for name in texts if name.endswith((".sub", ".sh"))]
    for name in scripts:
        (tmp_path / name).write_text(texts[name])
    done = subprocess.run(["shellcheck", *scripts], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert texts["image.sub"].startswith("#!/bin/bash\n#SBATCH --job-name=image\n")
    assert "srun --mpi=none --nodes=1 --ntasks=1 " in texts["image.sub"]


def test_a_look_is_planned_for_a_spec_that_is_wrong(seen: Surroundings, tmp_path: Path) -> None:
    """It is there to find out what is right: sizes and arguments do not matter, the place in the queue does."""
    path = spec_file(tmp_path, tensor_parallel_size=6, engine_args={"no_such": 1}, qos="fast", reservation="ours")
    probe = plan_probe(path, "aws-hyperpod", (), seen)
    assert probe.kept is not None and probe.place.name == IMAGE
    own = probe.job.plan.allocation
    assert (own.nodes, own.ranks_per_node, own.qos, own.reservation, own.time) == (1, 1, "fast", "ours", "00:05:00")
    assert probe.job.plan.step.mpi == "none"
    assert not probe.can_look_here
