"""enter.sh for Charliecloud: a place for every mount in an image that ch-run only reads, and what ch-run needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.yamlio import Tree
from tests.containers.entering import RANK, Place


def test_charliecloud_is_given_exactly_these_words(place: Place) -> None:
    """Its image has every mount point; /tmp and /dev are the node's anyway."""
    image = place.folder("im age")
    for name in (f"{image}/mnt", f"{image}{place.root}/local", f"{image}{place.run}"):
        Path(name).mkdir(parents=True)
    data = place.folder("da ta=1")
    found = place.enter("charliecloud", str(image), mounts=[f"{data}:/mnt", "/dev/shm"], workdir="/w x")
    assert (found.code, found.said) == (0, "")
    assert found.words == [
        "--cd=/w x",
        f"--bind={data}:/mnt",
        f"--bind={place.root}/local:{place.root}/local",
        f"--bind={place.run}:{place.run}",
        *(str(image), "--", *RANK),
    ]


MADE: list[tuple[str, tuple[str, ...], dict[str, Tree], list[str]]] = [
    ("a mount point that is there", ("a/b/run",), {}, ["a/b/run>a/b/run"]),
    ("the next folder above, when it is empty", ("a/b",), {}, ["a/b>a/b"]),
    ("a folder above that hides something", ("a/b/other",), {}, []),
    ("no folder above", (), {}, []),
    ("an image that may be written", ("a",), {"write": True}, ["a/b/run>a/b/run"]),
    ("a newer ch-run that makes them itself", (), {"extra": ["--write-fake"]}, ["a/b/run>a/b/run"]),
]


@pytest.mark.parametrize(("folders", "options", "binds"), [row[1:] for row in MADE], ids=[row[0] for row in MADE])
def test_a_place_for_a_mount_in_a_charliecloud_image(
    place: Place, folders: tuple[str, ...], options: dict[str, Tree], binds: list[str]
) -> None:
    """ch-run 0.31 makes no mount points in an image that it only reads."""
    image, wanted = place.folder("image"), place.folder("a/b/run")
    for name in ("mnt", f"{str(place.root)[1:]}/local", str(place.run)[1:]):
        (image / name).mkdir(parents=True)
    for name in folders:
        Path(f"{image}{place.root}/{name}").mkdir(parents=True)
    rules: dict[str, Tree] = {"extra": options["extra"]} if "extra" in options else {"charliecloud": options}
    found = place.enter("charliecloud", str(image), mounts=[str(wanted)], rules=rules)
    root = str(place.root)
    given = [f"--bind={root}/{bind.replace('>', f':{root}/')}" for bind in binds]
    assert [word for word in found.words if word.startswith(f"--bind={root}/a")] == given
    assert Path(f"{image}{wanted}").is_dir() == (bool(options.get("write")) or "a/b/run" in folders)
    if not binds:
        assert found.code == 66
        assert f"the image {image} has no mount point {wanted}" in found.said


def test_mounts_that_share_a_place_are_mounted_once(place: Place) -> None:
    """The run directory and the cache both lie in /home: that is mounted, once."""
    image = place.folder("image")
    Path(f"{image}{place.root}").mkdir(parents=True)
    found = place.enter("charliecloud", str(image), mounts=[str(place.folder("cache"))])
    assert [word for word in found.words if word.startswith("--bind=")] == [f"--bind={place.root}:{place.root}"]


def test_nobody_looks_into_an_image_file(place: Place) -> None:
    """The first folder is mounted, which images have; system folders stay as they are."""
    image = place.root / "x.sqfs"
    image.touch()
    found = place.enter("charliecloud", str(image), mounts=["/usr/share", "/usr/lib:/mnt"])
    first = "/" + place.run.parts[1]
    binds = [word for word in found.words if word.startswith("--bind=")]
    assert sorted(binds) == sorted(["--bind=/usr/lib:/mnt", "--bind=/usr/share:/usr/share", f"--bind={first}:{first}"])


def test_the_ranks_of_a_node_may_share_a_charliecloud_container(place: Place) -> None:
    """The peers' name has the job in it: another job's step on the node may have the same number."""
    rules: dict[str, Tree] = {"charliecloud": {"join": True, "home": True}}
    image = place.folder("image")
    Path(f"{image}{place.root}").mkdir(parents=True)
    env = {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    found = place.enter("charliecloud", str(image), rules=rules, env=env)
    assert found.words[:4] == ["--home", f"--cd={place.run}", "--join-ct=4", "--join-tag=7.1"]


def test_charliecloud_gets_the_nodes_tmp_and_a_user(place: Place) -> None:
    """$TMPDIR would become /tmp, where Slurm's folders and the ranks' files are; without USER ch-run ends."""
    image = place.folder("image")
    Path(f"{image}{place.root}").mkdir(parents=True)
    found = place.enter("charliecloud", str(image), env={"TMPDIR": "/else", "USER": ""})
    assert "TMPDIR" not in found.environment
    assert found.environment["USER"]
    assert found.environment["OMPI_MCA_btl_vader_single_copy_mechanism"] == "none"
