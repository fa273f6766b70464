"""Specs and sites of the planning tests, as mappings with the few values that a test is about."""

from __future__ import annotations

from slurm_llm.plan import Plan, build_plan
from slurm_llm.sites.load import parse_site
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec, spec_from_mapping
from slurm_llm.yamlio import Document, Tree


def make_spec(**values: Tree) -> JobSpec:
    """Return a rehearsal spec with `values`."""
    return spec_from_mapping({"name": "demo", "engine": "rehearsal", **values})


def make_site(partition: dict[str, Tree] | None = None, /, **values: Tree) -> SiteProfile:
    """Return a site with one partition `gpu` of 4 GPUs a node, changed by `partition` and `values`."""
    own: dict[str, Tree] = {"gpus_per_node": 4, "cpus": {"per_node": 32}, **(partition or {})}
    base: dict[str, Tree] = {
        "schema_version": 1,
        "name": "here",
        "partitions": {"gpu": own},
        "launcher": {"mpi": "pmix"},
    }
    return parse_site(Document("site", {**base, **values}))


def make_plan(partition: dict[str, Tree] | None = None, /, **values: Tree) -> Plan:
    """Return the plan of a spec with `values` on the site of `make_site(partition)`."""
    return build_plan(make_spec(**values), make_site(partition))
