"""Forms of image names: files, references of registries with `/` or with `#`; it knows no runtime."""

from __future__ import annotations

import re

SIF_FILES = (".sif", ".simg")
SQUASH_FILES = (".sqsh", ".squashfs", ".sqfs")
IMAGE_FILES = (*SIF_FILES, ".img", *SQUASH_FILES)
ARCHIVES = (".tar", ".tar.gz", ".tgz")

_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?|[A-Za-z0-9-]+:\d+|localhost)"
_PATH = r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
_TAIL = r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{32,})?"
_SLASHED = re.compile(rf"(?:(?P<host>{_HOST})/)?(?P<rest>{_PATH}{_TAIL})\Z")
_HASHED = re.compile(rf"(?:[^@#/\s]+@)?(?:{_HOST}#)?{_PATH}{_TAIL}\Z")
_SCHEME = re.compile(r"([a-z][a-z0-9-]*)://")


def is_path(image: str) -> bool:
    """Return whether `image` is an absolute path, or becomes one when `$NAME` and `~` are replaced."""
    # `$oauthtoken@nvcr.io#…` is a user of a registry.
    return image[:1] in ("/", "~") or (image[:1] == "$" and "#" not in image)


def is_relative(image: str) -> bool:
    """Return whether `image` is a path from the folder of submission."""
    return image.startswith(("./", "../"))


def is_file_name(image: str) -> bool:
    """Return whether `image` is the name of an image file without its folder."""
    return not is_path(image) and scheme(image) is None and "#" not in image and image.endswith(IMAGE_FILES)


def folder_like(path: str) -> bool:
    """Return whether a path's last part has no ending, as those of folders; a variable may stand for any."""
    last = path.rpartition("/")[2]
    return not last or not set(".$~") & set(last)


def bare(image: str) -> str:
    """Return a reference without `docker://` or `docker:` before it, as other runtimes write it."""
    return image.removeprefix("docker:").removeprefix("//")


def scheme(image: str) -> str | None:
    """Return what stands before `://`."""
    match = _SCHEME.match(image)
    return None if match is None else match[1]


def is_reference(image: str) -> bool:
    """Return whether `image` can only be a registry's: it has a scheme, a registry, a tag or a digest."""
    first, slash, _ = image.partition("/")
    last = image.rpartition("/")[2]
    host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return scheme(image) is not None or "#" in image or "@sha256:" in image or ":" in last or host


def is_slashed(image: str) -> bool:
    """Return whether `image` is [REGISTRY/]NAME[:TAG][@DIGEST]."""
    return _SLASHED.match(image) is not None


def is_hashed(image: str) -> bool:
    """Return whether `image` is [USER@][REGISTRY#]NAME[:TAG][@DIGEST], and no registry hides in NAME."""
    return _HASHED.match(image) is not None and ("#" in image or _host(image) is None)


def hashed(image: str) -> str:
    """Return [REGISTRY/]NAME with `#` behind the registry; what has none, or is none, as it stands."""
    host = _host(image)
    return image if host is None else f"{host}#{image[len(host) + 1 :]}"


def slashed(image: str) -> str:
    """Return [USER@][REGISTRY#]NAME as [REGISTRY/]NAME."""
    registry, mark, name = image.partition("#")
    return f"{registry.rpartition('@')[2]}/{name}" if mark else image


def _host(image: str) -> str | None:
    match = _SLASHED.match(image)
    return None if match is None else match["host"]
