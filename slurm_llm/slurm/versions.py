"""Slurm releases and what differs between them (20.11 to 26.05), each difference under a name of its own.

Known from `src/common/slurm_opt.c`, the man pages and changelogs at the tip of each release branch; an early
point release may differ from its tip.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"(?:^|\s)(\d{2})\.(\d{1,2})(?:\.(\d+))?", re.ASCII)


@dataclass(frozen=True, order=True)
class SlurmVersion:
    """A release such as 22.05.8; ordered."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}.{self.patch}"

    def at_least(self, year: int, month: int) -> bool:
        """Tell whether this is the given release series or a later one."""
        return (self.year, self.month) >= (year, month)

    @property
    def overlap_shares_gres(self) -> bool:
        """`--overlap` shares memory and GRES too, since 22.05.

        Before, helper steps also need `--gres=none --mem=0`, else they wait for the main step.
        """
        return self.at_least(22, 5)

    @property
    def exclusive_conflicts_with_oversubscribe(self) -> bool:
        """`--exclusive` with `--oversubscribe` is fatal, since 23.02."""
        return self.at_least(23, 2)

    @property
    def gres_conflicts_with_gpus_per_node(self) -> bool:
        """`--gres=gpu` and `--gpus-per-node` are documented as mutually exclusive, since 26.05."""
        return self.at_least(26, 5)

    @property
    def supports_segment(self) -> bool:
        """`--segment` exists, since 24.05; it needs topology/block."""
        return self.at_least(24, 5)

    @property
    def supports_oom_kill_step(self) -> bool:
        """`--oom-kill-step` exists, since 24.11."""
        return self.at_least(24, 11)


def parse_version(text: str) -> SlurmVersion:
    """Parse what `sbatch --version` prints: `slurm 22.05.8`, `slurm-wlm 23.11.4`, `slurm 24.05.0-0rc1`."""
    match = _VERSION.search(text.strip())
    if not match:
        raise ValueError(f"'{text.strip()}' names no Slurm release: such as 'slurm 22.05.8'")
    return SlurmVersion(int(match[1]), int(match[2]), int(match[3] or 0))
