"""Where the packaged templates, site profiles and in-job files lie, in a checkout, an editable install and a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    # A wheel carries the folder inside the package; a checkout and an editable install have it beside the package.
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def templates_dir() -> Path:
    """Return the folder of Jinja2 templates."""
    return _folder("job_templates")


def sites_dir() -> Path:
    """Return the folder of packaged site profiles."""
    return _folder("site_configs")


def agent_files() -> dict[str, str]:
    """Return name → text of the files that a job runs as its agent."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((_PACKAGE / "agent").glob("*.py"))}


def rehearsal_files() -> dict[str, str]:
    """Return name → text of the rehearsal engine's files for a Triton model's version directory."""
    files = sorted((_PACKAGE / "rehearsal").glob("*.py"))
    return {path.name: path.read_text(encoding="utf-8") for path in files if path.name != "__init__.py"}
