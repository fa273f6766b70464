"""The option that writes the golden run directories anew: `pytest tests/render --update-golden`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--update-golden", action="store_true", help="write tests/render/golden anew, for review")
