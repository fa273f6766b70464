"""What a job says of itself to people: mail, and a comment for the site's accounting, as options of sbatch."""

from __future__ import annotations

from slurm_llm.errors import Problem
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.slurm.options import option_name
from slurm_llm.spec import JobSpec

FIELDS = {"mail-type": "mail", "mail-user": "mail.user", "comment": "comment"}
"""Option of sbatch → the key of a spec that asks for it."""


def notice_options(spec: JobSpec) -> tuple[str, ...]:
    """Return the options."""
    mail = spec.mail
    named = (
        ("mail-type", ",".join(mail.types) if mail else None),
        ("mail-user", mail.user if mail else None),
        ("comment", spec.comment),
    )
    return tuple(f"--{name}={value}" for name, value in named if value is not None)


def check_notices(spec: JobSpec, site: SiteProfile) -> list[Problem]:
    """Return where an option is asked for twice: Slurm would take the last one and say nothing."""
    own = {option_name(option) for option in notice_options(spec)}
    problems = []
    for whose, options in ((f"site {site.name}", site.sbatch_extra), ("sbatch_extra", spec.sbatch_extra)):
        for option in options:
            name = option_name(option)
            if name in own:
                what = f"{whose} sets --{name} too"
                problems.append(Problem(FIELDS[name], what, todo="give it once: leave it out in one of the two"))
    return problems
