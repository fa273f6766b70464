"""What lint says of the files themselves: those that are not there, and those that no name finds; knows no key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurm_llm.errors import Problem, SiteError
from slurm_llm.sites.find import ENDINGS, OTHER_ENDING, Library, not_found_by_name, site_folders
from slurm_llm.yamlio import read_text


def read_profile(path: Path, environ: Mapping[str, str]) -> str:
    """Return the text of the profile at `path`.

    Raises:
        SiteError: unreadable; a name in place of a file is told, with the file that it is most likely meant for.
    """
    try:
        return read_text(path, SiteError)
    except SiteError:
        meant = None if path.exists() else _meant(path, environ)
        if meant is None:
            raise
        what = "there is no such file, and files are checked, not names"
        raise SiteError(Problem(str(path), what, todo=f"did you mean {meant}?")) from None


def _meant(path: Path, environ: Mapping[str, str]) -> Path | None:
    here = [path.with_name(f"{path.name}{ending}") for ending in ENDINGS]
    named = Library(environ).first(str(path))
    return next((one for one in here if one.is_file()), None if named is None else named.path)


def never_found(path: Path, environ: Mapping[str, str]) -> Problem | None:
    """Return the problem of a file in a folder of profiles that `--site` passes over for its ending."""
    folders = {folder.path.resolve() for folder in site_folders(environ)}
    if path.suffix != OTHER_ENDING or path.resolve().parent not in folders:
        return None
    return not_found_by_name(path)
