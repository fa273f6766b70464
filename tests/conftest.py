"""The option that writes golden files anew: `pytest tests/render tests/sites --update-golden`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is no fault: hypothesis' own limits of time are off.
settings.register_profile("slurm_llm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slurm_llm")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew, for review")
