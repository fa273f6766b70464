"""The Slurm epilog script for a site: the packaged one, with the site's node-local folders in it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from slurm_llm.assets import sites_dir
from slurm_llm.errors import InputError, Problem
from slurm_llm.sites.profile import SiteProfile

SCRIPT = "epilog.sh"
ALWAYS = "/tmp"
_FOLDERS = f"folders=({ALWAYS})\n"


def local_folders(profile: SiteProfile) -> tuple[str, ...]:
    """Return `storage.local` and `storage.staging` of the site and of its partitions."""
    stores = [profile.for_partition(name).storage for name in profile.partitions]
    return tuple(dict.fromkeys(path for own in stores for path in (own.local, own.staging) if path is not None))


def epilog_script(folders: Sequence[str]) -> str:
    """Return the script that cleans `folders`, and /tmp always.

    Raises:
        InputError: every folder that is no absolute path.
        ValueError: the packaged script has no place for folders.
    """
    wrong = [folder for folder in folders if not folder.startswith("/") or "\n" in folder]
    if wrong:
        raise InputError(Problem("--local", f"'{folder}' is no absolute path", "/scratch/local") for folder in wrong)
    return with_folders((sites_dir() / SCRIPT).read_text(encoding="utf-8"), folders)


def with_folders(text: str, folders: Sequence[str]) -> str:
    """Return the script `text` with /tmp and `folders` as its list of folders.

    Raises:
        ValueError: it has no such list: a script that would pass over the folders must not be installed.
    """
    if text.count(_FOLDERS) != 1:
        raise ValueError(f"{SCRIPT} has no line '{_FOLDERS.strip()}' to put folders into")
    words = dict.fromkeys((ALWAYS, *(folder.rstrip("/") or "/" for folder in folders)))
    return text.replace(_FOLDERS, f"folders=({shlex.join(words)})\n", 1)
