"""Options that several commands share, and what they are turned into; loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from slurm_llm.errors import InputError, Problem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

site_option = click.option(
    "--site", metavar="NAME", help="Site profile: name or file. Default: $SLURM_LLM_SITE, else the one that fits here."
)
set_option = click.option(
    "--set", "settings", multiple=True, metavar="A.B=C", help="Set one field of the spec; may be repeated."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
spec_argument = click.argument("spec", type=click.Path())
run_argument = click.argument("run", required=False)


def spec_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add SPEC, --site and --set."""
    return spec_argument(site_option(set_option(command)))


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Return the ranks of `0,2-5`; None for None.

    Raises:
        InputError: it is no such list.
    """
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isdecimal() and low.isascii()) or (dash and not (high.isdecimal() and high.isascii())):
            raise InputError(Problem("--rank", f"'{text}' is no list of ranks", "numbers and ranges", "such as 0,2-5"))
        first, last = int(low), int(high or low)
        if last < first or last > 1_000_000:
            raise InputError(Problem("--rank", f"'{part}' is no range of ranks", "the lower one first"))
        ranks |= set(range(first, last + 1))
    return frozenset(ranks)
