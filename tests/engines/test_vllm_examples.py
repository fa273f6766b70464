"""The specs of docs/examples for the vllm engine, each with its repository and its launch as they were reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_llm.plan import Plan, build_plan
from slurm_llm.render import Target, render
from slurm_llm.sites.load import load_site
from slurm_llm.spec import load_spec

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("vllm-*.yaml"))
GOLDEN = Path(__file__).parent / "golden"


def planned(path: Path) -> Plan:
    """Return the plan on a site with pyxis and nodes of 8 GPUs."""
    return build_plan(load_spec(path), load_site("aws-hyperpod", {}).profile)


def described(plan: Plan) -> str:
    """Return what the example is about: how it is launched, and every file that Triton reads."""
    rows = [f"launch {plan.launch}, {plan.allocation.nodes} nodes"]
    rows += [
        f"rank {one.rank}: {one.role} on node {one.node}, GPUs {','.join(map(str, one.gpus))}" for one in plan.ranks
    ]
    rows += [f"tritonserver {' '.join(plan.server.arguments)}".rstrip()]
    files = render(plan, Target(Path("/runs/demo"), "/usr/bin/python3", {"USER": "me", "HOME": "/home/me"}))
    start = "model_repository/"
    for name in sorted(name for name in files if name.startswith(start)):
        rows += ["", f"== {name.removeprefix(start)}", files[name].rstrip("\n")]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_as_reviewed(path: Path, request: pytest.FixtureRequest) -> None:
    """It can be planned, and gives the repository that the page describes."""
    plan = planned(path)
    golden = GOLDEN / f"{path.stem}.txt"
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(described(plan))
    assert golden.is_file(), f"{golden} is missing: run pytest tests/engines --update-golden and review it"
    assert golden.read_text() == described(plan), f"{golden} differs: if that is meant, --update-golden"


def test_every_feature_of_the_page_has_an_example() -> None:
    """And no golden file is left over."""
    features = "opt-125m multi-gpu pipeline experts quantized lora health-check gpu-device-ids two-servers multi-node"
    assert {path.stem for path in EXAMPLES} >= {f"vllm-{name}" for name in features.split()}
    assert {path.stem for path in GOLDEN.glob("vllm-*.txt")} == {path.stem for path in EXAMPLES}
