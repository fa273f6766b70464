"""Images: what each runtime takes, what it refuses with the right form, aliases and files among the site's images."""

from __future__ import annotations

import pytest

from slurm_llm.containers.references import hashed, is_hashed, is_slashed, slashed
from slurm_llm.yamlio import Tree
from tests.containers.rendered import IMAGES, try_plan

TAKEN = [
    ("pyxis", "nvcr.io#nvidia/tritonserver:24.10-py3"),
    ("pyxis", "user@registry.example.org:5005#team/x:1"),
    ("pyxis", "$oauthtoken@nvcr.io#nvidia/x:1"),
    ("pyxis", "nvidia/cuda:12.6.0-base-ubuntu24.04"),
    ("pyxis", "ubuntu"),
    ("pyxis", "docker://nvcr.io#nvidia/x@sha256:" + 64 * "a"),
    ("pyxis", "/images/a b=c.sqsh"),
    ("cscs_ce", "nvcr.io#nvidia/x:1"),
    ("cscs_ce", "/images/a b.sqsh"),
    ("pyxis", "$IMAGES/$NAME"),
    ("pyxis", "~/x.squashfs"),
    ("enroot", "/images/triton-24.10"),
    ("apptainer", "/images/x.sif"),
    ("apptainer", "/images/sandbox"),
    ("apptainer", "docker://nvcr.io/nvidia/tritonserver:24.10-py3"),
    ("apptainer", "oras://registry.example.org/x:1"),
    ("apptainer", "docker-archive:/images/x.tar"),
    ("singularity", "library://lib/x:1"),
    ("shifter", "docker:nvcr.io/nvidia/x:1"),
    ("shifter", "id:" + 64 * "a"),
    ("podman_hpc", "nvcr.io/nvidia/x:1"),
    ("podman_hpc", "localhost/x:1"),
    ("podman_hpc", "docker://nvcr.io/nvidia/x:1"),
    ("charliecloud", "/images/triton"),
    ("charliecloud", "/images/triton.sqfs"),
    ("enroot", "/images/a b.sqsh"),
    ("enroot", "nvidia+triton+24.10"),
]


@pytest.mark.parametrize(("runtime", "image"), TAKEN)
def test_what_a_runtime_takes_reaches_it_as_it_stands(runtime: str, image: str) -> None:
    """No form that a runtime documents is refused or rewritten."""
    container, problems = try_plan(runtime, {"image": image})
    assert not problems
    assert container is not None
    assert container.image == image


