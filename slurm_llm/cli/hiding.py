"""What is shown of a plan and its files: a site's profile may hold secrets, and they are for the job alone."""

from __future__ import annotations

import json
from collections.abc import Callable


def shown_plan(text: str) -> str:
    """Return a plan's JSON as it may be shown: as it is, unless there is a secret in it."""
    from slurm_llm.observe.redact import Redactor

    value, hide = json.loads(text), Redactor()
    hide.learn_tree(value)
    hidden = hide.tree(value)
    return text if hidden == value else json.dumps(hidden, indent=1) + "\n"


def hiding(plan: str) -> Callable[[str], str]:
    """Return what makes a file of the plan with this JSON fit to be shown: it changes nothing where none is secret."""
    from slurm_llm.observe.redact import Redactor

    value, hide = json.loads(plan), Redactor()
    hide.learn_tree(value)
    return hide.text if hide.tree(value) != value else lambda text: text
