"""Rows of a site check: one finding each, with what the profile says, what is so, and the key to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

ERROR = "error: "
MOST_ODD = 3
"""Ranks or nodes that are named one by one when they differ from the rest."""


class Verdict(str, Enum):
    """How a finding is to be taken."""

    OK = "OK"
    NOTE = "NOTE"  # worth knowing, and no fault of the profile
    UNKNOWN = "UNKNOWN"  # nothing to compare with
    DIFFERS = "DIFFERS"  # the profile says otherwise than the cluster
    WRONG = "WRONG"  # seen on the nodes: the profile, or the cluster, is not as jobs need it
    REFUSED = "REFUSED"  # Slurm does not take the job
    SILENT = "SILENT"  # Slurm does not answer
    UNPLANNED = "UNPLANNED"  # no job can be planned without more from the user


CONTRADICTIONS = frozenset({Verdict.DIFFERS, Verdict.WRONG})
UNANSWERED = frozenset({Verdict.REFUSED, Verdict.SILENT})


@dataclass(frozen=True)
class Row:
    """One finding; `topic` groups rows, `key` is the profile's and `where` its place, `todo` what to do about it."""

    topic: str
    name: str
    verdict: Verdict
    found: str
    profile: str = ""
    key: str = ""
    todo: str = ""
    where: str = ""


def exit_code(rows: Iterable[Row]) -> int:
    """Return 3 when the profile contradicts the cluster, 6 when Slurm refuses or is silent, 4 for no plan, else 0."""
    verdicts = {row.verdict for row in rows}
    if verdicts & CONTRADICTIONS:
        return 3
    if verdicts & UNANSWERED:
        return 6
    return 4 if Verdict.UNPLANNED in verdicts else 0


def is_error(value: object) -> bool:
    """Return whether a fact is the failure to learn it."""
    return isinstance(value, str) and value.startswith(ERROR)


def fold_values(facts: Mapping[int, str], what: str = "rank") -> str:
    """Return `all 8 ranks: x`, or the most frequent value first and the odd ones by name."""
    values = {key: value.removeprefix(ERROR) for key, value in facts.items()}
    counts = Counter(values.values()).most_common()
    if not counts:
        return f"no {what}"
    common, number = counts[0]
    if len(counts) == 1:
        whose = f"all {number} {what}s" if number > 1 else f"{what} {next(iter(values))}"
        return f"{whose}: {common}"
    odd = [key for key, value in sorted(values.items()) if value != common]
    told = [f"{what} {key}: {values[key]}" for key in odd[:MOST_ODD]]
    more = [f"{len(odd) - MOST_ODD} more differ"] if len(odd) > MOST_ODD else []
    return "; ".join([f"{number} of {len(values)} {what}s: {common}", *told, *more])


def names_of(keys: Iterable[int], what: str, total: int) -> str:
    """Return `all 8 ranks`, `rank 3`, `ranks 1, 5` or `ranks 0-6`."""
    own = sorted(keys)
    if len(own) == total and total > 1:
        return f"all {total} {what}s"
    runs: list[list[int]] = []
    for key in own:
        if runs and key == runs[-1][-1] + 1:
            runs[-1].append(key)
        else:
            runs.append([key])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{what}{'s' if len(own) > 1 else ''} {text}"
