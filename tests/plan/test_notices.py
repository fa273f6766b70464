"""Mail and comment: as options of the job, each asked for once, and harmless to the site's mail program."""

from __future__ import annotations

import pytest

from slurm_llm.errors import PlanError, SpecError
from slurm_llm.plan import build_plan
from slurm_llm.plan.steps import sbatch_options
from slurm_llm.sites.load import laid_over, load_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import spec_from_mapping
from slurm_llm.yamlio import Tree

LEAST: dict[str, Tree] = {"name": "demo", "engine": "rehearsal"}
SITE = load_site("devcluster", {})


def options(**keys: Tree) -> list[str]:
    """Return what of a spec's mail and comment sbatch gets."""
    plan = build_plan(spec_from_mapping({**LEAST, **keys}), SITE.profile)
    return [one for one in sbatch_options(plan, "x") if one.startswith(("--mail", "--comment"))]


def test_what_sbatch_gets() -> None:
    """Moments in capitals, as Slurm shows them; END and FAIL unless others are named; nothing unless asked."""
    assert options() == []
    assert options(mail={}) == ["--mail-type=END,FAIL"]
    own: Tree = {"types": ["begin", "TIME_LIMIT_80"], "user": "me+llm@example.org"}
    assert options(mail=own, comment='a "b"') == [
        "--mail-type=BEGIN,TIME_LIMIT_80",
        "--mail-user=me+llm@example.org",
        '--comment=a "b"',
    ]


@pytest.mark.parametrize(
    "user", ["", "-oProxyCommand", "a b@c", "me@", "@x", "me@x,you@x", "me@ex..org", "me@x\n", "$(id)"]
)
def test_who_is_no_address(user: str) -> None:
    """It becomes an argument of a program: nothing that could be an option, or two."""
    with pytest.raises(SpecError, match=r"mail\.user"):
        options(mail={"user": user})


@pytest.mark.parametrize(
    ("keys", "where"), [({"mail": {"types": []}}, "mail.types"), ({"comment": "a\x1b[2J"}, "comment")]
)
def test_what_is_refused(keys: dict[str, Tree], where: str) -> None:
    """No moment at all, and control characters, which squeue would hand to a terminal."""
    with pytest.raises(SpecError, match=where) as caught:
        options(**keys)
    assert len(caught.value.problems) == 1


def test_an_option_is_asked_for_once() -> None:
    """Slurm would take the last one: the site's own, or the spec's further options, beside the key."""
    with pytest.raises(PlanError, match="comment: sbatch_extra sets --comment too"):
        options(comment="x", sbatch_extra=["--comment=y"])
    site = laid_over(SITE, {"sbatch_extra": ["--mail-user=admin"]}, label="test").profile
    spec = spec_from_mapping({**LEAST, "mail": {"user": "me"}})
    with pytest.raises(PlanError, match="site devcluster sets --mail-user too"):
        build_plan(spec, site)
    assert build_plan(spec_from_mapping({**LEAST, "comment": "x"}), site).allocation.extra == ("--mail-user=admin",)


def test_a_sites_rules_name_the_keys() -> None:
    """A site that insists on a comment is answered by the key; one that forbids it refuses the key."""

    def with_rule(**rule: tuple[str, ...]) -> SiteProfile:
        policies = SITE.profile.policies.model_copy(update=rule)
        return SITE.profile.model_copy(update={"policies": policies})

    with pytest.raises(PlanError, match="set comment"):
        build_plan(spec_from_mapping(LEAST), with_rule(require=("--comment",)))
    with pytest.raises(PlanError, match="comment: site devcluster refuses jobs with --comment"):
        build_plan(spec_from_mapping({**LEAST, "comment": "x"}), with_rule(forbid=("--comment",)))
