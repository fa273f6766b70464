"""What stands before the servers: a front end's tokenizer, the balancer's port, and the image they are in."""

from __future__ import annotations

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.plan import build_plan
from slurm_llm.plan.front import plan_frontend
from slurm_llm.spec import spec_from_mapping
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan, make_site, make_spec


@pytest.mark.parametrize(
    ("values", "tokenizer"),
    [
        ({}, "org/model"),
        ({"engine_args": {"tokenizer": "/t"}}, "/t"),
        ({"engine": "tensorrtllm", "engine_args": {"tokenizer_dir": "/d"}}, "/d"),
        ({"engine_args": {"tokenizer": "/t"}, "triton": {"tokenizer": "org/own"}}, "org/own"),
        ({"engine_args": {"tokenizer": ["no", "text"]}}, "org/model"),
    ],
)
def test_the_tokenizer_is_the_nearest_that_the_spec_names(values: dict[str, Tree], tokenizer: str) -> None:
    """The key that is made for it, then the engine's own argument, then the model."""
    own: dict[str, Tree] = {"name": "demo", "engine": "vllm", "model": "org/model", "frontend": "openai", **values}
    front = plan_frontend(spec_from_mapping(own))
    assert front is not None and f"--tokenizer={tokenizer}" in front.arguments


def test_a_balancer_has_a_port_of_its_own() -> None:
    """It runs on the first node, where the first leader has its ports."""
    with pytest.raises(PlanError, match=r"balancer\.port: 8000 is a port of Triton too"):
        make_plan(balancer={"program": "nginx", "port": 8000}, triton={"metrics_port": 8000})


@pytest.mark.parametrize(("image", "doubted"), [("nemo", True), ("trtllm", False), ("org/trtllm", False)])
def test_a_name_that_is_no_alias_is_doubted(image: str, doubted: bool) -> None:
    """It would be looked for in a registry, minutes into the job; a near slip is refused."""
    site = make_site(container={"runtime": "pyxis", "images": {"trtllm": "/images/trtllm.sqsh"}})
    found = build_plan(make_spec(container={"image": image}), site).warnings
    assert any("is no alias of site here (trtllm)" in one for one in found) is doubted
