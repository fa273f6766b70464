from __future__ import annotations

import pytest

from slurm_llm.plan.steps import stop_warning_s


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (None, 90),
        ("UNLIMITED", 90),
        ("1-00:00:00", 90),
        ("00:10:00", 90),
        ("00:05:00", 60),
        ("2", 24),
        ("00:00:30", 10),
    ],
)
def test_a_short_job_is_warned_later(time: str | None, seconds: int) -> None:
    """A warning longer than the limit would end the job as it begins."""
    assert stop_warning_s(time) == seconds
