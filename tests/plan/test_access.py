"""Who may ask a served model what: keys, closed APIs, addresses; and that no secret gets into a job's script."""

from __future__ import annotations

import pytest

from slurm_llm.errors import PlanError
from slurm_llm.plan import Plan, build_plan
from slurm_llm.plan.access import access_groups, describe
from slurm_llm.plan.asjson import plan_from_json, plan_to_json
from slurm_llm.plan.types import AccessPlan
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_site, make_spec

ADMIN = ("model-repository", "shared-memory", "trace", "logging")
TOKEN = "hf_" + "a1B2c3D4" * 3


def planned(site: dict[str, Tree], /, **spec: Tree) -> Plan:
    """Return the plan of a spec with some values on a site with some values."""
    return build_plan(make_spec(**spec), make_site({}, **site))


@pytest.mark.parametrize(
    ("spec", "site", "expected"),
    [
        pytest.param({}, {}, AccessPlan(ADMIN, ()), id="what changes the server is closed, the rest open"),
        pytest.param({"access": {"key": True}}, {}, AccessPlan(ADMIN, ("inference",)), id="a key"),
        pytest.param(
            {}, {"security": {"require_key": True}}, AccessPlan(ADMIN, ("inference",)), id="the site wants it"
        ),
        pytest.param({"access": {"open_apis": ["trace"]}}, {}, AccessPlan((*ADMIN[:2], "logging"), ()), id="opened"),
        pytest.param({}, {"security": {"closed_apis": []}}, AccessPlan((), ()), id="a site that closes nothing"),
        pytest.param(
            {"access": {"key": True}},
            {"security": {"closed_apis": ["trace", "statistics", "trace"]}},
            AccessPlan(("trace",), ("inference", "statistics")),
            id="the head counts with the key",
        ),
        pytest.param({"frontend": "openai"}, {}, AccessPlan((), ()), id="the front end has no such options"),
        pytest.param({}, {"network": {"bind": "loopback"}}, AccessPlan(ADMIN, (), "loopback"), id="loopback"),
    ],
)
def test_what_is_closed(spec: dict[str, Tree], site: dict[str, Tree], expected: AccessPlan) -> None:
    """The site decides, the spec opens or asks for a key; the plan's JSON keeps it."""
    plan = planned(site, **spec)
    assert plan.access == expected
    assert plan_from_json(plan_to_json(plan)).access == expected


CONTRADICTIONS: list[tuple[dict[str, Tree], dict[str, Tree], str]] = [
    ({"access": {"key": False}}, {"security": {"require_key": True}}, "access.key: site .* wants a key"),
    ({"access": {"key": True}, "frontend": "openai"}, {}, "access.key: the OpenAI-compatible front end cannot"),
    ({"frontend": "openai"}, {"security": {"require_key": True}}, "frontend: the OpenAI-compatible front end cannot"),
    ({}, {"security": {"closed_apis": ["statistics"]}}, "access: site .* closes `statistics`"),
    ({}, {"network": {"bind": "interface"}}, "network.interface: network.bind: interface, and the profile names none"),
    (
        {"triton": {"extra_args": ["--http-address=0.0.0.0"]}},
        {"network": {"bind": "loopback"}},
        "triton.extra_args: .* loopback only .*: leave out --http-address=0.0.0.0",
    ),
    ({"recovery": {"spare_nodes": 1, "restarts": 1}}, {"network": {"bind": "loopback"}}, "recovery.spare_nodes: .*: 0"),
    ({"bench": {"command": ["x"]}}, {"network": {"bind": "loopback"}}, "bench: .*: a bench runs elsewhere"),
    ({"replicas": 3, "resources": {"nodes": 3}}, {"network": {"bind": "loopback"}}, "replicas: .*: at most 1"),
]


@pytest.mark.parametrize(("spec", "site", "told"), CONTRADICTIONS)
def test_contradictions(spec: dict[str, Tree], site: dict[str, Tree], told: str) -> None:
    """Each is refused before anything is submitted."""
    with pytest.raises(PlanError, match=told):
        planned(site, **spec)


def test_a_release_without_the_option_cannot_have_a_key() -> None:
    """23.10 is the last one without; without a key it starts as it always did."""
    image: dict[str, Tree] = {"container": {"image": "nvcr.io#nvidia/tritonserver:23.10-trtllm-python-py3"}}
    runtime: dict[str, Tree] = {"container": {"runtime": "pyxis"}}
    assert planned(runtime, **image).access.closed == ADMIN
    with pytest.raises(PlanError, match=r"access\.key: Triton 23\.10 has no key for HTTP: from release 23\.11 on"):
        planned(runtime, **image, access={"key": True})


def test_groups_are_written_as_triton_reads_them() -> None:
    """One option a group: the key's first, then what nobody may use."""
    assert access_groups(AccessPlan(("trace", "logging"), ("inference",))) == (
        ("inference", "slurm-llm-key", True),
        ("trace,logging", "slurm-llm-closed", False),
    )
    assert access_groups(AccessPlan()) == ()
    assert "needs a key" in describe(AccessPlan((), ("inference",)))


SECRETS: list[tuple[dict[str, Tree], str]] = [
    ({"env": {"HF_TOKEN": TOKEN}}, r"env.HF_TOKEN: .*`export HF_TOKEN=…` there"),
    ({"env": {"DB_PASSWORD": "correct-horse"}}, "env.DB_PASSWORD"),
    ({"env": {"HARMLESS": TOKEN}}, "env.HARMLESS"),
    ({"site": {"env": {"set": {"NGC_API_KEY": "correct-horse"}}}}, "site.env.set.NGC_API_KEY"),
    ({"prologue": f"cd /\nexport X_TOKEN={TOKEN}"}, "prologue"),
    ({"epilogue": "curl https://me:correct-horse@host/"}, "epilogue"),
    ({"sbatch_extra": [f"--comment={TOKEN}"]}, r"sbatch_extra\[0\]"),
    ({"triton": {"extra_args": [f"--x={TOKEN}"]}}, r"triton.extra_args\[0\]"),
    ({"client": {"command": ["x", f"--token={TOKEN}"]}}, r"client.command\[1\]"),
    ({"client": {"command": ["x"], "env": {"A_SECRET": "correct-horse"}}}, "client.env.A_SECRET"),
]


@pytest.mark.parametrize(("spec", "where"), SECRETS)
def test_a_secret_is_refused_and_not_repeated(spec: dict[str, Tree], where: str) -> None:
    """It would stand in a script that Slurm keeps; the message says where it is, and not what."""
    with pytest.raises(PlanError, match=where) as caught:
        planned({}, **spec)
    assert TOKEN not in str(caught.value)
    assert "correct-horse" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"env": {"HF_TOKEN": "$(cat ~/.token)", "HF_TOKEN_PATH": "/home/me/.token", "TOKENIZERS_PARALLELISM": "false"}},
        {"prologue": "export HF_TOKEN=$(cat ~/.cache/huggingface/token)"},
        {"client": {"command": ["x", "--hf-token", "$HF_TOKEN"]}},
    ],
)
def test_what_only_points_to_a_secret_is_none(spec: dict[str, Tree]) -> None:
    """Files and references are how secrets are meant to get there."""
    assert planned({}, **spec).name
