"""plan_container: when there is a container, which flags follow from the site, and what it refuses beside images."""

from __future__ import annotations

import json

import pytest

from slurm_llm.containers.runtimes import RUNTIMES
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.sites.containers import RuntimeName
from slurm_llm.yamlio import Tree
from tests.containers.rendered import IMAGES, make_plan, try_plan


def test_every_runtime_of_the_schema_has_an_adapter() -> None:
    """And every adapter is known by its own name."""
    names = set(RuntimeName.__args__)  # type: ignore[attr-defined]
    assert set(RUNTIMES) == names - {"none"} == set(IMAGES)
    assert all(name == runtime.name for name, runtime in RUNTIMES.items())


@pytest.mark.parametrize(
    ("container", "where"), [({"image": "x:1"}, "container.image"), ({"mounts": ["/a"]}, "container")]
)
def test_a_site_without_a_runtime_takes_no_image(container: dict[str, Tree], where: str) -> None:
    """The words that users of earlier releases know."""
    plan, problems = try_plan("none", container)
    assert plan is None
    assert [problem.where for problem in problems] == [where]
    assert "site here has no container runtime: remove `container`, or choose another site" in str(problems[0])
    assert try_plan("none", None, rules={"image": "x:1"}) == (None, [])


def test_without_an_image_the_ranks_run_on_the_node() -> None:
    """Mounts of no image are a mistake."""
    assert try_plan("pyxis", None) == (None, [])
    assert try_plan("pyxis", {}) == (None, [])
    plan, problems = try_plan("pyxis", {"mounts": ["/data"]})
    assert plan is None
    assert "no image" in str(problems[0])


def test_a_definition_that_another_is_built_on_names_the_image() -> None:
    """CSCS's container engine alone can inherit its image."""
    plan, problems = try_plan("cscs_ce", None, rules={"cscs_ce": {"base": "ml"}})
    assert problems == []
    assert plan is not None
    assert (plan.image, plan.edf) == ("", 'base_environment = "ml"')


FLAGS: list[tuple[str, dict[str, Tree], list[str]]] = [
    ("pyxis", {}, []),
    (
        "pyxis",
        {"remap_root": False, "mount_home": True, "entrypoint": False, "writable": True},
        ["--no-container-remap-root", "--container-mount-home", "--no-container-entrypoint", "--container-writable"],
    ),
    ("pyxis", {"writable": False, "entrypoint": True}, ["--container-entrypoint", "--container-readonly"]),
    ("apptainer", {}, ["--nv"]),
    ("apptainer", {"gpu_flag": None}, []),
    ("apptainer", {"gpu_flag": "rocm", "no_home": True}, ["--rocm", "--no-home"]),
    (
        "apptainer",
        {"gpu_flag": "nvccli", "containall": True, "cleanenv": True, "writable_tmpfs": True},
        ["--nvccli", "--containall", "--cleanenv", "--writable-tmpfs"],
    ),
    ("podman_hpc", {}, ["--gpu"]),
    ("podman_hpc", {"gpu": False, "mpi": True, "nccl": True}, ["--mpi", "--nccl"]),
    ("podman_hpc", {"gpu": True, "cuda_mpi": True}, ["--gpu", "--cuda-mpi"]),
    ("charliecloud", {"write": True, "home": True, "join": True}, ["--write", "--home", "--join"]),
    ("enroot", {"root": True, "rw": True}, ["--root", "--rw"]),
]


@pytest.mark.parametrize(("runtime", "options", "flags"), FLAGS)
def test_a_sites_flags_become_words_and_its_extra_ones_follow(
    runtime: str, options: dict[str, Tree], flags: list[str]
) -> None:
    """What is left out leaves the runtime's own default."""
    rules: dict[str, Tree] = {runtime: options, "extra": ["--more=a b"]}
    plan, problems = try_plan(runtime, {"image": IMAGES[runtime]}, rules=rules)
    assert problems == []
    assert plan is not None
    assert plan.options == (*flags, "--more=a b")


@pytest.mark.parametrize(("vendor", "flags"), [("nvidia", ("--nv",)), ("amd", ("--rocm",)), ("intel", ())])
def test_the_gpu_flag_follows_the_partition(vendor: str, flags: tuple[str, ...]) -> None:
    """Its vendor, and whether it has GPUs at all; Singularity's rules are Apptainer's."""
    rules: dict[str, Tree] = {"apptainer": {"no_home": True}}
    for runtime in ("apptainer", "singularity"):
        plan = make_plan(runtime, rules=rules, partition={"gpu": {"vendor": vendor}})
        assert plan.container is not None
        assert plan.container.options == (*flags, "--no-home")
        bare = make_plan(runtime, partition={"gpus_per_node": 0, "gpu": {"vendor": vendor}})
        assert bare.container is not None
        assert bare.container.options == ()


