"""Which nodes of a Slurm partition a logical one chooses, by constraint and by type of GPU; values only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurm_llm.sites.profile import Partition
from slurm_llm.slurm.gres import parse_gpus
from slurm_llm.slurm.survey import NodeKind

_OPERATORS = re.compile(r"[&|,\[\]()]")
_COUNT = re.compile(r"\*\d+\Z")
_BEYOND = frozenset("[](),*")
"""What a constraint may hold that says more than which features a node has (sbatch(1), --constraint)."""


def feature_words(constraint: str) -> tuple[str, ...]:
    """Return the features that a constraint names."""
    words = (_COUNT.sub("", word.strip()) for word in _OPERATORS.split(constraint))
    return tuple(dict.fromkeys(word for word in words if word))


def meets(constraint: str, features: Iterable[str]) -> bool:
    """Return whether a node with these features meets a constraint of words with `&` and `|`, of which `&` binds."""
    own = set(features)
    return any(set(feature_words(part)) <= own for part in constraint.split("|"))


def is_plain(constraint: str) -> bool:
    """Return whether `meets` can judge a constraint: counts and brackets speak of the whole job."""
    return not _BEYOND & set(constraint)


def chosen_nodes(own: Partition, kinds: Sequence[NodeKind]) -> int | None:
    """Return how many nodes of `kinds` a job of the logical partition may get; None where all, or nothing tells."""
    typed = own.gpu.slurm_type if own.gpu_request.typed else None
    constraint = own.constraint if own.constraint and is_plain(own.constraint) else None
    if not kinds or (typed is None and constraint is None):
        return None
    fitting = (one for one in kinds if constraint is None or meets(constraint, one.features))
    return sum(one.nodes for one in fitting if typed is None or _has_type(one, typed))


def _has_type(kind: NodeKind, name: str) -> bool:
    try:
        return any(gpu.type == name for gpu in parse_gpus(kind.gres))
    except ValueError:
        return False
