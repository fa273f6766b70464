"""Where a load generator runs: a step of the run's own job, a small job of its own, or this machine. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_llm.containers import step_options, wrap
from slurm_llm.errors import Problem
from slurm_llm.observe.endpoint import is_inward
from slurm_llm.observe.facts import Endpoint
from slurm_llm.plan.steps import version_of
from slurm_llm.plan.types import Plan
from slurm_llm.slurm.options import option_name

STEP, JOB, HERE = "step", "job", "here"
MOST_CPUS = 8
"""CPUs that a load generator is given where its node has them: it works in several processes."""
DEFAULT_TIME = "00:30:00"
FIND = """
for name in "$@"; do
    path=$(command -v -- "$name") || continue
    said=$("$path" --version 2>&1) || said=
    printf '%s\\t%s\\t%s\\n' "$name" "$path" "${said//$'\\n'/ }"
    break
done
"""
"""What looks for the first of several programs, and asks it for its version; for `bash -c`."""
_VERSION = re.compile(r"\d+\.\d+[.\w]*")


@dataclass(frozen=True)
class Where:
    """A place as it is asked for. `job_id` is the run's, `node` the one of its first rank; empty lets Slurm choose.

    `time` and `partition` are of a job of its own; `in_image` enters the run's container.
    """

    place: str
    job_id: int = 0
    node: str = ""
    cpus: int | None = None
    time: str = DEFAULT_TIME
    partition: str | None = None
    in_image: bool = False


def place_words(where: Where, plan: Plan, run_dir: str) -> tuple[str, ...]:
    """Return the words before a command that has it run there."""
    container = plan.container if where.in_image else None
    inside = () if container is None else wrap(container, run_dir)
    if where.place == HERE:
        return inside
    options = (
        *(_step(where, plan) if where.place == STEP else _job(where, plan)),
        *("--mpi=none", "--nodes=1", "--ntasks=1", f"--cpus-per-task={_cpus(where, plan)}", "--unbuffered"),
        *("--export=ALL", "--input=none"),
        *(() if container is None else step_options(container, run_dir)),
    )
    skip = {name.lstrip("-") for name in plan.step.skip}
    return ("srun", *(one for one in options if option_name(one) not in skip), *inside)


def _step(where: Where, plan: Plan) -> tuple[str, ...]:
    version = version_of(plan)
    # Before 22.05 `--overlap` shares CPUs only: a step that asks for memory waits for the server's.
    shares_all = version is None or version.overlap_shares_gres
    return (
        *(f"--jobid={where.job_id}", "--overlap"),
        *((f"--nodelist={where.node}",) if where.node else ()),
        *(("--gres=none",) if plan.allocation.gpus.per_node else ()),
        *(() if shares_all else ("--mem=0",)),
    )


def _job(where: Where, plan: Plan) -> tuple[str, ...]:
    own, moved = plan.allocation, where.partition not in (None, plan.allocation.partition)
    named = (
        ("partition", where.partition or own.partition),
        ("account", own.account),
        ("qos", None if moved else own.qos),
        ("reservation", None if moved else own.reservation),
    )
    words = (f"--{name}={value}" for name, value in named if value is not None)
    return (f"--job-name=bench-{plan.slug}"[:64], f"--time={where.time}", *words)


def _cpus(where: Where, plan: Plan) -> int:
    """Return the CPUs to ask for: those of the job on one node, up to MOST_CPUS."""
    own = plan.allocation
    return where.cpus or max(1, min(MOST_CPUS, own.cpus_per_rank * own.ranks_per_node))


def check_place(where: Where, plan: Plan, first: Endpoint) -> list[Problem]:
    """Return why nobody could measure from there."""
    found = []
    if where.in_image and plan.container is None:
        found.append(Problem("--in-image", "the run has no image", todo="leave it out"))
    if where.in_image and where.place == HERE:
        found.append(
            Problem("--in-image", "the run's image is entered on its nodes", "a step, or --job", "or leave it out")
        )
    if where.place != STEP and is_inward(first):
        what = f"the server listens on its node's loopback only ({first.url})"
        found.append(Problem(f"--{where.place}", what, "a step of the run's job", "leave it out"))
    return found


def found_tool(text: str) -> tuple[str, str, str] | None:
    """Return name, path and version out of what FIND printed; the version is empty where the tool does not tell it."""
    for line in reversed(text.splitlines()):
        name, tab, rest = line.partition("\t")
        if tab:
            path, _, said = rest.partition("\t")
            version = _VERSION.search(said)
            return name.rpartition("/")[2], path, version[0] if version else ""
    return None
