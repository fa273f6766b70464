"""Mounts: how they are read, what each runtime cannot take, and the order in which they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.containers import ContainerPlan, Mount, expand
from slurm_llm.containers.mounts import final_mounts, parse_mount
from slurm_llm.containers.runtime import Fault
from slurm_llm.containers.runtimes import RUNTIMES
from slurm_llm.errors import InputError
from tests.containers.rendered import IMAGES, make_plan, render_plan, try_plan

RUN = "/runs/run 1"


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/data", Mount("/data", "/data")),
        ("/data/", Mount("/data", "/data")),
        ("/data:/d", Mount("/data", "/d")),
        ("/data:/d:ro", Mount("/data", "/d", True)),
        ("/data:/d:rw", Mount("/data", "/d")),
        ("/a b=c:/d e", Mount("/a b=c", "/d e")),
        ("$SCRATCH/x:/d", Mount("$SCRATCH/x", "/d")),
        ("~/x", Mount("~/x", "~/x")),
    ],
)
def test_a_mount_is_read(text: str, mount: Mount) -> None:
    """SOURCE[:TARGET[:ro]]; variables stay for the submission."""
    assert parse_mount(text) == mount


@pytest.mark.parametrize("text", ["", "data", "./data", "/data:", "/data:d", "/a:/b:ro:x", "/a:/b:x", ":/d", "/data:/"])
def test_what_is_no_mount_is_refused_with_the_form(text: str) -> None:
    """A relative path, an unknown flag, the container's root."""
    found = parse_mount(text)
    assert isinstance(found, Fault)
    assert "SOURCE[:TARGET[:ro]]" in found.allowed


REFUSED = [
    *((name, "/a,b", "','") for name in ("pyxis", "cscs_ce", "apptainer", "singularity", "shifter")),
    *((name, '/a"b', "'\"'") for name in ("pyxis", "cscs_ce")),
    *((name, "/a`id`", "'`'") for name in ("pyxis", "cscs_ce")),
    *((name, "/a\\b", "'\\'") for name in ("pyxis", "apptainer")),
    ("apptainer", "/a^b", "'^'"),
    ("apptainer", "/a ", "cuts spaces"),
    ("shifter", "/a b:/c", "' '"),
    ("shifter", "/a/../b:/c", "'..'"),
]


@pytest.mark.parametrize(("runtime", "mount", "said"), REFUSED)
def test_a_path_that_a_runtime_cannot_mount_is_refused(runtime: str, mount: str, said: str) -> None:
    """The spec's and the site's mounts are both looked at, and told apart."""
    target = "" if ":" in mount else ":/c"
    container = {"image": IMAGES[runtime], "mounts": ["/fine", mount + target]}
    _, problems = try_plan(runtime, container)  # type: ignore[arg-type]
    assert [problem.where for problem in problems] == ["container.mounts[1]"]
    assert said in problems[0].what
    _, problems = try_plan(runtime, {"image": IMAGES[runtime]}, rules={"mounts": [mount + target]})
    assert [problem.where for problem in problems] == ["container.mounts[0] of site here"]


@pytest.mark.parametrize("runtime", IMAGES)
def test_a_space_and_an_equals_sign_are_taken_wherever_the_runtime_can(runtime: str) -> None:
    """Shifter alone drops them from paths."""
    _, problems = try_plan(runtime, {"image": IMAGES[runtime], "mounts": ["/a b=c:/d e"]})
    assert bool(problems) == (runtime == "shifter")


@pytest.mark.parametrize(
    ("runtime", "mount", "said"),
    [
        ("charliecloud", "/data:/d:ro", "mounts nothing read-only"),
        ("shifter", "/data:/data:ro", "nothing read-only at its own place"),
        ("shifter", "/data:/etc/x", "nothing at /etc/x"),
        ("shifter", "/data:/opt", "nothing at /opt"),
    ],
)
def test_what_a_runtime_cannot_do_with_a_mount(runtime: str, mount: str, said: str) -> None:
    """A promise that would not be kept is refused, not dropped."""
    _, problems = try_plan(runtime, {"image": IMAGES[runtime], "mounts": [mount]})
    assert said in str(problems[0])


def _plan(*mounts: Mount, runtime: str = "pyxis") -> ContainerPlan:
    return ContainerPlan(runtime, "", "/x.sqsh", mounts, None, (), "python3", ())


