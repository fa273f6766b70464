"""enter.sh with a fake runtime on PATH: the words that it is given, and what is said when it cannot start."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_llm.yamlio import Tree
from tests.containers.entering import RANK, Place
from tests.containers.rendered import ENTERED, IMAGES, make_plan, render_plan


def expected(place: Place) -> dict[str, list[str]]:
    """Return the words of each runtime for two mounts, parents before children; one is read-only where it can be."""
    root, run = place.root, place.run
    mounts = (f"{root}/da ta=1:/d 1:ro", f"{root}/local:{root}/local", f"{run}:{run}")
    escaped = str(run).replace(" ", "\\040")
    tail = "none:rbind,x-create=auto"
    apptainer = ["exec", "--nv", f"--pwd={run}", *(f"--bind={mount}" for mount in mounts)]
    image = "nvcr.io/nvidia/tritonserver:24.10-py3"
    return {
        "apptainer": [*apptainer, f"docker://{image}", *RANK],
        "singularity": [*apptainer, f"docker://{image}", *RANK],
        "podman_hpc": [
            *("run", "--rm", "--network=host", "--ipc=host", "--pid=host", "--userns=keep-id", "--entrypoint="),
            *("--gpu", f"--workdir={run}", *(f"--volume={mount}" for mount in mounts)),
            *(image, "bash", "-c", "exec bash /runs/rank.sh 0 0 "),
        ],
        "enroot": [
            *("start", f"--rc={run}/enter.rc"),
            f"--mount={root}/da\\040ta=1:/d\\0401:{tail},ro",
            f"--mount={root}/local:{root}/local:{tail}",
            f"--mount={escaped}:{escaped}:{tail}",
            *("triton", *RANK),
        ],
        "shifter": [f"--workdir={run}", *RANK],
    }


@pytest.mark.parametrize("runtime", [name for name in ENTERED if name != "charliecloud"])
def test_a_runtime_is_given_exactly_these_words(place: Place, runtime: str) -> None:
    """Spaces and equals signs in folders survive; the command comes last, unchanged."""
    mounts = [f"{place.folder('da ta=1')}:/d 1:ro"] if runtime != "shifter" else []
    found = place.enter(runtime, mounts=mounts)
    assert (found.code, found.said) == (0, "")
    assert [word for word in found.words if not word.startswith("--env=")] == expected(place)[runtime]


@pytest.mark.parametrize("runtime", ["apptainer", "podman_hpc", "enroot", "charliecloud"])
def test_the_folder_of_slurms_pmix_is_mounted(place: Place, runtime: str) -> None:
    """Its name is known in the task alone. Without a place for it PMIx is told to do without its store."""
    spool = place.folder("spool")
    image = place.folder("image") if runtime == "charliecloud" else None
    for name in ("local", str(place.run.relative_to(place.root))):
        Path(f"{image or place.root}{place.root}/{name}").mkdir(parents=True)
    found = place.enter(runtime, None if image is None else str(image), env={"PMIX_SERVER_TMPDIR": f"{spool}/"})
    expected = {
        "apptainer": f"--bind={spool}",
        "podman_hpc": f"--volume={spool}:{spool}",
        "enroot": f"--mount={spool}:{spool}:none:rbind,x-create=auto",
        "charliecloud": "",
    }[runtime]
    assert [word for word in found.words if str(spool) in word] == ([expected] if expected else [])
    assert found.environment.get("PMIX_MCA_gds") == (None if expected else "hash")


def test_a_contained_apptainer_shares_the_nodes_memory_and_tmp(place: Place) -> None:
    """An empty /dev/shm would part the ranks of a node, an empty /tmp hides their files from the agent."""
    options: dict[str, Tree] = {"apptainer": {"containall": True}}
    found = place.enter("apptainer", rules=options, storage={"local": "/tmp"}, env={"PMIX_SERVER_TMPDIR": "/tmp/"})
    binds = [word for word in found.words if word.startswith("--bind=")]
    assert binds == ["--bind=/dev/shm:/dev/shm", "--bind=/tmp:/tmp", f"--bind={place.run}:{place.run}"]
    plain = place.enter("apptainer", storage={"local": "/tmp"})
    assert [word for word in plain.words if word.startswith("--bind=")] == [f"--bind={place.run}:{place.run}"]


ECHO = (sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))")
HARD = ("--mpi", "a b", "$HOME", "it's", '"', "", "`id`", "x\ny", "\\")


@pytest.mark.parametrize(
    ("runtime", "last"), [("podman_hpc", 3), *((name, len(ECHO) + len(HARD)) for name in ENTERED[:2])]
)
def test_the_command_runs_as_it_was_given(place: Place, runtime: str, last: int) -> None:
    """Podman-HPC gets it as one word, since its own parser would take `--mpi` for a module."""
    found = place.enter(runtime, command=(*ECHO, *HARD), run_last=last)
    assert json.loads(found.out) == list(HARD)
    assert runtime != "podman_hpc" or "--mpi" not in found.words


def test_enroots_command_script_goes_to_the_folder_and_runs_the_command(place: Place) -> None:
    """It stands in for the image's entrypoint, which might be a server of its own."""
    place.enter("enroot", workdir=str(place.folder("w = x")))
    script = place.run / "enter.rc"
    done = subprocess.run(["sh", str(script), "pwd"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{place.root}/w = x\n"


def test_enroot_reads_the_paths_back(place: Place) -> None:
    """getmntent(3) turns octal escapes back; a colon would part the fields."""
    data = place.folder("a b \\c")
    found = place.enter("enroot", mounts=[f"{data}:/d"])
    word = next(word for word in found.words if word.endswith(":/d:none:rbind,x-create=auto"))
    assert not re.search(r"\s", word)
    source = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word[len("--mount=") :].split(":")[0])
    assert source == str(data)


@pytest.mark.parametrize("runtime", ENTERED)
def test_a_node_without_the_program_says_so(place: Place, runtime: str) -> None:
    """One line with the node, the program and what to do."""
    found = place.enter(
        runtime, env={"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "gpu7"}, rules={"program": "/no/such"}
    )
    assert found.code == 127
    assert found.said == (
        "slurm_llm: node gpu7: there is no /no/such: "
        "load its module (modules.load), or set container.program in the site profile\n"
    )


@pytest.mark.parametrize(
    ("runtime", "image"), [("apptainer", "/no/such.sif"), ("charliecloud", "/no/such"), ("enroot", "/no/such.sqsh")]
)
def test_a_node_without_the_image_says_so(place: Place, runtime: str, image: str) -> None:
    """Before the runtime says something longer."""
    found = place.enter(runtime, image, env={"SLURMD_NODENAME": "gpu7"})
    assert (found.code, found.said) == (66, f"slurm_llm: node gpu7: there is no image {image}\n")


@pytest.mark.parametrize("runtime", ENTERED)
def test_a_node_without_a_folder_to_mount_says_so(place: Place, runtime: str) -> None:
    """A model on a file system that one node lacks."""
    image = place.folder("image") if runtime == "charliecloud" else None
    given = None if image is None else str(image)
    found = place.enter(runtime, given, mounts=["/no/such:/d"], env={"SLURMD_NODENAME": "gpu7"})
    assert found.code == 66
    assert found.said == "slurm_llm: node gpu7: /no/such is to be mounted into the container, and is not there\n"


SECTIONS: dict[str, list[dict[str, Tree]]] = {
    "apptainer": [{"containall": True}, {"cleanenv": True, "gpu_flag": None}],
    "charliecloud": [{"write": True}, {"join": True}],
}


def _scripts() -> Iterator[str]:
    common: list[dict[str, Tree]] = [{}, {"pass_env": ["A", "NCCL_DEBUG"]}, {"extra": ["--x=a,b c"]}]
    for runtime in ENTERED:
        mount = "/a,b:/c" if runtime in ("podman_hpc", "enroot") else "/a"
        own: list[dict[str, Tree]] = [{runtime: section} for section in SECTIONS.get(runtime, [])]
        for rules in (*common, *own):
            plan = make_plan(runtime, rules=rules, mounts=[mount])
            yield render_plan(plan, Path("/runs/it's = $x"))["enter.sh"]


def test_every_script_is_sound(tmp_path: Path) -> None:
    """`bash -n` and shellcheck have no remark, for each runtime and kind of passing variables."""
    assert shutil.which("shellcheck"), "shellcheck is not installed: apt-get install shellcheck"
    paths = [str(path) for path in Path(__file__).parents[1].glob("cluster/*.sh")]
    for number, text in enumerate(_scripts()):
        path = tmp_path / f"{number}.sh"
        path.write_text(text)
        paths.append(str(path))
    for command in (*(["bash", "-n", path] for path in paths), ["shellcheck", "--shell=bash", "--format=gcc", *paths]):
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_runtime_that_srun_enters_has_no_script() -> None:
    """Nor does one without: a script that nobody calls would only confuse."""
    assert "enter.sh" not in render_plan(make_plan("pyxis"), Path("/runs/x"))
    assert set(IMAGES) - set(ENTERED) == {"pyxis", "cscs_ce"}
