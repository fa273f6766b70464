"""From a `prepare` section to stages: their commands, where they run, what they ask for, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.containers.imports import import_image
from slurm_llm.containers.runtime import Fault
from slurm_llm.errors import PlanError
from slurm_llm.plan import build_plan
from slurm_llm.preparation import Stage
from slurm_llm.render import render_stage
from slurm_llm.sites.load import load_site
from slurm_llm.slurm.options import option_name
from slurm_llm.spec import spec_from_mapping
from slurm_llm.stages.asking import plan_stage, stage_options
from slurm_llm.stages.chain import wrapped
from tests.sites.shipped import SITES, TARGET, account_of, profile_of
from tests.stages.making import RUN_ID, TRTLLM_IMAGE, job_of, stages_of, with_image

IMPORTS = (
    ("pyxis", "nvcr.io/nvidia/tritonserver:1", "enroot import -o TO docker://nvcr.io#nvidia/tritonserver:1"),
    ("enroot", "docker://nvcr.io#nvidia/tritonserver:1", "enroot import -o TO docker://nvcr.io#nvidia/tritonserver:1"),
    ("cscs_ce", "ubuntu:24.04", "enroot import -o TO docker://ubuntu:24.04"),
    ("apptainer", "nvcr.io/nvidia/tritonserver:1", "apptainer pull TO docker://nvcr.io/nvidia/tritonserver:1"),
    ("singularity", "docker://nvcr.io#nvidia/x:1", "singularity pull TO docker://nvcr.io/nvidia/x:1"),
    ("apptainer", "oras://ghcr.io/a/b:1", "apptainer pull TO oras://ghcr.io/a/b:1"),
    ("podman_hpc", "nvcr.io/nvidia/x:1", "podman-hpc pull nvcr.io/nvidia/x:1"),
    ("shifter", "docker:nvcr.io/nvidia/x:1", "shifterimg pull nvcr.io/nvidia/x:1"),
    ("charliecloud", "nvcr.io/nvidia/x:1", "ch-image pull nvcr.io/nvidia/x:1; ch-convert -o dir nvcr.io/nvidia/x:1 TO"),
)


@pytest.mark.parametrize(("runtime", "source", "wanted"), IMPORTS)
def test_each_runtime_imports_in_its_own_words(runtime: str, source: str, wanted: str) -> None:
    """The same reference, however it is written, becomes the grammar of the site's runtime."""
    made = import_image(runtime, None, source, "TO")
    assert not isinstance(made, Fault)
    assert "; ".join(" ".join(words) for words in made.commands) == wanted


@pytest.mark.parametrize(("runtime", "source"), [("pyxis", "/images/x.sqsh"), ("apptainer", "NO"), ("none", "a/b:1")])
def test_what_cannot_be_imported_is_refused(runtime: str, source: str) -> None:
    """A file, a name that no registry has, a site without containers."""
    assert isinstance(import_image(runtime, None, source, "TO"), Fault)


def _words(stage: Any) -> list[str]:
    return [command.text for command in stage.recipe.commands]


def test_an_image_goes_where_the_spec_looks_for_it(tmp_path: Path) -> None:
    """`to` follows from container.image; what is half made has another name in the same folder."""
    stages = stages_of(tmp_path, {"image": {"source": "nvcr.io/nvidia/tritonserver:25.12-py3"}}, **with_image())
    product = stages["image"].recipe.product
    assert product is not None and product.path == TRTLLM_IMAGE
    assert Path(product.part).parent == Path(TRTLLM_IMAGE).parent and RUN_ID in product.part
    assert stages["image"].where == "job" and stages["image"].needed


def test_weights_without_a_folder_go_to_the_hubs_cache(tmp_path: Path) -> None:
    """HF_HOME of the job decides, as it does for the server; each pattern has a call of its own."""
    prepare = {"weights": {"include": ["*.json", "*.safetensors"], "exclude": ["*.bin"], "revision": "v1"}}
    stages = stages_of(tmp_path, prepare, model="org/tiny", env={"HF_HOME": "/hf"})
    weights = stages["weights"].recipe
    assert weights.product is not None and weights.product.path == "/hf/hub/models--org--tiny"
    start = "hf download org/tiny --revision=v1 '--exclude=*.bin' "
    assert _words(stages["weights"]) == [start + "'--include=*.json'", start + "'--include=*.safetensors'"]


