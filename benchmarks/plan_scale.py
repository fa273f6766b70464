"""Print how long planning, rendering and the plan's JSON take at 64, 512 and 4096 ranks, and how that grows."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from slurm_llm.plan import build_plan
from slurm_llm.plan.types import plan_from_json, plan_to_json
from slurm_llm.render import Target, render
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.spec import JobSpec, spec_from_mapping

RANKS = (64, 512, 4096)


def _site(ranks_per_node: int) -> SiteProfile:
    return SiteProfile.model_validate(
        {
            "schema_version": 1,
            "name": "scale",
            "partitions": {"all": {"gpus_per_node": ranks_per_node, "cpus": {"per_node": ranks_per_node}}},
            "launcher": {"mpi": "pmix"},
        }
    )


def _spec(ranks: int, tensor: int) -> JobSpec:
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": ranks // tensor}
    return spec_from_mapping({"name": "scale", "engine": "rehearsal", **sizes})


def _best(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(ranks: int, tensor: int, repeats: int) -> dict[str, float]:
    """Return the seconds of each stage, the best of `repeats`."""
    spec, site, target = _spec(ranks, tensor), _site(8), Target(Path("/runs/scale"), "/usr/bin/python3")
    plan = build_plan(spec, site)
    text = plan_to_json(plan)
    return {
        "plan": _best(lambda: build_plan(spec, site), repeats),
        "plan_to_json": _best(lambda: plan_to_json(plan), repeats),
        "plan_from_json": _best(lambda: plan_from_json(text), repeats),
        "render (with its JSON)": _best(lambda: render(plan, target), repeats),
    }


def main() -> None:
    """Print one table for tensor groups of 8 and one for a single tensor group of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    layouts: tuple[tuple[str, Callable[[int], int]], ...] = (
        ("tp 8 · pp ranks/8", lambda _: 8),
        ("tp ranks", lambda ranks: ranks),
    )
    for title, tensor in layouts:
        columns = [measure(ranks, tensor(ranks), repeats) for ranks in RANKS]
        print(f"{title}: seconds at {', '.join(map(str, RANKS))} ranks, and growth for 8 times the ranks")
        for stage in columns[0]:
            times = [column[stage] for column in columns]
            growth = " ".join(f"×{after / before:5.1f}" for before, after in pairwise(times))
            print(f"  {stage:24}" + " ".join(f"{seconds:9.4f}" for seconds in times) + f"   {growth}")
        total = columns[-1]["plan"] + columns[-1]["render (with its JSON)"]
        print(f"  planning and rendering {RANKS[-1]} ranks: {total:.3f} s")


if __name__ == "__main__":
    main()
