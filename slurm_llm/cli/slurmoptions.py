"""Flags of submit and rehearse that go to sbatch: mail and comment as keys of the spec, the start of this job alone."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from slurm_llm.slurm.dependencies import check_dependency, check_moment


def _checked(check: Callable[[str], str]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def checked(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return checked


_OPTIONS = (
    click.option("--mail-type", metavar="LIST", help="When Slurm sends mail: BEGIN,END,FAIL … (`mail.types`)."),
    click.option("--mail-user", metavar="WHO", help="To whom; default: you (`mail.user`)."),
    click.option("--comment", metavar="TEXT", help="A word on the job, for the accounting (`comment`)."),
    click.option(
        "--dependency",
        metavar="WORDS",
        callback=_checked(check_dependency),
        help="Start after other jobs: afterok:123. Of this job only, not of those that it hands over to.",
    ),
    click.option("--begin", metavar="TIME", callback=_checked(check_moment), help="Start no sooner: 16:00, now+1hour."),
    click.option("--hold", is_flag=True, help="Wait in the queue for `scontrol release`."),
)


def slurm_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags; `command` gets them as further `settings`, and as `options` of this submission."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        kinds, user, comment = (given.pop(name) for name in ("mail_type", "mail_user", "comment"))
        types = None if kinds is None else [word.strip() for word in kinds.split(",")]
        keys = (("mail.types", types), ("mail.user", user), ("comment", comment))
        more = tuple(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys if value is not None)
        held = given.pop("hold")
        words = [(name, given.pop(name)) for name in ("dependency", "begin")]
        options = tuple(f"--{name}={value}" for name, value in words if value is not None)
        command(
            **{**given, "settings": (*given["settings"], *more)}, options=(*options, *(("--hold",) if held else ()))
        )

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options
