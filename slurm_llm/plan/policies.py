"""The site's policies against what a plan would ask of Slurm: what it refuses, what it insists on."""

from __future__ import annotations

from dataclasses import replace

from slurm_llm.errors import Problem
from slurm_llm.plan.notices import FIELDS
from slurm_llm.plan.steps import sbatch_options
from slurm_llm.plan.types import Plan
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.options import MANAGED_SBATCH, option_name
from slurm_llm.spec import JobSpec

_SPEC_FIELDS = {
    "resources.mem_per_node": "mem",
    "resources.cpus_per_rank": "cpus-per-task",
    "resources.time": "time",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "reservation": "reservation",
    "exclude_nodes": "exclude",
    "comment": "comment",
    "mail": "mail-type",
}
"""Field of a spec → the option of sbatch that it asks for."""


def check_forbidden(spec: JobSpec, site: SiteProfile) -> list[Problem]:
    """Return what the spec asks for against the site's rules."""
    forbidden = {name.lstrip("-") for name in site.policies.forbid}
    problems = []
    for field, option in _SPEC_FIELDS.items():
        if option in forbidden and _value(spec, field) is not None:
            what = f"site {site.name} refuses jobs with --{option}"
            problems.append(Problem(field, what, todo=f"remove `{field}`"))
    for index, option in enumerate(spec.sbatch_extra):
        name = option_name(option)
        if name in forbidden or (option.startswith("--") and any(one.startswith(name) for one in forbidden)):
            what = f"site {site.name} refuses jobs with --{option_name(option)}"
            problems.append(Problem(f"sbatch_extra[{index}]", what, todo="remove it"))
    return problems


def _value(spec: JobSpec, field: str) -> object:
    value: object = spec
    for name in field.split("."):
        value = getattr(value, name)
    return value


def check_required(site: SiteProfile, plan: Plan) -> list[Problem]:
    """Return what the site insists on and the plan lacks; `site` is the profile as it is for the partition."""
    # The container's own directives hold paths that are known only when the job is rendered.
    own = () if plan.container is None else plan.container.sbatch
    given = {option_name(option) for option in (*sbatch_options(replace(plan, container=None), ""), *own)}
    problems = []
    for name in site.policies.require:
        option = name.lstrip("-")
        if option not in given:
            what = f"site {site.name} refuses jobs without {name}"
            key = MANAGED_SBATCH.get(option) or FIELDS.get(option)
            todo = f"set {key}" if key else f"add it to sbatch_extra, as {name}=VALUE"
            where = key if key and key.isidentifier() else name
            problems.append(Problem(where, what, todo=todo))
    return problems
