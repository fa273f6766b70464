"""A place for run directories, mounts and images."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.entering import Place


@pytest.fixture
def place() -> Iterator[Place]:
    """A folder of its own, where no runtime looks for system files."""
    root = Path(tempfile.mkdtemp(prefix=".slurm-llm-test-", dir="/srv" if os.geteuid() == 0 else Path.home()))
    made = Place(root)
    made.folder("my runs/run=1")
    yield made
    shutil.rmtree(root)
