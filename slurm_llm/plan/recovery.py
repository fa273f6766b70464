"""What a spec asks to be done after a failure: its part of the plan, and what contradicts it."""

from __future__ import annotations

from dataclasses import replace

from slurm_llm.errors import Problem
from slurm_llm.plan.layout import Layout
from slurm_llm.plan.types import RecoveryPlan
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec


def build_recovery(spec: JobSpec) -> RecoveryPlan:
    """Return the plan's part."""
    own = spec.recovery
    return RecoveryPlan(own.restarts, own.backoff_s, own.reset_s, own.requeue)


def with_spares(layout: Layout | None, spec: JobSpec) -> Layout | None:
    """Return the layout with the nodes that the spec wants to have spare."""
    return None if layout is None else replace(layout, spare_nodes=spec.recovery.spare_nodes)


def check_recovery(spec: JobSpec, site: SiteProfile, layout: Layout | None) -> list[Problem]:
    """Return what the spec asks for in vain."""
    own, where = spec.recovery, "recovery.spare_nodes"
    left_out = {name.lstrip("-") for name in (*site.policies.forbid, *site.sbatch_skip)}
    problems = []
    if own.requeue and "requeue" in left_out:
        what = f"site {site.name} lets no job say --requeue"
        problems.append(Problem("recovery.requeue", what, "0", "remove it"))
    if not own.spare_nodes:
        return problems
    if not own.restarts:
        what = "only a restart takes a spare node, and recovery.restarts is 0"
        problems.append(Problem(where, what, todo="set recovery.restarts, or leave spare_nodes out"))
    if not site.launcher.by_srun:
        what = f"site {site.name} starts ranks with {site.launcher.command.split()[0]}, which cannot leave out a node"
        problems.append(Problem(where, what, "0", "use recovery.requeue"))
    if "no-kill" in left_out:
        what = f"site {site.name} lets no job say --no-kill: it ends with the node that is lost"
        problems.append(Problem(where, what, "0", "use recovery.requeue"))
    if layout is not None and layout.nodes == 1:
        what = "the job's script runs on the only node of its ranks, and no other can replace that"
        problems.append(Problem(where, what, "0", "use recovery.requeue"))
    return problems
