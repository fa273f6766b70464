"""From a spec and a site to a Plan: the decided job as pure data. Nothing here reads a file, a clock or Slurm."""

from slurm_llm.plan.build import build_plan
from slurm_llm.plan.types import Plan, RankPlan

__all__ = ["Plan", "RankPlan", "build_plan"]
