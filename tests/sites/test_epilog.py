"""The epilog script as text: what is baked into it, and what shellcheck says; tests/cluster runs it."""

from __future__ import annotations

import subprocess

import pytest
from click.testing import CliRunner

from slurm_llm.cli.siteepilog import epilog
from slurm_llm.errors import InputError
from slurm_llm.sites.epilog import epilog_script, local_folders, with_folders
from slurm_llm.sites.load import parse_site
from slurm_llm.yamlio import Document


def folders_of(text: str) -> list[str]:
    """Return what bash makes of the script's list of folders."""
    line = next(line for line in text.splitlines() if line.startswith("folders="))
    done = subprocess.run(["bash", "-c", f'{line}; printf "%s\\n" "${{folders[@]}}"'], capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("given", "folders"),
    [
        ((), ["/tmp"]),
        (("/scratch/local/", "/tmp"), ["/tmp", "/scratch/local"]),
        (("/my disk/$x", "/it's"), ["/tmp", "/my disk/$x", "/it's"]),
    ],
    ids=str,
)
def test_folders_are_baked_in(given: tuple[str, ...], folders: list[str]) -> None:
    """/tmp is always cleaned, others beside it, each once, whatever stands in their names; the rest is as packaged."""
    text = epilog_script(given)
    assert folders_of(text) == folders
    assert [line for line in text.splitlines() if not line.startswith("folders=")] == [
        line for line in epilog_script(()).splitlines() if not line.startswith("folders=")
    ]


def test_a_script_without_a_place_for_folders_is_an_error() -> None:
    """A changed packaged script must not be printed without the site's folders."""
    with pytest.raises(ValueError, match="has no line"):
        with_folders("#!/bin/bash\nfolders=( /tmp )\n", ("/scratch",))


def test_folders_that_are_no_paths_are_all_named() -> None:
    """A relative path or one of two lines is refused, all of them at once."""
    with pytest.raises(InputError) as caught:
        epilog_script(("scratch", "/a\nb", "/good"))
    assert len(caught.value.problems) == 2


def test_a_profiles_folders_are_those_of_its_partitions() -> None:
    """A partition may have another node-local disk than the site."""
    parts = {"a": {"gpus_per_node": 4}, "b": {"gpus_per_node": 4, "storage": {"local": "/nvme"}}}
    values = {"schema_version": 1, "name": "here", "storage": {"local": "/scratch"}, "partitions": parts}
    assert local_folders(parse_site(Document("site", values))) == ("/scratch", "/nvme")  # type: ignore[arg-type]


def test_the_command_prints_the_script() -> None:
    """A profile's folders and those given stand in what is printed, and nothing else is printed."""
    done = CliRunner().invoke(epilog, ["devcluster", "--local", "/scratch"])
    assert (done.exit_code, done.output) == (0, epilog_script(("/tmp", "/scratch")))


def test_the_script_is_clean() -> None:
    """Shellcheck finds nothing in the script as it is printed."""
    done = subprocess.run(["shellcheck", "-"], input=epilog_script(("/a b",)), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
