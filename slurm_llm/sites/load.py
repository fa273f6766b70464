"""Finding and loading site profiles by name or path; decides nothing about their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_llm.assets import sites_dir
from slurm_llm.errors import Problem, SiteError, did_you_mean
from slurm_llm.schema import validate
from slurm_llm.sites.profile import SiteProfile
from slurm_llm.yamlio import Document, load_document

PATH_VARIABLE = "SLURM_LLM_SITE_PATH"
SITE_VARIABLE = "SLURM_LLM_SITE"


@dataclass(frozen=True)
class Site:
    """A profile and the file that it came from."""

    profile: SiteProfile
    path: Path


def site_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders that hold profiles, the first one winning.

    The user's own (`~/.config/slurm_llm/sites`), the admin's ($SLURM_LLM_SITE_PATH, `:` between folders), the
    packaged ones.
    """
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    admin = [Path(part) for part in environ.get(PATH_VARIABLE, "").split(":") if part]
    return [config / "slurm_llm" / "sites", *admin, sites_dir()]


def find_sites(environ: Mapping[str, str]) -> dict[str, Path]:
    """Return every known site's name and file."""
    found: dict[str, Path] = {}
    for folder in site_folders(environ):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def load_site(name: str | None, environ: Mapping[str, str]) -> Site:
    """Load the site called `name` (or the file at that path); without a name, $SLURM_LLM_SITE.

    Raises:
        SiteError: no name, an unknown one, or every fault of the file.
    """
    chosen = name or environ.get(SITE_VARIABLE)
    sites = find_sites(environ)
    if not chosen:
        what = f"no site given: add --site NAME or set {SITE_VARIABLE}"
        raise SiteError(Problem("--site", what, "known sites: " + ", ".join(sorted(sites))))
    path = Path(chosen) if "/" in chosen or chosen.endswith(".yaml") else sites.get(chosen)
    if path is None:
        allowed = "known sites: " + ", ".join(sorted(sites))
        hint = did_you_mean(chosen, sites) or "or give the path of a profile"
        raise SiteError(Problem(f"--site {chosen}", f"unknown site '{chosen}'", allowed, hint))
    return Site(parse_site(load_document(path, SiteError)), path)


def parse_site(document: Document) -> SiteProfile:
    """Return the profile that `document` holds.

    Raises:
        SiteError: every fault of the document.
    """
    return validate(SiteProfile, document, SiteError)
