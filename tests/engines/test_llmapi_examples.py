"""The specs of docs/examples for the llmapi engine: each can be planned, and is free of remarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.engines import find_engine
from slurm_llm.engines.types import Gpu
from slurm_llm.plan import build_plan
from slurm_llm.sites.load import load_site
from slurm_llm.spec import load_spec
from tests.engines.files import Files

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("llmapi-*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_right(path: Path) -> None:
    """On a site with pyxis and nodes of 8 GPUs, as it stands."""
    spec = load_spec(path)
    plan = build_plan(spec, load_site("aws-hyperpod", {}).profile)
    assert plan.engine == "llmapi"
    engine = find_engine("llmapi")
    assert engine is not None
    found = engine.inspect(spec, plan.sizes, Files({}), Gpu(memory_gb=80))
    assert (found.problems, found.warnings) == ((), ())


def test_there_are_examples() -> None:
    """An empty list would pass the test above."""
    assert len(EXAMPLES) >= 12
