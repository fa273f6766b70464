"""Reading JSON so that no text in it can steer a terminal: names, reasons and log lines come from everywhere."""

import json
import re
from typing import Any

ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?"  # titles, links and other strings
    r"|[ -/]*[0-~]?)"
)
# C0, C1, Unicode's line ends, what turns the direction of text, what is invisible (joiners stay: scripts need them).
CONTROLS = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e"
    r"\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# JSON of ours is ASCII: what it escapes besides line ends, or what is none of ours, may be such a character.
_SUSPECT = re.compile(r"\\[^\"/\\nt]|[^\x20-\x7e\s]")


def strip(text: str) -> str:
    """Return one line without escape sequences and control characters; a tab stays."""
    return CONTROLS.sub("", ESCAPES.sub("", text)).encode("utf-8", "replace").decode()


def loads(text: str) -> Any:
    """Return the value of a JSON text, its texts without what steers a terminal; line ends and tabs stay.

    Raises:
        ValueError: it is no JSON.
    """
    value = json.loads(text)
    # Journals of thousands of ranks are read so: nearly every line of theirs passes here.
    if "\\" not in text and text.isprintable():
        return value
    return _plain(value) if _SUSPECT.search(text) else value


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return "\n".join(map(strip, value.split("\n")))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {strip(name): _plain(item) for name, item in value.items()}
    return value