def test_options_of_another_runtime_are_refused() -> None:
    """They would be dropped without a word."""
    rules: dict[str, Tree] = {"apptainer": {"cleanenv": True}, "pyxis": {"remap_root": False}}
    _, problems = try_plan("pyxis", {"image": IMAGES["pyxis"]}, rules=rules)
    assert [problem.where for problem in problems] == ["container.apptainer"]
    _, problems = try_plan("apptainer", {"image": IMAGES["apptainer"]}, rules=rules)
    assert [problem.where for problem in problems] == ["container.pyxis"]


@pytest.mark.parametrize("runtime", ["pyxis", "cscs_ce"])
def test_what_srun_enters_needs_srun_and_has_no_program(runtime: str) -> None:
    """mpirun and ibrun know no --container-image."""
    image: dict[str, Tree] = {"image": IMAGES[runtime]}
    _, problems = try_plan(
        runtime, image, rules={"program": "/opt/bin/x"}, launcher={"command": "ibrun", "mpi": "pmix"}
    )
    assert [problem.where for problem in problems] == ["container.program", "launcher.command"]
    assert try_plan(runtime, image, launcher={"command": "srun", "mpi": "pmix"})[1] == []


def test_a_program_elsewhere_takes_the_place_of_the_name() -> None:
    """As where a module has put it."""
    plan, problems = try_plan("apptainer", {"image": "/x.sif"}, rules={"program": "/opt/apptainer/bin/apptainer"})
    assert (plan and plan.program, problems) == ("/opt/apptainer/bin/apptainer", [])


@pytest.mark.parametrize("name", ["a.b", ".a", "a..b"])
def test_annotations_that_toml_cannot_hold_are_refused(name: str) -> None:
    """A name that is a table of another's, or has an empty part."""
    rules: dict[str, Tree] = {"cscs_ce": {"annotations": {name: "x", "a.b.c": "y"}}}
    _, problems = try_plan("cscs_ce", {"image": "x"}, rules=rules)
    assert [problem.where for problem in problems] == ["container.cscs_ce"]


def test_a_working_directory_is_absolute() -> None:
    """It is one inside the container."""
    _, problems = try_plan("pyxis", {"image": "x", "workdir": "work"})
    assert [problem.where for problem in problems] == ["container.workdir"]


def test_all_faults_are_told_at_once() -> None:
    """Image, two mounts, folder, options and launcher in one go."""
    container: dict[str, Tree] = {"image": "a b", "mounts": ["x", "/a,b"], "workdir": "w"}
    rules: dict[str, Tree] = {"mounts": ["/ok", "/a:b"], "enroot": {"rw": True}}
    _, problems = try_plan("pyxis", container, rules=rules, launcher={"command": "mpirun", "mpi": "pmix"})
    assert {problem.where for problem in problems} == {
        *("container.image", "container.mounts[0]", "container.mounts[1]", "container.workdir"),
        *("container.mounts[1] of site here", "container.enroot", "launcher.command"),
    }


def test_the_variables_that_an_image_must_not_win() -> None:
    """The spec's, the site's, the cache's, those to pass on; not those that only fit the node."""
    rules: dict[str, Tree] = {"pass_env": ["MY_TOKEN", "A"]}
    plan = make_plan(
        "pyxis",
        rules=rules,
        spec={"env": {"A": 1, "PATH": "/x", "LD_LIBRARY_PATH": "/y"}},
        env={"set": {"NCCL_DEBUG": "INFO"}},
        storage={"hf_home": "/hf"},
    )
    assert plan.container is not None
    assert plan.container.env == ("HF_HOME", "NCCL_DEBUG", "A", "MY_TOKEN")


@pytest.mark.parametrize("runtime", IMAGES)
def test_a_plan_with_a_container_survives_json(runtime: str) -> None:
    """plan.json of a run directory is read back by status and others."""
    plan = make_plan(runtime, mounts=["/data:/d"], rules={"mounts": ["/x"]})
    assert plan_from_json(plan_to_json(plan)) == plan
    assert json.loads(plan_to_json(plan))["container"]["runtime"] == runtime