REFUSED = [
    ("pyxis", "nvcr.io/nvidia/x:1", "write nvcr.io#nvidia/x:1"),
    ("pyxis", "docker://registry.example.org:5005/x:1", "write docker://registry.example.org:5005#x:1"),
    ("pyxis", "oras://x/y:1", "knows no oras://"),
    ("pyxis", "./x.sqsh", "absolute path"),
    ("pyxis", "NVIDIA/X:1", "[USER@][REGISTRY#]NAME[:TAG]"),
    ("pyxis", "a b", "[USER@][REGISTRY#]NAME[:TAG]"),
    ("pyxis", "/images/x.sif", "the absolute path of a .sqsh file: make one: `enroot import"),
    ("pyxis", "/images/x.tar.gz", "pyxis takes SquashFS files, not '/images/x.tar.gz'"),
    ("pyxis", "/images/triton/", "looks like a folder"),
    ("pyxis", "$SCRATCH/triton", "looks like a folder"),
    ("pyxis", "docker:nvcr.io/nvidia/x:1", "write nvcr.io#nvidia/x:1"),
    ("cscs_ce", "nvcr.io/nvidia/x:1", "write nvcr.io#nvidia/x:1"),
    ("cscs_ce", "/images/x.sif", "the container engine takes SquashFS files"),
    ("cscs_ce", "/images/triton-folder", "looks like a folder"),
    ("cscs_ce", "/home/me/.edf/triton.toml", "container.cscs_ce.base"),
    ("apptainer", "docker:nvcr.io/nvidia/x:1", "write docker://nvcr.io/nvidia/x:1"),
    ("apptainer", "/images/x.tar", "write docker-archive:/images/x.tar"),
    ("apptainer", "/images/x.toml", "runs no such file"),
    ("apptainer", "nvcr.io/nvidia/x:1", "write docker://nvcr.io/nvidia/x:1"),
    ("apptainer", "nvcr.io#nvidia/x:1", "write docker://nvcr.io/nvidia/x:1"),
    ("apptainer", "docker://nvcr.io#nvidia/x:1", "write docker://nvcr.io/nvidia/x:1"),
    ("apptainer", "instance://x", "cannot run"),
    ("apptainer", "../x.sif", "absolute path"),
    ("singularity", "ubuntu:24.04", "write docker://ubuntu:24.04"),
    ("shifter", "/images/x.sqsh", "shifterimg pull"),
    ("shifter", "nvcr.io/nvidia/x:1", "write docker:nvcr.io/nvidia/x:1"),
    ("shifter", "docker://nvcr.io/nvidia/x:1", "write docker:nvcr.io/nvidia/x:1"),
    ("shifter", "nvcr.io#nvidia/x:1", "write docker:nvcr.io/nvidia/x:1"),
    ("shifter", "docker:", "docker:[REGISTRY/]NAME:TAG"),
    ("podman_hpc", "/images/x.tar", "podman-hpc load -i FILE"),
    ("podman_hpc", "nvcr.io#nvidia/x:1", "write nvcr.io/nvidia/x:1"),
    ("podman_hpc", "docker:nvcr.io/nvidia/x:1", "write nvcr.io/nvidia/x:1"),
    ("charliecloud", "/images/x.sif", "runs image folders and SquashFS files"),
    ("charliecloud", "/images/x.tar.gz", "`ch-convert FILE FOLDER`"),
    ("charliecloud", "nvcr.io/nvidia/x:1", "ch-convert"),
    ("charliecloud", "docker://x", "ch-convert"),
    ("charliecloud", "./x", "the absolute path"),
    ("enroot", "docker://x", "enroot import"),
    ("enroot", "nvcr.io#nvidia/x:1", "enroot import"),
    ("enroot", "a/b", "enroot import"),
    ("enroot", "/images/x.sif", "the absolute path of a .sqsh file"),
    ("enroot", "/images/triton-folder", "looks like a folder"),
]


@pytest.mark.parametrize(("runtime", "image", "said"), REFUSED)
def test_what_a_runtime_cannot_take_is_refused_with_the_right_form(runtime: str, image: str, said: str) -> None:
    """The field is named, and what to write instead where that is known."""
    _, problems = try_plan(runtime, {"image": image})
    assert [problem.where for problem in problems] == ["container.image"]
    assert said in str(problems[0])


def test_every_image_of_the_other_tests_is_taken() -> None:
    """The table that other tests build on has no refused image."""
    for runtime, image in IMAGES.items():
        assert try_plan(runtime, {"image": image})[1] == [], runtime


ALIASES: dict[str, Tree] = {"triton": "/images/triton.sqsh", "vllm": "docker.io/x/vllm"}


def test_aliases_are_resolved_once_and_faults_in_them_are_the_sites() -> None:
    """An alias may not lead to another, and a bad one is told where an admin finds it."""
    container, problems = try_plan("pyxis", {"image": "triton"}, rules={"images": ALIASES})
    assert (container and container.image, problems) == ("/images/triton.sqsh", [])
    _, problems = try_plan("pyxis", {"image": "vllm"}, rules={"images": ALIASES})
    assert problems[0].where == "container.images.vllm of site here"
    assert problems[0].todo == "write docker.io#x/vllm"


