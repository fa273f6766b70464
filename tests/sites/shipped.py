"""The packaged profiles as cases: for each of its partitions a rehearsal on one GPU, on one node and on two."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slurm_llm.assets import sites_dir
from slurm_llm.plan import Plan, build_plan
from slurm_llm.render import Target, render
from slurm_llm.rundir import ENTER_SCRIPT, JOB_SCRIPT, RANK_SCRIPT
from slurm_llm.sites.containers import RuntimeName
from slurm_llm.sites.load import find_sites, load_site
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.spec import spec_from_mapping
from slurm_llm.yamlio import Tree

SITES = sorted(name for name, path in find_sites({}).items() if path.parent == sites_dir())
STARTING_POINTS = ("devcluster", "generic")
"""Profiles of no cluster of anyone's: they have no facts to cite."""
CLUSTERS = [name for name in SITES if name not in STARTING_POINTS]

ACCOUNTS = (
    *("project1", "def-prof", "aip-prof", "project_465000001", "abcd-delta-gpu", "abcd-dtai-gh", "m1234_g"),
    *("hk-project-p0012345", "berzelius-2026-1", "cis260001p", "p_demo"),
)
"""Made-up accounts, one of which fits any packaged `account.pattern`."""

IMAGES: dict[RuntimeName, str] = {
    "pyxis": "/images/tritonserver.sqsh",
    "cscs_ce": "/images/tritonserver.sqsh",
    "enroot": "/images/tritonserver.sqsh",
    "apptainer": "/images/tritonserver.sif",
    "singularity": "/images/tritonserver.sif",
    "shifter": "docker:registry.example.org/tritonserver:1",
    "podman_hpc": "registry.example.org/tritonserver:1",
    "charliecloud": "/images/tritonserver",
}
"""An image in each runtime's own form, which no offline site has to download."""

ENVIRON = {
    **{
        name: f"/{name.lower()}/ada"
        for name in ("HOME", "SCRATCH", "SCRATCHDIR", "PSCRATCH", "WORK", "FAST", "PROJECT")
    },
    "USER": "ada",
}
"""What login shells of these clusters set, as far as profiles name it."""

SCRIPTS = (JOB_SCRIPT, RANK_SCRIPT, ENTER_SCRIPT)
DEFINITION = "container.toml"

ENVIRONMENT_FROM = 'export LLMRUN_RUN="$run" PYTHONUNBUFFERED=1'
ENVIRONMENT_TO = "# What an enclosing job, a module or the job's own options left"
"""The lines of a job's script around what the site does to the environment."""
STEPS = ('"$agent" node ', '"$agent" preflight ', '"$run/rank.sh"', '"$agent" clean ')
"""What the steps of a job's script run."""

TARGET = Target(Path("/runs/demo"), "/usr/bin/python3", ENVIRON)


@dataclass(frozen=True)
class Shape:
    """Ranks of a job: `ranks` of them on each of `nodes` nodes."""

    name: str
    nodes: int
    ranks: int


@dataclass(frozen=True)
class Job:
    """A rehearsal of one shape in one partition of a site."""

    site: SiteProfile
    partition: str
    shape: Shape

    @property
    def name(self) -> str:
        """The job's name in test ids and file names."""
        return f"{self.site.name}.{self.partition}.{self.shape.name}"

    @property
    def profile(self) -> SiteProfile:
        """The profile as it is for the job's partition."""
        return self.site.for_partition(self.partition)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return build_plan(spec_from_mapping(self.spec), self.site)

    @property
    def spec(self) -> dict[str, Tree]:
        """The spec, with an account and an image where the site has such things."""
        values: dict[str, Tree] = {
            "name": "demo",
            "engine": "rehearsal",
            "partition": self.partition,
            "tensor_parallel_size": self.shape.ranks,
            "pipeline_parallel_size": self.shape.nodes,
            "resources": {"nodes": self.shape.nodes},
        }
        account, image = account_of(self.profile), IMAGES.get(self.profile.container.runtime)
        values |= {} if account is None else {"account": account}
        return values | ({} if image is None else {"container": {"image": image}})

    def files(self) -> dict[str, str]:
        """Return the scripts and the container's definition as rendered for a placeholder run directory."""
        made = render(self.plan, TARGET)
        return {name: made[name] for name in (*SCRIPTS, DEFINITION) if name in made}


def of_the_site(script: str) -> str:
    """Return what of a job's script comes from its site: directives, environment, steps, and what is after them."""
    lines = script.splitlines()
    environment = lines[lines.index(ENVIRONMENT_FROM) + 1 : _first(lines, ENVIRONMENT_TO)]
    parts = (
        [line for line in lines if line.startswith(("#!", "#SBATCH "))],
        [line for line in environment if line and not line.startswith("# ")],
        [command for command in _commands(lines) if any(mark in command for mark in STEPS)],
        lines[_first(lines, "run_attempt", last=True) :],
    )
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _first(lines: list[str], start: str, *, last: bool = False) -> int:
    found = [at for at, line in enumerate(lines) if line.startswith(start)]
    return found[-1 if last else 0]


def _commands(lines: list[str]) -> list[str]:
    """Return commands with the lines that continue them, as they stand."""
    found = [""]
    for line in lines:
        found[-1] += line
        if line.endswith("\\"):
            found[-1] += "\n"
        else:
            found.append("")
    return found


def account_of(site: SiteProfile) -> str | None:
    """Return an account that the site takes, None where it asks for none."""
    rules = site.account
    if not rules.required and rules.pattern is None:
        return None
    return next(name for name in ACCOUNTS if re.fullmatch(rules.pattern or ".*", name))


@cache
def profile_of(name: str) -> SiteProfile:
    """Return a packaged profile, whatever the user of this machine has of the same name."""
    return load_site(name, {}).profile


def shapes_of(partition: Partition) -> list[Shape]:
    """Return one GPU, one node and two nodes, as far as the partition takes jobs of that size."""
    most = partition.limits.max_gpus or 10**6
    nodes = {"gpu": 1, "one": 1, "two": 2}
    ranks = {name: min(partition.gpus_per_node or 1, most // count) for name, count in nodes.items()}
    shapes = [Shape(name, count, 1 if name == "gpu" else ranks[name]) for name, count in nodes.items()]
    return [shape for shape in shapes if shape.ranks and _fits(shape, partition)]


@cache
def jobs_of(name: str) -> tuple[tuple[Job, Mapping[str, str]], ...]:
    """Return every job of the tables for a site, each with its files."""
    site = profile_of(name)
    parts = site.partitions.items()
    jobs = [Job(site, part, shape) for part, partition in parts for shape in shapes_of(partition)]
    return tuple((job, job.files()) for job in jobs)


def _fits(shape: Shape, partition: Partition) -> bool:
    limits = partition.limits
    most = min(limit for limit in (partition.nodes, limits.max_nodes, 10**6) if limit is not None)
    return (limits.min_nodes or 1) <= shape.nodes <= most
