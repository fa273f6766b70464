"""Putting one rank's model repository together: the run's own files, and those that only the image has."""

import json
import os
import shutil
import string
import sys
from typing import Any, Dict, List

CANNOT = 73
"""Exit status when there is no repository: sysexits' EX_CANTCREAT, as rank.sh itself uses it."""


class Unusable(Exception):
    """Why there is no repository, in one line."""


def build(recipe: Dict[str, Any], into: str) -> None:
    """Copy the folder `recipe["own"]` to `into`, then each of `recipe["files"]`.

    Each of those has `path` below `into`, `sources` of which the first that exists is taken, and optionally `replace`
    (pairs of texts), `fill` (values for `${name}`) and `append`. A folder is taken with all that it holds; what the
    run has of its own there stays.

    Raises:
        Unusable: a source, a name or a text that is not there.
        OSError: a file that cannot be read or written.
    """
    if os.path.lexists(into):
        raise Unusable("%s is there already" % into)
    if not os.path.isdir(recipe["own"]):
        raise Unusable("the run's own repository is missing: no folder %s" % recipe["own"])
    _copy_folder(recipe["own"], into)
    for one in recipe["files"]:
        _take(one, into)


def _take(one: Dict[str, Any], into: str) -> None:
    target = os.path.normpath(os.path.join(into, one["path"]))
    if not target.startswith(into.rstrip("/") + "/"):
        raise Unusable("%s is not inside the repository" % one["path"])
    source = _first(one["path"], one["sources"])
    changes = one.get("replace") or one.get("fill") or one.get("append")
    if os.path.isdir(source):
        if changes:
            raise Unusable("%s is a folder, only files can be filled" % source)
        _copy_folder(source, target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not changes:
        shutil.copyfile(source, target)
        return
    with open(source, encoding="utf-8") as stream:
        text = stream.read()
    with open(target, "w", encoding="utf-8") as out:
        out.write(_changed(text, one, source))


def _first(path: str, sources: List[str]) -> str:
    for source in sources:
        if os.path.exists(source):
            return source
    raise Unusable("%s must come from the image: there is no %s where the ranks run" % (path, " nor ".join(sources)))


def _changed(text: str, one: Dict[str, Any], source: str) -> str:
    """Return `text` replaced, filled and appended to, in this order."""
    for old, new in _pairs(one.get("replace")):
        if old not in text:
            raise Unusable("%s does not hold %r, which was to be replaced" % (source, old))
        text = text.replace(old, new)
    fill = one.get("fill") or {}
    unknown = [name for name in fill if "${%s}" % name not in text]
    if unknown:
        raise Unusable("%s has no %s" % (source, ", ".join("${%s}" % name for name in unknown)))
    if fill:
        # As NVIDIA's fill_template.py: what is not named stays.
        text = string.Template(text).safe_substitute(fill)
    return text + (one.get("append") or "")


def _pairs(given: Any) -> List[Any]:
    return list(given.items()) if isinstance(given, dict) else list(given or ())


def _copy_folder(source: str, target: str) -> None:
    """Copy files' contents, links followed; a file that `target` has already stays, modes are this process's own."""
    for folder, folders, names in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        there = os.path.normpath(os.path.join(target, os.path.relpath(folder, source)))
        os.makedirs(there, exist_ok=True)
        for name in names:
            if not os.path.lexists(os.path.join(there, name)):
                shutil.copyfile(os.path.join(folder, name), os.path.join(there, name))


def main(recipe: str, into: str) -> int:
    """Put together what the JSON file `recipe` says; print the reason and return 73 when that cannot be done."""
    try:
        with open(recipe, encoding="utf-8") as stream:
            build(json.load(stream), into)
    except (Unusable, OSError, ValueError, KeyError) as error:
        sys.stderr.write("slurm_llm: no model repository: %s\n" % " ".join(str(error).split()))
        return CANNOT
    return 0
