"""A plan as a table that a person reads: what Slurm is asked for, then every rank's place."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.table import Table

from slurm_llm.plan.access import describe
from slurm_llm.plan.steps import sbatch_options
from slurm_llm.plan.types import Plan, RankPlan

LABEL = 11
NOT_SHOWN = ("--output=", "--open-mode=", "--job-name=")

_PLACES: tuple[tuple[str, Callable[[RankPlan], str]], ...] = (
    ("rank", lambda one: str(one.rank)),
    ("node", lambda one: str(one.node)),
    ("local", lambda one: str(one.local)),
    ("gpu", lambda one: ",".join(map(str, one.gpus)) or "-"),
    ("role", lambda one: one.role),
)
_WORLD: tuple[tuple[str, str, Callable[[RankPlan], str]], ...] = (
    ("tensor", "tensor_parallel_size", lambda one: str(one.at.tensor)),
    ("context", "context_parallel_size", lambda one: str(one.at.context)),
    ("pipeline", "pipeline_parallel_size", lambda one: str(one.at.pipeline)),
)
_EXPERTS: tuple[tuple[str, str, Callable[[RankPlan], str]], ...] = (
    ("moe_tp", "moe_tensor_parallel_size", lambda one: str(one.at.moe_tensor)),
    ("moe_ep", "moe_expert_parallel_size", lambda one: str(one.at.moe_expert)),
)


def show_plan(plan: Plan, columns: int) -> None:
    """Print the plan; `columns` is the width to fill."""
    console = Console(width=columns, highlight=False, soft_wrap=False, markup=False, emoji=False)
    for label, text in _summary(plan):
        rows = wrap(text, columns - LABEL, break_long_words=False, break_on_hyphens=False)
        for index, row in enumerate(rows):
            console.print(f"{'' if index else label:<{LABEL}}{row}", soft_wrap=True)
    console.print()
    console.print(_table(plan))


def _summary(plan: Plan) -> Sequence[tuple[str, str]]:
    own = plan.allocation
    options = [option for option in sbatch_options(plan, "") if not option.startswith(NOT_SHOWN)]
    spare = f", {own.spare_nodes} spare" if own.spare_nodes else ""
    return [
        ("name", plan.name),
        ("engine", f"{plan.engine}, {plan.launch} launch" + (f", model {plan.model}" if plan.model else "")),
        ("site", plan.site),
        ("ranks", f"{len(plan.ranks)}: {_sizes_text(plan)}"),
        ("nodes", f"{own.nodes} × {own.ranks_per_node} ranks{spare}"),
        *((("image", plan.container.image),) if plan.container is not None and plan.container.image else ()),
        *plan.facts,
        ("access", describe(plan.access)),
        *_beside(plan),
        ("sbatch", " ".join(options)),
    ]


def _beside(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is done before and beside serving."""
    if plan.staging is not None:
        kept = ", kept" if plan.staging.keep else ""
        yield from (("staging", f"{one.source} to {one.target} on each node{kept}") for one in plan.staging.folders)
    if plan.client is not None:
        yield "client", f"{shlex.join(plan.client.command)}, then the end"


def _dimensions(plan: Plan) -> list[tuple[str, str, Callable[[RankPlan], str]]]:
    """Return the dimensions of more than one; without expert parallel, moe_tp is the tensor dimension once more."""
    experts = _EXPERTS if plan.sizes.moe_expert_parallel_size > 1 else ()
    return [one for one in (*_WORLD, *experts) if getattr(plan.sizes, one[1]) > 1]


def _sizes_text(plan: Plan) -> str:
    """Return the sizes that multiply to the ranks, then those of the experts, which do not."""
    known = _dimensions(plan)
    parts = [[f"{one[0]} {getattr(plan.sizes, one[1])}" for one in known if one in kind] for kind in (_WORLD, _EXPERTS)]
    world, experts = (" × ".join(words) for words in parts)
    instances = f"{plan.replicas} instances of " if plan.replicas > 1 else ""
    return instances + (world or "one rank") + (f"; experts {experts}" if experts else "")


def _table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns: list[tuple[str, Callable[[RankPlan], str]]] = list(_PLACES)
    if plan.replicas > 1:
        columns.insert(1, ("instance", lambda one: str(one.instance)))
    columns += [(name, get) for name, _, get in _dimensions(plan)]
    for name, _ in columns:
        table.add_column(name, justify="left" if name == "role" else "right", no_wrap=True)
    for rank in plan.ranks:
        table.add_row(*(get(rank) for _, get in columns))
    return table