def test_parallel_sizes_of_engines_are_the_specs(tmp_path: Path) -> None:
    """convert_checkpoint.py is told them; trtllm-build takes them from the checkpoint, and GPUs from the job."""
    prepare = {
        "convert": {"script": "/app/convert.py", "to": "/s/ckpt", "source": "/m", "args": {"dtype": "bfloat16"}},
        "build": {"to": "/s/engine", "gpus": 2, "args": {"max_batch_size": 8, "fast_build": True, "log_level": None}},
    }
    sizes = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "moe_expert_parallel_size": 4}
    stages = stages_of(tmp_path, prepare, **sizes, **with_image())
    (convert,), (build,) = _words(stages["convert"]), _words(stages["build"])
    assert "--tp_size 4 --pp_size 2 --moe_tp_size 1 --moe_ep_size 4 --dtype bfloat16" in convert
    assert "--checkpoint_dir /s/ckpt " in build
    assert build.endswith("--gpus_per_node 4 --workers 2 --max_batch_size 8 --fast_build")
    options = stage_options(render_stage(stages["build"].plan, TARGET).options)
    assert "--gres=gpu:2" in options and "--nodes=1" in options
    assert not [one for one in render_stage(stages["convert"].plan, TARGET).options if one.startswith("--gres")]


def test_commands_of_the_image_are_put_into_it(tmp_path: Path) -> None:
    """A stage enters the container as a rank does: srun with the site's MPI, since TensorRT-LLM starts MPI."""
    prepare = {"build": {"to": "/scratch/ada/engine", "source": "/s/ckpt"}}
    stage = stages_of(tmp_path, prepare, **with_image())["build"]
    made = render_stage(stage.plan, TARGET)
    (command,) = wrapped(stage.recipe, made.enter).commands
    assert command.argv[:2] == ("srun", "--mpi=pmix") and "--ntasks=1" in command.argv
    assert command.argv[command.argv.index("bash") + 1] == "/runs/demo/enter.sh"
    assert command.argv[command.argv.index("bash") + 2] == "trtllm-build"
    assert "--label" not in command.argv
    assert "--mount=/scratch/ada:/scratch/ada:" in made.files["enter.sh"], "the product's folder is to be written to"
    assert "--mount=/s/ckpt:/s/ckpt:" in made.files["enter.sh"]


def test_a_vllm_home_is_for_the_vllm_engine(tmp_path: Path) -> None:
    """Another engine's server would not look at it."""
    with pytest.raises(PlanError, match="engine rehearsal takes no vLLM backend"):
        stages_of(tmp_path, {"vllm": {"to": "/s/vllm"}}, **with_image())


ONLINE = {"image": {"source": "nvcr.io/nvidia/x:1"}, "weights": {"repo": "org/tiny", "to": "/s/tiny"}}
OFFLINE_SITE = {"container": {"runtime": "enroot"}, "network": {"internet": "none"}}


def test_what_is_fetched_is_fetched_here_where_nodes_have_no_internet(tmp_path: Path) -> None:
    """Image and weights run on the login node by themselves; asked for in a job they are refused."""
    fields = {"container": {"image": TRTLLM_IMAGE}, "site": OFFLINE_SITE}
    stages = stages_of(tmp_path, ONLINE, **fields)
    assert {name: one.where for name, one in stages.items()} == {"image": "login", "weights": "login"}
    asked = {"weights": {**ONLINE["weights"], "on": "job"}}
    with pytest.raises(PlanError, match=r"prepare.weights.on: compute nodes of site devcluster have no internet"):
        stages_of(tmp_path, asked, **fields)
    inside = {"weights": {**ONLINE["weights"], "in_image": True}}
    with pytest.raises(PlanError, match=r"`hf download org/tiny .*` would run in the image on this machine"):
        stages_of(tmp_path, inside, **fields)


