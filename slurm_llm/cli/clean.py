"""Command that removes old run directories: clean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_llm.cli.options import json_option
from slurm_llm.errors import InputError, Problem, SlurmLlmError, did_you_mean
from slurm_llm.observe.text import clean as cleaned
from slurm_llm.slurm.states import RunState
from slurm_llm.surroundings import Surroundings

if TYPE_CHECKING:
    from slurm_llm.cleaning import Findings, Old, Wish

_AGE = re.compile(r"(\d{1,6})([smhdw]?)\Z", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "": 86400}
SHOWN = 40
"""Rows of a dry run; --json has all."""


@click.command()
@click.option("--older", default="30d", show_default=True, help="Still for so long at least: 12h, 30d, 8w; 0 is any.")
@click.option("--state", "states", multiple=True, help="Only runs in this state; may be repeated, or a list a,b.")
@click.option("--keep", type=click.IntRange(0), default=0, help="Keep the newest so many runs, whatever their age.")
@click.option("--root", "roots", multiple=True, type=click.Path(path_type=Path), help="Look for runs here too.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are shown only.")
@json_option
def clean(older: str, states: tuple[str, ...], keep: int, roots: tuple[Path, ...], yes: bool, as_json: bool) -> None:
    """Remove old run directories with their stages' logs: of your list of runs, and of the folder `logs` here.

    Never one whose job may still be there, and never what stages made, such as weights. Runs whose end nobody knows
    (lost, unknown), or that were never submitted (planned), go only where --state names them.
    """
    from slurm_llm import cleaning, removing

    around = Surroundings.of_this_process()
    wish = cleaning.Wish(_age(older), _states(states) or cleaning.USUAL, keep)
    found = cleaning.find_old(wish, _folders(roots, around), around)
    problems = _remove(found, as_json) if yes else []
    forgotten = removing.forget_gone(around) if yes else 0
    if as_json:
        click.echo(_json(found, problems, around.now(), yes))
    else:
        click.echo("\n".join(_lines(found, wish, around.now(), yes)))
        if forgotten > len(found.old):
            click.echo(f"{forgotten - len(found.old)} that were gone already taken out of your list of runs")
    if problems:
        raise SlurmLlmError(problems)


def _folders(roots: Sequence[Path], around: Surroundings) -> list[Path]:
    wrong = [root for root in roots if not (around.cwd / root).is_dir()]
    if wrong:
        raise InputError([Problem("--root", f"{root} is no folder") for root in wrong])
    return [around.cwd / root for root in roots]


def _age(text: str) -> float:
    match = _AGE.match(text.strip())
    if match is None:
        raise InputError(Problem("--older", f"'{text}' is no age", "a number with s, m, h, d or w", "such as 30d"))
    return float(int(match[1]) * _UNITS[match[2]])


def _states(given: tuple[str, ...]) -> frozenset[RunState]:
    from slurm_llm.cleaning import ASKED_FOR, USUAL

    known = {state.value: state for state in (*sorted(USUAL), *ASKED_FOR)}
    words = [word.strip().upper().replace("-", "_") for text in given for word in text.split(",") if word.strip()]
    wrong = [word for word in words if word not in known]
    if wrong:
        allowed = ", ".join(name.lower() for name in known)
        hints = [did_you_mean(word, known).lower() for word in wrong]
        raise InputError([Problem("--state", f"'{w.lower()}'", allowed, h) for w, h in zip(wrong, hints, strict=True)])
    return frozenset(known[word] for word in words)


def _remove(found: Findings, as_json: bool) -> list[Problem]:
    from slurm_llm import removing

    problems: list[Problem] = []
    done = 0
    try:
        for draft in found.drafts:
            problems += removing.remove_folder(draft)
        for old in found.old:
            problems += removing.remove_run(old)
            done += 1
    except KeyboardInterrupt:
        click.echo(f"{done} of {len(found.old)} runs removed", err=True)
        raise
    return problems


def _lines(found: Findings, wish: Wish, now: float, yes: bool) -> Sequence[str]:
    from slurm_llm.cli.text import table

    rows = [
        [one.run_id, one.state.value, _days(now - one.still_since), _size(one.bytes), _name(one)] for one in found.old
    ]
    lines = table([["run", "state", "still", "size", "name"], *rows[:SHOWN]]) if rows else []
    lines += [f"… and {len(rows) - SHOWN} more (--json has all)"] if len(rows) > SHOWN else []
    total = _size(sum(one.bytes for one in found.old))
    runs = f"{len(rows)} run{'' if len(rows) == 1 else 's'}"
    drafts = f" and {len(found.drafts)} half-written" if found.drafts else ""
    lines.append(f"{'removed' if yes else 'would remove'} {runs}{drafts}, {total}")
    lines += [f"  stay: {count} ({_why(reason, wish)})" for reason, count in sorted(found.kept.items())]
    lines += [] if yes or not (rows or found.drafts) else ["nothing is removed yet: say --yes"]
    return lines


def _why(reason: str, wish: Wish) -> str:
    from slurm_llm.cleaning import YOUNG

    return f"wrote something within {_days(wish.older_s)}" if reason == YOUNG else reason


def _name(one: Old) -> str:
    name = cleaned(one.name)
    return name if len(name) <= 24 else f"{name[:23]}…"


def _days(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(0, seconds))}s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _json(found: Findings, problems: Sequence[Problem], now: float, yes: bool) -> str:
    rows = [
        {
            "run_id": one.run_id,
            "name": one.name,
            "state": one.state.value,
            "still_s": round(now - one.still_since),
            "bytes": one.bytes,
            "jobs": list(one.jobs),
            "folders": [str(path) for path in one.folders],
            "removed": yes and not any(path.exists() for path in one.folders),
        }
        for one in found.old
    ]
    value = {"removes": yes, "runs": rows, "drafts": [str(path) for path in found.drafts], "stay": found.kept}
    return json.dumps({**value, "problems": [str(one) for one in problems]}, indent=1, ensure_ascii=False)
