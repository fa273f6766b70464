"""A service in the plan: when Slurm warns it, how long Triton waits for requests, and what is refused."""

from __future__ import annotations

import json

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.plan.steps import sbatch_options
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_plan, make_site, make_spec

TIME: dict[str, Tree] = {"time": "04:00:00"}


def warning_of(plan: Plan) -> str:
    """Return the job's --signal."""
    return next(option for option in sbatch_options(plan, "out") if option.startswith("--signal"))


@pytest.mark.parametrize(
    ("service", "signal", "exit_timeout_s"),
    [
        (None, "--signal=B:USR1@90", 25),
        ({"idle_stop_s": 600, "drain_s": 10}, "--signal=B:USR1@90", 25),
        ({"successors": 2}, "--signal=B:USR1@680", 60),
        ({"successors": "unlimited", "handover_s": 1200, "drain_s": 300}, "--signal=B:USR1@1520", 300),
    ],
)
def test_the_warning_leaves_time_for_the_successor_and_the_drain(
    service: Tree, signal: str, exit_timeout_s: int
) -> None:
    """Without a service nothing changes, and the plan's file does not name one."""
    plan = make_plan(service=service, resources=TIME)
    assert (warning_of(plan), plan.server.exit_timeout_s) == (signal, exit_timeout_s)
    text = plan_to_json(plan)
    assert plan_from_json(text) == plan
    assert ("service" in json.loads(text)) is (service is not None)


@pytest.mark.parametrize(
    ("service", "resources", "site", "message"),
    [
        pytest.param(
            {"successors": 1},
            {"time": "00:15:00"},
            {},
            "resources.time: 00:15:00 is too short to be a service with handover_s 600 and drain_s 60: "
            "at least 00:18:00: ask for more, or set a shorter service.handover_s",
            id="warned as soon as it begins",
        ),
        pytest.param(
            {"successors": 1, "handover_s": 65535},
            TIME,
            {},
            "service.handover_s: 65615 s ahead of the end is more than Slurm warns: handover_s + drain_s at most 65515",
            id="more than Slurm warns",
        ),
        pytest.param(
            {"successors": 1},
            {},
            {},
            "resources.time: a service that hands over must know its time limit, and neither spec nor site says one: "
            "set it",
            id="no limit known",
        ),
        pytest.param(
            {"successors": "unlimited"},
            TIME,
            {"policies": {"forbid": ["--signal"]}},
            "service.successors: site here lets no job say --signal: nothing would warn the job of its end: 0: "
            "remove it",
            id="no warning allowed",
        ),
    ],
)
def test_what_no_handover_can_come_of_is_refused(
    service: Tree, resources: dict[str, Tree], site: dict[str, Tree], message: str
) -> None:
    """A chain of jobs that hand over as soon as they begin would be worse than none."""
    with pytest.raises(PlanError) as caught:
        build_plan(make_spec(service=service, resources=resources), make_site({"time": {}}, **site))
    assert message in [str(problem) for problem in caught.value.problems]
