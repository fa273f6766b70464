"""The option that writes golden files anew: `pytest tests/render tests/sites --update-golden`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew, for review")
