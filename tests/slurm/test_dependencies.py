"""Dependencies and moments: what Slurm's grammar has passes as it is, everything else is refused before sbatch."""

from __future__ import annotations

import pytest

from slurm_llm.slurm.dependencies import check_dependency, check_moment, joined


@pytest.mark.parametrize(
    "text",
    [
        *("afterok:1", "afterany:1:2:3", "afternotok:4294967", "singleton", "after:1", "after:1+5:2", "aftercorr:1_4"),
        *("afterok:1_*", "afterok:1,afterany:2", "afterok:1?afternotok:2", "afterburstbuffer:9", "singleton,afterok:1"),
    ],
)
def test_what_sbatch_knows(text: str) -> None:
    """The forms of sbatch(1)."""
    assert check_dependency(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "1",
            "afterok",
            "afterok:",
            "afterok:x",
            "afterok:1:",
            "afterok:1,",
            "after ok:1",
            "afterok:1 ,afterok:2",
        ),
        *("afterok:1,afterok:2?afterok:3", "before:1", "afterok:1\n", "afterok:1;touch x", "afterok:-1", "AFTEROK:1"),
        "afterok:1+5",
    ],
)
def test_what_it_does_not(text: str) -> None:
    """Each with the words that are allowed, or why not both signs."""
    with pytest.raises(ValueError, match=r"is no dependency: TYPE:JOB|either all"):
        check_dependency(text)


@pytest.mark.parametrize("text", ["16:00", "now+1hour", "2026-12-24T08:00:00", "tomorrow", "12/24/26-08:00", "4:00 PM"])
def test_moments(text: str) -> None:
    """sbatch has many forms, and judges them itself."""
    assert check_moment(text) == text


@pytest.mark.parametrize("text", ["", "-1", "now;x", "now\n", "$(date)", "x" * 50])
def test_no_moments(text: str) -> None:
    """Nothing that could be another option, or more than a line."""
    with pytest.raises(ValueError, match="must be a time"):
        check_moment(text)


def test_one_dependency_on_all() -> None:
    """sbatch would take the last of two, and the job would not wait for the stage that makes its weights."""
    stage = ("--dependency=afterok:5", "--kill-on-invalid-dep=yes")
    assert joined((), stage) == stage
    assert joined(("--dependency=afterany:1", "--hold"), stage) == (
        "--dependency=afterany:1,afterok:5",
        "--hold",
        "--kill-on-invalid-dep=yes",
    )
    assert joined(("--hold",), ()) == ("--hold",)
    with pytest.raises(ValueError, match="any of several"):
        joined(("--dependency=afterok:1?afterok:2",), stage)
