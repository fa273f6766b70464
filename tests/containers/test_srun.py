"""Containers that srun enters: the words that a fake srun is given, the definition file, the job's directives."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_llm.yamlio import Tree
from tests.containers.rendered import make_plan, render_plan
from tests.render.sbatch_reader import read_options

FAKE = '#!/bin/bash\nprintf "%s\\0" "$@" >"$RECORD"\n'
RUN = Path("/runs/my runs/a=b")


def srun_words(script: str, tmp_path: Path) -> list[str]:
    """Run the server's srun line of a job's script with a fake srun, and return what that was given."""
    line = re.search(r"^ {8}(srun .*?rank\.sh\" 0 0) ", script, re.MULTILINE | re.DOTALL)
    assert line is not None
    (tmp_path / "srun").write_text(FAKE)
    (tmp_path / "srun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RECORD": str(tmp_path / "words"), "run": str(RUN)}
    subprocess.run(["bash", "-uc", line[1]], check=True, env=env)
    return (tmp_path / "words").read_text().split("\0")[:-1]


PYXIS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "nvcr.io#nvidia/tritonserver:24.10-py3",
        {},
        [
            "--container-image=nvcr.io#nvidia/tritonserver:24.10-py3",
            f"--container-mounts=/tmp:/tmp,{RUN}:{RUN}",
            f"--container-workdir={RUN}",
        ],
    ),
    (
        "/images/a b=c.sqsh",
        {
            "mounts": ["/data = x:/d y:ro", "$HOME/m"],
            "workdir": "/work dir",
            "rules": {"pass_env": ["B"], "pyxis": {"mount_home": False}, "extra": ["--container-name=x y"]},
            "spec": {"env": {"A": "it's a $b"}},
        },
        [
            "--container-image=/images/a b=c.sqsh",
            f"--container-mounts=/tmp:/tmp,/data = x:/d y:ro,/home/u v/m:/home/u v/m,{RUN}:{RUN}",
            "--container-workdir=/work dir",
            "--container-env=A,B",
            "--no-container-mount-home",
            "--container-name=x y",
        ],
    ),
]


@pytest.mark.parametrize(("image", "given", "words"), PYXIS)
def test_srun_enters_pyxis_with_exactly_these_words(
    tmp_path: Path, image: str, given: dict[str, Any], words: list[str]
) -> None:
    """Spaces, equals signs and quotes survive the script; nothing but the container's options is added."""
    script = render_plan(make_plan("pyxis", image, **given), RUN, {"HOME": "/home/u v"})["job.sub"]
    found = srun_words(script, tmp_path)
    assert found[-4:] == ["bash", f"{RUN}/rank.sh", "0", "0"]
    at = found.index(words[0])
    assert found[at:-4] == words
    plain = render_plan(make_plan("charliecloud"), RUN)["job.sub"]
    before = [word for word in srun_words(plain, tmp_path) if word not in ("bash", f"{RUN}/enter.sh")]
    assert found[:at] == before[: before.index(f"{RUN}/rank.sh")]


def test_the_preflight_is_in_the_same_container_and_the_agents_are_not(tmp_path: Path) -> None:
    """What is checked is what will run; node agents must see the node."""
    script = render_plan(make_plan("pyxis"), RUN)["job.sub"]
    lines = [line for line in script.splitlines() if line.lstrip().startswith(("srun ", "timeout -k 5 15 srun "))]
    assert [("--container-image=" in line, "--overlap" in line) for line in lines] == [
        (False, True),
        (True, False),
        (True, False),
        (False, True),
    ]


EDF: dict[str, Tree] = {
    "base": "ml/base",
    "writable": False,
    "annotations": {"com.hooks.cxi.enabled": "false", "com.hooks.ssh.key": 'a "b" ${HOME}', "odd name": "x"},
}


def test_srun_enters_the_container_engine_with_a_definition_of_the_run(tmp_path: Path) -> None:
    """Never as a directive; the file says in TOML what was asked for, and a `${` in a path stands for itself."""
    toml = pytest.importorskip("tomllib")
    plan = make_plan(
        "cscs_ce",
        "/images/a b.sqsh",
        mounts=["/data = x:/d y:ro"],
        workdir="/w",
        rules={"cscs_ce": EDF, "extra": ["--more"]},
    )
    texts = render_plan(plan, RUN)
    found = srun_words(texts["job.sub"], tmp_path)
    assert found[-6:] == [f"--environment={RUN}/container.toml", "--more", "bash", f"{RUN}/rank.sh", "0", "0"]
    assert not any("environment" in option for option in read_options(texts["job.sub"]))
    assert toml.loads(texts["container.toml"]) == {
        "base_environment": "ml/base",
        "image": "/images/a b.sqsh",
        "workdir": "/w",
        "mounts": ["/tmp:/tmp", "/data = x:/d y:ro", f"{RUN}:{RUN}"],
        "writable": False,
        "annotations": {
            "com": {"hooks": {"cxi": {"enabled": "false"}, "ssh": {"key": 'a "b" ${HOME}'}}},
            "odd name": "x",
        },
    }


def test_a_short_definition_holds_nothing_that_was_not_asked_for() -> None:
    """What is left out comes from the site's defaults, or from the definition that it is built on."""
    toml = pytest.importorskip("tomllib")
    text = render_plan(make_plan("cscs_ce"), RUN)["container.toml"]
    assert set(toml.loads(text)) == {"image", "workdir", "mounts"}
    odd = render_plan(make_plan("cscs_ce"), Path("/runs/é模/x"))["container.toml"]
    assert toml.loads(odd)["workdir"] == "/runs/é模/x"


def test_the_container_engine_expands_nothing_in_paths() -> None:
    """`${NAME}` that is still in a path after the submission is the path's own."""
    toml = pytest.importorskip("tomllib")
    text = render_plan(make_plan("cscs_ce", workdir="$W"), RUN, {"W": "/a ${b}"})["container.toml"]
    assert toml.loads(text)["workdir"] == "/a $${b}"


def test_shifter_is_prepared_by_directives() -> None:
    """One --volume for all that is not at its own place, since a second one takes the first one's."""
    plan = make_plan(
        "shifter",
        mounts=["/data:/d:ro", "/same", "$SCRATCH/x:/x"],
        rules={"shifter": {"modules": ["gpu", "nccl-plugin"]}},
    )
    options = read_options(render_plan(plan, RUN, {"SCRATCH": "/scratch/u"})["job.sub"])
    found = [option for option in options if option.startswith(("--image", "--volume", "--module"))]
    assert found == [
        "--image=docker:nvcr.io/nvidia/tritonserver:24.10-py3",
        "--volume=/data:/d:ro;/scratch/u/x:/x",
        "--module=gpu,nccl-plugin",
    ]


@pytest.mark.parametrize(("modules", "option"), [([], ["--module=none"]), (None, [])])
def test_shifters_modules_can_be_none_or_the_sites_own(modules: list[Tree] | None, option: list[str]) -> None:
    """An empty list turns the default modules off."""
    plan = make_plan("shifter", rules={"shifter": {"modules": modules}})
    options = read_options(render_plan(plan, RUN)["job.sub"])
    assert [one for one in options if one.startswith("--module")] == option
