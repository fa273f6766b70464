"""Arguments of a spec against those that were read in the image itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slurm_llm.engines.types import Known
from slurm_llm.errors import Problem, did_you_mean


def check_present(known: Known | None, what: str, todo: str) -> list[Problem]:
    """Return that the engine `what` is not where the ranks run."""
    if known is None or known.present:
        return []
    return [Problem("container.image", f"{known.place} holds no {what}", todo=todo)]


def check_names(names: Iterable[str], known: Known, who_knows: Callable[[str], str]) -> list[Problem]:
    """Return which of `names` the engine does not know; `who_knows` says of a name which releases do, or nothing."""
    problems = []
    for name in names:
        if name not in known.names:
            version = "" if known.version is None else f" ({known.version})"
            what = f"{known.place}{version} knows no such argument"
            todo = did_you_mean(name, known.names) or "remove it"
            problems.append(Problem(f"engine_args.{name}", what, who_knows(name), todo))
    return problems
