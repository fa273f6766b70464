"""Releases are read, ordered, and each difference switches at its release."""

from __future__ import annotations

import pytest

from slurm_llm.slurm.versions import SlurmVersion, parse_version

RELEASES = ["20.11", "21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm 22.05.8", SlurmVersion(22, 5, 8)),
        ("slurm-wlm 22.05.8\n", SlurmVersion(22, 5, 8)),
        ("slurm 24.05.0-0rc1", SlurmVersion(24, 5, 0)),
        ("slurm 20.11.9-1", SlurmVersion(20, 11, 9)),
        ("23.11", SlurmVersion(23, 11)),
    ],
)
def test_versions_are_read(text: str, version: SlurmVersion) -> None:
    """What `sbatch --version` prints gives the release."""
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "slurm", "slurm master", "sbatch: command not found"])
def test_other_texts_are_no_versions(text: str) -> None:
    """Anything else is an error that shows it."""
    with pytest.raises(ValueError, match="names no Slurm release"):
        parse_version(text)


def test_versions_are_ordered() -> None:
    """Releases sort by time, patches within."""
    assert SlurmVersion(22, 5, 8) < SlurmVersion(22, 5, 10) < SlurmVersion(23, 2) < SlurmVersion(23, 11)
    assert str(SlurmVersion(22, 5, 8)) == "22.05.8"


@pytest.mark.parametrize(
    ("name", "since"),
    [
        ("overlap_shares_gres", "22.05"),
        ("exclusive_conflicts_with_oversubscribe", "23.02"),
        ("supports_segment", "24.05"),
        ("supports_oom_kill_step", "24.11"),
        ("gres_conflicts_with_gpus_per_node", "26.05"),
    ],
)
def test_differences_switch_once(name: str, since: str) -> None:
    """Each difference is there from its release on, and not before."""
    having = [release for release in RELEASES if getattr(parse_version(release), name)]
    assert having == RELEASES[RELEASES.index(since) :]