@pytest.mark.parametrize(
    ("mounts", "final"),
    [
        # The run directory is always there, and later mounts of a target win.
        ((), [f"{RUN}"]),
        ((Mount("/a", "/d"), Mount("/b", "/d", True)), ["/b>/d ro", RUN]),
        # Parents come before children, whatever the order they were asked in.
        ((Mount("/x", "/a/b"), Mount("/y", "/a")), ["/y>/a", RUN, "/x>/a/b"]),
        # What a parent shows in the same way is not mounted twice; what it shows otherwise is.
        ((Mount("/runs", "/runs"),), ["/runs"]),
        ((Mount("/runs", "/runs", True),), ["/runs ro", RUN]),
        ((Mount("/m", "/m", True), Mount("/m/a", "/m/a", True), Mount("/m/b", "/m/b")), ["/m ro", RUN, "/m/b"]),
        (
            (Mount("/m", "/m"), Mount("/else", "/m/sub"), Mount("/m/sub/x", "/m/sub/x")),
            ["/m", RUN, "/else>/m/sub", "/m/sub/x"],
        ),
        ((Mount("/moved", "/at"), Mount("/moved/x", "/at/x")), ["/moved>/at", RUN]),
        # A name that only begins alike is no child.
        ((Mount("/run", "/run"), Mount("/runs/ru", "/runs/ru")), ["/run", "/runs/ru", RUN]),
    ],
)
def test_mounts_in_their_final_order(mounts: tuple[Mount, ...], final: list[str]) -> None:
    """One a target, parents first, nothing twice."""
    found = final_mounts(_plan(*mounts), RUNTIMES["pyxis"], RUN)
    texts = [f"{one.source}{'' if one.in_place else '>' + one.target}{' ro' if one.read_only else ''}" for one in found]
    assert sorted(texts) == sorted(final)
    places = [one.target for one in found]
    assert not any(one.startswith(later + "/") for i, one in enumerate(places) for later in places[i:])


def test_what_a_runtime_shows_anyway_is_not_asked_for() -> None:
    """/tmp is the node's in Charliecloud and Apptainer, an empty one in enroot and with --containall."""
    mounts = (Mount("/tmp", "/tmp"), Mount("/dev/shm", "/dev/shm"))
    expected = {"charliecloud": [RUN], "apptainer": [RUN], "enroot": ["/tmp", RUN]}
    for runtime, found in expected.items():
        plan = _plan(*mounts, runtime=runtime)
        assert [one.target for one in final_mounts(plan, RUNTIMES[runtime], RUN)] == found, runtime


def test_everything_that_a_rank_needs_is_mounted() -> None:
    """Local files, models read-only, the cache, the model's own folder, the site's and the spec's mounts, the run."""
    plan = make_plan(
        "pyxis",
        rules={"mounts": ["/site"]},
        mounts=["/spec:/s:ro"],
        spec={"model": "/weights/m"},
        storage={"local": "/scratch/local", "models": "$M/models", "hf_home": "~/hf"},
    )
    assert plan.container is not None
    environ = {"M": "/m", "HOME": "/home/u"}
    script = render_plan(plan, Path(RUN), environ)["job.sub"]
    mounts = "/m/models:/m/models:ro,/weights/m:/weights/m:ro,/home/u/hf:/home/u/hf,/site:/site,/spec:/s:ro"
    for mount in (*mounts.split(","), "/scratch/local:/scratch/local", f"{RUN}:{RUN}"):
        assert mount in script


def test_a_model_that_is_a_name_is_not_mounted() -> None:
    """`meta-llama/…` is downloaded or found in the cache."""
    plan = make_plan("pyxis", spec={"model": "meta-llama/Llama-3.1-8B"}, storage={"local": "/local"})
    assert plan.container is not None
    assert plan.container.mounts == (Mount("/local", "/local"),)


def test_variables_are_replaced_in_paths_only() -> None:
    """An image's name in a registry may hold a `$`, as NVIDIA's user name does."""
    plan = ContainerPlan(
        "pyxis",
        "",
        "$oauthtoken@nvcr.io#x:1",
        (Mount("$A", "/b"), Mount("~/x", "~/x", True)),
        "$A/w",
        ("$A",),
        "p",
        ("$A",),
    )
    done = expand(plan, lambda text: text.replace("$A", "/a").replace("~", "/home/u"))
    assert done.image == plan.image
    assert done.mounts == (Mount("/a", "/b"), Mount("/home/u/x", "/home/u/x", True))
    assert (done.workdir, done.env, done.options) == ("/a/w", ("$A",), ("$A",))


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer", "podman_hpc", "charliecloud", "enroot"])
def test_a_path_is_looked_at_again_when_its_variables_are_known(runtime: str) -> None:
    """`$DATA` may stand for what cannot be mounted; so may the folder of runs."""
    plan = make_plan(runtime, mounts=["$DATA:/d"])
    with pytest.raises(InputError, match="cannot mount a path with ':'"):
        render_plan(plan, Path("/runs/x"), {"DATA": "/a:b"})
    with pytest.raises(InputError, match=r"^log_root or storage.logs: "):
        render_plan(plan, Path("/runs/a:b"), {"DATA": "/a"})
