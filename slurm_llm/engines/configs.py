"""Reading values out of JSON files of models: what is not there, or of another kind, is as good as missing. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping


def read_object(text: str | None) -> dict[str, object] | None:
    """Return the object that a file's text holds; None for no text, no JSON, or JSON of another kind."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def section(config: Mapping[str, object], name: str) -> dict[str, object]:
    """Return the object called `name`, empty where there is none."""
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def text_at(config: Mapping[str, object], name: str) -> str | None:
    """Return the text called `name`."""
    value = config.get(name)
    return value if isinstance(value, str) else None