def test_a_word_close_to_an_alias_is_no_image_of_docker_hub() -> None:
    """`tritno` could be a name on Docker Hub; the alias was meant."""
    _, problems = try_plan("pyxis", {"image": "tritno"}, rules={"images": ALIASES})
    assert str(problems[0]) == (
        "container.image: 'tritno' is no image of site here: its images: triton, vllm: did you mean 'triton'?"
    )
    assert try_plan("pyxis", {"image": "ubuntu"}, rules={"images": ALIASES})[1] == []


@pytest.mark.parametrize(
    ("runtime", "image", "found"),
    [
        ("pyxis", "triton.sqsh", "$SCRATCH/images/triton.sqsh"),
        ("apptainer", "sub/triton.sif", "$SCRATCH/images/sub/triton.sif"),
        ("apptainer", "sandboxes/triton", "$SCRATCH/images/sandboxes/triton"),
        ("charliecloud", "triton", "$SCRATCH/images/triton"),
        ("enroot", "triton", "triton"),
        ("pyxis", "/else/where.sqsh", "/else/where.sqsh"),
    ],
)
def test_files_without_a_folder_are_the_sites_images(runtime: str, image: str, found: str) -> None:
    """storage.images is looked in, its variables are left for the submission."""
    container, problems = try_plan(runtime, {"image": image}, storage={"images": "$SCRATCH/images/"})
    assert (container and container.image, problems) == (found, [])


@pytest.mark.parametrize(
    ("runtime", "image", "said"),
    [
        ("pyxis", "triton.sqsh", "set storage.images in the profile"),
        ("apptainer", "triton", "one of the site's images (other), or an absolute path"),
        ("charliecloud", "triton", "one of the site's images (other), or an absolute path"),
    ],
)
def test_files_without_a_folder_on_a_site_without_images(runtime: str, image: str, said: str) -> None:
    """Nothing is guessed: the file's path is asked for."""
    _, problems = try_plan(runtime, {"image": image}, rules={"images": {"other": "/x"}})
    assert said in str(problems[0])


@pytest.mark.parametrize(
    ("runtime", "image", "refused"),
    [
        ("pyxis", "nvcr.io#nvidia/x:1", True),
        ("cscs_ce", "nvcr.io#nvidia/x:1", True),
        ("apptainer", "docker://nvcr.io/nvidia/x:1", True),
        ("pyxis", "/images/x.sqsh", False),
        ("apptainer", "/images/x.sif", False),
        # Their images are brought to the site before the job.
        ("shifter", "docker:nvcr.io/nvidia/x:1", False),
        ("podman_hpc", "nvcr.io/nvidia/x:1", False),
    ],
)
def test_nodes_without_internet_download_nothing(runtime: str, image: str, refused: bool) -> None:
    """Where nodes would pull the image, a file is asked for, with the command that makes one."""
    _, problems = try_plan(runtime, {"image": image}, network={"internet": "none"})
    assert [problem.where for problem in problems] == (["container.image"] if refused else [])
    assert not refused or "on a login node `" in problems[0].todo


def test_the_sites_own_image_is_for_specs_that_name_none() -> None:
    """A fault in it is told as the site's."""
    rules: dict[str, Tree] = {"image": "nvcr.io#nvidia/x:1"}
    asked: tuple[dict[str, Tree] | None, ...] = (None, {"mounts": ["/data"]})
    for own in asked:
        container, problems = try_plan("pyxis", own, rules=rules)
        assert (container and container.image, problems) == ("nvcr.io#nvidia/x:1", [])
    _, problems = try_plan("pyxis", None, rules={"image": "nvcr.io/nvidia/x:1"})
    assert problems[0].where == "container.image of site here"


@pytest.mark.parametrize(
    "reference", ["nvcr.io/nvidia/x:1", "localhost/x", "registry.example.org:5005/a/b@sha256:" + 64 * "0"]
)
def test_slash_and_hash_forms_are_inverse(reference: str) -> None:
    """What is suggested for one runtime can be turned into what another wants."""
    assert is_slashed(reference)
    assert not is_hashed(reference)
    assert is_hashed(hashed(reference))
    assert slashed(hashed(reference)) == reference
