"""What is known of one family of metrics: the type that the tables of families are made of. Only data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Known:
    """One family: whose it is, what it means (at most 24 characters where it shares a block), in which unit.

    Families of one `block` are shown together, under names without what they have in common. `parts` says what the
    values of the label `category` mean.
    """

    family: str
    owner: str
    meaning: str
    unit: str = ""
    block: str = ""
    category: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """The name within its block."""
        stem = self.block.rstrip("*")
        return self.family.removeprefix(stem) if self.block else ""
