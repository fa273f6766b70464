"""Plans and run directories of jobs in containers, rendered as a user's would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_llm.containers import ContainerPlan, plan_container
from slurm_llm.errors import Problem
from slurm_llm.plan import Plan, build_plan
from slurm_llm.render import Target, render
from slurm_llm.yamlio import Tree
from tests.plan.sites_for_plans import make_site, make_spec

IMAGES = {
    "pyxis": "nvcr.io#nvidia/tritonserver:24.10-py3",
    "cscs_ce": "nvcr.io#nvidia/tritonserver:24.10-py3",
    "apptainer": "docker://nvcr.io/nvidia/tritonserver:24.10-py3",
    "singularity": "docker://nvcr.io/nvidia/tritonserver:24.10-py3",
    "shifter": "docker:nvcr.io/nvidia/tritonserver:24.10-py3",
    "podman_hpc": "nvcr.io/nvidia/tritonserver:24.10-py3",
    "charliecloud": "/images/triton",
    "enroot": "triton",
}
"""An image that each runtime takes."""

ENTERED = tuple(name for name in IMAGES if name not in ("pyxis", "cscs_ce"))
"""Runtimes that enter.sh calls."""


def make_plan(
    runtime: str,
    image: str | None = None,
    /,
    *,
    rules: Mapping[str, Tree] | None = None,
    mounts: Sequence[str] = (),
    workdir: str | None = None,
    partition: Mapping[str, Tree] | None = None,
    spec: Mapping[str, Tree] | None = None,
    **site: Tree,
) -> Plan:
    """Return the plan of one rank in `image`; `rules` are the site's for containers, `site` its other keys."""
    container: dict[str, Tree] = {"image": image or IMAGES[runtime], "mounts": list(mounts), "workdir": workdir}
    own = make_site(dict(partition or {}), container={"runtime": runtime, **(rules or {})}, **site)
    return build_plan(make_spec(container=container, **(spec or {})), own)


def render_plan(plan: Plan, run_dir: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the texts of a run directory."""
    return render(plan, Target(run_dir, "/usr/bin/python3", environ or {}))


def try_plan(
    runtime: str, container: dict[str, Tree] | None, /, *, rules: Mapping[str, Tree] | None = None, **site: Tree
) -> tuple[ContainerPlan | None, list[Problem]]:
    """Return what plan_container makes of a spec's `container`, and what it finds wrong."""
    problems: list[Problem] = []
    own = make_site(container={"runtime": runtime, **(rules or {})}, **site).for_partition("gpu")
    spec = make_spec() if container is None else make_spec(container=container)
    return plan_container(spec, own, True, (), problems), problems