BUILD = {"to": "/s/engine", "source": "/s/ckpt"}
REFUSED: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
    ("no runtime", {"image": {"source": "a/b:1"}}, {}, "no container runtime, so there is no image to import"),
    ("no release", {"build": BUILD}, with_image("/images/some.sqsh"), "tells no Triton release"),
    ("too new", {"build": BUILD}, with_image("/i/tritonserver-26.09-trtllm.sqsh"), "newer than 26.07"),
    ("ours", {"build": {**BUILD, "args": {"output_dir": "/x"}}}, with_image(), "is set by slurm_llm itself: use to"),
    ("a mapping", {"build": {**BUILD, "args": {"a": {"b": 1}}}}, with_image(), "a mapping is no argument"),
    ("no folder", {"build": {"source": "/s/ckpt"}}, with_image(), "prepare.build.to: is not said"),
    ("no model", {"convert": {"script": "/c.py", "to": "/s/c"}}, with_image(), "the folder of the model is not said"),
    ("no id", {"weights": {}}, {"model": "/models/tiny"}, "the spec's model is no id of the hub"),
    (
        "too many GPUs",
        {"build": {**BUILD, "gpus": 5}},
        with_image(),
        "5 GPUs asked for, a node of partition batch has 4",
    ),
    ("time", {"weights": {"repo": "a/b", "time": "2-00:00:00"}}, {}, "prepare.weights.time: 2-00:00:00 asked for"),
    ("local", {"weights": {"repo": "a/b", "to": "/tmp/tiny"}}, {}, "/tmp/tiny lies in /tmp, which is each node's own"),
    ("partition", {"weights": {"repo": "a/b", "partition": "no"}}, {}, "prepare.weights.partition: unknown partition"),
    (
        "secret",
        {"weights": {"repo": "a/b"}},
        {"env": {"HF_TOKEN": "hf_x"}},
        "env.HF_TOKEN: the value of HF_TOKEN would",
    ),
)


@pytest.mark.parametrize(("prepare", "fields", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_is_refused_before_anything_runs(
    tmp_path: Path, prepare: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    """Each refusal names its field."""
    with pytest.raises(PlanError) as caught:
        stages_of(tmp_path, prepare, **fields)
    assert said in str(caught.value)
    assert "hf_x" not in str(caught.value)


def test_a_checkpoint_for_other_sizes_is_refused(tmp_path: Path) -> None:
    """A checkpoint that this machine can read tells what it is made for."""
    (tmp_path / "config.json").write_text(json.dumps({"mapping": {"tp_size": 4, "pp_size": 1}}))
    prepare = {"build": {"to": "/s/engine", "source": str(tmp_path)}}
    with pytest.raises(PlanError, match="made for tp_size 4, the spec has tensor_parallel_size 2"):
        stages_of(tmp_path, prepare, tensor_parallel_size=2, **with_image())
    assert stages_of(tmp_path, prepare, tensor_parallel_size=4, **with_image())["build"].needed


def test_the_server_uses_what_was_prepared() -> None:
    """Weights that are there are not looked for on the hub; what the spec says itself stays."""
    site = load_site("devcluster", {}).profile
    spec: dict[str, Any] = {"name": "x", "engine": "rehearsal", "prepare": {"weights": {"repo": "a/b"}}}
    assert dict(build_plan(spec_from_mapping(spec), site).env.set)["HF_HUB_OFFLINE"] == "1"
    own = {**spec, "env": {"HF_HUB_OFFLINE": 0}}
    assert dict(build_plan(spec_from_mapping(own), site).env.set)["HF_HUB_OFFLINE"] == "0"
    assert "HF_HUB_OFFLINE" not in dict(build_plan(spec_from_mapping({**spec, "prepare": None}), site).env.set)


def test_paths_of_prepare_hold_variables(tmp_path: Path) -> None:
    """`$NAME` and `~` are replaced as everywhere; a relative path is refused with its field."""
    job = job_of(tmp_path, {"weights": {"repo": "a/b", "to": "~/tiny"}})
    assert job.spec.prepare is not None and job.spec.prepare.weights is not None
    assert job.spec.prepare.weights.to == f"{tmp_path}/tiny"
    with pytest.raises(Exception, match=r"prepare\.weights\.to: must be an absolute path"):
        spec_from_mapping({"name": "x", "engine": "rehearsal", "prepare": {"weights": {"to": "tiny"}}})


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("gpus", [0, 1])
def test_every_site_gets_stages_in_its_own_dialect(tmp_path: Path, name: str, gpus: int) -> None:
    """One node in each partition, with what the site requires and nothing that it forbids."""
    site = profile_of(name)
    for part, partition in site.partitions.items():
        if (partition.limits.min_nodes or 1) > 1:
            continue
        own = site.for_partition(part)
        fields: dict[str, Any] = {"partition": part, "site": {"container": {"runtime": "none"}}}
        if (account := account_of(own)) is not None:
            fields["account"] = account
        job = job_of(tmp_path, None, on_site=name, **fields)
        stage = Stage(gpus=gpus if partition.gpus_per_node else 0)
        options = stage_options(render_stage(plan_stage(job, "image", stage, (), False), TARGET).options)
        given = {option_name(option) for option in options}
        assert not given & {option.lstrip("-") for option in (*own.policies.forbid, *own.sbatch_skip)}
        assert {"job-name", "nodes"} <= given
