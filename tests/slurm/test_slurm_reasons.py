"""Every reason of Slurm has a sentence and says who clears it; unknown ones pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.slurm.reasons import Clears, explain_reason

CODES = (Path(__file__).parent / "captures" / "documented-reason-codes.txt").read_text().split()


@pytest.mark.parametrize(
    ("text", "code", "clears"),
    [
        ("Priority", "Priority", Clears.ITSELF),
        ("(Resources)", "Resources", Clears.ITSELF),
        ("BeginTime", "BeginTime", Clears.ITSELF),
        ("Licenses", "Licenses", Clears.ITSELF),
        ("Dependency", "Dependency", Clears.ITSELF),
        ("None", "None", Clears.ITSELF),
        ("", "None", Clears.ITSELF),
        ("(null)", "None", Clears.ITSELF),
        ("NodeDown", "NodeDown", Clears.OTHERS),
        ("JobHeldUser", "JobHeldUser", Clears.USER),
        ("JobHeldAdmin", "JobHeldAdmin", Clears.OTHERS),
        ("InvalidAccount", "InvalidAccount", Clears.USER),
        ("InvalidQOS", "InvalidQOS", Clears.USER),
        ("PartitionNodeLimit", "PartitionNodeLimit", Clears.NEVER),
        ("PartitionTimeLimit", "PartitionTimeLimit", Clears.NEVER),
        ("BadConstraints", "BadConstraints", Clears.NEVER),
        ("DependencyNeverSatisfied", "DependencyNeverSatisfied", Clears.NEVER),
        ("QOSMaxWallDurationPerJobLimit", "QOSMaxWallDurationPerJobLimit", Clears.NEVER),
        ("QOSMaxGRESPerJob", "QOSMaxGRESPerJob", Clears.NEVER),
        ("AssocMaxGRESPerNode", "AssocMaxGRESPerNode", Clears.NEVER),
        ("QOSMinGRES", "QOSMinGRES", Clears.NEVER),
        ("AssocGrpGRES", "AssocGrpGRES", Clears.OTHERS),
        ("AssocGrpGRESMinutes", "AssocGrpGRESMinutes", Clears.OTHERS),
        ("QOSGrpGRES", "QOSGrpGRES", Clears.OTHERS),
        ("QOSMaxGRESPerUser", "QOSMaxGRESPerUser", Clears.OTHERS),
        ("QOSMaxSubmitJobPerUserLimit", "QOSMaxSubmitJobPerUserLimit", Clears.OTHERS),
        ("MaxGRESPerAccount", "MaxGRESPerAccount", Clears.OTHERS),
        ("launch_failed_requeued_held", "LaunchFailedRequeuedHeld", Clears.USER),
        ("launch failed requeued held", "LaunchFailedRequeuedHeld", Clears.USER),
        (
            "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions)",
            "ReqNodeNotAvail",
            Clears.OTHERS,
        ),
    ],
)
def test_reasons_say_who_clears_them(text: str, code: str, clears: Clears) -> None:
    """The code is found in every dress and judged."""
    reason = explain_reason(text)
    assert (reason.code, reason.clears) == (code, clears)


@pytest.mark.parametrize(
    "text", ["(ReqNodeNotAvail, UnavailableNodes:n[1-2],m3)", "ReqNodeNotAvail, UnavailableNodes:n[1-2],m3"]
)
def test_what_slurm_adds_is_kept(text: str) -> None:
    """The nodes behind a code are the detail, not part of the code."""
    reason = explain_reason(text)
    assert reason.code == "ReqNodeNotAvail"
    assert reason.detail == "UnavailableNodes:n[1-2],m3"


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_sentence(code: str) -> None:
    """No code of Slurm's list falls through to 'does not know'."""
    reason = explain_reason(code)
    assert "does not know" not in reason.text
    assert reason.text.endswith(".") and "{" not in reason.text


def test_the_list_of_codes_is_there() -> None:
    """The list that the test above runs over is the whole of Slurm's."""
    assert len(CODES) > 180


def test_an_unknown_code_is_passed_on() -> None:
    """A code of a later release is shown, and is no error."""
    reason = explain_reason("BrandNewReason")
    assert reason.code == "BrandNewReason"
    assert "BrandNewReason" in reason.text
